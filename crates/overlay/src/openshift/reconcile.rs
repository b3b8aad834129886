//! Compares everything with its desired state and repairs it: when an agent starts, and when
//! another program changed our objects.

use std::collections::{BTreeMap, HashSet};

use russet_addr::{Family, IfName, IpNet};
use russet_netlink::{Batch, Link, LinkSet, Neighbour, NetlinkError, Route, RouteFilter, RouteKind};

use super::work::Work;
use super::{LEAVING_GROUP, Port, ROUTE_PROTOCOL, Sdn, SdnError, alias, device, peers, port};
use crate::refusal::{Reason, Refusal, Subject};
use crate::report::{Kind, Report};

/// The routes, neighbours and addresses of pods in the kernel.
struct Found {
    routes: HashSet<Route>,
    neighbours: HashSet<Neighbour>,
    addresses: HashSet<(u32, IpNet)>,
}

/// Reconciles everything with the attached ports and the last known peers.
pub(super) fn run(sdn: &mut Sdn, work: &mut Work) {
    if let Err(error) = try_run(sdn, work) {
        work.fail(error);
    }
}

/// Removes stale routes, then installs verdicts, then adds routes. No route exists before the
/// verdict that filters it; if verdicts fail, no route is added.
fn try_run(sdn: &mut Sdn, work: &mut Work) -> Result<(), SdnError> {
    let links: BTreeMap<String, Link> =
        sdn.socket.links()?.into_iter().map(|link| (link.name.clone(), link)).collect();
    let wanted: BTreeMap<IfName, Port> = sdn
        .ports
        .iter()
        .filter(|(name, port)| links.get(name.as_str()).is_some_and(|link| is_of(port, link)))
        .filter(|(_, port)| sdn.settings.is_pods(port.address))
        .map(|(name, port)| (name.clone(), port.clone()))
        .collect();
    remove_ways(sdn, &wanted, &links, work)?;
    sdn.verdicts.ensure(&sdn.settings, &wanted, work)?;
    if !work.looks_only() {
        sdn.ports = wanted;
    }
    let device = device::ensure(&sdn.settings, &mut sdn.socket, work);
    put_ways(sdn, &links, work)?;
    if device? {
        peers::restore(sdn, work);
    }
    sysctls(sdn, &links, work);
    Ok(())
}

/// Checks the record, because a new link may have the name of a port's deleted one.
pub(super) fn is_of(port: &Port, link: &Link) -> bool {
    let other = alias::standing(link, &BTreeMap::new()).is_some_and(|held| held.sandbox != port.sandbox);
    link.kind.as_deref() == Some("veth") && !other
}

fn pod_routes(sdn: &mut Sdn) -> Result<Vec<Route>, NetlinkError> {
    let filter = RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() };
    let tunnel = sdn.socket.link_by_name(&device::name()?).ok().map(|link| link.index);
    let mut routes = sdn.socket.routes_where(Family::V4, filter)?;
    routes.retain(|route| route.kind == RouteKind::Unicast && (tunnel.is_none() || route.oif != tunnel));
    Ok(routes)
}

fn remove_ways(
    sdn: &mut Sdn,
    wanted: &BTreeMap<IfName, Port>,
    links: &BTreeMap<String, Link>,
    work: &mut Work,
) -> Result<(), SdnError> {
    let way = |port: &Port| Some(port::way(&sdn.settings, port, links.get(port.host_veth.as_str())?.index));
    let ours: HashSet<Route> = wanted.values().filter_map(way).collect();
    let mut batch = Batch::new();
    for route in pod_routes(sdn)? {
        if !ours.contains(&route) {
            batch.delete_route(&route);
        }
    }
    work.execute(&mut sdn.socket, &batch, Kind::Route);
    Ok(())
}

fn put_ways(sdn: &mut Sdn, links: &BTreeMap<String, Link>, work: &mut Work) -> Result<(), SdnError> {
    let found = Found::read(sdn)?;
    let ports: Vec<Port> = sdn.ports.values().cloned().collect();
    let (mut records, mut own, mut neighbours, mut routes) =
        (Batch::new(), Batch::new(), Batch::new(), Batch::new());
    for port in &ports {
        let Some(link) = links.get(port.host_veth.as_str()) else { continue };
        let record = alias::of(port);
        // A failed DEL has left it in the group whose events are ignored.
        let leaving = link.group == LEAVING_GROUP;
        if !link.is_up() || leaving || link.alias.as_deref() != Some(record.as_str()) {
            let group = leaving.then_some(0);
            let change = LinkSet { up: Some(true), alias: Some(record), group, ..LinkSet::index(link.index) };
            records.set_link(&change);
        }
        let (way, neighbour) =
            (port::way(&sdn.settings, port, link.index), port::neighbour(port, link.index));
        let address = port::own_address(&sdn.settings, link.index);
        if !found.addresses.contains(&(address.ifindex, address.net)) {
            own.replace_address(&address);
        }
        if !found.neighbours.contains(&neighbour) {
            neighbours.replace_neighbour(&neighbour);
        }
        match port::guard(sdn, link.index, work) {
            Ok(()) => {}
            // A conflict on one pod's link, which retries do not resolve and which must not delay
            // other pods. Without the guard it keeps the route that it had; the table filters its
            // packets.
            Err(SdnError::NoPlace { .. }) => {
                let subject = Subject::Guard(port.host_veth.clone());
                work.report().refusals.push(Refusal::new(subject, None, Reason::NoPlace));
            }
            // In all other cases a pod without its guard gets no route.
            Err(error) => {
                work.fail(error);
                continue;
            }
        }
        if !found.routes.contains(&way) {
            routes.replace_route(&way);
        }
    }
    work.execute(&mut sdn.socket, &records, Kind::Device);
    work.execute(&mut sdn.socket, &own, Kind::Address);
    work.execute(&mut sdn.socket, &neighbours, Kind::Neighbour);
    work.execute(&mut sdn.socket, &routes, Kind::Route);
    Ok(())
}

/// Last, since there are many and packets rarely depend on them.
fn sysctls(sdn: &Sdn, links: &BTreeMap<String, Link>, work: &mut Work) {
    for name in sdn.ports.keys().filter(|name| links.contains_key(name.as_str())) {
        if let Err(error) = port::sysctls(name, work) {
            work.fail(error);
        }
    }
}

/// Removes everything; each step runs even if others failed.
pub(super) fn withdraw(sdn: &mut Sdn) -> Report {
    let mut work = Work::mends();
    let filter = RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() };
    match sdn.socket.routes_where(Family::V4, filter) {
        Ok(routes) => {
            let mut batch = Batch::new();
            for route in &routes {
                batch.delete_route(route);
            }
            work.execute(&mut sdn.socket, &batch, Kind::Route);
        }
        Err(error) => work.fail(error),
    }
    match device::withdraw(&mut sdn.socket) {
        Ok(true) => work.mended(Kind::Device, "delete the tunnel device"),
        Ok(false) => {}
        Err(error) => work.fail(error),
    }
    // Last: as long as there is a route, there is a verdict.
    match sdn.verdicts.withdraw() {
        Ok(true) => work.mended(Kind::Nat, "delete the table"),
        Ok(false) => {}
        Err(error) => work.fail(error),
    }
    sdn.ports.clear();
    sdn.peers = None;
    work.finish().report
}

// === impl Found ===

impl Found {
    fn read(sdn: &mut Sdn) -> Result<Self, NetlinkError> {
        let routes = pod_routes(sdn)?.into_iter().collect();
        let neighbours = sdn.socket.neighbours(Family::V4)?.into_iter().collect();
        let addresses = sdn.socket.addresses()?;
        let addresses = addresses.into_iter().map(|address| (address.ifindex, address.net)).collect();
        Ok(Self { routes, neighbours, addresses })
    }
}
