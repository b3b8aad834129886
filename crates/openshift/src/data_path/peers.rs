//! Other nodes: for each a route to its pods, a neighbour with the node's address, and the
//! permission to send to us.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use russet_addr::{Family, IpNet, Ipv4Net};
use russet_netlink::{Neighbour, NeighbourState, Route, RouteFilter};
use russet_overlay::{Reason, ReconcileReport, Refusal, Subject};

use super::reconcile::SdnState;
use super::steps::{Action, Difference, Stage, Steps};
use super::{Peer, ROUTE_PROTOCOL, Sdn, SdnError, Settings, device, port};

type Peers = BTreeMap<Ipv4Net, Ipv4Addr>;

/// The peers of the last call, by subnet.
#[derive(Debug)]
pub(super) struct KnownPeers {
    wanted: Peers,
    /// Whether all of them took effect and no difference was found since.
    in_force: bool,
}

/// The routes and neighbours of peers in the kernel.
#[derive(Default)]
struct KernelPeers {
    routes: BTreeMap<Ipv4Net, Vec<Route>>,
    neighbours: BTreeMap<Ipv4Addr, Neighbour>,
}

/// Changes the peers from the last known ones, or from those in the kernel, to these. Remembers them
/// even after a failure, so that the next comparison tries again.
pub(super) fn set(sdn: &mut Sdn, peers: &[Peer]) -> ReconcileReport {
    let mut report = ReconcileReport::default();
    let wanted = admitted(&sdn.settings, peers, &mut report);
    let assumed = sdn.peers.take().filter(|known| known.in_force).map(|known| known.wanted);
    if let Err(error) = try_set(sdn, assumed, &wanted, &mut report) {
        report.fail(error);
    }
    sdn.peers = Some(KnownPeers { wanted, in_force: report.failed == 0 });
    report
}

fn try_set(
    sdn: &mut Sdn,
    assumed: Option<Peers>,
    wanted: &Peers,
    report: &mut ReconcileReport,
) -> Result<(), SdnError> {
    let ifindex = sdn.socket.link_by_name(&device::name()?)?.index;
    let found = match &assumed {
        Some(known) => KernelPeers::assumed(known, ifindex),
        None => {
            let filter = RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() };
            let routes = sdn.socket.routes_where(Family::V4, filter)?;
            KernelPeers::from_tables(&routes, &sdn.socket.neighbours_of(Family::V4, ifindex)?, ifindex)
        }
    };
    let mut steps = Steps::new(&sdn.socket);
    diff(sdn.verdicts.senders(), wanted, &found, ifindex, &mut steps);
    let (differences, ports) = (steps.finish(), sdn.ports.clone());
    sdn.carry_out(&ports, &differences, report).map(drop)
}

/// What the last known peers lack in the kernel.
pub(super) fn diff_known(sdn: &Sdn, state: &SdnState, ifindex: u32, steps: &mut Steps<'_>) {
    if let Some(KnownPeers { wanted, .. }) = &sdn.peers {
        let found = KernelPeers::from_tables(&state.routes, &state.neighbours, ifindex);
        diff(sdn.verdicts.senders(), wanted, &found, ifindex, steps);
    }
}

/// Records whether the known peers are in force, after differences were applied, of which these
/// stages failed.
pub(super) fn settle(sdn: &mut Sdn, failed: &[Stage]) {
    if let Some(known) = &mut sdn.peers {
        known.in_force = !failed.contains(&Stage::Device) && !failed.contains(&Stage::Peers);
    }
}

/// After a comparison that changed nothing.
pub(super) fn note_differences(sdn: &mut Sdn, differences: &[Difference]) {
    if let Some(known) = &mut sdn.peers {
        known.in_force &= !differences.iter().any(|difference| difference.stage == Stage::Peers);
    }
}

/// The valid peers: their pods are inside of the network, not in our subnet, and not in that of
/// another peer.
fn admitted(settings: &Settings, peers: &[Peer], report: &mut ReconcileReport) -> Peers {
    let mut wanted = Peers::new();
    for peer in peers {
        let subnet = peer.subnet.trunc();
        let clash = |other: &Ipv4Net| other.contains(&subnet) || subnet.contains(other);
        let subject = Subject::Block(IpNet::V4(subnet));
        let refusal = if peer.host_ip == settings.node_ip || clash(&settings.own) {
            Some(Reason::Ours)
        } else if !settings.cluster.iter().any(|network| network.contains(&subnet)) {
            settings.cluster.first().map(|network| Reason::OutsideNetwork(IpNet::V4(*network)))
        } else if neighbours_of(&wanted, subnet).any(|other| clash(&other)) {
            Some(Reason::Twice)
        } else {
            None
        };
        match refusal {
            Some(reason) => report.refusals.push(Refusal::new(subject, None, reason)),
            None => drop(wanted.insert(subnet, peer.host_ip)),
        }
    }
    wanted
}

/// The only subnets among disjoint ones that can overlap with one more: the last that begins no
/// later, and the first that begins after it.
fn neighbours_of(peers: &Peers, subnet: Ipv4Net) -> impl Iterator<Item = Ipv4Net> {
    let least = Ipv4Net::new_assert(subnet.network(), 0);
    let before = peers.range(..=subnet).next_back().map(|(net, _)| *net);
    let behind = peers.range(least..).next().map(|(net, _)| *net);
    before.into_iter().chain(behind)
}

/// A new peer is permitted to send before there is a route to it; a removed one loses its route
/// before its permission.
fn diff(
    permitted: &BTreeSet<Ipv4Addr>,
    wanted: &Peers,
    found: &KernelPeers,
    ifindex: u32,
    steps: &mut Steps<'_>,
) {
    let senders: BTreeSet<Ipv4Addr> = wanted.values().copied().collect();
    let both: BTreeSet<Ipv4Addr> = permitted.union(&senders).copied().collect();
    permit(permitted, &both, steps);
    put(wanted, found, ifindex, steps);
    remove(wanted, &senders, found, steps);
    permit(&both, &senders, steps);
}

fn permit(permitted: &BTreeSet<Ipv4Addr>, senders: &BTreeSet<Ipv4Addr>, steps: &mut Steps<'_>) {
    let counts = [senders.difference(permitted).count(), permitted.difference(senders).count()];
    if counts != [0, 0] {
        steps.push(Stage::Peers, Action::Senders(senders.clone(), counts));
    }
}

fn put(wanted: &Peers, found: &KernelPeers, ifindex: u32, steps: &mut Steps<'_>) {
    let mut seen = BTreeSet::new();
    for (subnet, host_ip) in wanted {
        let neighbour = neighbour(*host_ip, ifindex);
        if seen.insert(*host_ip) && found.neighbours.get(host_ip) != Some(&neighbour) {
            steps.push(Stage::Peers, Action::PutNeighbour(neighbour));
        }
        let route = route(*subnet, *host_ip, ifindex);
        if found.routes.get(subnet).is_none_or(|routes| routes.as_slice() != [route.clone()]) {
            steps.push(Stage::Peers, Action::PutRoute(route));
        }
    }
}

fn remove(wanted: &Peers, hosts: &BTreeSet<Ipv4Addr>, found: &KernelPeers, steps: &mut Steps<'_>) {
    for (subnet, routes) in &found.routes {
        // One of them is, or was replaced by, the wanted one.
        let spare = usize::from(wanted.contains_key(subnet));
        steps.extend(Stage::Peers, routes.iter().skip(spare).cloned().map(Action::DeleteRoute));
    }
    let gone = found.neighbours.iter().filter(|(host_ip, _)| !hosts.contains(host_ip));
    steps.extend(Stage::Peers, gone.map(|(_, neighbour)| Action::DeleteNeighbour(neighbour.clone())));
}

fn route(subnet: Ipv4Net, host_ip: Ipv4Addr, ifindex: u32) -> Route {
    Route {
        oif: Some(ifindex),
        onlink: true,
        protocol: ROUTE_PROTOCOL,
        ..Route::via(IpNet::V4(subnet), host_ip.into())
    }
}

/// The egress program reads the node's address from this MAC.
fn neighbour(host_ip: Ipv4Addr, ifindex: u32) -> Neighbour {
    Neighbour::permanent(ifindex, host_ip.into(), port::mac(host_ip))
}

// === impl KernelPeers ===

impl KernelPeers {
    /// The kernel's state: routes of our protocol, and neighbours.
    fn from_tables(routes: &[Route], neighbours: &[Neighbour], ifindex: u32) -> Self {
        let mut found = Self::default();
        for route in routes.iter().filter(|route| route.oif == Some(ifindex)) {
            if let IpNet::V4(subnet) = route.dst {
                found.routes.entry(subnet).or_default().push(route.clone());
            }
        }
        for neighbour in neighbours.iter().filter(|neighbour| neighbour.ifindex == ifindex) {
            if let (NeighbourState::Permanent, std::net::IpAddr::V4(address)) =
                (neighbour.state, neighbour.address)
            {
                found.neighbours.insert(address, neighbour.clone());
            }
        }
        found
    }

    /// The kernel's state if nothing else changed it.
    fn assumed(known: &Peers, ifindex: u32) -> Self {
        let mut found = Self::default();
        for (subnet, host_ip) in known {
            found.routes.insert(*subnet, vec![route(*subnet, *host_ip, ifindex)]);
            found.neighbours.insert(*host_ip, neighbour(*host_ip, ifindex));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use russet_netlink::Socket;
    use russet_testkit::{in_netns_with_loopback, run};

    use super::super::kind;
    use super::*;

    /// Guards against a regression: after each `russet drift`, the next change of a peer read all
    /// routes and neighbours.
    #[test]
    #[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
    fn a_dry_run_keeps_the_known_peers_in_force_and_reports_differences() {
        in_netns_with_loopback(|| {
            let ip = |command: &str| run("ip", &command.split(' ').collect::<Vec<_>>());
            ip("link add nic0 type veth peer name wire0");
            ip("address add 192.0.2.11/24 dev nic0");
            ip("link set nic0 up");
            let nic = Socket::route().unwrap().link_by_name(&"nic0".parse().unwrap()).unwrap();
            let mut sdn = Sdn::open(Settings {
                cluster: vec!["10.128.0.0/14".parse().unwrap()],
                service: None,
                own: "10.128.0.0/23".parse().unwrap(),
                node_ip: "192.0.2.11".parse().unwrap(),
                underlay: nic.index,
                mtu: 1400,
                vxlan_port: 4789,
            })
            .unwrap();
            let peer =
                Peer { host_ip: "192.0.2.12".parse().unwrap(), subnet: "10.128.2.0/23".parse().unwrap() };
            let known = |sdn: &Sdn| sdn.peers.as_ref().is_some_and(|known| known.in_force);
            assert_eq!((sdn.restore().failed, sdn.peers(&[peer]).failed), (0, 0));
            assert!(known(&sdn));
            assert_eq!(sdn.differences().what, [""; 0]);
            assert!(known(&sdn), "the known peers stay in force");
            ip("route del 10.128.2.0/23");
            assert_eq!(sdn.differences().what.len(), 1);
            assert!(!known(&sdn));
            // The dry run found a difference, so the next change reads the kernel.
            assert_eq!(sdn.peers(&[peer]).changed[kind::ROUTE], 1);
            assert!(known(&sdn));
            assert_eq!(sdn.differences().what, [""; 0]);
        });
    }
}
