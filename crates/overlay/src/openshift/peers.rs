//! Other nodes: a route to each one's pods, a neighbour that says where the node is, and the right to send to us.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use russet_addr::{Family, IpNet, Ipv4Net};
use russet_netlink::{Batch, Neighbour, NeighbourState, Route, RouteFilter};

use super::work::Work;
use super::{Peer, ROUTE_PROTOCOL, Sdn, SdnError, Settings, device, port};
use crate::refusal::{Reason, Refusal, Subject};
use crate::report::{Kind, Report};

type Peers = BTreeMap<Ipv4Net, Ipv4Addr>;

/// The peers as they were told last, by subnet.
#[derive(Debug)]
pub(super) struct Told {
    wanted: Peers,
    /// All of them took effect, and nobody has said since that something else changed them.
    in_force: bool,
}

/// What the kernel has of peers.
#[derive(Default)]
struct Found {
    routes: BTreeMap<Ipv4Net, Vec<Route>>,
    neighbours: BTreeMap<Ipv4Addr, Neighbour>,
}

/// From the peers as they were told last, or as the kernel has them, to these.
pub(super) fn bring(sdn: &mut Sdn, peers: &[Peer], work: &mut Work) {
    let wanted = admitted(&sdn.settings, peers, work.report());
    let assumed = sdn.peers.take().filter(|told| told.in_force).map(|told| told.wanted);
    carry_out(sdn, assumed, wanted, work);
}

/// From what the kernel has to the peers as they were told last.
pub(super) fn restore(sdn: &mut Sdn, work: &mut Work) {
    if let Some(Told { wanted, .. }) = sdn.peers.take() {
        carry_out(sdn, None, wanted, work);
    }
}

/// What was told stays told, whatever becomes of it: the next comparison tries again. It is in force when it was brought about, or a look found it so.
fn carry_out(sdn: &mut Sdn, assumed: Option<Peers>, wanted: Peers, work: &mut Work) {
    let (failed_before, found_before) = (work.report().failed, work.differences());
    if let Err(error) = try_carry_out(sdn, assumed, &wanted, work) {
        work.fail(error);
    }
    let right = !work.looks_only() || work.differences() == found_before;
    let in_force = work.report().failed == failed_before && right;
    sdn.peers = Some(Told { wanted, in_force });
}

/// The peers that can be: their pods are inside the network and not ours, and no other peer has them.
fn admitted(settings: &Settings, peers: &[Peer], report: &mut Report) -> Peers {
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

/// The only subnets among those without overlaps that can overlap with one more: the last that begins no later, and the first that does.
fn neighbours_of(peers: &Peers, subnet: Ipv4Net) -> impl Iterator<Item = Ipv4Net> {
    let least = Ipv4Net::new_assert(subnet.network(), 0);
    let before = peers.range(..=subnet).next_back().map(|(net, _)| *net);
    let behind = peers.range(least..).next().map(|(net, _)| *net);
    before.into_iter().chain(behind)
}

/// Who comes may send before there is a way to it; who goes has no way before it may not send any more.
fn try_carry_out(
    sdn: &mut Sdn,
    assumed: Option<Peers>,
    wanted: &Peers,
    work: &mut Work,
) -> Result<(), SdnError> {
    let ifindex = sdn.socket.link_by_name(&device::name()?)?.index;
    let found = match &assumed {
        Some(known) => Found::assumed(known, ifindex),
        None => observe(sdn, ifindex)?,
    };
    let senders: BTreeSet<Ipv4Addr> = wanted.values().copied().collect();
    let both = sdn.verdicts.senders().union(&senders).copied().collect();
    sdn.verdicts.let_send(&sdn.settings, both, &sdn.ports, work)?;
    put(sdn, wanted, &found, ifindex, work);
    remove(sdn, wanted, &senders, &found, work);
    sdn.verdicts.let_send(&sdn.settings, senders, &sdn.ports, work)
}

fn put(sdn: &mut Sdn, wanted: &Peers, found: &Found, ifindex: u32, work: &mut Work) {
    let mut batch = Batch::new();
    let mut kinds = Vec::new();
    let mut seen = BTreeSet::new();
    for (subnet, host_ip) in wanted {
        let neighbour = neighbour(*host_ip, ifindex);
        if seen.insert(*host_ip) && found.neighbours.get(host_ip) != Some(&neighbour) {
            batch.replace_neighbour(&neighbour);
            kinds.push(Kind::Neighbour);
        }
        let route = route(*subnet, *host_ip, ifindex);
        if found.routes.get(subnet).is_none_or(|routes| routes.as_slice() != [route.clone()]) {
            batch.replace_route(&route);
            kinds.push(Kind::Route);
        }
    }
    execute(sdn, &batch, &kinds, work);
}

fn remove(sdn: &mut Sdn, wanted: &Peers, hosts: &BTreeSet<Ipv4Addr>, found: &Found, work: &mut Work) {
    let mut batch = Batch::new();
    let mut kinds = Vec::new();
    for (subnet, routes) in &found.routes {
        // One of them is, or was replaced by, the one that is wanted.
        let spare = usize::from(wanted.contains_key(subnet));
        for route in routes.iter().skip(spare) {
            batch.delete_route(route);
            kinds.push(Kind::Route);
        }
    }
    for (host_ip, neighbour) in &found.neighbours {
        if !hosts.contains(host_ip) {
            batch.delete_neighbour(neighbour);
            kinds.push(Kind::Neighbour);
        }
    }
    execute(sdn, &batch, &kinds, work);
}

fn execute(sdn: &mut Sdn, batch: &Batch, kinds: &[Kind], work: &mut Work) {
    work.execute_each(&mut sdn.socket, batch, |index| kinds.get(index).copied().unwrap_or(Kind::Route));
}

fn route(subnet: Ipv4Net, host_ip: Ipv4Addr, ifindex: u32) -> Route {
    Route {
        oif: Some(ifindex),
        onlink: true,
        protocol: ROUTE_PROTOCOL,
        ..Route::via(IpNet::V4(subnet), host_ip.into())
    }
}

/// The egress program reads the node out of this MAC.
fn neighbour(host_ip: Ipv4Addr, ifindex: u32) -> Neighbour {
    Neighbour::permanent(ifindex, host_ip.into(), port::mac(host_ip))
}

fn observe(sdn: &mut Sdn, ifindex: u32) -> Result<Found, SdnError> {
    let mut found = Found::default();
    let filter = RouteFilter { protocol: Some(ROUTE_PROTOCOL), oif: Some(ifindex), ..RouteFilter::default() };
    for route in sdn.socket.routes_where(Family::V4, filter)? {
        if let IpNet::V4(subnet) = route.dst {
            found.routes.entry(subnet).or_default().push(route);
        }
    }
    for neighbour in sdn.socket.neighbours_of(Family::V4, ifindex)? {
        if let (NeighbourState::Permanent, std::net::IpAddr::V4(address)) =
            (neighbour.state, neighbour.address)
        {
            found.neighbours.insert(address, neighbour);
        }
    }
    Ok(found)
}

// === impl Found ===

impl Found {
    /// What is there if nobody changed anything.
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

    use super::*;

    /// Found by a reader: after each `russet drift` the next change of a peer read all routes and neighbours.
    #[test]
    #[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
    fn who_only_looks_changes_nothing_of_what_is_known_and_finds_out_what_is_wrong() {
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
            let known = |sdn: &Sdn| sdn.peers.as_ref().is_some_and(|told| told.in_force);
            assert_eq!((sdn.restore().report.failed, sdn.peers(&[peer]).failed), (0, 0));
            assert!(known(&sdn));
            assert_eq!(sdn.differences().what, [""; 0]);
            assert!(known(&sdn), "nothing is out of force");
            ip("route del 10.128.2.0/23");
            assert_eq!(sdn.differences().what.len(), 1);
            assert!(!known(&sdn));
            // So that what is told next finds it, whoever is first.
            assert_eq!(sdn.peers(&[peer]).changed(Kind::Route), 1);
            assert!(known(&sdn));
            assert_eq!(sdn.differences().what, [""; 0]);
        });
    }
}
