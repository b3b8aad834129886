//! The real kernel: three nodes on a bridge; `ip` and `bridge` verify its state (calico-cni.md
//! sections 4.3, 4.4).

use std::time::Instant;

use russet_overlay::{Dialect, Encapsulation, Kind, Reason, Tunnel};
use russet_testkit::{eventually, sh, sh_json, succeeds};

use crate::cluster::{assert_reachable, with_nodes};
use crate::scene::{Build, name};

fn has_route(namespace: &str, route: &str) -> bool {
    sh(&format!("ip -n {namespace} route show {route}")).contains(' ')
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge, ping"]
fn pods_reach_each_other_through_the_tunnel() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        for node in nodes.iter_mut() {
            let report = node.reconcile();
            assert_eq!((report.changed(Kind::Fdb), report.changed(Kind::Neighbour)), (4, 4));
            assert_eq!((report.changed(Kind::Route), report.refusals), (8, vec![]));
            assert!(node.reconcile().is_quiet(), "a second run has nothing to do");
        }
        assert_reachable();
        let link = &sh_json("ip -n n1 -d -j link show dev vxlan.calico")[0];
        let data = &link["linkinfo"]["info_data"];
        assert_eq!(
            (&data["id"], &data["port"], &data["local"]),
            (&4096.into(), &4789.into(), &"192.168.77.1".into())
        );
        assert_eq!(
            (&data["link"], &data["learning"], &link["mtu"]),
            (&"w0".into(), &false.into(), &1450.into())
        );
        let link = &sh_json("ip -n n1 -d -j link show dev vxlan-v6.calico")[0];
        assert_eq!(
            (&link["mtu"], &link["linkinfo"]["info_data"]["local6"]),
            (&1430.into(), &"fd77::1".into())
        );
        let routes = sh_json("ip -n n1 -j route show proto 114");
        let to = |dst: &str| {
            routes.iter().find(|route| route["dst"] == dst).unwrap_or_else(|| panic!("{routes:?}"))
        };
        assert_eq!(to("10.1.1.0/26")["type"], "blackhole");
        assert_eq!(to("10.1.2.0/26")["gateway"], "10.1.2.1");
        assert_eq!(
            (&to("10.1.2.0/26")["dev"], &to("10.1.2.0/26")["flags"][0]),
            (&"vxlan.calico".into(), &"onlink".into())
        );
        let fdb = sh_json("bridge -n n1 -j fdb show dev vxlan.calico");
        assert!(
            fdb.iter().any(|entry| entry["dst"] == "192.168.77.3" && entry["state"] == "permanent"),
            "{fdb:?}"
        );
        let neighbours = sh_json("ip -n n1 -j neigh show dev vxlan.calico nud permanent");
        assert_eq!(neighbours.len(), 2, "{neighbours:?}");
    });
}

#[test]
#[ignore = "kernel: network namespaces, root; tool: ip, ping"]
fn pods_reach_each_other_over_plain_routes() {
    for encapsulation in [Encapsulation::None, Encapsulation::VxlanCrossSubnet] {
        with_nodes(encapsulation, |nodes| {
            for node in nodes.iter_mut() {
                node.reconcile();
                assert!(node.reconcile().is_quiet());
            }
            assert_reachable();
            assert!(has_route("n1", "10.1.2.0/26 via 192.168.77.2 dev w0 proto 114"));
        });
    }
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge, ping"]
fn deleted_objects_are_restored_and_added_ones_removed() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        nodes.iter_mut().for_each(|node| drop(node.reconcile()));
        let mac = russet_overlay::tunnel_mac(&name("node-2"), russet_addr::Family::V4);
        for damage in [
            "ip -n n1 route del 10.1.2.0/26".to_owned(),
            "ip -n n1 -6 route del fd10::2:0/122".to_owned(),
            "ip -n n1 route change 10.1.2.0/26 via 192.168.77.3 proto 114".to_owned(),
            "ip -n n1 -6 route change blackhole fd10::2:0/122 proto 114 metric 1024".to_owned(),
            "ip -n n1 route add 10.1.2.0/26 via 192.168.77.3 proto 114 metric 7".to_owned(),
            "ip -n n1 route add 10.1.9.0/26 via 192.168.77.9 proto 114".to_owned(),
            "ip -n n1 -6 route add fd10::9:0/122 via fd77::9 proto 114".to_owned(),
            "ip -n n1 route add unreachable 10.1.9.0/26 proto 114".to_owned(),
            "ip -n n1 neigh del 10.1.2.1 dev vxlan.calico".to_owned(),
            "ip -n n1 -6 neigh del fd10::2:1 dev vxlan-v6.calico".to_owned(),
            "ip -n n1 neigh replace 10.1.2.1 lladdr 02:00:00:00:00:02 dev vxlan.calico nud permanent"
                .to_owned(),
            "ip -n n1 neigh add 10.1.7.7 lladdr 02:00:00:00:00:07 dev vxlan.calico nud permanent".to_owned(),
            format!("bridge -n n1 fdb del {mac} dev vxlan.calico dst 192.168.77.2"),
            format!("bridge -n n1 fdb replace {mac} dev vxlan.calico dst 192.168.77.9"),
            "bridge -n n1 fdb add 02:00:00:00:00:09 dev vxlan.calico dst 192.168.77.9".to_owned(),
            "bridge -n n1 fdb append 00:00:00:00:00:00 dev vxlan.calico dst 192.168.77.9".to_owned(),
            "ip -n n1 link del vxlan.calico".to_owned(),
            "ip -n n1 link del vxlan-v6.calico".to_owned(),
            "ip -n n1 link set vxlan.calico down".to_owned(),
            "ip -n n1 link set vxlan-v6.calico down".to_owned(),
            "ip -n n1 link set vxlan.calico mtu 1300".to_owned(),
            "ip -n n1 link set vxlan.calico address 02:00:00:00:00:05".to_owned(),
            "ip -n n1 addr add 10.1.1.9/32 dev vxlan.calico".to_owned(),
            "ip -n n1 addr del 10.1.1.1/32 dev vxlan.calico".to_owned(),
            "ip -n n1 -6 addr del fd10::1:1/128 dev vxlan-v6.calico".to_owned(),
        ] {
            sh(&damage);
            assert!(!nodes[0].reconcile().is_quiet(), "{damage}: nothing was repaired");
            let report = nodes[0].reconcile();
            assert!(report.is_quiet(), "{damage}: {:?}", report.changed);
        }
        assert_reachable();
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge, ping"]
fn foreign_objects_stay() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        sh("ip -n n1 route add 10.1.66.0/26 via 192.168.77.9 proto bird");
        sh("ip -n n1 route add 10.1.1.7/32 dev lo scope link proto 114");
        sh("ip -n n1 -6 route add fd10::66:0/122 via fd77::9 proto static");
        sh("ip -n n1 route add 10.1.67.0/26 via 192.168.77.9 proto 114 table 77");
        sh("ip -n n1 neigh add 192.168.77.9 lladdr 02:00:00:00:00:09 dev w0 nud permanent");
        sh("ip -n n1 link add other type vxlan id 77 dstport 8472 dev w0");
        sh("bridge -n n1 fdb append 02:00:00:00:00:08 dev other dst 192.168.77.9");
        let state = || {
            let tables =
                ["route show table all", "-6 route show table all", "neigh show nud permanent"].map(|what| {
                    let text = sh(&format!("ip -n n1 {what}"));
                    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                    lines.retain(|line| {
                        !line.contains("vxlan")
                            && !line.contains("fe80:")
                            && !line.contains("anycast")
                            && !line.contains("ff00:")
                    });
                    lines.sort();
                    lines
                });
            (tables, sh("bridge -n n1 fdb show dev other"))
        };
        let before = state();
        nodes[0].reconcile();
        nodes[0].inputs.affinities.clear();
        nodes[0].inputs.pools.clear();
        nodes[0].reconcile();
        assert_eq!(before, state());
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip"]
fn a_conflicting_foreign_route_is_an_error_and_stays() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        sh("ip -n n1 route add 10.1.2.0/26 via 192.168.77.9 proto bird");
        sh("ip -n n1 -6 route add fd10::2:0/122 via fd77::9 proto bird");
        let report = nodes[0].try_reconcile();
        assert_eq!(report.failed, 2, "{:?}", report.errors);
        assert!(report.errors[0].to_string().contains("10.1.2.0/26"), "{}", report.errors[0]);
        assert!(has_route("n1", "10.1.2.0/26 proto bird") && has_route("n1", "10.1.3.0/26 proto 114"));
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, ping"]
fn oracle_60_the_device_follows_changes_of_a_pools_encapsulation() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        for encapsulation in
            [Encapsulation::Vxlan, Encapsulation::None, Encapsulation::VxlanCrossSubnet, Encapsulation::Vxlan]
        {
            for node in nodes.iter_mut() {
                node.inputs.pools.iter_mut().for_each(|pool| pool.encapsulation = encapsulation);
                node.reconcile();
                assert!(node.reconcile().is_quiet());
            }
            assert_reachable();
            assert_eq!(succeeds("ip -n n1 link show dev vxlan.calico"), encapsulation.needs_tunnel());
        }
        for node in nodes.iter_mut() {
            node.inputs.pools.clear();
            node.reconcile();
        }
        assert_eq!(sh("ip -n n1 route show proto 114"), "");
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, bridge"]
fn everything_of_a_removed_node_is_removed() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        nodes[0].reconcile();
        let node = &mut nodes[0];
        node.inputs.nodes.remove(&name("node-2"));
        node.inputs.affinities.retain(|claim| claim.node != name("node-2"));
        let report = node.reconcile();
        let changed =
            [Kind::Route, Kind::Neighbour, Kind::Fdb, Kind::Device].map(|kind| report.changed(kind));
        assert_eq!(changed, [3, 2, 2, 0]);
        assert!(!sh("bridge -n n1 fdb show dev vxlan.calico").contains("192.168.77.2"));
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, ping"]
fn a_pod_away_from_its_block_is_reached() {
    // calico-cni.md section 4.3, second note: 10.1.1.20 is of node 1's block and lives on node 3
    with_nodes(Encapsulation::Vxlan, |nodes| {
        sh("ip -n n3 addr add 10.1.1.20/32 dev lo");
        for node in nodes.iter_mut() {
            node.inputs = node.inputs.clone().borrows("node-3", "10.1.1.20");
            node.reconcile();
            assert!(node.reconcile().is_quiet());
        }
        for from in [1, 2] {
            sh(&format!("ip netns exec n{from} ping -c 1 -W 5 -I 10.1.{from}.5 10.1.1.20"));
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip"]
fn a_link_of_another_kind_under_our_name_is_left_alone() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        sh("ip -n n1 link add vxlan.calico type bridge");
        let report = nodes[0].reconcile();
        assert!(
            report.refusals.iter().any(|refusal| refusal.reason == Reason::NameTaken),
            "{:?}",
            report.refusals
        );
        assert!(sh("ip -n n1 -d link show dev vxlan.calico").contains("bridge"));
        assert!(has_route("n1", "10.1.1.0/26 proto 114") && !has_route("n1", "10.1.2.0/26"));
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip"]
fn an_unchanged_device_is_kept_and_a_device_of_felix_is_adopted() {
    // calico-cni.md section 4.4: nothing differs that would need a new one
    with_nodes(Encapsulation::Vxlan, |nodes| {
        let mac = russet_overlay::tunnel_mac(&name("node-1"), russet_addr::Family::V4);
        sh(&format!(
            "ip -n n1 link add vxlan.calico address {mac} type vxlan id 4096 dstport 4789 dev w0 local 192.168.77.1"
        ));
        let index = sh_json("ip -n n1 -j link show dev vxlan.calico")[0]["ifindex"].clone();
        nodes[0].reconcile();
        assert!(nodes[0].reconcile().is_quiet());
        assert_eq!(sh_json("ip -n n1 -j link show dev vxlan.calico")[0]["ifindex"], index);
    });
}

#[test]
#[ignore = "kernel: network namespaces, root; tool: ip"]
fn a_forwarding_node_keeps_accepting_router_advertisements() {
    with_nodes(Encapsulation::None, |nodes| {
        let read = |path: &str| sh(&format!("ip netns exec n1 cat /proc/sys/net/{path}")).trim().to_owned();
        assert_eq!(
            (read("ipv6/conf/w0/accept_ra"), read("ipv6/conf/all/forwarding")),
            ("1".into(), "0".into())
        );
        assert!(nodes[0].reconcile().changed(Kind::Sysctl) >= 2);
        assert_eq!(
            (read("ipv6/conf/w0/accept_ra"), read("ipv6/conf/all/forwarding")),
            ("2".into(), "1".into())
        );
        assert_eq!(read("ipv4/ip_forward"), "1");
        eventually(std::time::Duration::from_secs(20), || has_route("n1", "10.1.2.0/26"));
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, nf_tables, root; tool: ip, ping"]
fn a_run_dropped_after_any_change_is_completed_by_the_next() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        nodes[1].reconcile();
        nodes[2].reconcile();
        for changes in 0.. {
            let all = nodes[0].break_off_after(changes);
            nodes[0].reconcile();
            assert!(nodes[0].reconcile().is_quiet(), "after {changes} changes");
            // Each takes a second.
            if changes % 4 == 0 {
                assert_reachable();
            }
            nodes[0].withdraw();
            if changes >= all {
                break;
            }
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, nf_tables, root; tool: ip, nft"]
fn drift_is_reported_and_withdrawal_leaves_nothing() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        let look = || {
            sh("ip -n n1 link")
                + &sh("ip -n n1 route show proto 114")
                + &sh("ip -n n1 -6 route show proto 114")
        };
        let before = look();
        nodes[0].reconcile();
        assert_eq!(nodes[0].drift(), [""; 0]);
        sh("ip -n n1 route del 10.1.2.0/26");
        sh("ip -n n1 link set vxlan-v6.calico mtu 1300");
        sh("ip netns exec n1 sysctl -w net.ipv4.ip_forward=0");
        assert_eq!(
            nodes[0].drift(),
            [
                "write sysctl net/ipv4/ip_forward = 1",
                "set mtu of the IPv6 tunnel device to 1430",
                "add route 10.1.2.0/26 through the tunnel by 10.1.2.1"
            ]
        );
        let report = nodes[0].withdraw();
        assert_eq!(report.failed, 0, "{:?}", report.errors);
        assert_eq!(look(), before);
        assert!(!sh("ip netns exec n1 nft list ruleset").contains("overlay"));
        assert!(nodes[0].withdraw().is_quiet());
    });
}

/// calico-cni.md sections 4.1, 4.3 and 7.3.
#[test]
#[ignore = "kernel: network namespaces, vxlan, nf_tables, root; tool: ip"]
fn with_calico_conventions_felixs_routes_are_reconciled_and_birds_replaced() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        let routes = |protocol: &str| sh(&format!("ip -n n1 route show proto {protocol}"));
        nodes[0].reconcile();
        assert!(routes("114").contains("10.1.2.0/26"));
        sh("ip -n n1 route add blackhole 10.99.0.0/26 proto 80");
        nodes[0].reconcile();
        assert!(routes("80").contains("10.99.0.0/26"), "native conventions leave Felix's routes alone");

        nodes[0].inputs.dialect = Dialect::Calico;
        sh("ip -n n1 route del 10.1.2.0/26");
        sh("ip -n n1 route add blackhole 10.1.2.0/26 proto bird");
        sh("ip -n n1 route add blackhole 10.98.0.0/26 proto bird");
        let report = nodes[0].reconcile();
        assert_eq!(report.failed, 0, "{:?}", report.errors);
        let felix = routes("80");
        assert!(felix.contains("10.1.2.0/26 via 10.1.2.1 dev vxlan.calico onlink"), "{felix}");
        assert!(felix.contains("blackhole 10.1.1.0/26"), "{felix}");
        assert!(!felix.contains("10.99.0.0/26"), "{felix}");
        assert_eq!(routes("114"), "");
        assert_eq!(routes("bird").trim(), "blackhole 10.98.0.0/26");
        assert!(nodes[0].reconcile().is_quiet());

        nodes[0].withdraw();
        assert_eq!(routes("80"), "");
        assert_eq!(routes("bird").trim(), "blackhole 10.98.0.0/26");
    });
}

#[test]
#[ignore = "kernel: network namespaces, root; tool: ip"]
fn oracle_57_and_58_a_direct_route_follows_the_nodes_address_and_a_blackhole_its_claim() {
    with_nodes(Encapsulation::None, |nodes| {
        nodes[0].inputs.dialect = Dialect::Calico;
        nodes[0].reconcile();
        let felix = || sh("ip -n n1 route show proto 80");
        assert!(felix().contains("10.1.2.0/26 via 192.168.77.2 dev w0 onlink"), "{}", felix());
        for command in [
            "ip -n n1 link add bond0 type bridge",
            "ip -n n1 link set w0 master bond0",
            "ip -n n1 address flush dev w0 scope global",
            "ip -n n1 address add 192.168.77.1/24 dev bond0",
            "ip -n n1 link set bond0 up",
        ] {
            sh(command);
        }
        let bond = sh_json("ip -n n1 -j link show dev bond0")[0]["ifindex"].as_u64().unwrap();
        nodes[0].inputs.underlay.ifindex = u32::try_from(bond).unwrap();
        nodes[0].reconcile();
        assert!(felix().contains("10.1.2.0/26 via 192.168.77.2 dev bond0 onlink"), "{}", felix());

        assert!(felix().contains("blackhole 10.1.1.0/26"), "{}", felix());
        nodes[0].inputs.affinities.retain(|claim| claim.node != name("node-1"));
        nodes[0].reconcile();
        assert!(!felix().contains("10.1.1.0/26"), "{}", felix());
    });
}

/// calico-cni.md section 5.2, oracle 59.
#[test]
#[ignore = "kernel: network namespaces, vxlan, nf_tables, root; tool: ip, nft"]
fn oracle_59_another_vni_port_or_mtu_recreates_the_device() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        nodes[0].reconcile();
        let device = || sh_json("ip -n n1 -d -j link show dev vxlan.calico")[0].clone();
        let of = |device: &serde_json::Value| {
            let data = &device["linkinfo"]["info_data"];
            (data["id"].as_u64(), data["port"].as_u64(), device["mtu"].as_u64())
        };
        assert_eq!(of(&device()), (Some(4096), Some(4789), Some(1450)));
        nodes[0].inputs.tunnel = Tunnel { vni: 4097, port: 4790, mtu: [Some(1300), None] };
        let report = nodes[0].reconcile();
        let why = ["vxlan.calico", "vxlan-v6.calico"]
            .map(|device| format!("{device}: VNI 4096, not 4097; port 4789, not 4790"));
        assert_eq!(report.replaced, why);
        assert_eq!(of(&device()), (Some(4097), Some(4790), Some(1300)));
        let rules = sh("ip netns exec n1 nft list table inet russet");
        assert!(rules.contains("dport 4790") && !rules.contains("4789"), "{rules}");
        assert!(rules.contains(":4791-65535"), "{rules}");
        assert!(nodes[0].reconcile().is_quiet());
    });
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root"]
fn five_thousand_peers_are_programmed_and_one_more_writes_only_itself() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        let node = &mut nodes[0];
        for number in 0..5000_u32 {
            let (high, low) = (number / 200, number % 200 + 10);
            let peer = format!("peer-{number}");
            let address = |first: &str| format!("{first}.{}.{low}", 10 + high);
            node.inputs = std::mem::replace(&mut node.inputs, crate::scene::alone())
                .v4(&peer, &format!("{}/16", address("172.20")), &address("10.2"))
                .claim(
                    &peer,
                    &format!("10.{}.{}.{}/26", 3 + number / 1024, number / 4 % 256, number % 4 * 64),
                );
        }
        node.inputs = node.inputs.clone().pool("10.0.0.0/12", Encapsulation::Vxlan);
        let started = Instant::now();
        let report = node.reconcile();
        println!("5,000 peers programmed in {:?}: {:?}", started.elapsed(), report.changed);
        assert!(report.changed(Kind::Route) > 5000, "{:?} {:?}", report.changed, report.refusals.first());
        let started = Instant::now();
        assert!(node.reconcile().is_quiet());
        println!("nothing to do among 5,000 found out in {:?}", started.elapsed());
        node.inputs =
            node.inputs.clone().v4("last", "172.20.9.9/16", "10.2.99.99").claim("last", "10.14.0.0/26");
        let started = Instant::now();
        let report = node.reconcile();
        println!("one more in {:?}: {:?}", started.elapsed(), report.changed);
        assert_eq!([Kind::Route, Kind::Neighbour, Kind::Fdb].map(|kind| report.changed(kind)), [2, 1, 1]);
    });
}
