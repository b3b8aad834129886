//! Many leases: bursts of changes, and their costs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use russet_addr::{Ipv4Net, Mac};
use russet_overlay::Kind;
use russet_overlay::flannel::{Backend, Networks, Peer, PeerKey};
use russet_testkit::{sh, sh_json};

use super::cluster::{Node, vxlan, with_nodes};

/// Leases of a burst.
const BURST_LEASES: u32 = 1000;
/// Consecutive bursts.
const BURSTS: u32 = 10;

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip"]
fn cost_of_thousands_of_leases_with_ipv6() {
    with_nodes(1, &Backend::Vxlan(vxlan()), |nodes| {
        let node = &mut nodes[0];
        node.networks = Networks { v4: None, v6: Some("fd10:5::/32".parse().unwrap()) };
        node.start();
        assert_eq!((node.prepared.mtu, node.prepared.mac[0]), (1430, None), "IPv6 alone");
        let peers = numbers(1..5001).map(|peer| {
            let [_, high, low, _] = peer.subnet.unwrap().network().octets();
            let segments = |first: u16| [first, 5, u16::from(high), u16::from(low), 0, 0, 0, 0].into();
            let outer: std::net::Ipv6Addr = segments(0xfd88);
            Peer {
                subnet: None,
                subnet_v6: Some(russet_addr::Ipv6Net::new(segments(0xfd10), 64).unwrap()),
                public_ipv6: Some(outer),
                mac: [None, peer.mac[0]],
                ..peer
            }
        });
        let (report, cost) = timed(|| node.reset(peers.collect()));
        assert_eq!([Kind::Route, Kind::Neighbour, Kind::Fdb].map(|kind| report.changed(kind)), [5000; 3]);
        println!("vxlan, IPv6: 5000 leases programmed in {cost}");
        let (report, cost) = timed(|| node.resync());
        assert!(report.is_quiet(), "{:?}", report.changed);
        println!("vxlan, IPv6: 5000 leases compared in {cost}");
    });
}

/// Single changes measured together.
const CHANGES: u32 = 200;

/// Lease `number` of a large cluster; its MAC and address depend on `edition`. The addresses are in
/// 172.16.0.0/12.
fn lease(number: u32, edition: u32) -> Peer {
    let [_, _, high, low] = number.to_be_bytes();
    let subnet = Ipv4Net::new(Ipv4Addr::new(10, 16 + high, low, 0), 24).unwrap();
    let mac = Mac([2, u8::try_from(edition).unwrap(), 0, 0, high, low]);
    let public_ip = Ipv4Addr::new(172, 16 + u8::try_from(edition % 4).unwrap(), high, low);
    Peer {
        subnet: Some(subnet),
        subnet_v6: None,
        public_ip,
        public_ipv6: None,
        mac: [Some(mac), None],
        wireguard: [None, None],
    }
}

/// A node in a network with room for all leases, without IPv6, with all peers' addresses on its
/// link.
fn with_node(backend: &Backend, body: impl FnOnce(&mut Node) + Send) {
    with_nodes(1, backend, |nodes| {
        sh("ip -n n1 addr add 172.31.255.1/12 dev w0");
        nodes[0].networks = Networks { v4: Some("10.0.0.0/8".parse().unwrap()), v6: None };
        nodes[0].start();
        body(&mut nodes[0]);
    });
}

fn numbers(range: std::ops::Range<u32>) -> impl Iterator<Item = Peer> {
    range.map(|number| lease(number, 0))
}

/// The output of `ip` or `bridge` as pairs.
fn pairs(command: &str, [key, value]: [&str; 2]) -> BTreeSet<(String, String)> {
    let entries = sh_json(command);
    let found: BTreeSet<_> = entries.iter().map(|entry| (text(entry, key), text(entry, value))).collect();
    assert_eq!(found.len(), entries.len(), "{command}: doubles");
    found
}

/// The permanent neighbours of the tunnel according to `ip`, whose list can omit and repeat entries
/// while tests in other namespaces change theirs: read again while it lacks some of the expected ones.
fn found_neighbours(expected: &BTreeSet<(String, String)>) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for _ in 0..10 {
        let entries = sh_json("ip -n n1 -j neigh show dev flannel.1 nud permanent");
        found.extend(entries.iter().map(|entry| (text(entry, "dst"), text(entry, "lladdr"))));
        if found.is_superset(expected) {
            break;
        }
    }
    found
}

fn text(entry: &serde_json::Value, name: &str) -> String {
    entry[name].as_str().unwrap_or_default().to_owned()
}

/// Requires that the kernel holds exactly these leases, according to `ip` and `bridge`.
#[track_caller]
fn assert_holds(leases: &BTreeMap<PeerKey, Peer>) {
    let of = |pair: &dyn Fn(&Peer) -> (String, String)| leases.values().map(pair).collect::<BTreeSet<_>>();
    let base = |peer: &Peer| peer.subnet.unwrap().network().to_string();
    let mac = |peer: &Peer| peer.mac[0].unwrap().to_string();
    let routes = of(&|peer| (peer.subnet.unwrap().to_string(), base(peer)));
    assert!(pairs("ip -n n1 -j route show proto 115", ["dst", "gateway"]) == routes, "routes differ");
    let neighbours = of(&|peer| (base(peer), mac(peer)));
    assert!(found_neighbours(&neighbours) == neighbours, "neighbours differ");
    let fdb = of(&|peer| (mac(peer), peer.public_ip.to_string()));
    assert!(
        pairs("bridge -n n1 -j fdb show dev flannel.1", ["mac", "dst"]) == fdb,
        "forwarding entries differ"
    );
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge"]
fn t24_ten_bursts_of_a_thousand_leases_leave_exactly_the_leased_routes() {
    // flannel.md section 10, T24
    with_node(&Backend::Vxlan(vxlan()), |node| {
        let steady: Vec<Peer> = numbers(5000..5050).collect();
        node.reset(steady.clone());
        let mut leases: BTreeMap<_, _> = steady.into_iter().map(|peer| (peer.key(), peer)).collect();
        let (mut slowest, mut piece) = (Duration::ZERO, 0);
        for burst in 0..BURSTS {
            let began = Instant::now();
            // In pieces of a different size each time; every third lease is changed once more,
            // every second is removed in the end.
            for numbers in (0..BURST_LEASES).collect::<Vec<_>>().chunks(1 + 13 * piece % 97) {
                piece += 1;
                let put: Vec<Peer> = numbers.iter().map(|number| lease(*number, burst)).collect();
                node.change(&[], &put);
                let again: Vec<Peer> =
                    numbers.iter().filter(|n| *n % 3 == 0).map(|n| lease(*n, 100 + burst)).collect();
                let gone: Vec<PeerKey> = put
                    .iter()
                    .zip(numbers)
                    .filter(|(_, n)| *n % 2 == 0)
                    .map(|(peer, _)| peer.key())
                    .collect();
                node.change(&[], &again);
                node.change(&gone, &[]);
                leases.extend(put.into_iter().chain(again).map(|peer| (peer.key(), peer)));
                leases.retain(|key, _| !gone.contains(key));
            }
            slowest = slowest.max(began.elapsed());
            assert_holds(&leases);
        }
        println!(
            "{BURST_LEASES} leases added, a third changed, half removed: {slowest:?} in the slowest of {BURSTS} bursts"
        );
        node.drifted();
        assert!(node.resync().is_quiet(), "a full comparison has nothing to add");
        assert!(!node.drifted());
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge"]
fn a_restart_reaches_any_leases_from_any_others_and_leaves_equal_ones_untouched() {
    // flannel.md section 12 item 5; beyond 1,024 routes some have metrics
    with_node(&Backend::Vxlan(vxlan()), |node| {
        let mut metrics = Vec::new();
        for (range, edition) in
            [(0..1500, 0), (700..2100, 1), (700..2100, 2), (0..40, 2), (0..0, 0), (5..1300, 3)]
        {
            node.start();
            let kept = node.reset(range.clone().map(|number| lease(number, edition)).collect());
            assert_holds(
                &range.map(|number| lease(number, edition)).map(|peer| (peer.key(), peer)).collect(),
            );
            assert!(node.resync().is_quiet());
            let routes = sh_json("ip -n n1 -j route show proto 115");
            metrics.push((kept.changed(Kind::Route), routes.iter().filter(|r| r["metric"].is_u64()).count()));
        }
        // A route that stays keeps its metric; with another MAC or address it is not even written.
        let expected = [(1500, 1500), (1300, 1400), (0, 1400), (1440, 0), (40, 0), (1295, 1295)];
        assert_eq!(metrics, expected);
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge"]
fn cost_of_thousands_of_leases() {
    for (name, backend) in [("vxlan", Backend::Vxlan(vxlan())), ("host-gw", Backend::HostGw)] {
        for count in [1000, 5000, 15_000] {
            with_node(&backend, |node| {
                let (report, cost) = timed(|| node.reset(numbers(1..count + 1).collect()));
                let made = usize::try_from(count).unwrap();
                assert_eq!(report.changed(Kind::Route), made, "{:?}", report.refusals.first());
                println!("{name}: {count} leases programmed in {cost}");
                let (report, cost) = timed(|| node.resync());
                assert!(report.is_quiet(), "{:?}", report.changed);
                println!("{name}: {count} leases compared in {cost}");
                let (_, cost) = timed(|| node.drifted());
                println!("{name}: the events of that heard in {cost}");
                node.resync();
                let one = lease(count + 1, 0);
                let ((), cost) = timed(|| {
                    for _ in 0..CHANGES / 2 {
                        assert_eq!(node.change(&[], std::slice::from_ref(&one)).changed(Kind::Route), 1);
                        assert_eq!(node.change(&[one.key()], &[]).changed(Kind::Route), 1);
                    }
                });
                println!("{name}: {CHANGES} times one lease more or less among {count} in {cost}");
                assert!(!node.drifted(), "our own changes are no drift");
                if name == "vxlan" {
                    assert_holds(&numbers(1..count + 1).map(|peer| (peer.key(), peer)).collect());
                }
            });
        }
    }
}

/// The result of `work`, and the elapsed time and the CPU time of this thread.
fn timed<T>(work: impl FnOnce() -> T) -> (T, String) {
    let computed = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    };
    let (began, before) = (Instant::now(), computed());
    let result = work();
    let cost = format!("{:?}, {:?} of it CPU", began.elapsed(), computed() - before);
    (result, cost)
}
