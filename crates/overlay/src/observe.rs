//! Reads our objects from the kernel's tables. Called by `reconcile`; `plan` compares them with the
//! desired state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{Family, IpNet, Mac, host_net};
use russet_netlink::{
    Address, AddressFlags, FdbEntry, FdbTable, Link, Neighbour, NeighbourState, NetlinkError, Result, Route,
    RouteFilter, RouteKind, Scope, Socket, Vxlan,
};

use crate::desired::Desired;
use crate::owner::{Owner, RouteOwner};

/// The protocol of all our routes, unless Felix's conventions are configured.
pub const ROUTE_PROTOCOL: u8 = 114;
/// The alias of our devices. A device of our name without it is adopted when it is wanted, and left
/// alone when it is not.
pub const DEVICE_ALIAS: &str = "russet overlay";

/// The loopback interface of every network namespace.
const LOOPBACK: u32 = 1;

/// Our objects in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Links with the names of our devices.
    pub devices: BTreeMap<Family, FoundDevice>,
    /// Permanent forwarding entries of our devices.
    pub fdb: BTreeMap<(Family, Mac), Vec<FdbEntry>>,
    /// Permanent neighbours of our devices.
    pub neighbours: BTreeMap<IpAddr, Neighbour>,
    /// Routes that are ours, by destination: there may be several with different metrics.
    pub routes: BTreeMap<IpNet, Vec<Route>>,
    /// Foreign routes that ours replace.
    pub yielding: BTreeMap<IpNet, Vec<Route>>,
    /// Networks of the node's own addresses among the wanted destinations: their routes are not
    /// replaced.
    pub connected: BTreeSet<IpNet>,
    /// Single addresses of the loopback interface, and whether they have our mark.
    pub loopback: BTreeMap<IpAddr, bool>,
}

/// A link with the name of one of our devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundDevice {
    pub ifindex: u32,
    /// Its VXLAN options; none for a device of another kind, which is not ours.
    pub vxlan: Option<Vxlan>,
    /// Its MTU in bytes.
    pub mtu: u32,
    pub mac: Option<Mac>,
    /// Whether it is set up.
    pub up: bool,
    /// Whether it carries our alias.
    pub marked: bool,
    /// Its global addresses of the device's family that we may change.
    pub addresses: BTreeSet<IpNet>,
}

/// Reads all our objects, and the foreign ones that conflict with the desired state.
pub fn observe(socket: &mut Socket, desired: &Desired) -> Result<Observed> {
    let mut observed = Observed::default();
    for family in Family::BOTH {
        if let Some(device) = device(socket, family, &desired.owner)? {
            let ifindex = device.ifindex;
            if device.vxlan.is_some() {
                observed.read_entries(socket, family, ifindex)?;
            }
            observed.devices.insert(family, device);
        }
        observed.read_routes(socket, family, desired)?;
    }
    // Flannel's nodes have none of these.
    if desired.owner.alias.is_some() {
        observed.loopback = loopback(socket)?;
    }
    Ok(observed)
}

pub(crate) fn loopback(socket: &mut Socket) -> Result<BTreeMap<IpAddr, bool>> {
    let single = |found: &Address| found.net.prefix_len() == found.net.max_prefix_len();
    let found = socket.addresses_of(LOOPBACK)?.into_iter().filter(single);
    Ok(found.map(|found| (found.net.addr(), found.protocol == ROUTE_PROTOCOL)).collect())
}

/// The address of the loopback interface at which other nodes probe this one. This node does not choose it as the
/// source of other packets: in IPv4 because of its scope, in IPv6 because it is deprecated.
pub(crate) fn probe_address(address: IpAddr) -> Address {
    let base = Address { protocol: ROUTE_PROTOCOL, ..Address::new(LOOPBACK, host_net(address)) };
    let flags = AddressFlags::NODAD | AddressFlags::NOPREFIXROUTE | AddressFlags::DEPRECATED;
    match address {
        IpAddr::V4(_) => Address { scope: Scope::Host, ..base },
        IpAddr::V6(_) => Address { flags, ..base },
    }
}

/// Which of these addresses the loopback interface has.
pub fn on_loopback(addresses: &BTreeSet<IpAddr>) -> Result<BTreeSet<IpAddr>> {
    let found = loopback(&mut Socket::route()?)?;
    Ok(addresses.iter().filter(|address| found.contains_key(address)).copied().collect())
}

pub(crate) fn observe_devices(socket: &mut Socket, owner: &Owner) -> Result<BTreeMap<Family, FoundDevice>> {
    let mut devices = BTreeMap::new();
    for family in Family::BOTH {
        devices.extend(device(socket, family, owner)?.map(|device| (family, device)));
    }
    Ok(devices)
}

/// Whether a route of one of our protocols is the overlay's: it leads to another node or is a
/// blackhole. Direct routes to other links are pods' (`attach`).
pub fn is_ours(route: &Route, device: Option<u32>) -> bool {
    let elsewhere = route.gateway.is_some() || !route.multipath.is_empty();
    route.table == Route::MAIN
        && (elsewhere || route.kind != RouteKind::Unicast || (route.oif.is_some() && route.oif == device))
}

fn device(socket: &mut Socket, family: Family, owner: &Owner) -> Result<Option<FoundDevice>> {
    let Some(name) = owner.name(family) else { return Ok(None) };
    let link = match socket.link_by_name(name) {
        Err(error) if error.is_not_found() => return Ok(None),
        result => result?,
    };
    let addresses = socket.addresses_of(link.index)?.into_iter();
    let global = addresses.filter(|a| a.scope == Scope::Universe && Family::of_net(&a.net) == family);
    let addresses = global.map(|address| address.net).filter(|net| owner.owns_address(net)).collect();
    let marked = owner.alias.is_some_and(|alias| link.alias.as_deref() == Some(alias));
    let up = link.is_up();
    let Link { index, vxlan, mtu_bytes, mac, .. } = link;
    Ok(Some(FoundDevice { ifindex: index, vxlan, mtu: mtu_bytes, mac, up, marked, addresses }))
}

/// A kernel without IPv6 has no IPv6 objects.
fn listed<T>(result: Result<Vec<T>>) -> Result<Vec<T>, NetlinkError> {
    match result {
        Err(error) if error.is_unsupported() => Ok(Vec::new()),
        result => result,
    }
}

// === impl Observed ===

impl Observed {
    fn read_routes(&mut self, socket: &mut Socket, family: Family, desired: &Desired) -> Result<()> {
        let main = RouteFilter { table: Some(Route::MAIN), ..RouteFilter::default() };
        let found = match desired.owner.protocols() {
            Some(protocols) => {
                let mut found = Vec::new();
                for protocol in protocols {
                    let filter = RouteFilter { protocol: Some(protocol), ..main };
                    found.extend(listed(socket.routes_where(family, filter))?);
                }
                found
            }
            None => listed(socket.routes_where(family, main))?,
        };
        let device = self.devices.get(&family).map(|device| device.ifindex);
        for route in found {
            match desired.owner.classify(&route, device, &desired.routes) {
                Some(RouteOwner::Ours) => self.routes.entry(route.dst).or_default().push(route),
                Some(RouteOwner::Yields) => self.yielding.entry(route.dst).or_default().push(route),
                Some(RouteOwner::Connected) => _ = self.connected.insert(route.dst),
                None => {}
            }
        }
        Ok(())
    }

    fn read_entries(&mut self, socket: &mut Socket, family: Family, ifindex: u32) -> Result<()> {
        for entry in socket.fdb(ifindex)? {
            if entry.permanent && entry.table == FdbTable::Device {
                self.fdb.entry((family, entry.mac)).or_default().push(entry);
            }
        }
        for neighbour in listed(socket.neighbours_of(family, ifindex))? {
            if neighbour.state == NeighbourState::Permanent && !neighbour.proxy {
                self.neighbours.insert(neighbour.address, neighbour);
            }
        }
        Ok(())
    }
}
