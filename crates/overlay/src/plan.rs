//! Computes the operations from the observed to the desired state, in an order that never routes
//! traffic to an unprepared device. Pure; `apply` carries them out.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use russet_addr::{Family, IfName, IpNet, Mac};
use russet_netlink::{FdbEntry, Neighbour, Route};

use crate::desired::{Desired, Hop};
use crate::observe::{FoundDevice, Observed};
use crate::owner::{Owner, Yielding};
use crate::refusal::{Reason, Refusal, Subject};
use crate::vxlan::Device;

/// The differences, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they are sent, in [`batches`].
    pub ops: Vec<Op>,
    /// Conflicts that keep parts of the desired state from being programmed.
    pub refusals: Vec<Refusal>,
    /// Devices that are deleted and made anew, and why.
    pub replaced: Vec<String>,
}

/// One request to the kernel. A device is named by its family, because its index may not exist yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Removes a device with everything on it.
    DeleteDevice(Family, u32),
    /// Creates a device, down.
    CreateDevice(Family, Device),
    /// Puts our alias on it.
    MarkDevice(Family),
    /// Sets its MTU in bytes.
    SetMtu(Family, u32),
    /// Sets it up.
    RaiseDevice(Family),
    /// Adds an address to it.
    AddAddress(Family, IpNet),
    /// Takes an address from it.
    DeleteAddress(Family, IpNet),
    /// Gives the loopback interface an address for probes.
    AddProbeAddress(IpAddr),
    /// Takes one from it.
    DeleteProbeAddress(IpAddr),
    /// Adds or changes a permanent neighbour on its family's device.
    PutNeighbour(IpAddr, Mac),
    /// Removes one.
    DeleteNeighbour(Neighbour),
    /// Adds or changes a forwarding entry.
    PutFdb(Family, Mac, IpAddr),
    /// Removes one.
    DeleteFdb(FdbEntry),
    /// Adds a route, possibly with a metric other than the default, unless any route to the
    /// destination exists.
    AddRoute(IpNet, Hop, Option<u32>),
    /// Replaces one of our routes, or a foreign one that yields.
    ReplaceRoute(IpNet, Hop, Option<u32>),
    /// Removes a route.
    DeleteRoute(Route),
}

/// Requests per batch (ARCHITECTURE.md, "The reconcile loop").
pub const BATCH_MAX_OPS: usize = 64;

/// The future of a device, which decides whether the entries on it persist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It exists and stays.
    Stays(u32),
    /// It will exist, empty; the existing one, if any, is deleted before that.
    Appears(Option<u32>),
    /// It is deleted when everything else is done.
    Goes(u32),
    /// There is none, and there will be none.
    Absent,
}

struct Planner<'a> {
    desired: &'a Desired,
    observed: &'a Observed,
    fates: BTreeMap<Family, Fate>,
    refusals: Vec<Refusal>,
    replaced: Vec<String>,
}

/// The route for `hop`, exactly as a dump will show it.
pub(crate) fn route(dst: IpNet, hop: Hop, device: Option<u32>, metric: Option<u32>, owner: &Owner) -> Route {
    let mut route = match hop {
        Hop::Tunnel(gateway) => Route { oif: device, onlink: true, ..Route::via(dst, gateway) },
        Hop::Connected => Route { oif: device, ..Route::dev(dst, 0) },
        Hop::Underlay { ifindex, gateway } => {
            Route { oif: Some(ifindex), onlink: owner.onlink, ..Route::via(dst, gateway) }
        }
        Hop::Link(ifindex) => Route::dev(dst, ifindex),
        Hop::Blackhole => Route::blackhole(dst),
    };
    route.protocol = owner.protocol;
    route.metric = metric.or(match dst {
        IpNet::V4(_) => None,
        IpNet::V6(_) => Some(Route::METRIC_V6),
    });
    route
}

/// Computes the operations from `observed` to `desired`: devices; then neighbours and forwarding
/// entries before the routes that need them; then stale routes before the entries that they needed;
/// then unneeded devices.
pub fn plan(desired: &Desired, observed: &Observed) -> Plan {
    let mut planner =
        Planner { desired, observed, fates: BTreeMap::new(), refusals: Vec::new(), replaced: Vec::new() };
    let (mut swaps, mut fixes) = (Vec::new(), Vec::new());
    for family in Family::BOTH {
        let [swap, fix] = planner.device(family);
        swaps.extend(swap);
        fixes.extend(fix);
    }
    let [put_entries, stale_entries] = planner.entries();
    let [put_routes, stale_routes] = planner.routes();
    let going = planner.fates.iter().filter_map(|(family, fate)| match fate {
        Fate::Goes(ifindex) => Some(Op::DeleteDevice(*family, *ifindex)),
        _ => None,
    });
    let stages = [
        planner.probe_addresses(),
        swaps,
        fixes,
        put_entries,
        put_routes,
        stale_routes,
        stale_entries,
        going.collect(),
    ];
    let ops = stages.into_iter().flatten().collect();
    Plan { ops, refusals: planner.refusals, replaced: planner.replaced }
}

/// The batches in which operations are sent. The index of a new device must be known to those that
/// follow, so these are in another one.
pub fn batches(ops: &[Op]) -> impl Iterator<Item = &[Op]> {
    let replaces = |op: &Op| matches!(op, Op::DeleteDevice(..) | Op::CreateDevice(..));
    ops.chunk_by(move |a, b| replaces(a) == replaces(b)).flat_map(|run| run.chunks(BATCH_MAX_OPS))
}

// === impl Plan ===

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

// === impl Op ===

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::DeleteDevice(family, _) => write!(f, "delete the {family} tunnel device"),
            Op::CreateDevice(family, device) => {
                write!(f, "create the {family} tunnel device, mac {}", device.mac)
            }
            Op::MarkDevice(family) => write!(f, "mark the {family} tunnel device as ours"),
            Op::SetMtu(family, mtu) => write!(f, "set mtu of the {family} tunnel device to {mtu}"),
            Op::RaiseDevice(family) => write!(f, "set the {family} tunnel device up"),
            Op::AddAddress(family, net) => write!(f, "add address {net} to the {family} tunnel device"),
            Op::DeleteAddress(family, net) => {
                write!(f, "delete address {net} from the {family} tunnel device")
            }
            Op::AddProbeAddress(address) => write!(f, "add address {address} to the loopback interface"),
            Op::DeleteProbeAddress(address) => {
                write!(f, "delete address {address} from the loopback interface")
            }
            Op::PutNeighbour(address, mac) => write!(f, "put neighbour {address} at {mac}"),
            Op::DeleteNeighbour(neighbour) => write!(f, "delete neighbour {}", neighbour.address),
            Op::PutFdb(_, mac, dst) => write!(f, "put forwarding entry {mac} to {dst}"),
            Op::DeleteFdb(entry) => write!(f, "delete forwarding entry {}", entry.mac),
            Op::AddRoute(dst, hop, _) => write!(f, "add route {dst} {hop}"),
            Op::ReplaceRoute(dst, hop, _) => write!(f, "replace route {dst} {hop}"),
            Op::DeleteRoute(route) => write!(f, "delete route {}", route.dst),
        }
    }
}

// === impl Planner ===

impl Planner<'_> {
    /// Operations that remove and create the device, and those that change it in place afterwards.
    fn device(&mut self, family: Family) -> [Vec<Op>; 2] {
        let (wanted, found) = (self.desired.devices.get(&family), self.observed.devices.get(&family));
        let foreign = found.is_some_and(|found| found.vxlan.is_none());
        let (fate, swaps) = match (wanted, found) {
            (Some(_), Some(_)) if foreign && !self.desired.owner.evicts => {
                self.refusals.push(Refusal::new(Subject::Device(family), None, Reason::NameTaken));
                (Fate::Absent, Vec::new())
            }
            (Some(wanted), Some(found)) if matches(wanted, found) => (Fate::Stays(found.ifindex), Vec::new()),
            (Some(wanted), Some(found)) => {
                let name =
                    self.desired.owner.name(family).map_or_else(|| family.to_string(), IfName::to_string);
                self.replaced.push(format!("{name}: {}", differences(wanted, found).join("; ")));
                let delete = Op::DeleteDevice(family, found.ifindex);
                (Fate::Appears(Some(found.ifindex)), vec![delete, Op::CreateDevice(family, wanted.clone())])
            }
            (Some(wanted), None) => (Fate::Appears(None), vec![Op::CreateDevice(family, wanted.clone())]),
            (None, Some(found)) if found.marked && !foreign => (Fate::Goes(found.ifindex), Vec::new()),
            (None, _) => (Fate::Absent, Vec::new()),
        };
        self.fates.insert(family, fate);
        let fixes = match (fate, wanted, found) {
            (Fate::Stays(_), Some(wanted), Some(found)) => self.fixes(family, wanted, found),
            (Fate::Appears(_), Some(wanted), _) => {
                let mark = self.desired.owner.alias.map(|_| Op::MarkDevice(family));
                let address = wanted.address.map(|address| Op::AddAddress(family, address));
                mark.into_iter().chain(address).chain([Op::RaiseDevice(family)]).collect()
            }
            _ => Vec::new(),
        };
        [swaps, fixes]
    }

    fn fixes(&self, family: Family, wanted: &Device, found: &FoundDevice) -> Vec<Op> {
        let mut ops = Vec::new();
        if !found.marked && self.desired.owner.alias.is_some() {
            ops.push(Op::MarkDevice(family));
        }
        if found.mtu != wanted.mtu {
            ops.push(Op::SetMtu(family, wanted.mtu));
        }
        if !found.up {
            ops.push(Op::RaiseDevice(family));
        }
        if let Some(address) = wanted.address {
            if !found.addresses.contains(&address) {
                ops.push(Op::AddAddress(family, address));
            }
            let stale = found.addresses.iter().filter(|other| **other != address);
            ops.extend(stale.map(|address| Op::DeleteAddress(family, *address)));
        }
        ops
    }

    /// Those of the loopback interface. Only what has our mark is removed.
    fn probe_addresses(&self) -> Vec<Op> {
        let (wanted, found) = (&self.desired.probes, &self.observed.loopback);
        let missing = wanted.iter().filter(|address| !found.contains_key(address));
        let stale = found.iter().filter(|(address, ours)| **ours && !wanted.contains(address));
        let stale = stale.map(|(address, _)| Op::DeleteProbeAddress(*address));
        stale.chain(missing.map(|address| Op::AddProbeAddress(*address))).collect()
    }

    /// Requests that add forwarding entries before the neighbours that need them, and those that
    /// remove them in reverse order.
    fn entries(&self) -> [Vec<Op>; 2] {
        let (mut put, mut stale) = (Vec::new(), Vec::new());
        for (&(family, mac), dst) in &self.desired.fdb {
            let found = self.observed.fdb.get(&(family, mac)).into_iter().flatten();
            let mut right = found.filter(|entry| self.stays(entry.ifindex) && leads_to(entry, *dst));
            if self.has_device(family) && right.next().is_none() {
                put.push(Op::PutFdb(family, mac, *dst));
            }
        }
        for (address, mac) in &self.desired.neighbours {
            let found = self.observed.neighbours.get(address).filter(|n| self.stays(n.ifindex));
            if self.has_device(Family::of(*address)) && found.is_none_or(|n| n.mac != Some(*mac)) {
                put.push(Op::PutNeighbour(*address, *mac));
            }
        }
        for (address, neighbour) in &self.observed.neighbours {
            if self.stays(neighbour.ifindex) && !self.desired.neighbours.contains_key(address) {
                stale.push(Op::DeleteNeighbour(neighbour.clone()));
            }
        }
        for (key, entries) in &self.observed.fdb {
            let unwanted =
                |entry: &&FdbEntry| self.stays(entry.ifindex) && !self.desired.fdb.contains_key(key);
            stale.extend(entries.iter().filter(unwanted).cloned().map(Op::DeleteFdb));
        }
        [put, stale]
    }

    /// Requests that add and that remove routes. Routes to endpoints precede those through them,
    /// see `Vxlan::connect`.
    fn routes(&mut self) -> [Vec<Op>; 2] {
        let (mut put, mut stale, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
        let (first, then): (Vec<_>, Vec<_>) =
            self.desired.routes.iter().partition(|(_, hop)| **hop == Hop::Connected);
        for (dst, hop) in first.into_iter().chain(then) {
            if self.observed.connected.contains(dst) {
                refusals.push(Refusal::new(Subject::Block(*dst), None, Reason::Connected));
                continue;
            }
            let found = self.observed.routes.get(dst).map_or(&[][..], Vec::as_slice);
            self.route(*dst, *hop, found, &mut put, &mut stale);
        }
        for (dst, routes) in &self.observed.routes {
            if !self.desired.routes.contains_key(dst) {
                stale
                    .extend(routes.iter().filter(|route| self.survives(route)).cloned().map(Op::DeleteRoute));
            }
        }
        self.refusals.extend(refusals);
        [put, stale]
    }

    /// Foreign routes that would win over `wanted`: those with a lower or equal metric.
    fn competing_routes(&self, wanted: &Route) -> impl Iterator<Item = &Route> {
        let all = self.desired.owner.yielding == Yielding::All;
        let yielding = self.observed.yielding.get(&wanted.dst).into_iter().flatten();
        yielding.filter(move |route| all && route.metric.unwrap_or(0) <= wanted.metric.unwrap_or(0))
    }

    fn route(&self, dst: IpNet, hop: Hop, found: &[Route], put: &mut Vec<Op>, stale: &mut Vec<Op>) {
        let family = Family::of_net(&dst);
        let device = match self.fates.get(&family) {
            Some(Fate::Stays(ifindex)) => Some(*ifindex),
            _ => None,
        };
        let possible = !hop.uses_device() || self.has_device(family);
        let metric = self.desired.metrics.get(&dst).copied();
        let wanted = route(dst, hop, device, metric, &self.desired.owner);
        let known = |route: &Route| *route == wanted && (device.is_some() || !hop.uses_device());
        let mut kept = found.iter().position(known);
        let mut blocking = Vec::new();
        if kept.is_none() && possible {
            blocking = self.blocking(&wanted, hop, found);
            put.extend(blocking.iter().map(|route| Op::DeleteRoute((*route).clone())));
            // The kernel replaces the route with our metric. A route to a device that is deleted
            // later still exists now.
            let replaced = |route: &&Route| route.metric == wanted.metric && !blocking.contains(route);
            kept = found.iter().position(|route| replaced(&route) && !self.gone_before(route));
            let mut yields = self.observed.yielding.get(&dst).into_iter().flatten();
            put.push(if kept.is_some() || yields.any(|route| replaced(&route)) {
                Op::ReplaceRoute(dst, hop, metric)
            } else {
                Op::AddRoute(dst, hop, metric)
            });
        }
        let others =
            found.iter().enumerate().filter(|(index, _)| Some(*index) != kept).map(|(_, route)| route);
        let others = others.filter(|route| self.survives(route)).chain(self.competing_routes(&wanted));
        let others = others.filter(|route| !blocking.contains(route));
        stale.extend(others.map(|route| Op::DeleteRoute(route.clone())));
    }

    /// Routes that must be removed first. The IPv6 kernel refuses an on-link next hop to which
    /// another link leads ("invalid gateway or device mismatch"), and our next hop is inside its
    /// own destination. With Calico's conventions each endpoint also has a route of its own, which
    /// the kernel finds first.
    fn blocking<'a>(&'a self, wanted: &Route, hop: Hop, found: &'a [Route]) -> Vec<&'a Route> {
        let exposed = matches!(hop, Hop::Tunnel(_)) && wanted.family() == Family::V6;
        if !exposed || self.desired.owner.yielding != Yielding::All {
            return Vec::new();
        }
        let yielding = self.observed.yielding.get(&wanted.dst).into_iter().flatten();
        let elsewhere = |route: &&Route| route.oif != wanted.oif && !self.gone_before(route);
        found.iter().chain(yielding).filter(elsewhere).collect()
    }

    /// Whether the family's device exists when entries are added.
    fn has_device(&self, family: Family) -> bool {
        matches!(self.fates.get(&family), Some(Fate::Stays(_) | Fate::Appears(_)))
    }

    /// Whether the device with this index keeps its entries.
    fn stays(&self, ifindex: u32) -> bool {
        self.fates.values().any(|fate| *fate == Fate::Stays(ifindex))
    }

    /// Whether the route is removed with its device before any route is added.
    fn gone_before(&self, route: &Route) -> bool {
        self.fates
            .values()
            .any(|fate| matches!(fate, Fate::Appears(Some(index)) if route.oif == Some(*index)))
    }

    /// Whether the route exists after the deletion of devices.
    fn survives(&self, route: &Route) -> bool {
        let going = |fate: &Fate| matches!(fate, Fate::Goes(index) if route.oif == Some(*index));
        !self.gone_before(route) && !self.fates.values().any(going)
    }
}

/// Whether the device can stay. Any difference here requires a new one (calico-cni.md section 4.4).
pub(crate) fn matches(wanted: &Device, found: &FoundDevice) -> bool {
    found.mac == Some(wanted.mac)
        && found.vxlan.as_ref().is_some_and(|vxlan| {
            let (local, parent) = (Some(wanted.local), Some(wanted.parent));
            (vxlan.vni, vxlan.port, vxlan.local, vxlan.parent) == (wanted.vni, wanted.port, local, parent)
                && (vxlan.gbp, vxlan.l2miss, vxlan.group) == (wanted.gbp, false, None)
        })
}

/// The differences because of which a device must be created anew; empty if there are none.
pub(crate) fn differences(wanted: &Device, found: &FoundDevice) -> Vec<String> {
    let Some(vxlan) = &found.vxlan else { return vec!["it is no vxlan device".to_owned()] };
    let mut all = Vec::new();
    let mut differs = |what: &str, is: String, should: String| {
        if is != should {
            all.push(format!("{what} {is}, not {should}"));
        }
    };
    let address = |address: Option<IpAddr>| address.map_or_else(|| "none".to_owned(), |it| it.to_string());
    let word = |on: bool| if on { "on" } else { "off" }.to_owned();
    differs("VNI", vxlan.vni.to_string(), wanted.vni.to_string());
    differs("port", vxlan.port.to_string(), wanted.port.to_string());
    differs("local address", address(vxlan.local), wanted.local.to_string());
    differs("GBP", word(vxlan.gbp), word(wanted.gbp));
    differs("l2miss", word(vxlan.l2miss), word(false));
    differs("group", address(vxlan.group), address(None));
    let mac = found.mac.map_or_else(|| "none".to_owned(), |mac| mac.to_string());
    differs("MAC", mac, wanted.mac.to_string());
    if vxlan.parent != Some(wanted.parent) {
        all.push("another underlay interface".to_owned());
    }
    all
}

fn leads_to(entry: &FdbEntry, dst: IpAddr) -> bool {
    entry.dst == Some(dst) && entry.vni.is_none() && entry.port.is_none()
}
