//! Runs blocking kernel work (netlink, nf_tables, sysctls) on a bounded number of threads, away
//! from the thread that serves requests.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use russet_addr::{Family, IfName, IpNet, Mac, NetworkName};
use russet_attach::nat::{self, Labelled, NatError};
use russet_attach::{
    Adopted, AttachError, Attached, Attachment, CheckError, DetachError, Detachment, Dialect, Mismatch,
    OwnedLink, Owner, Plan, Port, PrecreatedVeth, Reaped, Removal, Shape, Wired, loopback,
};
use russet_cni_spec::CniError;
use russet_linux::probe::{self, Feature};
use russet_linux::{NetNs, sysctl};
use russet_netlink::{Link, NetlinkError, Socket};
use russet_nft::Nft;
use russet_policy::{Guards, Keeper, VerdictReport};
use russet_sync::{BlockingPool, Permit};
use tokio::task::JoinHandle;

use crate::isolation::{Isolation, port_guard, port_of};
use crate::observer::{InterfaceObserver, NoObserver};
use crate::stages::{self, Stage};
use crate::{failure, threads};

/// Requests whose kernel work is in progress at once. More would only queue at the kernel's RTNL
/// mutex and take threads from other work. As many sockets stay open between requests, because
/// opening one costs as much as adding an address to a link.
const CONCURRENT_MAX: u32 = 5;
/// How many of these are reserved for DELs, so that no DEL waits behind a hundred earlier ADDs.
const RESERVED_FOR_DELS: u32 = 1;
/// How long an ADD waits until the list of prefixes that its pod may send from is in force. A
/// commit takes a tenth of a millisecond.
const SOURCES_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs kernel work on route sockets in the node's namespace; each socket serves one request at a
/// time.
#[derive(Clone)]
pub struct Wiring {
    idle: Arc<Mutex<Vec<Socket>>>,
    pool: BlockingPool,
    /// Whether the request is an ADD, which must leave permits to DELs.
    adds: bool,
    observer: Rc<dyn InterfaceObserver>,
    isolation: Isolation,
    /// Whether veths may be created before their addresses are known. False after an interface
    /// failed: where addresses have run out, each precreated veth would have to be deleted again.
    /// `None` without an agent: if a plugin process is killed in between, no record says which veth
    /// it had created.
    precreate_enabled: Option<Rc<Cell<bool>>>,
    /// Interface indexes of links that were doomed here and that [`reap_batch`](Self::reap_batch)
    /// must delete.
    doomed: Rc<RefCell<Vec<u32>>>,
}

/// An interface that could not be wired.
#[derive(Debug)]
pub struct AttachFailure {
    /// The error to report.
    pub error: CniError,
    /// True if nothing of the interface is left. If false, something may still answer for its
    /// addresses.
    pub undone: bool,
}

// === impl AttachFailure ===

impl From<CniError> for AttachFailure {
    fn from(error: CniError) -> Self {
        Self { error, undone: true }
    }
}

impl AttachFailure {
    /// Releases the addresses of the interface by `release`, but only if nothing answers for them
    /// any more. Returns the error, with the reason if they are still held.
    pub async fn give_back<E: fmt::Display>(self, release: impl Future<Output = Result<(), E>>) -> CniError {
        if !self.undone {
            return failure::addresses_held(self.error, "something may still answer for them");
        }
        match stages::during(Stage::Release, release).await {
            Ok(()) => self.error,
            Err(also) => failure::addresses_held(self.error, also),
        }
    }
}

// === impl Wiring ===

impl Default for Wiring {
    fn default() -> Self {
        Self {
            idle: Arc::default(),
            pool: BlockingPool::new(CONCURRENT_MAX, RESERVED_FOR_DELS),
            adds: false,
            observer: Rc::new(NoObserver),
            isolation: Isolation::default(),
            precreate_enabled: None,
            doomed: Rc::default(),
        }
    }
}

impl fmt::Debug for Wiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wiring").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Wiring {
    /// Reports what happens to interfaces to `observer`, and creates veths before their addresses
    /// are known.
    pub fn with_observer_and_precreation(self, observer: Rc<dyn InterfaceObserver>) -> Self {
        Self { observer, precreate_enabled: Some(Rc::new(Cell::new(true))), ..self }
    }

    /// Reports what happens to interfaces to `observer`, for the process of a single request:
    /// nothing is created before its addresses are known.
    pub fn with_observer(self, observer: Rc<dyn InterfaceObserver>) -> Self {
        Self { observer, ..self }
    }

    /// Returns a copy for an ADD whose caller gives up at `limit`; after that time nothing is
    /// wired.
    pub fn for_add(&self, limit: Instant) -> Self {
        Self { isolation: self.isolation.until(limit), adds: true, ..self.clone() }
    }

    /// Uses another keeper of the verdict table, such as one that a test can block.
    pub fn with_verdicts(self, keeper: Keeper) -> Self {
        Self { isolation: Isolation::with_keeper(keeper), ..self }
    }

    /// The keeper of the verdict table.
    pub fn verdicts(&self) -> Keeper {
        self.isolation.keeper().clone()
    }

    /// Makes the verdict table match all interfaces of the node. The caller ensures that no
    /// interface is changed meanwhile except through this type.
    pub async fn reconcile_verdicts(&self) -> Result<VerdictReport, CniError> {
        let isolation = self.isolation.clone();
        let failed =
            |error| CniError::try_again_later("the verdicts of interfaces could not be reconciled", error);
        self.run(move |_| isolation.reconcile().map_err(failed)).await
    }

    pub async fn attach(&self, attachment: Attachment, netns: NetNs) -> Result<Attached, AttachFailure> {
        self.wire(Wired::Routed(attachment), netns, None, false).await
    }

    /// Creates the veth of an interface while its addresses are still being allocated, so that with
    /// [`attach_precreated`](Self::attach_precreated) both together take the time of the slower
    /// one. Does so only in an agent, and only if no request waits for the kernel. Errors are not
    /// reported here: the attachment meets the same obstacle and reports it.
    pub async fn precreate_veth(&self, attachment: &Attachment, netns: &NetNs) -> Option<PrecreatedVeth> {
        self.precreate_enabled.as_ref().filter(|precreate_enabled| precreate_enabled.get())?;
        let plan = Wired::Routed(attachment.clone()).plan().ok()?;
        let netns = netns.try_clone().ok()?;
        let permit = self.pool.try_acquire_unreserved()?;
        let create = move |socket: &mut Socket| {
            russet_attach::precreate_veth(socket, &plan, &netns).unwrap_or_default()
        };
        self.on_thread(permit, move |socket| Ok::<_, CniError>(create(socket))).await.ok()?.ok()?
    }

    /// Wires an interface whose veth may have been created by
    /// [`precreate_veth`](Self::precreate_veth).
    pub async fn attach_precreated(
        &self,
        attachment: Attachment,
        netns: NetNs,
        precreated: Option<PrecreatedVeth>,
    ) -> Result<Attached, AttachFailure> {
        let done = self.wire(Wired::Routed(attachment), netns, precreated.clone(), false).await;
        match &done {
            Ok(_) => self.set_precreate_enabled(true),
            Err(_) => self.delete_precreated(precreated).await,
        }
        done
    }

    fn set_precreate_enabled(&self, enabled: bool) {
        self.precreate_enabled.iter().for_each(|precreate_enabled| precreate_enabled.set(enabled));
    }

    /// Deletes a precreated veth whose interface is not going to be wired.
    pub async fn delete_precreated(&self, precreated: Option<PrecreatedVeth>) {
        let Some(precreated) = precreated else { return };
        self.set_precreate_enabled(false);
        let work =
            move |socket: &mut Socket| russet_attach::delete_precreated(socket, &precreated).map_err(listing);
        if let Err(error) = self.run(work).await {
            tracing::warn!(%error, "a precreated veth could not be deleted; it stays until its DEL or the next start of the agent");
        }
    }

    /// Wires an interface behind a bridge; with `check_required` not where the kernel cannot check what it sends.
    pub async fn attach_port(
        &self,
        port: Port,
        netns: NetNs,
        check_required: bool,
    ) -> Result<Attached, AttachFailure> {
        self.wire(Wired::Port(port), netns, None, check_required).await
    }

    async fn wire(
        &self,
        wired: Wired,
        netns: NetNs,
        precreated: Option<PrecreatedVeth>,
        check_required: bool,
    ) -> Result<Attached, AttachFailure> {
        let plan = wired.plan().map_err(|e| CniError::invalid_config("the interface cannot be", e))?;
        let failed = |error: AttachError| {
            let undone = error.undo.is_empty();
            AttachFailure { error: failure::attach(error), undone }
        };
        let permit = self.permit().await?;
        if self.isolation.is_late() {
            let msg = "the request's time was over before its interface was wired";
            return Err(CniError::try_again_later(msg, "its addresses are released; repeat the ADD").into());
        }
        self.notify(|observer| observer.wiring(&wired, netns.path()))?;
        let isolation = self.isolation.clone();
        let guard = port_guard(&wired);
        let work = move |socket: &mut Socket| {
            let name = guard.as_ref().map(|(name, _)| name.clone());
            if let Some((name, guard)) = guard {
                let supported = isolation.guard_port(&name, guard).map_err(unguarded)?;
                if check_required && !supported {
                    return Err(uncheckable().into());
                }
            }
            let done = isolation.attach(socket, &plan, &netns, precreated).map_err(failed);
            if let (Some(name), Err(AttachFailure { undone: true, .. })) = (name, &done) {
                isolation.forget_port(&name, Removal::Synchronous);
            }
            done
        };
        let done: Result<Attached, AttachFailure> = self.run_at(permit, work).await;
        match &done {
            Ok(attached) => self.notify(|observer| observer.wired(&wired, attached)),
            Err(failed) if failed.undone => self.notify(|observer| observer.unwired(&wired)),
            // The interface may be half wired and already up without its verdict, so the observer
            // keeps it as unfinished.
            Err(_) => {}
        }
        done
    }

    fn notify<T>(&self, call: impl FnOnce(&dyn InterfaceObserver) -> T) -> T {
        let _journal = stages::enter(Stage::Journal);
        call(&*self.observer)
    }

    /// Removes an interface behind `bridge` that another plugin created.
    pub async fn detach_port(&self, netns: NetNs, ifname: IfName, bridge: IfName) -> Result<(), CniError> {
        let failed = |error| CniError::new(failure::WIRING, "the interface could not be removed", error);
        let work = move |socket: &mut Socket| russet_attach::detach_port(socket, &netns, &ifname, &bridge);
        self.run(move |socket| work(socket).map(drop).map_err(failed)).await
    }

    /// Whether a pod has an interface of this name.
    pub async fn has_interface(&self, netns: NetNs, ifname: IfName) -> Result<bool, CniError> {
        let failed = |error| CniError::new(failure::WIRING, "the pod's interfaces cannot be read", error);
        self.run(move |_| russet_attach::has_interface(&netns, &ifname).map_err(failed)).await
    }

    /// Looks up a link of the node; `None` if there is none of that name.
    pub async fn link(&self, name: IfName) -> Result<Option<Link>, CniError> {
        self.run(move |socket| match socket.link_by_name(&name) {
            Ok(link) => Ok(Some(link)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(listing(error)),
        })
        .await
    }

    /// Differences between an interface and what `plan` would create.
    pub async fn check_plan(&self, plan: Plan, netns: NetNs) -> Result<Vec<Mismatch>, CniError> {
        let failed =
            |error: CheckError| CniError::new(failure::WIRING, "the interface cannot be read", error);
        self.run(move |socket| russet_attach::check_plan(&plan, socket, &netns).map_err(failed)).await
    }

    /// Whether the port of a bridge may send what it should and nothing else.
    pub async fn is_port_guarded(&self, port: Port) -> Result<bool, CniError> {
        let Some((name, guard)) = port_guard(&Wired::Port(port)) else { return Ok(true) };
        let isolation = self.isolation.clone();
        let unread = |error| CniError::try_again_later("the guard of a port cannot be read", error);
        self.run(move |_| isolation.is_port_guarded(&name, guard).map_err(unread)).await
    }

    /// Limits a pod's traffic; returns the MAC of the ifb link, if one was created.
    pub async fn shape(&self, shape: Shape, netns: NetNs) -> Result<Option<Mac>, CniError> {
        self.run(move |socket| russet_attach::shape(socket, &netns, &shape).map_err(failure::shape)).await
    }

    /// Differences between a pod's traffic limits and `shape`.
    pub async fn check_shape(&self, shape: Shape, netns: NetNs) -> Result<Vec<String>, CniError> {
        self.run(move |socket| russet_attach::check_shape(socket, &netns, &shape).map_err(failure::shape))
            .await
    }

    /// Removes a pod's traffic limits.
    pub async fn unshape(&self, device: IfName) -> Result<(), CniError> {
        let work = move |socket: &mut Socket| russet_attach::unshape(socket, &device);
        self.run(move |socket| work(socket).map_err(|error| failure::shape(error.into()))).await
    }

    /// The ifb devices that limit pods, with their owners.
    pub async fn shaped(&self) -> Result<Vec<(IfName, Owner)>, CniError> {
        self.run(|socket| russet_attach::shaped(socket).map_err(listing)).await
    }

    /// The address translation entries of pods, by label; empty on a kernel without nf_tables.
    pub async fn labelled(&self) -> Result<Vec<Labelled>, CniError> {
        match self.nat(nat::labelled).await {
            Err(_) if matches!(probe::supports(Feature::NfTables), Ok(false)) => Ok(Vec::new()),
            result => result,
        }
    }

    /// Removes the traffic limits of containers of `network` that are not in `valid`.
    pub async fn collect_shapes(&self, network: NetworkName, valid: Vec<Owner>) -> Result<(), CniError> {
        let work = move |socket: &mut Socket| russet_attach::collect_shapes(socket, &network, &valid);
        self.run(move |socket| work(socket).map_err(failure::shape)).await
    }

    /// Runs work on the node's nf_tables.
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

    /// Like [`nat`](Self::nat), for removals: succeeds on a kernel without nf_tables, which has no
    /// entries of ours, so that pods attached there can be deleted.
    pub async fn forget(
        &self,
        work: impl FnOnce(&mut Nft) -> Result<(), NatError> + Send + 'static,
    ) -> Result<(), CniError> {
        match self.nat(work).await {
            Err(_) if matches!(probe::supports(Feature::NfTables), Ok(false)) => Ok(()),
            result => result,
        }
    }

    /// Runs work that executes the iptables programs.
    pub async fn iptables<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, CniError> + Send + 'static,
    ) -> Result<T, CniError> {
        self.run(move |_| work()).await
    }

    /// Allows packets from 127.0.0.1 of the node to be routed to a pod. The caller installs the
    /// rules that bring the answers back.
    pub async fn route_localnet(&self, pod: IpAddr) -> Result<(), CniError> {
        let failed = move |error: &dyn std::fmt::Display| {
            CniError::new(failure::WIRING, format!("packets from 127.0.0.1 cannot be routed to {pod}"), error)
        };
        self.run(move |socket| {
            let route = socket.route_to(pod).map_err(|error| failed(&error))?;
            let oif = route.oif.ok_or_else(|| failed(&"no link leads there"))?;
            let link = socket.link_by_index(oif).map_err(|error| failed(&error))?;
            let name = format!("net/ipv4/conf/{}/route_localnet", link.name);
            sysctl::write_if_different(&name, "1").map(drop).map_err(|error| failed(&error))
        })
        .await
    }

    /// Sets the prefixes that a pod of Calico's plugin may send from besides its own addresses,
    /// replacing those of an earlier pod with the same host interface name. Where no Felix runs,
    /// `rp_filter` of the host interface is disabled as well, as Felix does.
    pub async fn allow_sources(&self, host_name: IfName, nets: Vec<IpNet>) -> Result<(), CniError> {
        let keeper = self.verdicts();
        let known = |guards: &Guards| match &guards.sources {
            Some(sources) => sources.get(&host_name).map_or(&[][..], Vec::as_slice) == nets,
            None => nets.is_empty(),
        };
        if known(&keeper.guards()) {
            return Ok(());
        }
        let failed = |error: &dyn fmt::Display| {
            let msg = format!("the allowed source prefixes of {host_name} could not be put in force");
            CniError::try_again_later(msg, error)
        };
        if nets.iter().any(|net| Family::of_net(net) == Family::V4) {
            let knob = format!("net/ipv4/conf/{host_name}/rp_filter");
            sysctl::write_if_different(&knob, "0").map_err(|error| failed(&error))?;
        }
        let name = host_name.clone();
        let put = move |_: &mut Socket| {
            Ok::<_, CniError>(keeper.put_sources(name, nets, Instant::now() + SOURCES_TIMEOUT))
        };
        self.run(put).await?.map_err(|error| failed(&error))
    }

    /// Removes an interface, whatever state it is in.
    pub async fn detach(&self, what: Detachment, netns: Option<NetNs>) -> Result<(), CniError> {
        self.notify(|observer| observer.leaving(&what.id));
        let failed =
            |error: DetachError| CniError::new(failure::WIRING, "the interface could not be removed", error);
        let isolation = self.isolation.clone();
        let removal = what.removal;
        let done = self.run(move |socket| {
            let (mut left, mut ports) = (Vec::new(), Vec::new());
            let mut leaving = |link: &OwnedLink| {
                left.extend(isolation.leave(link, what.removal));
                ports.extend(port_of(link));
            };
            let done = russet_attach::detach_with(socket, &what, netns.as_ref(), &mut leaving);
            if done.is_ok() {
                ports.iter().for_each(|port| isolation.forget_port(port, what.removal));
            }
            left.extend(ports);
            if let Some(name) = what.host_name.as_ref().filter(|name| !left.contains(name)) {
                isolation.leave_name(socket, name, what.removal);
            }
            Ok::<_, CniError>(done)
        });
        match done.await? {
            Ok(detached) => self.note_doomed(removal, &detached.host_ifindexes),
            Err(error) => {
                self.note_doomed(removal, &error.detached.host_ifindexes);
                return Err(failed(error));
            }
        }
        Ok(())
    }

    fn note_doomed(&self, removal: Removal, links: &[u32]) {
        if removal == Removal::Batched {
            self.doomed.borrow_mut().extend(links);
        }
    }

    /// Removes an interface that [`list`](Self::list) returned.
    pub async fn detach_owned(&self, link: OwnedLink, removal: Removal) -> Result<(), CniError> {
        if let Some(id) = link.owner.id() {
            self.notify(|observer| observer.leaving(id));
        }
        let isolation = self.isolation.clone();
        let ifindex = link.ifindex;
        self.run(move |socket| {
            let mut leaving = |link: &OwnedLink| _ = isolation.leave(link, removal);
            let done = russet_attach::detach_owned_with(socket, &link, removal, &mut leaving);
            if let (Ok(_), Some(port)) = (&done, port_of(&link)) {
                isolation.forget_port(&port, removal);
            }
            done.map(drop).map_err(listing)
        })
        .await?;
        self.note_doomed(removal, &[ifindex]);
        Ok(())
    }

    /// Differences between an interface and `attachment`.
    pub async fn check(&self, attachment: Attachment, netns: NetNs) -> Result<Vec<Mismatch>, CniError> {
        let failed =
            |error: CheckError| CniError::new(failure::WIRING, "the interface cannot be read", error);
        let isolation = self.isolation.clone();
        self.run(move |socket| {
            let mut found = russet_attach::check(&attachment, socket, &netns).map_err(failed)?;
            if attachment.dialect == Dialect::Native {
                let verdict = isolation.check(&attachment.host_name);
                found
                    .extend(verdict.map_err(|e| CniError::try_again_later("the verdict cannot be read", e))?);
            }
            Ok(found)
        })
        .await
    }

    /// All completely wired interfaces of the node, including those that other plugins wired.
    pub async fn adopt(&self) -> Result<Vec<Adopted>, CniError> {
        self.run(|socket| russet_attach::adopt(socket).map_err(listing)).await
    }

    /// All interfaces of the node that Russet owns.
    pub async fn list(&self) -> Result<Vec<OwnedLink>, CniError> {
        self.run(|socket| russet_attach::list(socket).map_err(listing)).await
    }

    /// Deletes the links that deferred removals left.
    pub async fn reap(&self) -> Result<Reaped, CniError> {
        self.run(|socket| russet_attach::reap(socket).map_err(listing)).await
    }

    /// Deletes one doomed link, so that other work comes in between.
    pub async fn reap_one(&self) -> Result<Reaped, CniError> {
        self.run(|socket| russet_attach::reap_one(socket).map_err(listing)).await
    }

    /// Ensures that links doomed here by [`Removal::Batched`] are gone: deletes them together with
    /// all other doomed links of the node, unless another process has done so. The caller holds no
    /// lock except the node's, because a deletion takes the kernel 20 ms, for one link as for many.
    pub async fn reap_batch(&self) -> Result<Reaped, CniError> {
        let own = self.doomed.take();
        if own.is_empty() {
            return Ok(Reaped::default());
        }
        self.run(move |socket| russet_attach::reap_unless_gone(socket, &own).map_err(listing)).await
    }

    /// Deletes links without an owner that killed ADDs left. The caller ensures that no ADD is in
    /// progress.
    pub async fn reap_precreated(&self) -> Result<usize, CniError> {
        self.run(|socket| russet_attach::reap_precreated(socket).map_err(listing)).await
    }

    pub async fn loopback_up(&self, netns: NetNs) -> Result<(), CniError> {
        let failed = |error| CniError::new(failure::WIRING, "lo cannot be raised", error);
        self.run(move |_| loopback::up(&netns).map_err(failed)).await
    }

    pub async fn loopback_is_up(&self, netns: NetNs) -> Result<bool, CniError> {
        let failed = |error| CniError::new(failure::WIRING, "the state of lo cannot be read", error);
        self.run(move |_| loopback::is_up(&netns).map_err(failed)).await
    }

    async fn run<T: Send + 'static, E: From<CniError> + Send + 'static>(
        &self,
        work: impl FnOnce(&mut Socket) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let permit = self.permit().await?;
        self.run_at(permit, work).await
    }

    async fn permit(&self) -> Result<Permit, CniError> {
        stages::during(Stage::Place, threads::acquire(&self.pool, self.adds)).await
    }

    async fn run_at<T: Send + 'static, E: From<CniError> + Send + 'static>(
        &self,
        permit: Permit,
        work: impl FnOnce(&mut Socket) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let done = stages::during(Stage::Wiring, self.on_thread(permit, work)).await;
        done.unwrap_or_else(|error| Err(stopped(&error).into()))
    }

    fn on_thread<T: Send + 'static, E: From<CniError> + Send + 'static>(
        &self,
        permit: Permit,
        work: impl FnOnce(&mut Socket) -> Result<T, E> + Send + 'static,
    ) -> JoinHandle<Result<T, E>> {
        let idle = Arc::clone(&self.idle);
        let timeline = stages::current();
        permit.spawn(move || {
            let taken = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut socket = match taken {
                Some(socket) => socket,
                None => {
                    Socket::route().map_err(|e| CniError::new(failure::WIRING, "open a netlink socket", e))?
                }
            };
            let done = stages::with_timeline(timeline, || work(&mut socket));
            let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < CONCURRENT_MAX as usize {
                idle.push(socket);
            }
            done
        })
    }
}

fn unguarded(error: russet_policy::KeeperError) -> CniError {
    CniError::try_again_later("what the pod's port of the bridge may send could not be put in force", error)
}

fn uncheckable() -> CniError {
    let msg = "bridge: sourceGuard or macspoofchk cannot be enforced on this kernel";
    CniError::new(
        failure::WIRING,
        msg,
        "CONFIG_NF_TABLES_BRIDGE is missing: leave these keys out, or use another kernel",
    )
}

fn stopped(error: &dyn fmt::Display) -> CniError {
    CniError::internal("the kernel work was interrupted", error)
}

fn listing(error: NetlinkError) -> CniError {
    CniError::new(failure::WIRING, "the node's interfaces cannot be listed", error)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use russet_addr::EndpointId;

    use super::*;

    /// Work that lasts until the sender is dropped.
    fn hanging() -> (mpsc::Sender<()>, impl Fn(&mut Socket) -> Result<(), CniError> + Clone + Send + 'static)
    {
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let work = move |_: &mut Socket| {
            let _ = hang.lock().unwrap_or_else(PoisonError::into_inner).recv();
            Ok(())
        };
        (release, work)
    }

    fn on_threads<T>(count: u32, body: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().max_blocking_threads(count as usize).build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, body)
    }

    const TEST_TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn hanging_kernel_work_occupies_a_bounded_number_of_threads() {
        let threads = CONCURRENT_MAX + 1;
        let wiring = Wiring::default();
        let (release, work) = hanging();
        let hang = |_| {
            let (wiring, work) = (wiring.clone(), work.clone());
            tokio::task::spawn_local(async move { wiring.run(work).await })
        };
        on_threads(threads, async {
            let all: Vec<_> = (0..threads).map(hang).collect();
            tokio::task::yield_now().await;
            assert!(wiring.pool.try_acquire_unreserved().is_none());
            let other = tokio::time::timeout(TEST_TIMEOUT, tokio::task::spawn_blocking(|| ())).await;
            drop(release);
            for one in all {
                one.await.unwrap().unwrap();
            }
            assert!(other.is_ok(), "no thread is left for others");
        });
    }

    #[test]
    fn hanging_adds_leave_a_permit_to_dels() {
        let wiring = Wiring::default();
        let (release, work) = hanging();
        let add = wiring.for_add(Instant::now() + TEST_TIMEOUT);
        let hang = |_| {
            let (add, work) = (add.clone(), work.clone());
            tokio::task::spawn_local(async move { add.run(work).await })
        };
        on_threads(CONCURRENT_MAX, async {
            let adds: Vec<_> = (0..2 * CONCURRENT_MAX).map(hang).collect();
            tokio::task::yield_now().await;
            let del = tokio::time::timeout(TEST_TIMEOUT, wiring.run(|_| Ok::<_, CniError>(()))).await;
            drop(release);
            for add in adds {
                add.await.unwrap().unwrap();
            }
            assert!(del.is_ok(), "a DEL waits behind ADDs");
        });
    }

    /// An observer that refuses all interfaces with error code 77.
    struct Refuses;

    impl InterfaceObserver for Refuses {
        fn wiring(&self, _: &Wired, _: &std::path::Path) -> Result<(), CniError> {
            Err(CniError::new(77, "refused", ""))
        }

        fn wired(&self, _: &Wired, _: &Attached) {}

        fn unwired(&self, _: &Wired) {}

        fn leaving(&self, _: &EndpointId) {}
    }

    #[test]
    fn an_add_past_its_deadline_is_not_wired_and_not_announced_to_the_observer() {
        let wiring = Wiring::default().with_observer_and_precreation(Rc::new(Refuses));
        let mut attachment = Attachment::new(Dialect::Native, "net/c1/eth0".parse().unwrap(), None);
        attachment.addresses = vec!["10.1.0.7".parse().unwrap()];
        for (time_left, code) in [(Duration::ZERO, 11), (TEST_TIMEOUT, 77)] {
            let add = wiring.for_add(Instant::now() + time_left);
            let netns = NetNs::current().unwrap();
            let failed = on_threads(1, add.attach(attachment.clone(), netns)).unwrap_err();
            assert_eq!((failed.error.code, failed.undone), (code, true), "{}", failed.error);
        }
    }

    #[test]
    #[ignore = "kernel: root"]
    fn precreation_stops_after_a_failed_add_until_another_add_succeeds() {
        russet_testkit::in_new_netns(|| {
            let without_agent = Wiring::default();
            let wiring = without_agent.clone().with_observer_and_precreation(Rc::new(NoObserver));
            let pod = NetNs::create_unnamed().unwrap();
            let of = |ifname: &str| {
                Attachment::new(Dialect::Native, format!("net/c1/{ifname}").parse().unwrap(), None)
            };
            on_threads(2, async {
                assert_eq!(without_agent.precreate_veth(&of("eth0"), &pod).await, None, "there is no agent");
                let precreated = wiring.precreate_veth(&of("eth0"), &pod).await;
                assert!(precreated.is_some());
                wiring.delete_precreated(precreated).await;
                assert_eq!(wiring.precreate_veth(&of("eth0"), &pod).await, None);
                let attachment = Attachment { addresses: vec!["10.1.0.7".parse().unwrap()], ..of("eth0") };
                wiring.attach_precreated(attachment, pod.try_clone().unwrap(), None).await.unwrap();
                assert!(wiring.precreate_veth(&of("eth1"), &pod).await.is_some());
            });
        });
    }
}
