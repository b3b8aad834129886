//! Behaviour that is common to backends, and the backends that this kernel may lack.

use russet_overlay::Kind;
use russet_overlay::flannel::{Backend, FlannelError, Peer};

use russet_overlay::flannel::{Mode, Networks, Wireguard, WireguardEnd};
use russet_testkit::{sh, sh_json};

use super::cluster::{
    Node, assert_reachable, introduce, key, peer_without_node, route, route_v6, vxlan, with_nodes,
};

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip"]
fn unknown_own_addresses_get_a_blackhole_only_when_enabled_and_pods_routes_win() {
    // flannel.md section 1.3, ip-blackhole-route
    with_nodes(1, &Backend::Vxlan(vxlan()), |nodes| {
        nodes[0].reset(vec![peer_without_node(2)]);
        assert_eq!(route(1), "");
        nodes[0].run(|fabric| fabric.blackhole_unknown(true));
        nodes[0].resync();
        assert_eq!(route(1), "blackhole 10.5.1.0/24 proto 115 metric 4294967295");
        assert!(
            route_v6(1).starts_with("blackhole fd10:5:0:1::/64 dev lo proto 115 metric 4294967295"),
            "{}",
            route_v6(1)
        );
        sh("ip -n n1 link add cni0 type bridge");
        sh("ip -n n1 addr add 10.5.1.1/24 dev cni0");
        sh("ip -n n1 link set cni0 up");
        sh("ip -n n1 route add 10.5.1.0/24 via 192.168.77.9 metric 5");
        nodes[0].drifted();
        assert!(nodes[0].resync().is_quiet(), "foreign routes to our own subnet are left alone");
        let way = &sh_json("ip -n n1 -j route get 10.5.1.9")[0];
        assert_eq!(way["dev"], "cni0");
        nodes[0].change(&[key(2)], &[peer_without_node(3)]);
        assert!(nodes[0].resync().is_quiet());
        sh("ip -n n1 route del blackhole 10.5.1.0/24 metric 4294967295");
        assert!(nodes[0].drifted());
        assert_eq!(nodes[0].resync().changed(Kind::Route), 1);
        nodes[0].start();
        nodes[0].reset(vec![]);
        assert!(!route(1).contains("blackhole"), "{}", route(1));
    });
}

#[test]
#[ignore = "kernel: network namespaces, root; tool: ip"]
fn backends_without_routes_remove_what_other_backends_left() {
    for (backend, mtu) in [(Backend::Udp, 1472), (Backend::Alloc, 1500)] {
        with_nodes(1, &Backend::HostGw, |nodes| {
            nodes[0].reset(vec![peer_without_node(2)]);
            nodes[0].backend = backend.clone();
            nodes[0].start();
            assert_eq!(nodes[0].prepared.mtu, mtu);
            assert_eq!(nodes[0].reset(vec![peer_without_node(2)]).changed(Kind::Route), 2);
            assert_eq!((route(2), route_v6(2)), (String::new(), String::new()));
        });
    }
}

#[test]
#[ignore = "kernel: network namespaces, vxlan, root; tool: ip, ping"]
fn an_interface_that_returns_with_another_index_is_programmed_again() {
    // flannel.md section 9, flannel #869, #877, #1348, #1070 and #1434
    for backend in [Backend::Vxlan(vxlan()), Backend::HostGw] {
        with_nodes(2, &backend, |nodes| {
            introduce(nodes);
            let (before, published) = (route(2), nodes[0].prepared.clone());
            sh("ip -n n1 link del w0");
            assert!(nodes[0].drifted(), "our device or its routes went with it");
            assert!(nodes[0].run(|fabric| fabric.resync()).failed > 0 || route(2).is_empty());
            for command in [
                "ip link add port1 type veth peer name w0 netns n1",
                "ip link set port1 master br0 up",
                "ip -n n1 link set w0 up",
                "ip -n n1 addr add 192.168.77.1/24 dev w0",
                "ip -n n1 addr add fd77::1/64 dev w0 nodad",
            ] {
                sh(command);
            }
            assert!(nodes[0].drifted(), "the interface is back");
            nodes[0].resync();
            assert_eq!((route(2), nodes[0].run(|fabric| fabric.prepared())), (before, published));
            assert_reachable(nodes);
            nodes[0].drifted();
            assert!(nodes[0].resync().is_quiet());
        });
    }
}

#[test]
#[ignore = "kernel: network namespaces, root; tool: ip"]
fn routes_of_a_second_network_are_not_ours_unless_they_were() {
    with_nodes(1, &Backend::HostGw, |nodes| {
        sh("ip -n n1 route add 10.6.2.0/24 via 192.168.77.9 proto 115");
        sh("ip -n n1 route add 10.5.2.0/24 via 192.168.77.9 proto 115");
        assert_eq!(nodes[0].reset(vec![]).changed(Kind::Route), 1);
        assert_eq!(route(2), "");
        assert!(!sh("ip -n n1 route show 10.6.2.0/24").is_empty());
        assert!(!nodes[0].drifted());
        nodes[0].run(|fabric| fabric.inherit(Networks { v4: "10.6.0.0/16".parse().ok(), v6: None }));
        assert_eq!(nodes[0].resync().changed(Kind::Route), 1);
        assert_eq!(sh("ip -n n1 route show 10.6.2.0/24"), "");
    });
}

/// Checks the backend where the kernel has IP-in-IP, otherwise the error.
#[test]
#[ignore = "kernel: network namespaces, root; tool: ip"]
fn ipip_works_or_names_what_the_kernel_lacks() {
    // flannel.md section 6.4
    with_nodes(1, &Backend::HostGw, |nodes| {
        let node: &mut Node = &mut nodes[0];
        node.backend = Backend::Ipip { direct_routing: true };
        match node.try_start() {
            Err(error @ FlannelError::Unsupported { .. }) => {
                assert!(!sh("ip -n n1 link").contains("flannel.ipip"));
                let said = error.to_string();
                assert!(
                    said.starts_with(
                        "backend ipip needs IP-in-IP tunnels (CONFIG_NET_IPIP, module ipip), which"
                    ),
                    "{said}"
                );
            }
            Err(error) => panic!("{error}"),
            Ok(()) => {
                assert_eq!(node.prepared.mtu, 1480);
                let far = Peer { public_ip: [192, 168, 88, 3].into(), ..peer_without_node(3) };
                sh("ip -n n1 route add 192.168.88.0/24 via 192.168.77.254");
                node.reset(vec![peer_without_node(2), far]);
                assert_eq!(route(2), "10.5.2.0/24 via 192.168.77.2 dev w0 proto 115 onlink");
                assert_eq!(route(3), "10.5.3.0/24 via 192.168.88.3 dev flannel.ipip proto 115 onlink");
                let link = &sh_json("ip -n n1 -d -j link show dev flannel.ipip")[0];
                assert_eq!(link["linkinfo"]["info_data"]["local"], "192.168.77.1");
                assert!(node.resync().is_quiet());
            }
        }
    });
}

/// Checks the backend where the kernel has WireGuard, otherwise the error.
#[test]
#[ignore = "kernel: network namespaces, root; tool: ip"]
fn wireguard_works_or_names_what_the_kernel_lacks() {
    // flannel.md section 6.5
    let directory = tempfile::tempdir().unwrap();
    let key_file = directory.path().join("wgkey");
    let options = Wireguard {
        port: 51820,
        port_v6: 51821,
        mtu: None,
        psk: None,
        keepalive_s: 0,
        mode: Mode::Separate,
        key_file,
    };
    with_nodes(1, &Backend::HostGw, |nodes| {
        let node: &mut Node = &mut nodes[0];
        node.backend = Backend::Wireguard(Box::new(options));
        match node.try_start() {
            Err(error @ FlannelError::Unsupported { .. }) => {
                assert!(!sh("ip -n n1 link").contains("flannel-wg"));
                let said = error.to_string();
                let wanted = "backend wireguard needs WireGuard (CONFIG_WIREGUARD, module wireguard), which";
                assert!(said.starts_with(wanted), "{said}");
            }
            Err(error) => panic!("{error}"),
            Ok(()) => {
                assert_eq!(node.prepared.mtu, 1420);
                let public_key = "bm90IGEgcmVhbCBrZXksIGJ1dCAzMiBieXRlcyBsb24=".to_owned();
                let end = Some(WireguardEnd { public_key, port: Some(51820) });
                let report = node.reset(vec![Peer {
                    wireguard: [end, None],
                    subnet_v6: None,
                    ..peer_without_node(2)
                }]);
                assert_eq!(report.changed(Kind::Peer), 1);
                assert!(sh("ip -n n1 route").contains("10.5.0.0/16 dev flannel-wg proto 115 scope link"));
                assert!(node.resync().is_quiet());
            }
        }
    });
    let made = directory.path().join("wgkey");
    assert!(made.is_file(), "the key is made before the device");
}
