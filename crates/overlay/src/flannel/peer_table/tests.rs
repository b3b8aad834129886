//! A table that follows changes equals one that is filled anew, and its differences lead from one
//! state to the other.

use proptest::prelude::*;
use russet_addr::Ipv4Net;
use russet_netlink::Route;

use super::*;

/// What a kernel would hold after the differences.
#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    routes: BTreeMap<IpNet, Hop>,
    neighbours: BTreeMap<IpAddr, Mac>,
    fdb: BTreeMap<(Family, Mac), IpAddr>,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Put(PeerKey, Claim),
    Refuse(PeerKey),
    Gone(PeerKey),
}

fn net(third: u8, length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new([10, 5, third, 0].into(), length).unwrap())
}

fn key(number: u8) -> PeerKey {
    PeerKey { v4: Ipv4Net::new([10, 9, number, 0].into(), 24).ok(), v6: None }
}

/// Six leases that compete for three subnets of two lengths, three MACs and three addresses.
fn event() -> impl Strategy<Value = Event> {
    let outer = |last: u8| IpAddr::from([192, 168, 77, last]);
    let path = prop_oneof![
        3 => (0..3u8, 0..3u8).prop_map(move |(mac, last)| PeerPath::Tunnel { mac: Mac([2, 0, 0, 0, 0, mac]), outer: outer(last) }),
        1 => (0..3u8).prop_map(move |last| PeerPath::Direct { ifindex: 3, gateway: outer(last) }),
    ];
    let claim =
        (0..3u8, 24..26u8, path).prop_map(|(third, length, path)| Claim { subnet: net(third, length), path });
    prop_oneof![
        4 => (0..6u8, claim).prop_map(|(number, claim)| Event::Put(key(number), claim)),
        1 => (0..6u8).prop_map(|number| Event::Refuse(key(number))),
        2 => (0..6u8).prop_map(|number| Event::Gone(key(number))),
    ]
}

fn enter(peer_table: &mut PeerTable, event: Event) {
    match event {
        Event::Put(key, claim) => peer_table.put(key, [Some(Ok(claim)), None], [None, None]),
        Event::Refuse(key) => {
            let refusal = Refusal::new(Subject::Block(net(99, 24)), None, Reason::Ours);
            peer_table.put(key, [Some(Err(Box::new(refusal))), None], [None, None]);
        }
        Event::Gone(key) => peer_table.remove(&key),
    }
}

fn hop(route: &Route) -> Hop {
    match (route.onlink, route.gateway, route.oif) {
        (true, Some(gateway), _) => Hop::Tunnel(gateway),
        (false, Some(gateway), Some(ifindex)) => Hop::Underlay { ifindex, gateway },
        _ => panic!("{route:?}"),
    }
}

/// Applies a difference, whose description of the earlier state must be right.
fn carry_out(held: &mut Held, (desired, was): (Desired, Observed)) {
    for (dst, routes) in &was.routes {
        assert_eq!(held.routes.remove(dst), Some(hop(&routes[0])), "{dst}");
    }
    for (address, neighbour) in &was.neighbours {
        assert_eq!(held.neighbours.remove(address), neighbour.mac, "{address}");
    }
    for (key, entries) in &was.fdb {
        assert_eq!(held.fdb.remove(key), entries[0].dst, "{key:?}");
    }
    for (dst, hop) in desired.routes {
        assert_eq!(held.routes.insert(dst, hop), None, "{dst}");
    }
    held.neighbours.extend(desired.neighbours);
    held.fdb.extend(desired.fdb);
}

fn owner() -> Owner {
    Owner { onlink: false, ..Owner::default() }
}

proptest! {
    #[test]
    fn changes_give_the_same_state_as_a_fresh_table(pieces in prop::collection::vec(prop::collection::vec(event(), 1..6), 1..12)) {
        let devices = BTreeMap::new();
        let mut peer_table = PeerTable::new(owner(), BTreeMap::new());
        let (mut held, mut alive) = (Held::default(), Vec::<(PeerKey, Event)>::new());
        for event in pieces.iter().flatten() {
            let (Event::Put(key, _) | Event::Refuse(key) | Event::Gone(key)) = *event;
            alive.retain(|(other, _)| *other != key);
            if !matches!(event, Event::Gone(_)) {
                alive.push((key, *event));
            }
        }
        for piece in pieces {
            piece.into_iter().for_each(|event| enter(&mut peer_table, event));
            carry_out(&mut held, peer_table.difference(&devices));
            let Desired { routes, neighbours, fdb, .. } = peer_table.desired();
            prop_assert_eq!((&held.routes, &held.neighbours, &held.fdb), (routes, neighbours, fdb));
        }
        let mut fresh = PeerTable::new(owner(), BTreeMap::new());
        alive.into_iter().for_each(|(_, event)| enter(&mut fresh, event));
        prop_assert_eq!(peer_table.desired(), fresh.desired());
        prop_assert_eq!(peer_table.refusals().collect::<Vec<_>>(), fresh.refusals().collect::<Vec<_>>());
        // Every neighbour has a forwarding entry, every route through the tunnel a neighbour, and nothing else is there.
        let macs: BTreeMap<_, _> = held.neighbours.values().map(|mac| ((Family::V4, *mac), ())).collect();
        prop_assert!(macs.keys().eq(held.fdb.keys()));
        let tunnels = held.routes.values().filter(|hop| matches!(hop, Hop::Tunnel(_))).count();
        prop_assert_eq!(tunnels, held.neighbours.len());
    }
}

#[test]
fn only_many_routes_get_metrics_and_existing_routes_keep_theirs() {
    let direct = |third: u8, fourth: u16| {
        let number = u32::from(third) * 256 + u32::from(fourth);
        let subnet = Ipv4Net::new((0x0a10_0000 + number * 256).into(), 24).unwrap();
        let path = PeerPath::Direct { ifindex: 3, gateway: [192, 168, 77, 1].into() };
        (PeerKey { v4: Some(subnet), v6: None }, Claim { subnet: subnet.into(), path })
    };
    let mut peer_table = PeerTable::new(owner(), BTreeMap::new());
    let all: Vec<_> = (0..8).flat_map(|third| (0..256).map(move |fourth| direct(third, fourth))).collect();
    let mut put = |range: std::ops::Range<usize>| {
        for (key, claim) in &all[range] {
            peer_table.put(*key, [Some(Ok(*claim)), None], [None, None]);
        }
        let (desired, _) = peer_table.difference(&BTreeMap::new());
        (desired.routes.len(), desired.metrics.len())
    };
    assert_eq!(put(0..PLAIN_MAX_ROUTES), (1024, 0));
    assert_eq!(put(PLAIN_MAX_ROUTES..1500), (476, 476));
    let (key, claim) = all[1400];
    peer_table.remove(&key);
    let (_, was) = peer_table.difference(&BTreeMap::new());
    let metric = was.routes[&claim.subnet][0].metric;
    assert_eq!(
        metric,
        own_metric(&claim.subnet),
        "a removed route is named with the metric that it was added with"
    );

    // After a restart the kernel's routes decide.
    let plain = |number: usize| {
        (all[number].1.subnet, vec![Route::via(all[number].1.subnet, [192, 168, 77, 1].into())])
    };
    let observed = Observed { routes: (0..700).map(plain).collect(), ..Observed::default() };
    peer_table.settle_metrics(&observed);
    assert_eq!(peer_table.desired().metrics.len(), 1499 - 700);
    assert!(peer_table.desired().metrics.values().all(|metric| (1..=METRICS).contains(metric)));
}
