//! Packets that only a node may send, sent by others: VXLAN out of a plain UDP socket, with an inner source of the sender's choice
//! (policy.md section 3.6).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use russet_addr::Family;
use russet_overlay::{Encapsulation, POD_ENCAPSULATION_DROP, VNI, tunnel_mac};
use russet_testkit::bridge::on_bridge;
use russet_testkit::forged::{dropped, first_is_honest, hex, routed_pod, socket};
use russet_testkit::{eventually, frame, inside, sh};

use crate::cluster::{assert_reachable, with_nodes};
use crate::scene::{Build, ip, name};

const DEADLINE: Duration = Duration::from_secs(20);
/// Where pods receive.
const PORT: u16 = 7002;
const TUNNEL_PORT: u16 = 4789;

/// The own address of a node or machine on the nodes' network.
fn outer(number: usize, family: Family) -> IpAddr {
    match family {
        Family::V4 => ip(&format!("192.168.77.{number}")),
        Family::V6 => ip(&format!("fd77::{number}")),
    }
}

/// The address of a node's pod.
fn inner(number: usize, family: Family) -> IpAddr {
    match family {
        Family::V4 => ip(&format!("10.1.{number}.5")),
        Family::V6 => ip(&format!("fd10::{number}:5")),
    }
}

/// What an attacker sends to a node's tunnel port: a datagram for that node's pod that claims to come from node 3's.
fn forged(node: usize, family: Family) -> Vec<u8> {
    let packet = frame::udp_packet(inner(3, family), inner(node, family), PORT, &[1]);
    let mac = tunnel_mac(&name(&format!("node-{node}")), family).octets();
    frame::vxlan(VNI, mac, &packet)
}

/// A machine on the nodes' network that is no node.
fn machine(number: usize) -> String {
    let name = format!("m{number}");
    let addresses = [(Family::V4, 24), (Family::V6, 64)];
    on_bridge(&name, &addresses.map(|(family, length)| format!("{}/{length}", outer(number, family))));
    name
}

/// A pod of node 1 behind a host end of this name, with 10.1.1.6 and fd10::1:6.
fn pod(host_end: &str) -> String {
    let name = format!("pod-{host_end}");
    routed_pod(Some("n1"), host_end, &name, ["10.1.1.6", "fd10::1:6"]);
    name
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root"]
fn tunnel_packets_from_a_machine_that_is_no_peer_reach_no_pod() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        let outsider = machine(9);
        nodes.iter_mut().for_each(|node| drop(node.reconcile()));
        for family in Family::BOTH {
            let attacker = socket(&outsider, outer(9, family), 0);
            let receiver = socket("n1", inner(1, family), PORT);
            let honest = socket("n2", inner(2, family), 0);
            let attack = || _ = attacker.send_to(&forged(1, family), (outer(1, family), TUNNEL_PORT));
            for _ in 0..10 {
                assert!(first_is_honest(&attack, &honest, &receiver), "{family}");
            }
        }
        assert_reachable();
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root"]
fn a_pod_sends_no_tunnel_packets_to_its_own_node_and_none_to_others() {
    // policy.md P118
    for host_end in ["russ1", "cali1"] {
        with_nodes(Encapsulation::Vxlan, |nodes| {
            let pod = pod(host_end);
            nodes.iter_mut().for_each(|node| drop(node.reconcile()));
            // Whatever the address of a service is translated to.
            for (family, service, node) in
                [("ip", "172.30.0.1", "192.168.77.2"), ("ip6", "fd30::1", "[fd77::2]")]
            {
                let nft = |command: String| sh(&format!("ip netns exec n1 nft {command}"));
                nft(format!("add table {family} kube"));
                nft(format!("add chain {family} kube pre {{ type nat hook prerouting priority dstnat ; }}"));
                nft(format!(
                    "add rule {family} kube pre {family} daddr {service} udp dport 53 dnat to {node}:4789"
                ));
            }
            for (family, own) in [(Family::V4, "10.1.1.6"), (Family::V6, "fd10::1:6")] {
                let attacker = socket(&pod, ip(own), 0);
                let (stolen, service, nodad) = match family {
                    Family::V4 => ("192.168.77.2/32", "172.30.0.1", ""),
                    Family::V6 => ("fd77::2/128", "fd30::1", "nodad"),
                };
                // From a peer's address, too, which the table of verdicts would not let through.
                sh(&format!("ip -n {pod} addr add {stolen} dev eth0 {nodad}"));
                let thief = socket(&pod, outer(2, family), 0);
                let to_node = |victim| SocketAddr::new(outer(victim, family), TUNNEL_PORT);
                let attacks = [
                    (1, &attacker, to_node(1)),
                    (2, &attacker, SocketAddr::new(ip(service), 53)),
                    (2, &attacker, to_node(2)),
                    (1, &thief, to_node(1)),
                ];
                for (victim, attacker, to) in attacks {
                    let receiver = socket(&format!("n{victim}"), inner(victim, family), PORT);
                    let honest = socket(&pod, ip(own), 0);
                    let attack = || _ = attacker.send_to(&forged(victim, family), to);
                    for _ in 0..10 {
                        assert!(first_is_honest(&attack, &honest, &receiver), "{host_end} {attacker:?} {to}");
                    }
                }
                sh(&format!("ip -n {pod} addr del {stolen} dev eth0"));
            }
            let text = sh("ip netns exec n1 nft list table inet russet");
            assert!(text.contains("a pod does not send tunnel packets"), "{text}");
        });
    }
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root; tool: nft"]
fn oracle_61_who_may_send_tunnel_packets_follows_the_nodes_and_no_rule_is_rewritten_for_it() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        nodes.iter_mut().for_each(|node| drop(node.reconcile()));
        let all = nodes[0].inputs.clone();
        // Handles show that chains and rules stay.
        let list = |name| sh(&format!("ip netns exec n1 nft -a list chain inet russet {name}"));
        let chain = || ["overlay-input", "overlay-tunnel"].map(list).concat();
        let handles = |text: &str| -> Vec<String> {
            text.split("# handle ").skip(1).map(|rest| rest.lines().next().unwrap().to_owned()).collect()
        };
        let before = handles(&chain());
        assert!(before.len() >= 8, "{before:?}");
        for family in Family::BOTH {
            let receiver = socket("n1", inner(1, family), PORT);
            let (second, third) = (socket("n2", inner(2, family), 0), socket("n3", inner(3, family), 0));
            let peers = ["peers4", "peers6"][usize::from(family == Family::V6)];
            let list = || sh(&format!("ip netns exec n1 nft list set inet russet overlay-{peers}"));
            nodes[0].inputs.nodes.remove(&name("node-3"));
            nodes[0].reconcile();
            assert!(
                !list().contains(&outer(3, family).to_string())
                    && list().contains(&outer(2, family).to_string())
            );
            let gone = || _ = third.send_to(&[1], receiver.local_addr().unwrap());
            for _ in 0..5 {
                assert!(first_is_honest(&gone, &second, &receiver), "node 3 has gone");
            }
            nodes[0].inputs = all.clone();
            nodes[0].reconcile();
            assert!(!first_is_honest(&gone, &second, &receiver), "node 3 is back");
            while receiver.recv_from(&mut [0]).is_ok() {}
        }
        assert!(nodes[0].reconcile().is_quiet());
        assert_eq!(handles(&chain()), before);
        assert_reachable();
        // What others do to the set is drift.
        sh("ip netns exec n1 nft flush set inet russet overlay-peers4");
        assert_eq!(nodes[0].drift(), ["replace the overlay's part of table inet russet"]);
        nodes[0].reconcile();
        assert_reachable();
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root"]
fn a_new_peer_may_send_before_there_is_a_route_to_it() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        nodes[0].inputs.nodes.remove(&name("node-2"));
        nodes.iter_mut().for_each(|node| drop(node.reconcile()));
        nodes[0].inputs = nodes[0].inputs.clone().v4("node-2", "192.168.77.2/24", "10.1.2.1");
        // Two switch forwarding on.
        nodes[0].break_off_after(3);
        assert!(sh("ip netns exec n1 nft list set inet russet overlay-peers4").contains("192.168.77.2"));
        assert!(!sh("ip -n n1 route show 10.1.2.0/26").contains("via"), "the route comes later");
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root"]
fn where_another_program_keeps_the_tunnels_the_guard_goes_and_all_else_stays() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        nodes.iter_mut().for_each(|node| drop(node.reconcile()));
        assert!(nodes[0].withdraw_guard());
        assert!(!nodes[0].withdraw_guard(), "once");
        let text = sh("ip netns exec n1 nft list table inet russet");
        assert!(!text.contains("peers") && !text.contains("drop") && text.contains("masquerade"), "{text}");
        // It comes back with the agent.
        nodes[0].reconcile();
        assert!(sh("ip netns exec n1 nft list table inet russet").contains("overlay-peers4"));
        assert_reachable();
    });
}

/// What carries `packet` to a node in IPv4 or IPv6 (protocol number 4: IPv4 in IP).
const SEND_ENCAPSULATED: &str = "import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
s = socket.socket(family, socket.SOCK_RAW, int(sys.argv[2]))
s.sendto(bytes.fromhex(sys.argv[3]), (sys.argv[1], 0))";

fn send_encapsulated(from: &str, to: IpAddr, protocol: u8, packet: &[u8]) {
    let (to, protocol) = (to.to_string(), protocol.to_string());
    inside(from, &["python3", "-c", SEND_ENCAPSULATED, &to, &protocol, &hex(packet)]);
}

/// Packets that rules with this comment have dropped on node 1.
fn dropped_on_node_1(comment: &str) -> u64 {
    dropped(Some("n1"), "inet russet", comment)
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tools: nft, python3"]
fn a_pod_sends_nodes_no_ip_in_ip_unless_the_operator_allows_it() {
    // policy.md P118
    // A pool whose tunnels are another program's: this node has no device, but node 2 may take IP in IP from every node.
    with_nodes(Encapsulation::Ipip, |nodes| {
        let pod = pod("russ1");
        // What node 2 would unpack: a kernel without IP in IP receives it all the same.
        sh("ip netns exec n2 nft add table inet seen");
        sh("ip netns exec n2 nft add chain inet seen input { type filter hook input priority 0 ; }");
        sh("ip netns exec n2 nft add rule inet seen input meta l4proto 4 counter");
        let seen = || {
            let text = sh("ip netns exec n2 nft list chain inet seen input");
            let packets = text.split("packets ").nth(1).unwrap().split(' ').next().unwrap();
            packets.parse::<u64>().unwrap()
        };
        nodes.iter_mut().for_each(|node| drop(node.reconcile()));
        let forged = frame::udp_packet(inner(3, Family::V4), inner(2, Family::V4), PORT, &[1]);
        nodes[0].inputs.senders.pods_ipip = true;
        nodes[0].reconcile();
        eventually(DEADLINE, || {
            send_encapsulated(&pod, outer(2, Family::V4), 4, &forged);
            seen() > 0
        });
        nodes[0].inputs.senders.pods_ipip = false;
        nodes[0].reconcile();
        let before = seen();
        let mut expected = 0;
        for family in Family::BOTH {
            // To another node and to its own, in IPv4 or IPv6, and in GRE.
            for (victim, protocol) in [(2, 4), (2, 41), (2, 47), (1, 4), (1, 41), (1, 47)] {
                send_encapsulated(&pod, outer(victim, family), protocol, &forged);
                expected += 1;
                eventually(DEADLINE, || dropped_on_node_1(POD_ENCAPSULATION_DROP) == expected);
            }
        }
        assert_eq!(seen(), before);
        // To other machines pods may send what they like.
        send_encapsulated(&pod, ip("192.168.77.9"), 4, &forged);
        assert_eq!(dropped_on_node_1(POD_ENCAPSULATION_DROP), expected);
        assert!(nodes[0].reconcile().is_quiet());
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root"]
fn pods_and_machines_that_the_operator_names_may_send_tunnel_packets() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        let (outsider, pod) = (machine(9), pod("russ1"));
        nodes.iter_mut().for_each(|node| drop(node.reconcile()));
        let send = |from: &str, own: IpAddr, family| {
            let sender = socket(from, own, 0);
            move || _ = sender.send_to(&forged(1, family), (outer(1, family), TUNNEL_PORT))
        };
        for (family, own) in [(Family::V4, "10.1.1.6"), (Family::V6, "fd10::1:6")] {
            let receiver = socket("n1", inner(1, family), PORT);
            let honest = socket("n2", inner(2, family), 0);
            let from_machine = send(&outsider, outer(9, family), family);
            assert!(first_is_honest(&from_machine, &honest, &receiver), "{family}");
            let arrives = |attack: &dyn Fn()| {
                while receiver.recv_from(&mut [0]).is_ok() {}
                eventually(DEADLINE, || {
                    attack();
                    receiver.recv_from(&mut [0]).is_ok()
                });
            };
            nodes[0].inputs.senders.external = vec![russet_addr::host_net(outer(9, family))];
            nodes[0].reconcile();
            assert!(nodes[0].reconcile().is_quiet());
            arrives(&from_machine);
            nodes[0].inputs.senders.external.clear();
            nodes[0].inputs.senders.pods_vxlan = true;
            nodes[0].reconcile();
            // The inner source is what the pod chose, the outer one must be a node's or allowed.
            nodes[0].inputs.senders.external = vec![russet_addr::host_net(ip(own))];
            nodes[0].reconcile();
            arrives(&send(&pod, ip(own), family));
            nodes[0].inputs.senders = Default::default();
            nodes[0].reconcile();
        }
    });
}
