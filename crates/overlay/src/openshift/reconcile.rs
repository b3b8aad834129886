//! Compares everything with its desired state and repairs it: when an agent starts, and when
//! another program changed our objects.

use std::collections::{BTreeMap, HashSet};

use russet_addr::{Family, IfName, IpNet};
use russet_netlink::{Batch, Link, LinkSet, Neighbour, NetlinkError, Route, RouteFilter, RouteKind};

use super::changes::Changes;
use super::{LEAVING_GROUP, Port, ROUTE_PROTOCOL, Sdn, SdnError, alias, device, peers, port};
use crate::refusal::{Reason, Refusal, Subject};
use crate::report::{Kind, ReconcileReport};

/// The routes, neighbours and addresses of pods in the kernel.
struct KernelPorts {
    routes: HashSet<Route>,
    neighbours: HashSet<Neighbour>,
    addresses: HashSet<(u32, IpNet)>,
}

/// Reconciles everything with the attached ports and the last known peers.
pub(super) fn reconcile(sdn: &mut Sdn, changes: &mut Changes) {
    if let Err(error) = try_reconcile(sdn, changes) {
        changes.fail(error);
    }
}

/// Removes stale routes, then installs verdicts, then adds routes. No route exists before the
/// verdict that filters it; if verdicts fail, no route is added.
fn try_reconcile(sdn: &mut Sdn, changes: &mut Changes) -> Result<(), SdnError> {
    let links: BTreeMap<String, Link> =
        sdn.socket.links()?.into_iter().map(|link| (link.name.clone(), link)).collect();
    let wanted: BTreeMap<IfName, Port> = sdn
        .ports
        .iter()
        .filter(|(name, port)| links.get(name.as_str()).is_some_and(|link| is_of(port, link)))
        .filter(|(_, port)| sdn.settings.is_pods(port.address))
        .map(|(name, port)| (name.clone(), port.clone()))
        .collect();
    remove_stale_routes(sdn, &wanted, &links, changes)?;
    sdn.verdicts.ensure(&sdn.settings, &wanted, changes)?;
    if !changes.is_dry_run() {
        sdn.ports = wanted;
    }
    let device = device::ensure(&sdn.settings, &mut sdn.socket, changes);
    add_routes(sdn, &links, changes)?;
    if device? {
        peers::restore(sdn, changes);
    }
    sysctls(sdn, &links, changes);
    Ok(())
}

/// Checks the record, because a new link may have the name of a port's deleted one.
pub(super) fn is_of(port: &Port, link: &Link) -> bool {
    let other = alias::port_of(link, &BTreeMap::new()).is_some_and(|held| held.sandbox != port.sandbox);
    link.kind.as_deref() == Some("veth") && !other
}

fn pod_routes(sdn: &mut Sdn) -> Result<Vec<Route>, NetlinkError> {
    let filter = RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() };
    let tunnel = sdn.socket.link_by_name(&device::name()?).ok().map(|link| link.index);
    let mut routes = sdn.socket.routes_where(Family::V4, filter)?;
    routes.retain(|route| route.kind == RouteKind::Unicast && (tunnel.is_none() || route.oif != tunnel));
    Ok(routes)
}

fn remove_stale_routes(
    sdn: &mut Sdn,
    wanted: &BTreeMap<IfName, Port>,
    links: &BTreeMap<String, Link>,
    changes: &mut Changes,
) -> Result<(), SdnError> {
    let route =
        |port: &Port| Some(port::route(&sdn.settings, port, links.get(port.host_veth.as_str())?.index));
    let ours: HashSet<Route> = wanted.values().filter_map(route).collect();
    let mut batch = Batch::new();
    for route in pod_routes(sdn)? {
        if !ours.contains(&route) {
            batch.delete_route(&route);
        }
    }
    changes.execute(&mut sdn.socket, &batch, Kind::Route);
    Ok(())
}

fn add_routes(sdn: &mut Sdn, links: &BTreeMap<String, Link>, changes: &mut Changes) -> Result<(), SdnError> {
    let found = KernelPorts::read(sdn)?;
    let ports: Vec<Port> = sdn.ports.values().cloned().collect();
    let (mut records, mut own, mut neighbours, mut routes) =
        (Batch::new(), Batch::new(), Batch::new(), Batch::new());
    for port in &ports {
        let Some(link) = links.get(port.host_veth.as_str()) else { continue };
        let record = alias::for_port(port);
        // A failed DEL has left it in the group whose events are ignored.
        let leaving = link.group == LEAVING_GROUP;
        if !link.is_up() || leaving || link.alias.as_deref() != Some(record.as_str()) {
            let group = leaving.then_some(0);
            let change = LinkSet { up: Some(true), alias: Some(record), group, ..LinkSet::index(link.index) };
            records.set_link(&change);
        }
        let (route, neighbour) =
            (port::route(&sdn.settings, port, link.index), port::neighbour(port, link.index));
        let address = port::own_address(&sdn.settings, link.index);
        if !found.addresses.contains(&(address.ifindex, address.net)) {
            own.replace_address(&address);
        }
        if !found.neighbours.contains(&neighbour) {
            neighbours.replace_neighbour(&neighbour);
        }
        match port::guard(sdn, link.index, changes) {
            Ok(()) => {}
            // A conflict on one pod's link, which retries do not resolve and which must not delay
            // other pods. Without the guard it keeps the route that it had; the table filters its
            // packets.
            Err(SdnError::NoPlace { .. }) => {
                let subject = Subject::Guard(port.host_veth.clone());
                changes.report().refusals.push(Refusal::new(subject, None, Reason::NoPlace));
            }
            // In all other cases a pod without its guard gets no route.
            Err(error) => {
                changes.fail(error);
                continue;
            }
        }
        if !found.routes.contains(&route) {
            routes.replace_route(&route);
        }
    }
    changes.execute(&mut sdn.socket, &records, Kind::Device);
    changes.execute(&mut sdn.socket, &own, Kind::Address);
    changes.execute(&mut sdn.socket, &neighbours, Kind::Neighbour);
    changes.execute(&mut sdn.socket, &routes, Kind::Route);
    Ok(())
}

/// Last, since there are many and packets rarely depend on them.
fn sysctls(sdn: &Sdn, links: &BTreeMap<String, Link>, changes: &mut Changes) {
    for name in sdn.ports.keys().filter(|name| links.contains_key(name.as_str())) {
        if let Err(error) = port::sysctls(name, changes) {
            changes.fail(error);
        }
    }
}

/// Removes everything; each step runs even if others failed.
pub(super) fn withdraw(sdn: &mut Sdn) -> ReconcileReport {
    let mut changes = Changes::repairing();
    let filter = RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() };
    match sdn.socket.routes_where(Family::V4, filter) {
        Ok(routes) => {
            let mut batch = Batch::new();
            for route in &routes {
                batch.delete_route(route);
            }
            changes.execute(&mut sdn.socket, &batch, Kind::Route);
        }
        Err(error) => changes.fail(error),
    }
    match device::withdraw(&mut sdn.socket) {
        Ok(true) => changes.repaired(Kind::Device, "delete the tunnel device"),
        Ok(false) => {}
        Err(error) => changes.fail(error),
    }
    // Last: as long as there is a route, there is a verdict.
    match sdn.verdicts.withdraw() {
        Ok(true) => changes.repaired(Kind::Nat, "delete the table"),
        Ok(false) => {}
        Err(error) => changes.fail(error),
    }
    sdn.ports.clear();
    sdn.peers = None;
    changes.finish().report
}

// === impl KernelPorts ===

impl KernelPorts {
    fn read(sdn: &mut Sdn) -> Result<Self, NetlinkError> {
        let routes = pod_routes(sdn)?.into_iter().collect();
        let neighbours = sdn.socket.neighbours(Family::V4)?.into_iter().collect();
        let addresses = sdn.socket.addresses()?;
        let addresses = addresses.into_iter().map(|address| (address.ifindex, address.net)).collect();
        Ok(Self { routes, neighbours, addresses })
    }
}
