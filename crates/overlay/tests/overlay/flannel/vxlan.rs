//! The vxlan backend.

use russet_addr::Mac;
use russet_overlay::flannel::{Backend, Peer, Vxlan};
use russet_overlay::{Kind, Reason};
use russet_testkit::{eventually, sh, sh_json, succeeds};

use super::cluster::{
    assert_reachable, introduce, key, peer_without_node, remotes, route, route_v6, vxlan, with_nodes,
};

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge, ping"]
fn t20_and_t43_peers_are_a_neighbour_a_forwarding_entry_and_a_route_and_go_with_their_lease() {
    // flannel.md sections 6.2 and 10, T20, T43
    with_nodes(3, &Backend::Vxlan(vxlan()), |nodes| {
        introduce(nodes);
        assert_reachable(nodes);
        let link = &sh_json("ip -n n1 -d -j link show dev flannel.1")[0];
        let data = &link["linkinfo"]["info_data"];
        assert_eq!(
            (&data["id"], &data["port"], &data["local"], &data["link"]),
            (&1.into(), &8472.into(), &"192.168.77.1".into(), &"w0".into())
        );
        assert_eq!((&data["learning"], &link["mtu"]), (&false.into(), &1450.into()));
        let mac = nodes[1].prepared.mac[0].unwrap();
        assert_eq!(mac.octets()[0] & 3, 2, "{mac} is not a locally administered unicast address");
        assert_eq!(route(2), "10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 115 onlink");
        assert_eq!(
            route_v6(2).split(" pref").next().unwrap(),
            "fd10:5:0:2::/64 via fd10:5:0:2:: dev flannel-v6.1 proto 115 metric 1024 onlink"
        );
        assert_eq!(remotes("flannel.1", mac), ["192.168.77.2"]);
        let neighbours = sh_json("ip -n n1 -j neigh show 10.5.2.0 dev flannel.1");
        assert_eq!(
            (&neighbours[0]["lladdr"], &neighbours[0]["state"][0]),
            (&mac.to_string().into(), &"PERMANENT".into())
        );
        assert_eq!(sh("ip netns exec n1 cat /proc/sys/net/ipv6/conf/flannel-v6.1/accept_ra").trim(), "0");

        let ping = |bytes: u32| {
            succeeds(&format!("ip netns exec n1 ping -c1 -W2 -M do -s {} -I 10.5.1.5 10.5.2.5", bytes - 28))
        };
        assert!(ping(1450), "1450 bytes pass");
        assert!(!ping(1451), "1451 do not");

        let report = nodes[0].change(&[key(2)], &[]);
        assert_eq!([Kind::Route, Kind::Neighbour, Kind::Fdb].map(|kind| report.changed(kind)), [2, 2, 2]);
        assert_eq!((route(2).as_str(), remotes("flannel.1", mac).len()), ("", 0));
        assert!(!sh("ip -n n1 neigh show dev flannel.1").contains("10.5.2.0"));
        assert_reachable(&nodes[1..]);
        assert!(route(3).contains("via 10.5.3.0"));
        assert!(nodes[0].resync().is_quiet());
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge"]
fn t21_another_mac_or_address_of_a_peer_leaves_no_old_forwarding_entry() {
    // flannel.md section 10, T21
    with_nodes(1, &Backend::Vxlan(vxlan()), |nodes| {
        let (old, new) = (peer_without_node(2).mac[0].unwrap(), Mac([2, 4, 0, 0, 9, 9]));
        nodes[0].reset(vec![peer_without_node(2)]);
        nodes[0].change(&[], &[Peer { public_ip: [192, 168, 77, 9].into(), ..peer_without_node(2) }]);
        assert_eq!(remotes("flannel.1", old), ["192.168.77.9"]);
        nodes[0]
            .change(&[], &[Peer { mac: [Some(new), peer_without_node(2).mac[1]], ..peer_without_node(2) }]);
        assert_eq!(remotes("flannel.1", old), [""; 0]);
        assert_eq!(remotes("flannel.1", new), ["192.168.77.2"]);
        assert_eq!(sh_json("ip -n n1 -j neigh show 10.5.2.0 dev flannel.1")[0]["lladdr"], new.to_string());
        assert!(nodes[0].resync().is_quiet());
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge"]
fn leases_that_share_a_mac_share_a_forwarding_entry_of_the_newest() {
    // flannel.md section 3.3, last paragraph
    with_nodes(1, &Backend::Vxlan(vxlan()), |nodes| {
        let mac = peer_without_node(2).mac;
        let moved = Peer { mac, ..peer_without_node(3) };
        nodes[0].reset(vec![peer_without_node(2)]);
        nodes[0].change(&[], std::slice::from_ref(&moved));
        assert_eq!(remotes("flannel.1", mac[0].unwrap()), ["192.168.77.3"]);
        nodes[0].change(&[key(3)], &[]);
        assert_eq!(remotes("flannel.1", mac[0].unwrap()), ["192.168.77.2"]);
        nodes[0].reset(vec![peer_without_node(2), moved]);
        assert_eq!(remotes("flannel.1", mac[0].unwrap()), ["192.168.77.3"]);
        nodes[0].change(&[key(3), key(2)], &[]);
        assert_eq!(remotes("flannel.1", mac[0].unwrap()), [""; 0]);
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge, ping"]
fn t27_deleted_objects_are_restored_and_added_ones_removed() {
    // flannel.md section 10, T27
    with_nodes(2, &Backend::Vxlan(vxlan()), |nodes| {
        introduce(nodes);
        let mac = nodes[1].prepared.mac[0].unwrap();
        let published = nodes[0].prepared.clone();
        assert!(!nodes[0].drifted(), "our own changes are no drift");
        for damage in [
            "ip -n n1 route del 10.5.2.0/24".to_owned(),
            "ip -n n1 -6 route del fd10:5:0:2::/64".to_owned(),
            "ip -n n1 route change 10.5.2.0/24 via 192.168.77.3".to_owned(),
            "ip -n n1 route replace blackhole 10.5.2.0/24".to_owned(),
            "ip -n n1 route prepend 10.5.2.0/24 via 192.168.77.3 proto static".to_owned(),
            "ip -n n1 -6 route add fd10:5:0:2::/64 via fd77::9 metric 7".to_owned(),
            "ip -n n1 -6 route replace fd10:5:0:2::/64 via fd77::9 metric 1024".to_owned(),
            "ip -n n1 -6 route replace blackhole fd10:5:0:2::/64 metric 1024".to_owned(),
            "ip -n n1 route add 10.5.9.0/24 via 10.5.9.0 dev flannel.1 onlink".to_owned(),
            "ip -n n1 route add 10.5.9.0/24 via 192.168.77.9 proto 115".to_owned(),
            "ip -n n1 neigh del 10.5.2.0 dev flannel.1".to_owned(),
            "ip -n n1 neigh replace 10.5.2.0 lladdr 02:00:00:00:00:02 dev flannel.1 nud permanent".to_owned(),
            "ip -n n1 neigh add 10.5.7.7 lladdr 02:00:00:00:00:07 dev flannel.1 nud permanent".to_owned(),
            format!("bridge -n n1 fdb del {mac} dev flannel.1 dst 192.168.77.2"),
            format!("bridge -n n1 fdb replace {mac} dev flannel.1 dst 192.168.77.9"),
            "bridge -n n1 fdb add 02:00:00:00:00:09 dev flannel.1 dst 192.168.77.9".to_owned(),
            "ip -n n1 link del flannel.1".to_owned(),
            "ip -n n1 link del flannel-v6.1".to_owned(),
            "ip -n n1 link set flannel.1 down".to_owned(),
            "ip -n n1 link set flannel.1 mtu 1300".to_owned(),
            "ip -n n1 addr add 10.5.1.9/32 dev flannel.1".to_owned(),
            "ip -n n1 addr del 10.5.1.0/32 dev flannel.1".to_owned(),
        ] {
            sh(&damage);
            assert!(nodes[0].drifted(), "{damage}: not heard of");
            assert!(!nodes[0].resync().is_quiet(), "{damage}: nothing was repaired");
            nodes[0].drifted();
            let report = nodes[0].resync();
            assert!(report.is_quiet(), "{damage}: {:?}", report.changed);
            assert!(!nodes[0].drifted(), "{damage}: still drifting");
        }
        assert_eq!(
            nodes[0].run(|fabric| fabric.prepared()),
            published,
            "a recreated device has its MAC again"
        );
        assert_eq!(route(2), "10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 115 onlink");
        assert_reachable(nodes);
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip"]
fn a_forged_lease_changes_nothing() {
    // flannel.md section 4
    with_nodes(1, &Backend::Vxlan(vxlan()), |nodes| {
        // Once the kernel has finished the detection of duplicate addresses.
        let routes = || sh("ip -n n1 route show table all");
        eventually(std::time::Duration::from_secs(20), || routes().contains("local fd10:5:0:1:: dev"));
        let before = routes();
        let own = nodes[0].prepared.mac[0];
        let lies = [
            (Peer { subnet: Some("0.0.0.0/0".parse().unwrap()), ..peer_without_node(2) }, "outside_network"),
            (Peer { subnet: Some("10.0.0.0/8".parse().unwrap()), ..peer_without_node(2) }, "outside_network"),
            (Peer { subnet: Some("10.5.1.0/25".parse().unwrap()), ..peer_without_node(2) }, "ours"),
            (Peer { subnet: Some("10.5.0.0/16".parse().unwrap()), ..peer_without_node(2) }, "ours"),
            (Peer { public_ip: [10, 5, 2, 1].into(), ..peer_without_node(2) }, "covers"),
            (Peer { public_ip: [192, 168, 77, 1].into(), ..peer_without_node(2) }, "ours"),
            (Peer { public_ip: [224, 0, 0, 1].into(), ..peer_without_node(2) }, "not_unicast"),
            (Peer { public_ip: [0, 0, 0, 0].into(), ..peer_without_node(2) }, "node_unreachable"),
            (Peer { mac: [None, None], ..peer_without_node(2) }, "no_tunnel_endpoint"),
            (Peer { mac: [Some(Mac([0xff; 6])), None], ..peer_without_node(2) }, "not_unicast"),
            (Peer { mac: [own, None], ..peer_without_node(2) }, "ours"),
        ];
        for (lie, reason) in lies {
            let lie = Peer { subnet_v6: None, ..lie };
            let labels = |report: &russet_overlay::ReconcileReport| {
                report.refusals.iter().map(|refusal| refusal.reason.label()).collect::<Vec<_>>()
            };
            assert_eq!(labels(&nodes[0].change(&[], std::slice::from_ref(&lie))), [reason], "{lie:?}");
            assert_eq!(
                labels(&nodes[0].change(&[], std::slice::from_ref(&lie))),
                [""; 0],
                "reported twice: {lie:?}"
            );
            nodes[0].change(&[lie.key()], &[]);
        }
        assert_eq!(routes(), before);
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip"]
fn a_network_of_our_own_addresses_is_not_routed_away() {
    with_nodes(1, &Backend::Vxlan(vxlan()), |nodes| {
        // A pods' bridge that still has the subnet of an earlier lease.
        sh("ip -n n1 link add cni0 type bridge");
        sh("ip -n n1 link set cni0 up");
        sh("ip -n n1 addr add 10.5.2.1/24 dev cni0");
        let before = route(2);
        let refused = nodes[0].reset(vec![peer_without_node(2)]).refusals;
        assert_eq!(refused.iter().map(|refusal| &refusal.reason).collect::<Vec<_>>(), [&Reason::Connected]);
        assert_eq!(route(2), before);
        sh("ip -n n1 addr del 10.5.2.1/24 dev cni0");
        assert!(nodes[0].drifted());
        assert_eq!(nodes[0].resync().changed(Kind::Route), 1);
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, ping"]
fn t30_a_restart_keeps_the_device_its_mac_and_every_packet() {
    // flannel.md section 10, T30
    with_nodes(2, &Backend::Vxlan(vxlan()), |nodes| {
        introduce(nodes);
        assert_reachable(nodes);
        let device = || sh("ip -n n1 -d link show dev flannel.1");
        let (before, published) = (device(), nodes[0].prepared.clone());
        let leases = vec![nodes[1].lease()];
        // It ends with the 50th reply, however late; only the first forty count, as the last may
        // overtake each other.
        let ping = "ip netns exec n1 ping -n -c50 -i0.01 -w60 -I 10.5.1.5 10.5.2.5";
        std::thread::scope(|scope| {
            let flow = scope.spawn(|| sh(ping));
            for _ in 0..10 {
                nodes[0].start();
                assert!(nodes[0].reset(leases.clone()).is_quiet());
            }
            let said = flow.join().unwrap();
            let answered = |number| said.contains(&format!("bytes from 10.5.2.5: icmp_seq={number} "));
            assert!((1..=40).all(answered), "{said}");
        });
        assert_eq!((device(), &nodes[0].prepared), (before, &published));

        sh("ip -n n1 route add 10.5.66.0/24 via 10.5.66.0 dev flannel.1 proto 115 onlink");
        sh("ip -n n1 route add 10.5.67.0/24 via 192.168.77.9 proto 115");
        sh("ip -n n1 route add 10.6.0.0/24 via 192.168.77.9 proto 114");
        nodes[0].start();
        nodes[0].reset(leases);
        assert_eq!((route(66), route(67)), (String::new(), String::new()), "routes of an earlier run");
        assert!(!sh("ip -n n1 route show 10.6.0.0/24").is_empty(), "the agent's own");
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge"]
fn t30_devices_of_real_flannel_are_adopted_in_place() {
    with_nodes(1, &Backend::Vxlan(vxlan()), |nodes| {
        sh("ip -n n1 link del flannel.1");
        sh("ip -n n1 link add flannel.1 type vxlan id 1 dev w0 local 192.168.77.1 dstport 8472 nolearning");
        sh("ip -n n1 addr add 10.5.1.0/32 dev flannel.1");
        sh("ip -n n1 link set flannel.1 up");
        let mac = peer_without_node(2).mac[0].unwrap();
        sh(&format!("ip -n n1 neigh add 10.5.2.0 lladdr {mac} dev flannel.1 nud permanent"));
        sh(&format!("bridge -n n1 fdb add {mac} dev flannel.1 dst 192.168.77.2"));
        sh("ip -n n1 route add 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink");
        sh("ip -n n1 route add 10.5.3.0/24 via 10.5.3.0 dev flannel.1 onlink");
        let link = sh("ip -n n1 -d link show dev flannel.1");
        nodes[0].start();
        let report = nodes[0].reset(vec![Peer { subnet_v6: None, ..peer_without_node(2) }]);
        assert_eq!([Kind::Route, Kind::Neighbour, Kind::Fdb].map(|kind| report.changed(kind)), [2, 0, 0]);
        assert_eq!(route(2), "10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 115 onlink");
        assert_eq!(route(3), "");
        assert_eq!(sh("ip -n n1 -d link show dev flannel.1"), link);
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip"]
fn t31_a_device_with_other_options_is_recreated() {
    // flannel.md section 10, T31
    with_nodes(1, &Backend::Vxlan(vxlan()), |nodes| {
        for other in [
            "type vxlan id 9 dev w0 local 192.168.77.1 dstport 8472 nolearning",
            "type vxlan id 1 dev w0 local 192.168.77.1 dstport 4789 nolearning",
            "type vxlan id 1 dev w0 local 192.168.77.9 dstport 8472 nolearning",
            "type vxlan id 1 dev w0 local 192.168.77.1 dstport 8472 nolearning gbp",
            "type vxlan id 1 dev w0 local 192.168.77.1 dstport 8472 nolearning l2miss",
            "type bridge",
        ] {
            sh("ip -n n1 link del flannel.1");
            sh(&format!("ip -n n1 link add flannel.1 {other}"));
            let index = |link: &serde_json::Value| link["ifindex"].as_u64();
            let before = index(&sh_json("ip -n n1 -j link show dev flannel.1")[0]);
            nodes[0].start();
            let link = &sh_json("ip -n n1 -d -j link show dev flannel.1")[0];
            assert_ne!(index(link), before, "{other}");
            assert_eq!(
                (&link["linkinfo"]["info_data"]["id"], &link["linkinfo"]["info_data"]["port"]),
                (&1.into(), &8472.into())
            );
        }
        nodes[0].backend = Backend::Vxlan(Vxlan { gbp: true, learning: true, port: 4789, ..vxlan() });
        nodes[0].start();
        let data = &sh_json("ip -n n1 -d -j link show dev flannel.1")[0]["linkinfo"]["info_data"];
        assert_eq!((&data["port"], &data["learning"]), (&4789.into(), &true.into()));
        assert!(sh("ip -n n1 -d link show dev flannel.1").contains(" gbp"), "{data}");
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip"]
fn a_foreign_device_with_our_vni_is_named_in_the_error_and_stays() {
    // flannel.md section 6.2, existing devices
    with_nodes(1, &Backend::Vxlan(vxlan()), |nodes| {
        sh("ip -n n1 link del flannel.1");
        sh("ip -n n1 link add other type vxlan id 1 dev w0 local 192.168.77.1 dstport 8472");
        let error = nodes[0].try_start().unwrap_err().to_string();
        assert!(error.starts_with("add link flannel.1"), "{error}");
        assert!(error.contains("VXLAN device with the specified VNI already exists"), "{error}");
        assert!(sh("ip -n n1 link show dev other").contains("other"));
        sh("ip -n n1 link del other");
        nodes[0].start();
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip"]
fn an_existing_device_keeps_its_mac_and_mtu_and_a_new_one_gets_the_published_mac() {
    // flannel.md section 6.2, existing devices; section 5.1 for the MAC
    let mac = |last| Some(Mac([2, 0, 0, 0, 0, last]));
    let given = Backend::Vxlan(Vxlan { mac: [mac(1), mac(2)], ..vxlan() });
    with_nodes(1, &given, |nodes| {
        assert_eq!(nodes[0].prepared.mac, [mac(1), mac(2)]);
        assert_eq!(nodes[0].prepared.mtu, 1430, "the smaller of both families' devices");
        nodes[0].backend = Backend::Vxlan(Vxlan { mac: [mac(3), mac(4)], ..vxlan() });
        sh("ip -n n1 link set flannel.1 mtu 1300");
        sh("ip -n n1 link set flannel-v6.1 mtu 1290");
        nodes[0].start();
        assert_eq!(nodes[0].prepared.mac, [mac(1), mac(2)]);
        assert_eq!(nodes[0].prepared.mtu, 1290);
        let mtu = |device: &str| sh_json(&format!("ip -n n1 -j link show dev {device}"))[0]["mtu"].as_u64();
        assert_eq!((mtu("flannel.1"), mtu("flannel-v6.1")), (Some(1300), Some(1290)));
        nodes[0].backend = Backend::Vxlan(Vxlan { mtu: Some(1400), ..vxlan() });
        nodes[0].start();
        assert_eq!((mtu("flannel.1"), mtu("flannel-v6.1")), (Some(1350), Some(1330)));

        // udev sets another MAC.
        sh("ip -n n1 link set flannel.1 address 02:00:00:00:00:99");
        assert!(nodes[0].drifted());
        nodes[0].resync();
        assert_eq!(nodes[0].run(|fabric| fabric.prepared()).mac[0], mac(0x99));
        assert!(nodes[0].resync().is_quiet() && !nodes[0].drifted());
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip"]
fn t32_foreign_addresses_inside_the_network_are_removed_and_others_stay() {
    // flannel.md section 10, T32
    with_nodes(1, &Backend::Vxlan(vxlan()), |nodes| {
        sh("ip -n n1 addr add 10.5.99.9/32 dev flannel.1");
        sh("ip -n n1 addr add 192.168.99.1/32 dev flannel.1");
        sh("ip -n n1 -6 addr add fd10:5:0:99::/128 dev flannel-v6.1 nodad");
        nodes[0].start();
        let shown = sh("ip -n n1 addr show dev flannel.1") + &sh("ip -n n1 addr show dev flannel-v6.1");
        for (address, there) in [
            ("10.5.1.0/32", true),
            ("fd10:5:0:1::/128", true),
            ("192.168.99.1/32", true),
            ("10.5.99.9", false),
            ("fd10:5:0:99::", false),
        ] {
            assert_eq!(shown.contains(address), there, "{address}: {shown}");
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge, ping"]
fn t33_direct_routing_follows_which_peers_are_on_the_link() {
    // flannel.md section 10, T33
    let direct = Backend::Vxlan(Vxlan { direct_routing: true, ..vxlan() });
    with_nodes(2, &direct, |nodes| {
        sh("ip -n n1 route add 192.168.88.0/24 via 192.168.77.254");
        sh("ip -n n1 -6 route add fd88::/64 via fd77::fe");
        introduce(nodes);
        let far_v6 = "fd88::3".parse().unwrap();
        let far =
            Peer { public_ip: [192, 168, 88, 3].into(), public_ipv6: Some(far_v6), ..peer_without_node(3) };
        nodes[0].change(&[], &[peer_without_node(3)]);
        assert_eq!(route(3), "10.5.3.0/24 via 192.168.77.3 dev w0 proto 115");
        assert!(route_v6(3).starts_with("fd10:5:0:3::/64 via fd77::3 dev w0 proto 115"), "{}", route_v6(3));
        nodes[0].change(&[], std::slice::from_ref(&far));
        assert!(
            route_v6(3).starts_with("fd10:5:0:3::/64 via fd10:5:0:3:: dev flannel-v6.1"),
            "{}",
            route_v6(3)
        );
        assert_eq!(route(2), "10.5.2.0/24 via 192.168.77.2 dev w0 proto 115");
        assert_eq!(remotes("flannel.1", nodes[1].prepared.mac[0].unwrap()), [""; 0]);
        assert_eq!(route(3), "10.5.3.0/24 via 10.5.3.0 dev flannel.1 proto 115 onlink");
        assert_eq!(remotes("flannel.1", far.mac[0].unwrap()), ["192.168.88.3"]);
        assert_reachable(nodes);
        assert!(!nodes[0].drifted());

        sh("ip -n n1 route replace 192.168.88.0/24 dev w0");
        assert!(nodes[0].drifted(), "the far peer is on the link now");
        nodes[0].resync();
        assert_eq!(route(3), "10.5.3.0/24 via 192.168.88.3 dev w0 proto 115");
        assert_eq!(remotes("flannel.1", far.mac[0].unwrap()), [""; 0]);

        sh("ip -n n1 route replace 192.168.88.0/24 via 192.168.77.254");
        sh("ip -n n1 route add 192.168.77.2/32 via 192.168.77.254");
        assert!(nodes[0].drifted(), "both are behind a router now");
        nodes[0].resync();
        assert_eq!(route(2), "10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 115 onlink");
        assert_eq!(route(3), "10.5.3.0/24 via 10.5.3.0 dev flannel.1 proto 115 onlink");
        assert!(nodes[0].resync().is_quiet());
    });
}
