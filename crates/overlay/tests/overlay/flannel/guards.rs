//! Tunnel packets that no peer sent: out of a plain UDP socket of another machine, and of a pod behind this node's bridge (policy.md section 3.6).

use std::net::IpAddr;
use std::time::Duration;

use russet_addr::Family;
use russet_linux::NetNs;
use russet_overlay::Kind;
use russet_overlay::flannel::{Backend, VXLAN_PORT};
use russet_testkit::bridge::on_bridge;
use russet_testkit::forged::{dropped, first_is_honest, socket};
use russet_testkit::{eventually, frame, sh};

use super::cluster::{Node, assert_reachable, introduce, key, peer_without_node, vxlan, with_nodes};

const DEADLINE: Duration = Duration::from_secs(20);
const PORT: u16 = 7002;

fn outer(number: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => [192, 168, 77, number].into(),
        Family::V6 => format!("fd77::{number:x}").parse().unwrap(),
    }
}

fn inner(number: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => [10, 5, number, 5].into(),
        Family::V6 => format!("fd10:5:0:{number:x}::5").parse().unwrap(),
    }
}

/// A datagram for a node's pod that claims to come from node 3's.
fn forged(node: &Node, vni: u32, family: Family) -> Vec<u8> {
    let packet = frame::udp_packet(inner(3, family), inner(node.number, family), PORT, &[1]);
    let mac = node.prepared.mac[usize::from(family == Family::V6)].unwrap();
    frame::vxlan(vni, mac.octets(), &packet)
}

fn list(what: &str) -> String {
    sh(&format!("ip netns exec n1 nft list {what}"))
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root; tool: nft"]
fn only_addresses_of_leases_may_send_to_the_tunnels_port() {
    with_nodes(3, &Backend::Vxlan(vxlan()), |nodes| {
        introduce(nodes);
        for family in Family::BOTH {
            let (attacker, honest) = (socket("n3", outer(3, family), 0), socket("n2", inner(2, family), 0));
            let receiver = socket("n1", inner(1, family), PORT);
            let forged = forged(&nodes[0], 1, family);
            let attack = || _ = attacker.send_to(&forged, (outer(1, family), VXLAN_PORT));
            assert!(!first_is_honest(&attack, &honest, &receiver), "node 3 is a peer");
            nodes[0].change(&[key(3)], &[]);
            while receiver.recv_from(&mut [0]).is_ok() {}
            for _ in 0..5 {
                assert!(
                    first_is_honest(&attack, &honest, &receiver),
                    "{family}: node 3 has no lease any more"
                );
            }
            let lease = nodes[2].lease();
            nodes[0].change(&[], &[lease]);
            assert!(!first_is_honest(&attack, &honest, &receiver), "{family}: it has one again");
        }
        assert!(nodes[0].resync().is_quiet());
        assert_reachable(nodes);
        // A peer that moves: the old address goes when the new one is in force.
        nodes[0].change(&[], &[peer_without_node(9)]);
        let mut moved = peer_without_node(9);
        moved.public_ip = [192, 168, 77, 99].into();
        nodes[0].change(&[], &[moved]);
        let peers = list("set inet russet-flannel-1 peers4");
        assert!(peers.contains("192.168.77.99") && !peers.contains("192.168.77.9,"), "{peers}");
        assert!(nodes[0].resync().is_quiet());
        // Whatever others do to the table is repaired, and without it nothing is lost.
        for (damage, tables) in [
            ("flush ruleset", 2),
            ("flush set inet russet-flannel-1 peers4", 1),
            ("flush chain inet russet-flannel-1 input", 1),
        ] {
            sh(&format!("ip netns exec n1 nft {damage}"));
            assert_eq!(nodes[0].resync().changed(Kind::Nat), tables, "{damage}");
            assert!(nodes[0].resync().is_quiet(), "{damage}");
            assert_reachable(nodes);
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root; tool: nft"]
fn a_pod_behind_the_nodes_bridge_sends_no_tunnel_packets_whatever_its_source() {
    with_nodes(3, &Backend::Vxlan(vxlan()), |nodes| {
        NetNs::create_named("pod").unwrap();
        sh("ip -n n1 link add cni0 type bridge");
        sh("ip -n n1 addr add 10.5.1.1/24 dev cni0");
        sh("ip -n n1 link set cni0 up");
        sh("ip -n n1 link add veth0 type veth peer name eth0 netns pod");
        sh("ip -n n1 link set veth0 master cni0 up");
        sh("ip -n pod addr add 10.5.1.6/24 dev eth0");
        sh("ip -n pod link set eth0 up");
        sh("ip -n pod route add default via 10.5.1.1");
        // As flannel masquerades: to the other nodes it looks like this one.
        sh("ip netns exec n1 nft add table ip nat");
        sh("ip netns exec n1 nft add chain ip nat post { type nat hook postrouting priority 100 ; }");
        sh("ip netns exec n1 nft add rule ip nat post ip saddr 10.5.1.0/24 oifname w0 masquerade");
        introduce(nodes);
        let v4 = Family::V4;
        // Its own address, and a peer's.
        for (source, victims) in [("10.5.1.6", &nodes[..2]), ("192.168.77.2", &nodes[..1])] {
            if source != "10.5.1.6" {
                sh(&format!("ip -n pod addr add {source}/32 dev eth0"));
            }
            let attacker = socket("pod", source.parse::<IpAddr>().unwrap(), 0);
            let honest = socket("pod", "10.5.1.6".parse::<IpAddr>().unwrap(), 0);
            for victim in victims {
                let receiver = socket(&format!("n{}", victim.number), inner(victim.number, v4), PORT);
                let forged = forged(victim, 1, v4);
                let attack = || _ = attacker.send_to(&forged, (outer(victim.number, v4), VXLAN_PORT));
                for _ in 0..5 {
                    assert!(
                        first_is_honest(&attack, &honest, &receiver),
                        "{source} to node {}",
                        victim.number
                    );
                }
            }
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root; tool: nft"]
fn other_networks_at_the_same_port_are_not_guarded_and_the_guard_ends_with_the_daemon() {
    with_nodes(2, &Backend::Vxlan(vxlan()), |nodes| {
        introduce(nodes);
        on_bridge("m9", &["192.168.77.9/24".to_owned()]);
        // Another program's network on the same port.
        for (node, own, other) in [("n1", 1, 9), ("m9", 9, 1)] {
            sh(&format!(
                "ip -n {node} link add vx77 type vxlan id 77 dstport {VXLAN_PORT} remote 192.168.77.{other} nolearning"
            ));
            sh(&format!("ip -n {node} addr add 172.20.0.{own}/24 dev vx77"));
            sh(&format!("ip -n {node} link set vx77 up"));
        }
        sh("ip netns exec m9 ping -c 1 -W 5 172.20.0.1");
        // No daemon compares any more: a peer that only another daemon knows gets through when the time is up.
        let receiver = socket("n1", inner(1, Family::V4), PORT);
        let (attacker, honest) =
            (socket("m9", outer(9, Family::V4), 0), socket("n2", inner(2, Family::V4), 0));
        let forged = forged(&nodes[0], 1, Family::V4);
        let attack = || _ = attacker.send_to(&forged, (outer(1, Family::V4), VXLAN_PORT));
        assert!(first_is_honest(&attack, &honest, &receiver));
        assert!(list("set inet russet-flannel-1 active").contains("udp timeout 5m"));
        sh("ip netns exec n1 nft flush set inet russet-flannel-1 active");
        assert!(!first_is_honest(&attack, &honest, &receiver), "the guard has ended");
        while receiver.recv_from(&mut [0]).is_ok() {}
        nodes[0].resync();
        assert!(first_is_honest(&attack, &honest, &receiver), "and holds again");
        nodes[0].run(|fabric| fabric.open_tunnel().unwrap());
        assert!(!first_is_honest(&attack, &honest, &receiver), "peers may send from anywhere");
        assert!(nodes[0].resync().is_quiet());
        assert!(!list("tables").contains("russet-flannel-1"));
    });
}

/// Packets that rules with this comment have dropped on node 1.
fn dropped_on_node_1(comment: &str) -> u64 {
    dropped(Some("n1"), "inet russet-flannel-pods", comment)
}

/// Behind a bridge of node 1, as another's plugin makes it: a veth whose name says nothing.
fn bridged_pod() {
    NetNs::create_named("pod").unwrap();
    sh("ip -n n1 link add cni0 type bridge");
    sh("ip -n n1 addr add 10.5.1.1/24 dev cni0");
    sh("ip -n n1 addr add fd10:5:0:1::1/64 dev cni0 nodad");
    sh("ip -n n1 link set cni0 up");
    sh("ip -n n1 link add veth0 type veth peer name eth0 netns pod");
    sh("ip -n n1 link set veth0 master cni0 up");
    sh("ip -n pod addr add 10.5.1.6/24 dev eth0");
    sh("ip -n pod addr add fd10:5:0:1::6/64 dev eth0 nodad");
    sh("ip -n pod link set eth0 up");
    sh("ip -n pod route add default via 10.5.1.1");
    sh("ip -n pod -6 route add default via fd10:5:0:1::1");
    // As a distribution has it: sources are checked loosely.
    sh(
        "ip netns exec n1 sysctl -qw net.ipv4.conf.all.rp_filter=2 net.ipv6.conf.all.forwarding=1 net.ipv4.ip_forward=1",
    );
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, bridge, root; tools: nft, python3"]
fn pods_behind_a_foreign_plugins_bridge_send_from_its_networks_and_no_ip_in_ip_to_nodes() {
    use russet_overlay::POD_ENCAPSULATION_DROP;
    use russet_overlay::flannel::POD_SOURCE_DROP;
    for backend in [Backend::Vxlan(vxlan()), Backend::HostGw] {
        with_nodes(3, &backend, |nodes| {
            bridged_pod();
            introduce(nodes);
            for (family, own, stolen) in
                [(Family::V4, "10.5.1.6", "10.5.3.77"), (Family::V6, "fd10:5:0:1::6", "fd10:5:0:3::77")]
            {
                let nodad = if family == Family::V6 { "nodad" } else { "" };
                sh(&format!("ip -n pod addr add {stolen} dev eth0 {nodad}"));
                let receiver = socket("n2", inner(2, family), PORT);
                let attacker = socket("pod", stolen.parse::<IpAddr>().unwrap(), 0);
                let honest = socket("pod", own.parse::<IpAddr>().unwrap(), 0);
                let to = receiver.local_addr().unwrap();
                let attack = || _ = attacker.send_to(&[1], to);
                for _ in 0..5 {
                    assert!(first_is_honest(&attack, &honest, &receiver), "{family}");
                }
                let script = "import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
for protocol in (4, 41, 47):
    socket.socket(family, socket.SOCK_RAW, protocol).sendto(bytes(64), (sys.argv[1], 0))";
                let before = dropped_on_node_1(POD_ENCAPSULATION_DROP);
                // Its own node, another, and a machine that is none.
                for victim in [1, 2, 9] {
                    let to = outer(victim, family).to_string();
                    russet_testkit::run("ip", &["netns", "exec", "pod", "python3", "-c", script, &to]);
                }
                eventually(DEADLINE, || dropped_on_node_1(POD_ENCAPSULATION_DROP) == before + 6);
            }
            assert!(dropped_on_node_1(POD_SOURCE_DROP) >= 10);
            for damage in ["flush ruleset", "flush chain inet russet-flannel-pods guard"] {
                sh(&format!("ip netns exec n1 nft {damage}"));
                assert!(nodes[0].resync().changed(Kind::Nat) >= 1, "{damage}");
                assert!(nodes[0].resync().is_quiet(), "{damage}");
            }
            // It ends with the daemon, as the elements say, and by the operator's wish.
            assert!(list("set inet russet-flannel-pods bridges").contains("\"cni0\" timeout 5m"));
            nodes[0].run(|fabric| fabric.open_pods().unwrap());
            assert!(nodes[0].resync().is_quiet());
            assert!(!list("tables").contains("russet-flannel-pods"));
        });
    }
}
