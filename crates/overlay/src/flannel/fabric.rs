//! Applies the table of peers to the kernel: reads the kernel, has the engine plan, carries out the
//! plan. Used by the flannel daemon.

mod survey;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use russet_addr::{Family, IfName, IpNet, Ipv4Net, Ipv6Net, host_net};
use russet_netlink::{Link, Monitor, NetlinkError, RouteKind, Socket, Topic};

use super::drift::{DriftDetector, View};
use super::guard::{Senders, Tunnel, TunnelGuard};
use super::peer_table::{LeaseClaims, PeerTable};
use super::pods::PodGuard;
use super::rules::{Near, Rules};
use super::wireguard::Tunnels;
use super::{
    Backend, FlannelError, Networks, Peer, PeerKey, Prepared, ROUTE_PROTOCOL, Underlay, VXLAN_PORT, Vxlan,
    ipip, vxlan,
};
use crate::apply::{Executor, ignore_router_advertisements};
use crate::desired::{Desired, Hop};
use crate::observe::{FoundDevice, Observed, observe, observe_devices};
use crate::owner::{Owner, Yielding, of, of_mut};
use crate::plan::{Plan, plan};
use crate::refusal::{Refusal, Subject};
use crate::report::{Kind, OverlayError, ReconcileReport};
use crate::vxlan::Device;

pub use survey::{DeviceState, ExistingDevice};

/// One node's part of a flannel network, in the network namespace of the thread that opened it.
///
/// Dropping it removes nothing from the kernel: packets continue to flow while the daemon restarts.
#[derive(Debug)]
pub struct Fabric {
    rules: Rules,
    owner: Owner,
    socket: Socket,
    monitor: Monitor,
    peer_table: PeerTable,
    /// Our devices at the last observation.
    devices: BTreeMap<Family, FoundDevice>,
    detector: DriftDetector,
    /// Refusals that were reported already.
    reported: BTreeMap<Subject, Refusal>,
    /// The peers of the last snapshot and of later changes, with their age.
    peers: BTreeMap<PeerKey, (u64, Peer)>,
    newest: u64,
    swallows: bool,
    /// Present for the WireGuard backend.
    tunnels: Option<Tunnels>,
    /// Restricts the senders to our vxlan devices.
    guard: Option<TunnelGuard>,
    /// What pods behind bridges do not send.
    pods: Option<PodGuard>,
}

/// Caches the kernel's answers about addresses, each requested once.
#[derive(Debug, Default)]
struct DirectLinks(BTreeMap<IpAddr, Option<u32>>);

// === impl Fabric ===

impl Fabric {
    /// Begins to listen to the kernel; changes nothing yet.
    pub fn open(backend: Backend, underlay: Underlay, networks: Networks) -> Result<Self, FlannelError> {
        let networks = match backend {
            Backend::Ipip { .. } => Networks { v6: None, ..networks },
            _ => networks,
        };
        let owner = owner(&backend, networks)?;
        let guard = match &backend {
            Backend::Vxlan(options) => {
                let port = if options.port == 0 { VXLAN_PORT } else { options.port };
                let families = networks.families().collect();
                Some(
                    TunnelGuard::open(Tunnel { port, vni: options.vni, families })
                        .map_err(FlannelError::Device)?,
                )
            }
            _ => None,
        };
        let pods = match &backend {
            // Their peers are another part's business.
            Backend::Udp | Backend::Alloc => None,
            _ => Some(PodGuard::open().map_err(FlannelError::Device)?),
        };
        let topics = [Topic::Links, Topic::Addresses, Topic::Routes, Topic::Neighbours];
        Ok(Self {
            rules: Rules { backend, underlay, networks, own: [None, None], mac: [None, None], tunnel: None },
            peer_table: PeerTable::new(owner.clone(), BTreeMap::new()),
            owner,
            monitor: Monitor::open(&topics)?,
            socket: Socket::route()?,
            devices: BTreeMap::new(),
            detector: DriftDetector::default(),
            reported: BTreeMap::new(),
            peers: BTreeMap::new(),
            newest: 0,
            swallows: false,
            tunnels: None,
            guard,
            pods,
        })
    }

    /// Creates or adopts the devices before there is a lease, because their MACs are published with
    /// it.
    pub fn prepare(&mut self) -> Result<Prepared, FlannelError> {
        let mut report = ReconcileReport::default();
        self.devices(&mut report)?;
        match report.errors.into_iter().next() {
            Some(error) => Err(FlannelError::Device(error)),
            None => Ok(Prepared { replaced: report.replaced, ..self.prepared() }),
        }
    }

    /// The current values of what [`prepare`](Self::prepare) returned: a MAC may have changed
    /// since, see [`Drift::mac`].
    pub fn prepared(&self) -> Prepared {
        let devices = self.devices.values().map(|device| device.mtu);
        Prepared {
            mac: self.rules.mac,
            mtu: devices.min().unwrap_or(self.rules.backend.mtu(self.rules.underlay.mtu)),
            device: self.owner.names.clone(),
            wireguard: self.tunnels.as_ref().map_or([None, None], Tunnels::ends),
            replaced: Vec::new(),
        }
    }

    /// Adopts what an earlier run left of networks that were ours then; takes effect at the next
    /// [`reset`](Self::reset).
    pub fn inherit(&mut self, former: Networks) {
        self.owner.realm.extend(former.families().filter_map(|family| former.of_family(family)));
    }

    /// Whether packets to addresses of our own subnets that no pod has are dropped instead of
    /// following the default route; takes effect at the next [`reset`](Self::reset).
    pub fn blackhole_unknown(&mut self, on: bool) {
        self.swallows = on;
    }

    /// Lets any machine send to our vxlan devices, for peers that send from other addresses than
    /// their leases name.
    pub fn open_tunnel(&mut self) -> Result<(), FlannelError> {
        match self.guard.take().map(TunnelGuard::withdraw) {
            Some(Err(error)) => Err(FlannelError::Device(error)),
            _ => Ok(()),
        }
    }

    /// Lets pods behind bridges send from any address, and IP in IP and GRE to nodes.
    pub fn open_pods(&mut self) -> Result<(), FlannelError> {
        match self.pods.take().map(PodGuard::withdraw) {
            Some(Err(error)) => Err(FlannelError::Device(error)),
            _ => Ok(()),
        }
    }

    /// Gives the devices the base addresses of our own subnets, and removes other addresses of the
    /// networks.
    pub fn own(&mut self, v4: Option<Ipv4Net>, v6: Option<Ipv6Net>) -> ReconcileReport {
        self.rules.own = [v4.map(|net| IpNet::V4(net.trunc())), v6.map(|net| IpNet::V6(net.trunc()))];
        let mut report = ReconcileReport::default();
        if let Err(error) = self.devices(&mut report) {
            report.fail(error);
            self.detector.everything();
        }
        report
    }

    /// Brings the kernel to exactly these peers, oldest first: of two with the same claim, the
    /// later one wins. Called for every snapshot of the store.
    pub fn reset(&mut self, peers: Vec<Peer>) -> ReconcileReport {
        self.newest = 0;
        self.peers.clear();
        for peer in peers {
            self.newest += 1;
            self.peers.insert(peer.key(), (self.newest, peer));
        }
        self.resync()
    }

    /// [`reset`](Self::reset) with the known peers: called after drift, and periodically.
    /// Afterwards our MAC may differ from the published one, see [`prepared`](Self::prepared).
    pub fn resync(&mut self) -> ReconcileReport {
        let mut report = ReconcileReport::default();
        if let Err(error) = self.try_resync(&mut report) {
            // Without knowledge of the current state nothing is changed.
            report.fail(error);
            self.detector.everything();
        }
        report
    }

    fn try_resync(&mut self, report: &mut ReconcileReport) -> Result<(), OverlayError> {
        self.devices(report)?;
        // Events until now are covered by the dumps that follow.
        self.detector.forget(&mut self.monitor)?;
        self.rebuild_peer_table();
        let senders: Vec<IpAddr> = self.peer_table.publics().collect();
        self.admit(senders, report);
        let observed = observe(&mut self.socket, self.peer_table.desired())?;
        self.peer_table.settle_metrics(&observed);
        let plan = plan(self.peer_table.desired(), &observed);
        self.carry_out(&plan, &observed.devices, report);
        self.ensure_guard(report);
        self.ensure_pod_guard(report);
        let refused = self.tunnels(true, report)?;
        let refusals = plan.refusals.into_iter().chain(self.peer_table.refusals().cloned()).chain(refused);
        let all: BTreeMap<Subject, Refusal> = refusals.map(|r| (r.subject.clone(), r)).collect();
        report.refusals =
            all.values().filter(|r| self.reported.get(&r.subject) != Some(*r)).cloned().collect();
        self.reported = all;
        Ok(())
    }

    /// Applies changes of some peers: removed, added or changed. The cost depends only on their
    /// number, except for WireGuard, whose peers are computed anew. If it fails, or a foreign route
    /// is in conflict, [`drifted`](Self::drifted) returns true.
    pub fn change(&mut self, gone: &[PeerKey], put: &[Peer]) -> ReconcileReport {
        let mut report = ReconcileReport::default();
        let mut before: Vec<IpAddr> = Vec::new();
        for key in gone.iter().chain(put.iter().map(Peer::key).collect::<Vec<_>>().iter()) {
            let known = self.peers.get(key).map(|(_, peer)| Family::BOTH.map(|family| peer.public(family)));
            before.extend(known.into_iter().flatten().flatten());
        }
        let come = put.iter().flat_map(|peer| Family::BOTH.map(|family| peer.public(family))).flatten();
        self.admit(come.collect(), &mut report);
        for key in gone {
            self.peers.remove(key);
            self.peer_table.remove(key);
            for subject in key.subjects() {
                self.reported.remove(&subject);
            }
        }
        let mut links = DirectLinks::default();
        for peer in put {
            self.newest += 1;
            self.peers.insert(peer.key(), (self.newest, peer.clone()));
            let lease_claims =
                lease_claims(&self.rules, peer, &mut |address| links.link_towards(&mut self.socket, address));
            for lease_claims in lease_claims.iter().flatten() {
                match lease_claims {
                    Ok(claim) => _ = self.reported.remove(&Subject::Block(claim.subnet)),
                    Err(refusal) => report.refusals.push((**refusal).clone()),
                }
            }
            self.peer_table.put(peer.key(), lease_claims, Family::BOTH.map(|family| peer.public(family)));
        }
        match self.tunnels(false, &mut report) {
            Ok(refused) => report.refusals.extend(refused),
            Err(error) => report.fail(error),
        }
        report.refusals.retain(|refusal| {
            self.reported.insert(refusal.subject.clone(), refusal.clone()).as_ref() != Some(refusal)
        });
        let (desired, was) = self.peer_table.difference(&self.devices);
        let plan = plan(&desired, &was);
        self.carry_out(&plan, &was.devices, &mut report);
        before.retain(|public| !self.peer_table.has_public_in(&host_net(*public)));
        if let Some(Err(error)) = self.guard.as_mut().map(|guard| guard.dismiss(&before)) {
            report.fail(error);
        }
        if report.failed > 0 || report.changed(Kind::Device) > 0 {
            self.detector.everything();
        }
        report
    }

    /// Whether another program changed our objects, so that a [`resync`](Self::resync) is needed.
    /// Never blocks. Called when the [descriptor](AsFd) is readable, after a change that failed,
    /// and periodically. The caller limits how often it resyncs, because another program may keep
    /// changing our objects.
    pub fn drifted(&mut self) -> Result<bool, FlannelError> {
        let view = View { rules: &self.rules, peer_table: &self.peer_table, devices: &self.devices };
        Ok(self.detector.has_drifted(&mut self.monitor, &view)?)
    }

    /// Looks the underlay up again: an interface that was removed may come back under its name with
    /// another index. Until then, the old index gives clear errors.
    fn find_underlay(&mut self) -> Result<(), NetlinkError> {
        let underlay = &mut self.rules.underlay;
        match self.socket.link_by_index(underlay.ifindex) {
            Err(error) if error.is_not_found() => {}
            result => return result.map(drop),
        }
        match self.socket.link_by_name(&underlay.name) {
            Ok(link) => underlay.ifindex = link.index,
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Creates or adopts our devices, and observes them afterwards.
    fn devices(&mut self, report: &mut ReconcileReport) -> Result<(), FlannelError> {
        self.find_underlay()?;
        match &self.rules.backend {
            Backend::Vxlan(options) => self.vxlan(&options.clone(), report),
            Backend::Ipip { .. } => {
                let device = ipip::Device { underlay: &self.rules.underlay, own: self.rules.own[0] };
                self.rules.tunnel = Some(device.ensure(&mut self.socket, &self.owner, report)?);
                self.devices = observe_devices(&mut self.socket, &self.owner)?;
                Ok(())
            }
            Backend::Wireguard(options) => {
                let (device, own) = (&self.rules.underlay, self.rules.own);
                let mut tunnels = match self.tunnels.take() {
                    Some(tunnels) => tunnels,
                    None => Tunnels::open(options)?,
                };
                let done = tunnels.ensure(&mut self.socket, &self.owner, device, own, report);
                self.tunnels = Some(tunnels);
                self.devices = observe_devices(&mut self.socket, &self.owner)?;
                done
            }
            Backend::HostGw | Backend::Udp | Backend::Alloc => Ok(()),
        }
    }

    fn vxlan(&mut self, options: &Vxlan, report: &mut ReconcileReport) -> Result<(), FlannelError> {
        let found = observe_devices(&mut self.socket, &self.owner)?;
        let mut desired = Desired { owner: self.owner.clone(), ..Desired::default() };
        for family in self.rules.networks.families() {
            let (there, known) = (found.get(&family), self.peer_table.desired().devices.get(&family));
            let device = vxlan::device(options, &self.rules.underlay, family, there, known)?;
            let address = of(&self.rules.own, family).map(|net| host_net(net.addr()));
            desired.devices.insert(family, Device { address, ..device });
            if let (Some(_), Some(name)) = (there, self.owner.name(family)) {
                ignore_router_advertisements(name, report);
            }
        }
        let plan = plan(&desired, &Observed { devices: found.clone(), ..Observed::default() });
        report.replaced.extend_from_slice(&plan.replaced);
        self.carry_out(&plan, &found, report);
        // Read last: udev may change the MAC of a device that comes up (flannel.md section 12 item 7).
        self.devices = observe_devices(&mut self.socket, &self.owner)?;
        for (family, device) in &mut desired.devices {
            device.mac = self.devices.get(family).and_then(|found| found.mac).unwrap_or(device.mac);
            *of_mut(&mut self.rules.mac, *family) = Some(device.mac);
        }
        self.peer_table.desired_mut().devices = desired.devices;
        Ok(())
    }

    /// Admits peers to our vxlan devices, before there is a route to them.
    fn admit(&mut self, peers: Vec<IpAddr>, report: &mut ReconcileReport) {
        if let Some(Err(error)) = self.guard.as_mut().map(|guard| guard.admit(peers)) {
            report.fail(error);
        }
    }

    /// Limits the senders to exactly the peers and excludes this node's pods. Runs after everything
    /// else.
    fn ensure_guard(&mut self, report: &mut ReconcileReport) {
        let Some(guard) = self.guard.as_mut().filter(|guard| guard.is_supported()) else { return };
        let own: Vec<IpNet> = self.rules.own.into_iter().flatten().collect();
        let devices: Vec<u32> = self.devices.values().map(|device| device.ifindex).collect();
        let pods = pod_links(&mut self.socket, &own, &devices);
        let done = pods.map_err(OverlayError::from).and_then(|pods| {
            let peers = self.peer_table.publics().collect();
            guard.ensure(Senders { peers, pods, own })
        });
        match done {
            Ok(true) => report.count(Kind::Nat),
            Ok(false) => {}
            Err(error) => report.fail(error),
        }
    }

    /// Keeps pods behind this node's bridges to the addresses of these.
    fn ensure_pod_guard(&mut self, report: &mut ReconcileReport) {
        let Some(guard) = &mut self.pods else { return };
        let own: Vec<IpNet> = self.rules.own.into_iter().flatten().collect();
        let nodes = self.peer_table.publics().collect();
        let bridges = pod_bridges(&mut self.socket, &own).map_err(OverlayError::from);
        match bridges.and_then(|bridges| guard.ensure(&bridges, &nodes)) {
            Ok(true) => report.count(Kind::Nat),
            Ok(false) => {}
            Err(error) => report.fail(error),
        }
    }

    /// Reconciles WireGuard's peers, against the kernel's state if `afresh`, otherwise against the
    /// last known one. Returns the peers that were refused.
    fn tunnels(&mut self, afresh: bool, report: &mut ReconcileReport) -> Result<Vec<Refusal>, FlannelError> {
        let Some(tunnels) = &mut self.tunnels else { return Ok(Vec::new()) };
        let (wanted, refused) = tunnels.wanted(&self.rules, aged(&self.peers).into_iter());
        tunnels.sync(&wanted, afresh, report)?;
        Ok(refused)
    }

    /// Enters all peers anew, because their paths may have changed.
    fn rebuild_peer_table(&mut self) {
        let devices = std::mem::take(&mut self.peer_table.desired_mut().devices);
        self.peer_table = PeerTable::new(self.owner.clone(), devices);
        if self.swallows {
            self.rules.own.into_iter().flatten().for_each(|own| self.peer_table.swallow(own));
        }
        if self.tunnels.is_some() {
            for family in self.rules.networks.families() {
                let link = self.devices.get(&family).map(|device| Hop::Link(device.ifindex));
                let network = self.rules.networks.of_family(family);
                self.peer_table.desired_mut().routes.extend(network.zip(link));
            }
        }
        let mut links = DirectLinks::default();
        for peer in aged(&self.peers) {
            let lease_claims =
                lease_claims(&self.rules, peer, &mut |address| links.link_towards(&mut self.socket, address));
            self.peer_table.put(peer.key(), lease_claims, Family::BOTH.map(|family| peer.public(family)));
        }
    }

    fn carry_out(
        &mut self,
        plan: &Plan,
        devices: &BTreeMap<Family, FoundDevice>,
        report: &mut ReconcileReport,
    ) {
        let mut executor = Executor::new(devices, &self.owner);
        if !executor.run(&mut self.socket, &plan.ops, report) {
            self.detector.everything();
        }
    }
}

impl AsFd for Fabric {
    /// Readable when there are events for [`drifted`](Fabric::drifted).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }
}

/// The owner of a backend's objects; without device names for a backend without devices.
fn owner(backend: &Backend, networks: Networks) -> Result<Owner, FlannelError> {
    let mut names = [None, None];
    for family in networks.families() {
        *of_mut(&mut names, family) = match backend {
            Backend::Vxlan(options) => Some(vxlan::device_name(options.vni, family)?),
            Backend::Ipip { .. } => Some(IfName::new(ipip::DEVICE)?),
            Backend::Wireguard(options) => Some(IfName::new(options.device(family))?),
            Backend::HostGw | Backend::Udp | Backend::Alloc => None,
        };
    }
    Ok(Owner {
        names,
        alias: None,
        protocol: ROUTE_PROTOCOL,
        owned: &[ROUTE_PROTOCOL],
        realm: Family::BOTH.iter().filter_map(|family| networks.of_family(*family)).collect(),
        device_routes: true,
        yielding: Yielding::All,
        addresses: Family::BOTH.map(|family| networks.of_family(family)),
        // The gateway of a route through an IP-in-IP device is not on that device's link.
        onlink: matches!(backend, Backend::Ipip { .. }),
        evicts: true,
    })
}

/// The links that have an address of our own subnets and are not our devices: the bridges of this
/// node's pods.
fn pod_links(socket: &mut Socket, own: &[IpNet], devices: &[u32]) -> Result<BTreeSet<IfName>, NetlinkError> {
    let links = links_inside(socket, own)?.into_iter().filter(|link| !devices.contains(&link.index));
    let names = links.filter_map(|link| IfName::new(link.name).ok());
    Ok(names.filter(|name| *name != IfName::loopback()).collect())
}

/// The bridges that have an address of our own subnets.
fn pod_bridges(socket: &mut Socket, own: &[IpNet]) -> Result<BTreeSet<IfName>, NetlinkError> {
    let links = links_inside(socket, own)?.into_iter();
    let bridges = links.filter(|link| link.kind.as_deref() == Some("bridge"));
    Ok(bridges.filter_map(|link| IfName::new(link.name).ok()).collect())
}

fn links_inside(socket: &mut Socket, own: &[IpNet]) -> Result<Vec<Link>, NetlinkError> {
    let mut found = Vec::new();
    for address in socket.addresses()? {
        if !own.iter().any(|own| own.contains(&address.net.addr())) {
            continue;
        }
        match socket.link_by_index(address.ifindex) {
            Ok(link) => found.push(link),
            // The link was removed since the dump.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn aged(peers: &BTreeMap<PeerKey, (u64, Peer)>) -> Vec<&Peer> {
    let mut aged: Vec<&(u64, Peer)> = peers.values().collect();
    aged.sort_by_key(|(age, _)| *age);
    aged.into_iter().map(|(_, peer)| peer).collect()
}

/// What the peer's lease comes to in each family.
fn lease_claims(rules: &Rules, peer: &Peer, near: Near<'_>) -> LeaseClaims {
    Family::BOTH.map(|family| rules.claim(peer, family, near))
}

// === impl DirectLinks ===

impl DirectLinks {
    /// The link through which `address` is reached directly.
    fn link_towards(&mut self, socket: &mut Socket, address: IpAddr) -> Option<u32> {
        *self.0.entry(address).or_insert_with(|| {
            // Without any route there is no direct one.
            let path = socket.route_to(address).ok()?;
            path.oif.filter(|_| path.kind == RouteKind::Unicast && path.gateway.is_none())
        })
    }
}
