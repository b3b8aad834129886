//! The desired state for valid and hostile inputs (calico-cni.md sections 4.3, 4.4 and 4.8).

use russet_addr::{Family, host_net};
use russet_overlay::{
    AffinityState,
    Encapsulation::{Ipip, None as Plain, Vxlan, VxlanCrossSubnet},
    Inputs, Reason, Subject, desired,
};

use crate::scene::{Build, alone, ip, name, net, refused, routes};

/// `near` is on our subnet, `far` is not.
fn cluster(encapsulation: russet_overlay::Encapsulation) -> Inputs {
    alone()
        .pool("10.1.0.0/16", encapsulation)
        .v4("near", "192.168.77.2/24", "10.1.1.1")
        .v4("far", "192.168.99.2/24", "10.1.2.1")
        .claim("me", "10.1.0.0/26")
        .claim("near", "10.1.1.0/26")
        .claim("far", "10.1.2.0/26")
}

fn block(text: &str) -> Subject {
    Subject::Block(net(text))
}

#[test]
fn always_goes_through_the_tunnel() {
    // calico-cni.md section 4.3, row "VXLAN Always"
    let inputs = cluster(Vxlan);
    assert_eq!(
        routes(&inputs),
        ["10.1.0.0/26 blackhole", "10.1.1.0/26 tunnel 10.1.1.1", "10.1.2.0/26 tunnel 10.1.2.1"]
    );
    assert_eq!(refused(&inputs), []);
}

#[test]
fn cross_subnet_routes_directly_to_nodes_on_our_subnet() {
    // row "VXLAN CrossSubnet"
    let inputs = cluster(VxlanCrossSubnet);
    assert_eq!(
        routes(&inputs),
        ["10.1.0.0/26 blackhole", "10.1.1.0/26 via 192.168.77.2 dev 3", "10.1.2.0/26 tunnel 10.1.2.1"]
    );
}

#[test]
fn without_encapsulation_nodes_on_other_subnets_are_refused() {
    // row "None": Russet has no BGP
    let inputs = cluster(Plain);
    assert_eq!(routes(&inputs), ["10.1.0.0/26 blackhole", "10.1.1.0/26 via 192.168.77.2 dev 3"]);
    assert_eq!(refused(&inputs), [(block("10.1.2.0/26"), Reason::OtherSubnet(ip("192.168.99.2")))]);
    assert!(desired(&inputs).devices.is_empty() && desired(&inputs).fdb.is_empty());
}

#[test]
fn an_ipip_pool_is_reported_and_gets_no_routes() {
    let inputs = cluster(Ipip);
    assert_eq!(routes(&inputs), [""; 0]);
    assert!(refused(&inputs).contains(&(Subject::Pool(net("10.1.0.0/16")), Reason::Unsupported)));
}

#[test]
fn the_device_has_the_shape_that_peers_expect() {
    // calico-cni.md section 4.4, first table
    let mut inputs = cluster(Vxlan).pool("fd10::/48", Vxlan);
    inputs.node = name("node1");
    inputs.nodes.insert(name("node1"), inputs.nodes[&name("me")].clone());
    inputs.nodes.remove(&name("me"));
    let desired = desired(&inputs);
    let device = &desired.devices[&Family::V4];
    assert_eq!((device.local, device.parent, device.mtu), (ip("192.168.77.1"), 3, 1450));
    assert_eq!(
        (device.mac.to_string().as_str(), device.address.unwrap()),
        ("66:f9:37:c3:7e:94", net("10.1.0.1/32"))
    );
    let device = &desired.devices[&Family::V6];
    assert_eq!((device.local, device.parent, device.mtu), (ip("fd77::1"), 3, 1430));
    assert_eq!(
        (device.mac.to_string().as_str(), device.address.unwrap()),
        ("66:0f:35:f2:60:df", net("fd10::1/128"))
    );
    assert_eq!(desired.forwarding, Family::BOTH);
}

#[test]
fn every_endpoint_gets_a_neighbour_and_a_forwarding_entry() {
    let inputs = cluster(Vxlan).v4("worker-1", "192.168.77.9/24", "10.1.9.1").mac("far", "02:00:00:00:00:07");
    let desired = desired(&inputs);
    let mac = "66:93:7f:54:d5:53".parse().unwrap();
    assert_eq!(desired.neighbours[&ip("10.1.9.1")], mac);
    assert_eq!(desired.fdb[&(Family::V4, mac)], ip("192.168.77.9"));
    assert_eq!(desired.neighbours[&ip("10.1.2.1")], "02:00:00:00:00:07".parse().unwrap());
    assert_eq!((desired.neighbours.len(), desired.fdb.len()), (3, 3));
}

#[test]
fn a_tunnel_address_is_connected_only_where_its_block_does_not_cover_it() {
    // calico-cni.md section 4.3, third note: borrowed, or the block is that one address
    let inputs = cluster(Vxlan)
        .v4("borrower", "192.168.77.4/24", "10.1.1.9")
        .v4("single", "192.168.77.5/24", "10.1.7.7")
        .claim("single", "10.1.7.7/32");
    let routes = routes(&inputs);
    assert!(routes.contains(&"10.1.1.9/32 connected".to_owned()), "{routes:?}");
    assert!(routes.contains(&"10.1.7.7/32 connected".to_owned()), "{routes:?}");
    assert_eq!(routes.len(), 5, "{routes:?}");
}

#[test]
fn a_borrowed_address_is_routed_to_its_pods_node() {
    // calico-cni.md section 4.3, second note
    let inputs = cluster(VxlanCrossSubnet)
        .borrows("far", "10.1.0.5")
        .borrows("near", "10.1.2.6")
        .borrows("near", "10.1.1.7")
        .borrows("me", "10.1.2.8");
    let routes = routes(&inputs);
    assert!(routes.contains(&"10.1.0.5/32 tunnel 10.1.2.1".to_owned()), "{routes:?}");
    assert!(routes.contains(&"10.1.2.6/32 via 192.168.77.2 dev 3".to_owned()), "{routes:?}");
    assert_eq!(routes.len(), 5, "pods at home and our own need none: {routes:?}");
}

#[test]
fn own_pods_may_be_borrowers() {
    let mut inputs = cluster(Vxlan).borrows("me", "10.1.2.8").borrows("far", "10.1.0.9");
    inputs.own_pods = [ip("10.1.2.8"), ip("10.1.0.9")].into();
    assert_eq!(refused(&inputs), [(Subject::Borrowed(ip("10.1.0.9")), Reason::Covers(ip("10.1.0.9")))]);
}

#[test]
fn blackholes_are_only_for_blocks_of_more_than_one_address() {
    // calico-cni.md section 4.3, first note
    let inputs = cluster(Vxlan).claim("me", "10.1.5.5/32");
    assert!(!routes(&inputs).iter().any(|route| route.starts_with("10.1.5.5")));
}

#[test]
fn a_pending_claim_owns_nothing_and_a_confirmed_one_wins_over_one_being_released() {
    let inputs = cluster(Vxlan)
        .claim_in("near", "10.1.3.0/26", AffinityState::Pending)
        .claim_in("me", "10.1.4.0/26", AffinityState::Pending)
        .claim_in("far", "10.1.5.0/26", AffinityState::PendingDeletion)
        .claim("near", "10.1.5.0/26");
    let routes = routes(&inputs);
    assert_eq!(routes.len(), 4, "{routes:?}");
    assert!(routes.contains(&"10.1.5.0/26 tunnel 10.1.1.1".to_owned()), "{routes:?}");
}

#[test]
fn a_node_without_tunnel_data_is_omitted() {
    // calico-cni.md sections 4.3 (fourth note) and 4.6
    let inputs = cluster(Vxlan).v4("near", "192.168.77.2/24", "");
    assert_eq!(routes(&inputs), ["10.1.0.0/26 blackhole", "10.1.2.0/26 tunnel 10.1.2.1"]);
    assert_eq!(refused(&inputs), [(block("10.1.1.0/26"), Reason::NoTunnelEndpoint)]);
    assert_eq!(desired(&inputs).neighbours.len(), 1);
}

#[test]
fn two_claims_of_a_block_have_one_winner_whatever_the_order() {
    let mut inputs = cluster(Vxlan).claim("far", "10.1.1.0/26").claim("far", "10.1.0.0/26");
    let expected = vec![
        (block("10.1.0.0/26"), Reason::TakenBy(name("me"))),
        (block("10.1.1.0/26"), Reason::TakenBy(name("far"))),
    ];
    let first = routes(&inputs);
    assert_eq!(refused(&inputs), expected);
    inputs.affinities.reverse();
    assert_eq!((routes(&inputs), refused(&inputs)), (first, expected));
}

#[test]
fn a_claim_over_an_address_that_must_stay_reachable_is_refused() {
    let mut inputs = cluster(Vxlan)
        .pool("192.168.0.0/16", Vxlan)
        .claim("far", "192.168.77.0/26")
        .claim("far", "192.168.99.0/26")
        .claim("far", "192.168.200.0/26")
        .claim("me", "192.168.77.0/28");
    inputs.protected = [ip("192.168.200.1")].into();
    assert_eq!(
        refused(&inputs),
        [
            (block("192.168.77.0/26"), Reason::Covers(ip("192.168.77.1"))),
            (block("192.168.77.0/28"), Reason::Covers(ip("192.168.77.1"))),
            (block("192.168.99.0/26"), Reason::Covers(ip("192.168.99.2"))),
            (block("192.168.200.0/26"), Reason::Covers(ip("192.168.200.1"))),
        ]
        .into_iter()
        .collect::<Vec<_>>()
    );
    assert_eq!(routes(&inputs).len(), 3);
}

#[test]
fn reserved_ranges_and_blocks_outside_the_pools_are_refused() {
    let mut inputs = cluster(Vxlan)
        .pool("0.0.0.0/0", Vxlan)
        .pool("127.0.0.0/8", Vxlan)
        .pool("fe80::/10", Vxlan)
        .pool("ff00::/8", Vxlan)
        .claim("far", "127.0.0.0/26")
        .claim("far", "169.254.1.0/26")
        .claim("far", "224.0.0.0/26")
        .claim("far", "fe80::/122")
        .claim("far", "172.16.0.0/26");
    inputs = inputs.claim("far", "10.0.0.0/16");
    let reasons: Vec<Reason> = refused(&inputs).into_iter().map(|(_, reason)| reason).collect();
    assert_eq!(reasons.iter().filter(|reason| **reason == Reason::Reserved).count(), 8, "{reasons:?}");
    assert_eq!(reasons.iter().filter(|reason| **reason == Reason::OutsidePools).count(), 2, "{reasons:?}");
    assert_eq!(routes(&inputs).len(), 3);
}

#[test]
fn a_peers_block_inside_ours_is_refused() {
    let inputs = cluster(Vxlan).claim("far", "10.1.0.8/29");
    assert_eq!(refused(&inputs), [(block("10.1.0.8/29"), Reason::InsideOurs(net("10.1.0.0/26")))]);
}

#[test]
fn a_peers_block_of_one_address_is_not_a_pod_of_ours() {
    let mut inputs = cluster(Vxlan).claim("far", "10.1.8.8/32");
    inputs.own_pods = [ip("10.1.8.8")].into();
    assert_eq!(refused(&inputs), [(block("10.1.8.8/32"), Reason::Covers(ip("10.1.8.8")))]);
}

#[test]
fn invalid_tunnel_addresses_are_refused() {
    for (tunnel, reason) in [
        ("172.16.0.1", Reason::OutsidePools),
        ("127.0.0.1", Reason::Reserved),
        ("fd10::9", Reason::WrongFamily),
        ("10.1.0.1", Reason::TakenBy(name("me"))),
        ("10.1.0.40", Reason::Covers(ip("10.1.0.40"))),
    ] {
        let mut inputs = cluster(Vxlan).v4("far", "192.168.99.2/24", tunnel);
        inputs.own_pods = [ip("10.1.0.40")].into();
        let refused = refused(&inputs);
        assert!(refused.contains(&(Subject::Tunnel(ip(tunnel)), reason)), "{tunnel}: {refused:?}");
        assert!(refused.contains(&(block("10.1.2.0/26"), Reason::NoTunnelEndpoint)), "{tunnel}: {refused:?}");
        assert!(!desired(&inputs).neighbours.contains_key(&ip(tunnel)));
    }
}

#[test]
fn invalid_node_addresses_are_refused() {
    for (address, reason) in [
        ("127.0.0.1/8", Reason::Reserved),
        ("224.0.0.5/24", Reason::Reserved),
        ("0.0.0.0/0", Reason::Reserved),
        ("fd77::5/64", Reason::WrongFamily),
        ("192.168.77.1/24", Reason::TakenBy(name("me"))),
    ] {
        let inputs = cluster(VxlanCrossSubnet).v4("far", address, "10.1.2.1");
        let refused = refused(&inputs);
        assert!(refused.contains(&(Subject::Node(net(address)), reason)), "{address}: {refused:?}");
        assert_eq!(routes(&inputs).len(), 2, "{address}");
    }
}

#[test]
fn a_mac_is_unicast_and_belongs_to_one_node() {
    // the honest node keeps its computed MAC although the thief's name sorts first
    let honest = desired(&cluster(Vxlan)).neighbours[&ip("10.1.1.1")].to_string();
    let inputs = cluster(Vxlan).v4("a-thief", "192.168.77.66/24", "10.1.9.9").mac("a-thief", &honest);
    let stolen = Subject::Mac(honest.parse().unwrap());
    assert_eq!(refused(&inputs), [(stolen, Reason::TakenBy(name("near")))]);
    for group in ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00"] {
        let inputs = cluster(Vxlan).mac("far", group);
        assert!(refused(&inputs).contains(&(Subject::Mac(group.parse().unwrap()), Reason::NotUnicast)));
    }
}

#[test]
fn without_our_own_data_there_is_no_device_and_the_reason_is_reported() {
    for (underlay, tunnel, reason) in [
        ("", "10.1.0.1", Reason::OwnAddressMissing),
        ("192.168.77.9/24", "10.1.0.1", Reason::OwnAddressNotLocal(ip("192.168.77.9"))),
        ("192.168.77.1/24", "", Reason::OwnTunnelAddressMissing),
        ("192.168.77.1/24", "172.16.0.1", Reason::OwnTunnelAddressMissing),
    ] {
        let inputs = cluster(Vxlan).v4("me", underlay, tunnel);
        assert!(desired(&inputs).devices.is_empty());
        assert!(refused(&inputs).contains(&(Subject::Device(Family::V4), reason.clone())), "{reason:?}");
    }
    let mut inputs = cluster(Vxlan);
    inputs.underlay.mtu = 600;
    assert!(refused(&inputs).contains(&(Subject::Device(Family::V4), Reason::MtuTooSmall(600))));
}

#[test]
fn the_masqueraded_pools_are_disjoint_and_traffic_to_pools_is_exempt() {
    // calico-cni.md section 4.8
    let mut inputs =
        cluster(Vxlan).pool("10.1.128.0/17", Plain).pool("10.3.0.0/16", Plain).pool("fd10::/48", Plain);
    inputs.pools[2].nat_outgoing = false;
    let masquerade = desired(&inputs).masquerade;
    assert_eq!(masquerade.pools, [net("10.1.0.0/16"), net("10.3.0.0/16"), net("fd10::/48")]);
    assert_eq!(masquerade.nat, [net("10.1.0.0/16"), net("fd10::/48")]);
    assert_eq!(masquerade.tunnels[&Family::V4].local, ip("192.168.77.1"));
    assert_eq!(masquerade.tunnels[&Family::V4].tunnel, ip("10.1.0.1"));
    assert!(desired(&alone()).masquerade.is_empty());
}

#[test]
fn a_pool_may_be_given_twice_but_counts_once() {
    let inputs = cluster(Vxlan).pool("10.1.0.0/16", Plain);
    assert_eq!(refused(&inputs), [(Subject::Pool(net("10.1.0.0/16")), Reason::Twice)]);
    assert_eq!(routes(&inputs), routes(&cluster(Vxlan)));
}

#[test]
fn the_longest_prefix_among_pools_decides_the_encapsulation() {
    let inputs = cluster(Vxlan).pool("10.1.1.0/24", Plain);
    assert!(routes(&inputs).contains(&"10.1.1.0/26 via 192.168.77.2 dev 3".to_owned()));
}

#[test]
fn a_borrowed_address_that_is_a_tunnels_or_two_nodes_is_refused() {
    let inputs =
        cluster(Vxlan).borrows("far", "10.1.1.1").borrows("near", "10.1.0.5").borrows("far", "10.1.0.5");
    assert_eq!(
        refused(&inputs),
        [
            (Subject::Borrowed(ip("10.1.0.5")), Reason::TakenBy(name("far"))),
            (Subject::Borrowed(ip("10.1.1.1")), Reason::Covers(ip("10.1.1.1"))),
        ]
    );
    assert!(desired(&inputs).routes.contains_key(&host_net(ip("10.1.0.5"))));
}

#[test]
fn refusals_are_printed_with_subject_and_reason() {
    let inputs = cluster(Plain);
    let text = desired(&inputs).refusals[0].to_string();
    assert_eq!(
        text,
        "block 10.1.2.0/26 of node far is not programmed: node address 192.168.99.2 is not on our subnet and the pool \
         is not encapsulated"
    );
}
