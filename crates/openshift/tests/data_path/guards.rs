//! Those who do not keep to the rules: pods with others' addresses, machines that are no nodes, pods that speak VXLAN; and a peer that is no Russet.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use russet_linux::NetNs;
use russet_openshift::data_path::{Peer, Sdn};
use russet_testkit::bridge::on_bridge;
use russet_testkit::forged::socket;
use russet_testkit::{eventually, frame, sh, succeeds};

use crate::lab::{Node, Pod, node_ip, sound, subnet, with_nodes};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Sends until a packet comes, and says whose; everything that was sent before has come then, or never will.
#[track_caller]
fn first_after(senders: &[(&UdpSocket, u8)], to: (Ipv4Addr, u16), receiver: &UdpSocket) -> (u8, Ipv4Addr) {
    let mut packet = [0; 1];
    let mut came = None;
    eventually(TIMEOUT, || {
        for (sender, byte) in senders {
            let _ = sender.send_to(&[*byte], to);
        }
        came = receiver.recv_from(&mut packet).ok();
        came.is_some()
    });
    let std::net::SocketAddr::V4(from) = came.unwrap().1 else { panic!("IPv6") };
    (packet[0], *from.ip())
}

/// A machine on the nodes' network.
fn machine(number: u8) -> String {
    let name = format!("m{number}");
    on_bridge(&name, &[format!("{}/24", node_ip(number))]);
    name
}

/// Lets a machine speak VXLAN to the first node as Open vSwitch does: it has a pod's address of its own subnet, and asks for MACs.
fn speaks_vxlan(name: &str, number: u8, vni: u32) -> Ipv4Addr {
    let address = Ipv4Addr::new(10, 128, number * 2, 5);
    let ip = |command: &str| sh(&format!("ip -n {name} {command}"));
    ip(&format!("link add vx{vni} type vxlan id {vni} dstport 4789 remote {} nolearning", node_ip(1)));
    ip(&format!("link set vx{vni} address 0a:58:0a:80:{:02x}:05 mtu 1450 up", number * 2));
    ip(&format!("addr add {address}/14 dev vx{vni}"));
    address
}

fn pings(namespace: &str, from: Ipv4Addr, to: Ipv4Addr) -> bool {
    succeeds(&format!("ip netns exec {namespace} ping -c1 -W1 -I {from} {to}"))
}

fn tell(node: &mut Node, machines: &[u8]) {
    let peer = |number: &u8| Peer { host_ip: node_ip(*number), subnet: subnet(*number) };
    let peers: Vec<Peer> = machines.iter().map(peer).collect();
    sound(&node.run(|sdn: &mut Sdn| sdn.peers(&peers)));
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn a_pod_cannot_send_from_an_address_that_is_not_its_own() {
    // cni-runtime.md section 4.5, table 20
    with_nodes(2, |nodes| {
        let [blue1, red1] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11)];
        let blue2 = nodes[1].pod(10, 10);
        let outside = Ipv4Addr::new(198, 51, 100, 7);
        for stolen in [blue1.port.address, outside] {
            sh(&format!("ip -n {} addr add {stolen}/32 dev eth0", red1.name));
            let thief = socket(&red1.name, stolen, 7000);
            let honest = socket(&blue1.name, blue1.port.address, 7001);
            for to in [&blue2, &blue1] {
                let receiver = socket(&to.name, to.port.address, 7002);
                let senders = [(&thief, 1), (&thief, 1), (&honest, 2)];
                for _ in 0..20 {
                    assert_eq!(first_after(&senders, (to.port.address, 7002), &receiver).0, 2, "{stolen}");
                }
            }
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn only_nodes_may_send_vxlan_and_one_with_open_vswitch_is_understood() {
    // cni-runtime.md section 4.5, table 10, and A.3
    with_nodes(1, |nodes| {
        let [blue, red] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11)];
        let (name, number) = (machine(9), 9);
        let theirs = speaks_vxlan(&name, number, 10);
        assert!(!pings(&name, theirs, blue.port.address), "it is no node");
        tell(&mut nodes[0], &[9]);
        eventually(TIMEOUT, || pings(&name, theirs, blue.port.address));
        assert!(blue.reaches(theirs), "the way there");
        assert!(!pings(&name, theirs, red.port.address), "another tenant's");
        assert!(!red.reaches(theirs));
        tell(&mut nodes[0], &[]);
        assert!(!pings(&name, theirs, blue.port.address), "it is no node any more");
    });
}

#[test]
#[ignore = "kernel: network namespaces need root; tool: nft"]
fn what_came_out_of_the_tunnel_unjudged_reaches_no_pod() {
    // cni-runtime.md section 4.5: one way is enough to cross, so the receiver is asked
    with_nodes(2, |nodes| {
        let [red, honest] = [nodes[0].pod(11, 11), nodes[0].pod(12, 11)];
        let blue = nodes[1].pod(10, 10);
        let own = nodes[1].pod(11, 11);
        let thief = socket(&blue.name, blue.port.address, 7000);
        let near = socket(&honest.name, honest.port.address, 7001);
        let receiver = socket(&red.name, red.port.address, 7002);
        for chain in ["prerouting", "from-tunnel", "returned", "forward", "leaving"] {
            sh(&format!("ip netns exec n1 nft flush chain ip russet-sdn {chain}"));
            // What was sent again through an earlier chain.
            while receiver.recv_from(&mut [0]).is_ok() {}
            for _ in 0..20 {
                for _ in 0..5 {
                    let _ = thief.send_to(&[1], (red.port.address, 7002));
                }
                // Without the last chain no packet arrives.
                match chain {
                    "leaving" => assert!(receiver.recv_from(&mut [0]).is_err(), "{chain}"),
                    _ => assert_eq!(
                        first_after(&[(&near, 2)], (red.port.address, 7002), &receiver).0,
                        2,
                        "{chain}"
                    ),
                }
            }
            sound(&nodes[0].run(Sdn::restore));
            red.assert_reaches(&own);
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn the_tenant_zero_of_another_node_reaches_everybody() {
    with_nodes(1, |nodes| {
        let [blue, red, robbed] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11), nodes[0].pod(12, 12)];
        let name = machine(9);
        tell(&mut nodes[0], &[9]);
        let theirs = socket(&name, speaks_vxlan(&name, 9, 0), 7000);
        // Another node's network ID is no reason to have an address of ours.
        sh(&format!("ip -n {name} addr add {}/32 dev vx0", robbed.port.address));
        let thief = socket(&name, robbed.port.address, 7001);
        for pod in [&blue, &red] {
            let receiver = socket(&pod.name, pod.port.address, 7002);
            for _ in 0..20 {
                let senders = [(&thief, 1), (&theirs, 2)];
                assert_eq!(first_after(&senders, (pod.port.address, 7002), &receiver).0, 2);
            }
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn a_pod_reaches_the_outside_with_the_nodes_address_and_cannot_speak_vxlan() {
    // cni-runtime.md section 4.5
    with_nodes(1, |nodes| {
        let blue = nodes[0].pod(10, 10);
        let name = machine(9);
        let [vxlan, other] = [4789, 4790].map(|port| socket(&name, node_ip(9), port));
        let sender = socket(&blue.name, blue.port.address, 7000);
        for _ in 0..20 {
            sender.send_to(&[1], (node_ip(9), 4789)).unwrap();
        }
        let (byte, from) = first_after(&[(&sender, 2)], (node_ip(9), 4790), &other);
        assert_eq!((byte, from), (2, node_ip(1)));
        assert!(vxlan.recv_from(&mut [0]).is_err(), "VXLAN came out of a pod");
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn what_the_node_does_not_know_is_dropped() {
    with_nodes(2, |nodes| {
        let known = nodes[0].pod(10, 10);
        let unknown = nodes[0].wired(11, 10);
        let far = nodes[1].pod(10, 10);
        let reaches = |pod: &Pod, to: &Pod| pod.reaches(to.port.address);
        assert!(!reaches(&unknown, &far) && !reaches(&unknown, &known) && !reaches(&known, &unknown));
        // Known, and without a network ID: shut as well.
        let mut port = unknown.port.clone();
        port.netid = None;
        nodes[0].run(|sdn| sdn.attach(&port)).unwrap();
        assert!(!reaches(&unknown, &far) && !reaches(&known, &unknown) && !reaches(&far, &unknown));
        nodes[0].renumber(&[&unknown], 10).unwrap();
        unknown.assert_reaches(&far);
        unknown.assert_reaches(&known);
        // An unassigned address of our subnet does not follow the default route.
        assert!(!succeeds("ip -n n1 route get 10.128.2.77"), "it is unreachable");
    });
}

#[test]
#[ignore = "kernel: network namespaces need root; tool: nft"]
fn a_masquerade_of_somebody_else_is_no_way_around_an_isolation() {
    with_nodes(2, |nodes| {
        for rule in [
            "add table ip other",
            "add chain ip other post { type nat hook postrouting priority 100 ; }",
            "add rule ip other post oifname vxlan-sdn masquerade",
        ] {
            sh(&format!("ip netns exec n1 nft {rule}"));
        }
        let [near, red] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11)];
        let far = nodes[1].pod(10, 10);
        let client = socket(&near.name, near.port.address, 7000);
        let server = socket(&far.name, far.port.address, 7002);
        let mut packet = [0; 1];
        let mut seen = None;
        eventually(TIMEOUT, || {
            client.send_to(&[1], (far.port.address, 7002)).unwrap();
            seen = server.recv_from(&mut packet).ok();
            seen.is_some()
        });
        let std::net::SocketAddr::V4(seen) = seen.unwrap().1 else { panic!("IPv6") };
        assert_eq!(*seen.ip(), crate::lab::gateway(1), "it was masqueraded");
        let answer = (*seen.ip(), seen.port());
        assert_eq!(first_after(&[(&server, 2)], answer, &client).0, 2, "answers come back");
        nodes[1].renumber(&[&far], 12).unwrap();
        while client.recv_from(&mut packet).is_ok() {}
        for _ in 0..20 {
            server.send_to(&[3], answer).unwrap();
        }
        nodes[1].renumber(&[&far], 10).unwrap();
        assert_eq!(first_after(&[(&server, 4)], answer, &client).0, 4, "nothing came across");
        red.assert_apart(&far);
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn the_tunnel_takes_no_packets_over_ipv6_for_which_there_are_no_nodes() {
    // A device for all tenants has a socket of each family.
    with_nodes(1, |nodes| {
        let [blue, honest] = [nodes[0].pod(10, 10), nodes[0].pod(11, 10)];
        let name = machine(9);
        for (namespace, number) in [("n1", 1), (name.as_str(), 9)] {
            sh(&format!("ip netns exec {namespace} sysctl -qw net.ipv6.conf.w0.disable_ipv6=0"));
            sh(&format!("ip -n {namespace} addr add fd77::{number}/64 dev w0 nodad"));
        }
        tell(&mut nodes[0], &[9]);
        let from = Ipv4Addr::new(10, 128, 18, 5);
        let packet = frame::udp_packet(from.into(), blue.port.address.into(), 7002, &[1]);
        let forged = frame::vxlan(10, [0x0a, 0x58, 0, 0, 0, 1], &packet);
        let bind = |address: &'static str| {
            NetNs::open_named(&name).unwrap().with(move || UdpSocket::bind((address, 0)).unwrap()).unwrap()
        };
        let receiver = socket(&blue.name, blue.port.address, 7002);
        let near = socket(&honest.name, honest.port.address, 7000);
        let [over_v4, over_v6] = [(bind("192.168.77.9"), "192.168.77.1"), (bind("fd77::9"), "fd77::1")];
        let first = |(attacker, to): &(UdpSocket, &str)| {
            let mut byte = [0; 1];
            eventually(TIMEOUT, || {
                let _ = attacker.send_to(&forged, (*to, 4789));
                let _ = near.send_to(&[2], (blue.port.address, 7002));
                receiver.recv_from(&mut byte).is_ok()
            });
            while receiver.recv_from(&mut [0]).is_ok() {}
            byte[0]
        };
        assert_eq!(first(&over_v4), 1, "a node's packet is understood");
        for _ in 0..10 {
            assert_eq!(first(&over_v6), 2);
        }
    });
}
