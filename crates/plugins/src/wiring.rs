//! Blocking work on the kernel, away from the thread that serves requests.

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
    Newborn, OwnedLink, Owner, Plan, Port, Reaped, Removal, Shape, Wired, loopback,
};
use russet_cni_spec::CniError;
use russet_linux::probe::{self, Feature};
use russet_linux::{NetNs, sysctl};
use russet_netlink::{Link, NetlinkError, Socket};
use russet_nft::Nft;
use russet_policy::{Guards, Keeper, Report};
use tokio::task::JoinHandle;

use crate::isolation::Isolation;
use crate::ledger::{Ledger, NoLedger};
use crate::stages::{self, Stage};
use crate::threads::{Place, Places};
use crate::{bandwidth, failure};

/// Requests whose work on the kernel is under way at once; more would only queue at its RTNL mutex, and take threads from everything else. As many
/// sockets stay open between requests: opening one costs as much as creating a link's address.
const AT_ONCE_MAX: usize = 5;
/// Of these, what is left to DELs, so that none waits behind a hundred ADDs that came before it.
const DELS_MIN: usize = 1;
/// How long an ADD waits until what its pod may send from is in force; a commit takes a tenth of a millisecond.
const SOURCES_TIMEOUT: Duration = Duration::from_secs(2);

/// Route sockets of the node's namespace, used by one request at a time each.
#[derive(Clone)]
pub struct Wiring {
    idle: Arc<Mutex<Vec<Socket>>>,
    places: Places,
    /// Whether it is an ADD that works this way.
    adds: bool,
    ledger: Rc<dyn Ledger>,
    isolation: Isolation,
    /// Whether the last interface that was born ahead came to be: where addresses have run out, each would have to be deleted again. None without a ledger: a
    /// plugin that is killed in between has nobody who knows what it was at.
    hopeful: Option<Rc<Cell<bool>>>,
    /// Indexes of the links that were doomed here and that [`reap_batch`](Self::reap_batch) has to see gone.
    doomed: Rc<RefCell<Vec<u32>>>,
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
        Self {
            idle: Arc::default(),
            places: Places::new(AT_ONCE_MAX, DELS_MIN),
            adds: false,
            ledger: Rc::new(NoLedger),
            isolation: Isolation::default(),
            hopeful: None,
            doomed: Rc::default(),
        }
    }
}

impl fmt::Debug for Wiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wiring").field("places", &self.places).finish_non_exhaustive()
    }
}

impl Wiring {
    /// The same way, with somebody who is told what becomes of interfaces.
    pub fn told(self, ledger: Rc<dyn Ledger>) -> Self {
        Self { ledger, hopeful: Some(Rc::new(Cell::new(true))), ..self }
    }

    /// The same with a ledger, for the process of one request: nothing is created before its addresses are known.
    pub fn with_ledger(self, ledger: Rc<dyn Ledger>) -> Self {
        Self { ledger, ..self }
    }

    /// The same way for an ADD whose caller gives up then: after that nothing is wired.
    pub fn of_add(&self, limit: Instant) -> Self {
        Self { isolation: self.isolation.until(limit), adds: true, ..self.clone() }
    }

    /// The same way past another gate.
    #[cfg(test)]
    pub(crate) fn isolated(self, isolation: Isolation) -> Self {
        Self { isolation, ..self }
    }

    /// Who works on the verdicts of interfaces.
    pub fn verdicts(&self) -> Keeper {
        self.isolation.keeper().clone()
    }

    /// Makes the verdicts right for all interfaces that there are; nobody else may be at work on one but through this.
    pub async fn reconcile_verdicts(&self) -> Result<Report, CniError> {
        let isolation = self.isolation.clone();
        let failed =
            |error| CniError::try_again_later("the verdicts of interfaces could not be put right", error);
        self.run(move |_| isolation.reconcile().map_err(failed)).await
    }

    /// Wires an interface.
    pub async fn attach(&self, attachment: Attachment, netns: NetNs) -> Result<Attached, Unattached> {
        self.wire(Wired::Routed(attachment), netns, None).await
    }

    /// Creates the veth of an interface whose addresses are still being looked for, in an agent and if nobody waits for the kernel: with [`attach_newborn`](Self::attach_newborn)
    /// that takes the time of the longer of the two. Whatever keeps it from being created now, an attachment meets and tells.
    pub async fn bear(&self, attachment: &Attachment, netns: &NetNs) -> Option<Newborn> {
        self.hopeful.as_ref().filter(|hopeful| hopeful.get())?;
        let plan = Wired::Routed(attachment.clone()).plan().ok()?;
        let netns = netns.try_clone().ok()?;
        let place = self.places.take_free()?;
        let born = move |socket: &mut Socket| russet_attach::bear(socket, &plan, &netns).unwrap_or_default();
        self.on_thread(place, move |socket| Ok::<_, CniError>(born(socket))).await.ok()?.ok()?
    }

    /// Wires an interface that may have been born.
    pub async fn attach_newborn(
        &self,
        attachment: Attachment,
        netns: NetNs,
        newborn: Option<Newborn>,
    ) -> Result<Attached, Unattached> {
        let done = self.wire(Wired::Routed(attachment), netns, newborn.clone()).await;
        match &done {
            Ok(_) => self.hope(true),
            Err(_) => self.forsake(newborn).await,
        }
        done
    }

    fn hope(&self, came: bool) {
        self.hopeful.iter().for_each(|hopeful| hopeful.set(came));
    }

    /// Deletes what was born for an interface that is not to be.
    pub async fn forsake(&self, newborn: Option<Newborn>) {
        let Some(newborn) = newborn else { return };
        self.hope(false);
        let work = move |socket: &mut Socket| russet_attach::forsake(socket, &newborn).map_err(listing);
        if let Err(error) = self.run(work).await {
            tracing::warn!(%error, "a veth that was created too early stays until its DEL or the agent's next start");
        }
    }

    /// Wires an interface behind a bridge.
    pub async fn attach_port(&self, port: Port, netns: NetNs) -> Result<Attached, Unattached> {
        self.wire(Wired::Port(port), netns, None).await
    }

    async fn wire(
        &self,
        wired: Wired,
        netns: NetNs,
        newborn: Option<Newborn>,
    ) -> Result<Attached, Unattached> {
        let plan = wired.plan().map_err(|e| CniError::invalid_config("the interface cannot be", e))?;
        let failed = |error: AttachError| {
            let undone = error.undo.is_empty();
            Unattached { error: failure::attach(error), undone }
        };
        let place = self.place().await?;
        if self.isolation.is_late() {
            let msg = "the request's time was over before its interface was wired";
            return Err(CniError::try_again_later(msg, "its addresses are given back").into());
        }
        self.tell(|ledger| ledger.wiring(&wired, netns.path()))?;
        let isolation = self.isolation.clone();
        let work =
            move |socket: &mut Socket| isolation.attach(socket, &plan, &netns, newborn).map_err(failed);
        let done: Result<Attached, Unattached> = self.run_at(place, work).await;
        match &done {
            Ok(attached) => self.tell(|ledger| ledger.wired(&wired, attached)),
            Err(failed) if failed.undone => self.tell(|ledger| ledger.unwired(&wired)),
            // Half of it may be there, up before its gate.
            Err(_) => {}
        }
        done
    }

    fn tell<T>(&self, what: impl FnOnce(&dyn Ledger) -> T) -> T {
        let _journal = stages::enter(Stage::Journal);
        what(&*self.ledger)
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

    /// The devices by which pods are limited, and whose they are.
    pub async fn shaped(&self) -> Result<Vec<(IfName, Owner)>, CniError> {
        self.run(|socket| russet_attach::shaped(socket).map_err(listing)).await
    }

    /// What the node's address translation has for whom; nothing on a kernel without nf_tables.
    pub async fn labelled(&self) -> Result<Vec<Labelled>, CniError> {
        match self.nat(nat::labelled).await {
            Err(_) if matches!(probe::supports(Feature::NfTables), Ok(false)) => Ok(Vec::new()),
            result => result,
        }
    }

    /// Takes back the limits of a network's containers that are not valid.
    pub async fn collect_shapes(&self, network: NetworkName, valid: Vec<Owner>) -> Result<(), CniError> {
        let work = move |socket: &mut Socket| russet_attach::collect_shapes(socket, &network, &valid);
        self.run(move |socket| work(socket).map_err(bandwidth::refused)).await
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

    /// Work with the programs of iptables.
    pub async fn iptables<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, CniError> + Send + 'static,
    ) -> Result<T, CniError> {
        self.run(move |_| work()).await
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

    /// Lets a pod of Calico's plugin send from these prefixes besides its own addresses, and from no others that an earlier pod of the name might. Where no
    /// Felix runs `rp_filter` of the host end makes room as well, as Felix has it.
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
            let msg = format!("what the pod behind {host_name} may send from could not be put in force");
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

    /// Takes an interface down, from whatever state.
    pub async fn detach(&self, what: Detachment, netns: Option<NetNs>) -> Result<(), CniError> {
        self.tell(|ledger| ledger.leaving(&what.container, &what.ifname));
        let failed =
            |error: DetachError| CniError::new(failure::WIRING, "the interface could not be removed", error);
        let isolation = self.isolation.clone();
        let removal = what.removal;
        let done = self.run(move |socket| {
            let mut left = Vec::new();
            let mut leaving = |link: &OwnedLink| left.extend(isolation.leave(link, what.removal));
            let done = russet_attach::detach_with(socket, &what, netns.as_ref(), &mut leaving);
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

    /// Takes an interface down that [`list`](Self::list) found.
    pub async fn detach_owned(&self, link: OwnedLink, removal: Removal) -> Result<(), CniError> {
        if let (Some(container), Some(ifname)) = (link.owner.container(), link.owner.ifname()) {
            self.tell(|ledger| ledger.leaving(container, ifname));
        }
        let isolation = self.isolation.clone();
        let ifindex = link.ifindex;
        self.run(move |socket| {
            let mut leaving = |link: &OwnedLink| _ = isolation.leave(link, removal);
            let done = russet_attach::detach_owned_with(socket, &link, removal, &mut leaving);
            done.map(drop).map_err(listing)
        })
        .await?;
        self.note_doomed(removal, &[ifindex]);
        Ok(())
    }

    /// How an interface differs from what it should be.
    pub async fn check(&self, attachment: Attachment, netns: NetNs) -> Result<Vec<Mismatch>, CniError> {
        let failed =
            |error: CheckError| CniError::new(failure::WIRING, "the interface cannot be looked at", error);
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

    /// Everything that is completely wired on the node, whoever wired it.
    pub async fn adopt(&self) -> Result<Vec<Adopted>, CniError> {
        self.run(|socket| russet_attach::adopt(socket).map_err(listing)).await
    }

    /// Every interface of the node that is ours.
    pub async fn list(&self) -> Result<Vec<OwnedLink>, CniError> {
        self.run(|socket| russet_attach::list(socket).map_err(listing)).await
    }

    /// Deletes what deferred removals left.
    pub async fn reap(&self) -> Result<Reaped, CniError> {
        self.run(|socket| russet_attach::reap(socket).map_err(listing)).await
    }

    /// Sees to it that what was doomed here by [`Removal::Batched`] is gone: deletes it with whatever else is doomed on the node, unless another process has.
    /// With nothing but the node's lock in hand: each deletion takes the kernel 20 ms, for one link as for many.
    pub async fn reap_batch(&self) -> Result<Reaped, CniError> {
        let own = self.doomed.take();
        if own.is_empty() {
            return Ok(Reaped::default());
        }
        self.run(move |socket| russet_attach::reap_unless_gone(socket, &own).map_err(listing)).await
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
        let place = self.place().await?;
        self.run_at(place, work).await
    }

    async fn place(&self) -> Result<Place, CniError> {
        stages::during(Stage::Place, self.places.take(self.adds)).await
    }

    async fn run_at<T: Send + 'static, E: From<CniError> + Send + 'static>(
        &self,
        place: Place,
        work: impl FnOnce(&mut Socket) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let done = stages::during(Stage::Wiring, self.on_thread(place, work)).await;
        done.unwrap_or_else(|error| Err(stopped(&error).into()))
    }

    fn on_thread<T: Send + 'static, E: From<CniError> + Send + 'static>(
        &self,
        place: Place,
        work: impl FnOnce(&mut Socket) -> Result<T, E> + Send + 'static,
    ) -> JoinHandle<Result<T, E>> {
        let idle = Arc::clone(&self.idle);
        let line = stages::current();
        tokio::task::spawn_blocking(move || {
            // Until the work has ended, whoever still waits for it.
            let _place = place;
            let taken = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut socket = match taken {
                Some(socket) => socket,
                None => {
                    Socket::route().map_err(|e| CniError::new(failure::WIRING, "open a netlink socket", e))?
                }
            };
            let done = stages::on_behalf(line, || work(&mut socket));
            let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < AT_ONCE_MAX {
                idle.push(socket);
            }
            done
        })
    }
}

fn stopped(error: &dyn fmt::Display) -> CniError {
    CniError::internal("the wiring stopped half-way", error)
}

fn listing(error: NetlinkError) -> CniError {
    CniError::new(failure::WIRING, "the node's interfaces cannot be listed", error)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Work that lasts until the other end is dropped.
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

    fn on_threads<T>(count: usize, body: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().max_blocking_threads(count).build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, body)
    }

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn wiring_that_hangs_takes_a_few_threads_and_leaves_the_rest_to_others() {
        let threads = AT_ONCE_MAX + 1;
        let wiring = Wiring::default();
        let (release, work) = hanging();
        let hang = |_| {
            let (wiring, work) = (wiring.clone(), work.clone());
            tokio::task::spawn_local(async move { wiring.run(work).await })
        };
        on_threads(threads, async {
            let all: Vec<_> = (0..threads).map(hang).collect();
            tokio::task::yield_now().await;
            assert!(wiring.places.are_taken());
            let other = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(|| ())).await;
            drop(release);
            for one in all {
                one.await.unwrap().unwrap();
            }
            assert!(other.is_ok(), "no thread is left for others");
        });
    }

    #[test]
    fn whatever_adds_do_at_the_kernel_leaves_a_place_to_dels() {
        let wiring = Wiring::default();
        let (release, work) = hanging();
        let add = wiring.of_add(Instant::now() + PATIENCE);
        let hang = |_| {
            let (add, work) = (add.clone(), work.clone());
            tokio::task::spawn_local(async move { add.run(work).await })
        };
        on_threads(AT_ONCE_MAX, async {
            let adds: Vec<_> = (0..2 * AT_ONCE_MAX).map(hang).collect();
            tokio::task::yield_now().await;
            let del = tokio::time::timeout(PATIENCE, wiring.run(|_| Ok::<_, CniError>(()))).await;
            drop(release);
            for add in adds {
                add.await.unwrap().unwrap();
            }
            assert!(del.is_ok(), "a DEL waits behind ADDs");
        });
    }

    /// Refuses everything, with a code of its own.
    struct Refuses;

    impl Ledger for Refuses {
        fn wiring(&self, _: &Wired, _: &std::path::Path) -> Result<(), CniError> {
            Err(CniError::new(77, "refused", ""))
        }

        fn wired(&self, _: &Wired, _: &Attached) {}

        fn unwired(&self, _: &Wired) {}

        fn leaving(&self, _: &russet_addr::ContainerId, _: &IfName) {}
    }

    #[test]
    fn an_add_whose_time_is_over_is_not_wired_and_nobody_is_told_that_it_will_be() {
        let wiring = Wiring::default().told(Rc::new(Refuses));
        let network = "net".parse().unwrap();
        let mut attachment =
            Attachment::new(Dialect::Native, network, "c1".parse().unwrap(), "eth0".parse().unwrap(), None);
        attachment.addresses = vec!["10.1.0.7".parse().unwrap()];
        for (patience, code) in [(Duration::ZERO, 11), (PATIENCE, 77)] {
            let add = wiring.of_add(Instant::now() + patience);
            let netns = NetNs::current().unwrap();
            let failed = on_threads(1, add.attach(attachment.clone(), netns)).unwrap_err();
            assert_eq!((failed.error.code, failed.undone), (code, true), "{}", failed.error);
        }
    }

    #[test]
    #[ignore = "kernel: root"]
    fn nothing_is_born_ahead_from_a_forsaken_interface_until_the_next_one_that_comes_to_be() {
        russet_testkit::in_new_netns(|| {
            let alone = Wiring::default();
            let wiring = alone.clone().told(Rc::new(NoLedger));
            let pod = NetNs::create_unnamed().unwrap();
            let of = |ifname: &str| {
                let (network, container) = ("net".parse().unwrap(), "c1".parse().unwrap());
                Attachment::new(Dialect::Native, network, container, ifname.parse().unwrap(), None)
            };
            on_threads(2, async {
                assert_eq!(alone.bear(&of("eth0"), &pod).await, None, "there is no agent");
                let born = wiring.bear(&of("eth0"), &pod).await;
                assert!(born.is_some());
                wiring.forsake(born).await;
                assert_eq!(wiring.bear(&of("eth0"), &pod).await, None);
                let attachment = Attachment { addresses: vec!["10.1.0.7".parse().unwrap()], ..of("eth0") };
                wiring.attach_newborn(attachment, pod.try_clone().unwrap(), None).await.unwrap();
                assert!(wiring.bear(&of("eth1"), &pod).await.is_some());
            });
        });
    }
}
