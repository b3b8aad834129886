//! Blocking work on the kernel, away from the thread that serves requests.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use russet_addr::{IfName, Mac, NetworkName};
use russet_attach::nat::NatError;
use russet_attach::{
    AttachError, Attached, Attachment, CheckError, DetachError, Detachment, Executor, Mismatch, OwnedLink,
    Owner, Plan, Port, Reaped, Removal, Shape, loopback,
};
use russet_cni_spec::CniError;
use russet_linux::probe::{self, Feature};
use russet_linux::{NetNs, sysctl};
use russet_netlink::{Link, NetlinkError, Socket};
use russet_nft::Nft;
use tokio::sync::Semaphore;

use crate::{bandwidth, failure};

/// Requests whose work on the kernel is under way at once; more would only queue at its RTNL mutex, and take threads from everything else. As many
/// sockets stay open between requests: opening one costs as much as creating a link's address.
const AT_ONCE_MAX: usize = 4;

/// Route sockets of the node's namespace, used by one request at a time each.
#[derive(Debug, Clone)]
pub struct Wiring {
    idle: Arc<Mutex<Vec<Socket>>>,
    places: Arc<Semaphore>,
}

/// An interface that could not be wired.
#[derive(Debug)]
pub struct Unattached {
    /// Why.
    pub error: CniError,
    /// Nothing of it is left; otherwise something may still answer for its addresses.
    pub undone: bool,
}

// === impl Unattached ===

impl From<CniError> for Unattached {
    fn from(error: CniError) -> Self {
        Self { error, undone: true }
    }
}

// === impl Wiring ===

impl Default for Wiring {
    fn default() -> Self {
        Self { idle: Arc::default(), places: Arc::new(Semaphore::new(AT_ONCE_MAX)) }
    }
}

impl Wiring {
    /// Wires an interface.
    pub async fn attach(&self, attachment: Attachment, netns: NetNs) -> Result<Attached, Unattached> {
        let failed = |error: AttachError| {
            let undone = error.undo.is_empty();
            Unattached { error: failure::attach(error), undone }
        };
        self.run(move |socket| {
            let plan = russet_attach::plan(&attachment)
                .map_err(|e| CniError::invalid_config("the interface cannot be", e))?;
            Executor::new(socket).attach(&plan, &netns).map_err(failed)
        })
        .await
    }

    /// Wires an interface behind a bridge.
    pub async fn attach_port(&self, port: Port, netns: NetNs) -> Result<Attached, Unattached> {
        let failed = |error: AttachError| {
            let undone = error.undo.is_empty();
            Unattached { error: failure::attach(error), undone }
        };
        self.run(move |socket| {
            let plan = russet_attach::plan_port(&port)
                .map_err(|e| CniError::invalid_config("the interface cannot be", e))?;
            Executor::new(socket).attach(&plan, &netns).map_err(failed)
        })
        .await
    }

    /// Removes an interface behind `bridge` that another plugin made.
    pub async fn detach_port(&self, netns: NetNs, ifname: IfName, bridge: IfName) -> Result<(), CniError> {
        let failed = |error| CniError::new(failure::WIRING, "the interface could not be removed", error);
        let work = move |socket: &mut Socket| russet_attach::detach_port(socket, &netns, &ifname, &bridge);
        self.run(move |socket| work(socket).map(drop).map_err(failed)).await
    }

    /// Whether a pod has an interface of this name.
    pub async fn has_interface(&self, netns: NetNs, ifname: IfName) -> Result<bool, CniError> {
        let failed =
            |error| CniError::new(failure::WIRING, "the pod's interfaces cannot be looked at", error);
        self.run(move |_| russet_attach::has_interface(&netns, &ifname).map_err(failed)).await
    }

    /// A link of the node.
    pub async fn link(&self, name: IfName) -> Result<Option<Link>, CniError> {
        self.run(move |socket| match socket.link_by_name(&name) {
            Ok(link) => Ok(Some(link)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(listing(error)),
        })
        .await
    }

    /// How an interface differs from what a plan makes.
    pub async fn check_plan(&self, plan: Plan, netns: NetNs) -> Result<Vec<Mismatch>, CniError> {
        let failed =
            |error: CheckError| CniError::new(failure::WIRING, "the interface cannot be looked at", error);
        self.run(move |socket| russet_attach::check_plan(&plan, socket, &netns).map_err(failed)).await
    }

    /// Limits a pod's traffic; gives the MAC of the link that was made for it, if one was.
    pub async fn shape(&self, shape: Shape, netns: NetNs) -> Result<Option<Mac>, CniError> {
        self.run(move |socket| russet_attach::shape(socket, &netns, &shape).map_err(bandwidth::refused)).await
    }

    /// How a pod's limits differ from what they should be.
    pub async fn check_shape(&self, shape: Shape, netns: NetNs) -> Result<Vec<String>, CniError> {
        self.run(move |socket| russet_attach::check_shape(socket, &netns, &shape).map_err(bandwidth::refused))
            .await
    }

    /// Takes a pod's limits back.
    pub async fn unshape(&self, device: IfName) -> Result<(), CniError> {
        let work = move |socket: &mut Socket| russet_attach::unshape(socket, &device);
        self.run(move |socket| work(socket).map_err(|error| bandwidth::refused(error.into()))).await
    }

    /// Takes back the limits of a network's containers that are not valid.
    pub async fn collect_shapes(&self, network: NetworkName, valid: Vec<Owner>) -> Result<(), CniError> {
        let work = move |socket: &mut Socket| russet_attach::collect_shapes(socket, &network, &valid);
        self.run(move |socket| work(socket).map_err(|error| bandwidth::refused(error.into()))).await
    }

    /// Work on the node's nf_tables.
    pub async fn nat<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Nft) -> Result<T, NatError> + Send + 'static,
    ) -> Result<T, CniError> {
        self.run(move |_| {
            let mut nft = Nft::open().map_err(|error| failure::nat(error.into()))?;
            work(&mut nft).map_err(failure::nat)
        })
        .await
    }

    /// [`nat`](Self::nat) for what takes something of ours away: a kernel without nf_tables has nothing of ours, and what was attached there must be
    /// deletable there.
    pub async fn forget(
        &self,
        work: impl FnOnce(&mut Nft) -> Result<(), NatError> + Send + 'static,
    ) -> Result<(), CniError> {
        match self.nat(work).await {
            Err(_) if matches!(probe::supports(Feature::NfTables), Ok(false)) => Ok(()),
            result => result,
        }
    }

    /// Lets the node's own packets from 127.0.0.1 go to a pod, whose answers the caller sees to.
    pub async fn route_localnet(&self, pod: IpAddr) -> Result<(), CniError> {
        let failed = move |error: &dyn std::fmt::Display| {
            CniError::new(failure::WIRING, format!("the way to {pod} could not be prepared"), error)
        };
        self.run(move |socket| {
            let way = socket.way_to(pod).map_err(|error| failed(&error))?;
            let oif = way.oif.ok_or_else(|| failed(&"no link leads there"))?;
            let link = socket.link_by_index(oif).map_err(|error| failed(&error))?;
            let name = format!("net/ipv4/conf/{}/route_localnet", link.name);
            sysctl::write_if_different(&name, "1").map(drop).map_err(|error| failed(&error))
        })
        .await
    }

    /// Takes an interface down, from whatever state.
    pub async fn detach(&self, what: Detachment, netns: Option<NetNs>) -> Result<(), CniError> {
        let failed =
            |error: DetachError| CniError::new(failure::WIRING, "the interface could not be removed", error);
        self.run(move |socket| russet_attach::detach(socket, &what, netns.as_ref()).map(drop).map_err(failed))
            .await
    }

    /// Takes an interface down that [`list`](Self::list) found.
    pub async fn detach_owned(&self, link: OwnedLink, removal: Removal) -> Result<(), CniError> {
        self.run(move |socket| russet_attach::detach_owned(socket, &link, removal).map(drop).map_err(listing))
            .await
    }

    /// How an interface differs from what it should be.
    pub async fn check(&self, attachment: Attachment, netns: NetNs) -> Result<Vec<Mismatch>, CniError> {
        let failed =
            |error: CheckError| CniError::new(failure::WIRING, "the interface cannot be looked at", error);
        self.run(move |socket| russet_attach::check(&attachment, socket, &netns).map_err(failed)).await
    }

    /// Every interface of the node that is ours.
    pub async fn list(&self) -> Result<Vec<OwnedLink>, CniError> {
        self.run(|socket| russet_attach::list(socket).map_err(listing)).await
    }

    /// Deletes what deferred removals left.
    pub async fn reap(&self) -> Result<Reaped, CniError> {
        self.run(|socket| russet_attach::reap(socket).map_err(listing)).await
    }

    /// Deletes what killed ADDs left without an owner; no ADD may be under way.
    pub async fn reap_newborn(&self) -> Result<usize, CniError> {
        self.run(|socket| russet_attach::reap_newborn(socket).map_err(listing)).await
    }

    /// Raises a pod's loopback.
    pub async fn loopback_up(&self, netns: NetNs) -> Result<(), CniError> {
        let failed = |error| CniError::new(failure::WIRING, "lo cannot be raised", error);
        self.run(move |_| loopback::up(&netns).map_err(failed)).await
    }

    /// Whether a pod's loopback is up.
    pub async fn loopback_is_up(&self, netns: NetNs) -> Result<bool, CniError> {
        let failed = |error| CniError::new(failure::WIRING, "lo cannot be looked at", error);
        self.run(move |_| loopback::is_up(&netns).map_err(failed)).await
    }

    async fn run<T: Send + 'static, E: From<CniError> + Send + 'static>(
        &self,
        work: impl FnOnce(&mut Socket) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let stopped =
            |error: &dyn std::fmt::Display| E::from(CniError::internal("the wiring stopped half-way", error));
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|error| stopped(&error))?;
        let idle = Arc::clone(&self.idle);
        let done = tokio::task::spawn_blocking(move || {
            // Until the work has ended, whoever still waits for it.
            let _place = place;
            let taken = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut socket = match taken {
                Some(socket) => socket,
                None => {
                    Socket::route().map_err(|e| CniError::new(failure::WIRING, "open a netlink socket", e))?
                }
            };
            let done = work(&mut socket);
            let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < AT_ONCE_MAX {
                idle.push(socket);
            }
            done
        });
        done.await.unwrap_or_else(|error| Err(stopped(&error)))
    }
}

fn listing(error: NetlinkError) -> CniError {
    CniError::new(failure::WIRING, "the node's interfaces cannot be listed", error)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn wiring_that_hangs_takes_a_few_threads_and_leaves_the_rest_to_others() {
        let threads = AT_ONCE_MAX + 1;
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().max_blocking_threads(threads).build().unwrap();
        let wiring = Wiring::default();
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let hanging = |_| {
            let (wiring, hang) = (wiring.clone(), Arc::clone(&hang));
            async move {
                // Until the other end is dropped.
                let work = move |_: &mut Socket| {
                    let _ = hang.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    Ok::<_, CniError>(())
                };
                wiring.run(work).await
            }
        };
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, async {
            let all: Vec<_> = (0..threads).map(hanging).map(tokio::task::spawn_local).collect();
            tokio::task::yield_now().await;
            assert_eq!(wiring.places.available_permits(), 0);
            let other = tokio::task::spawn_blocking(|| ());
            let other = tokio::time::timeout(Duration::from_secs(10), other).await;
            drop(release);
            for one in all {
                one.await.unwrap().unwrap();
            }
            assert!(other.is_ok(), "no thread is left for others");
        });
    }
}
