//! Address translation in the real nf_tables; `nft` verifies it (calico-cni.md section 4.8).

use std::net::UdpSocket;
use std::time::Duration;

use russet_overlay::{Encapsulation, Kind};
use russet_testkit::{bound, sh, succeeds};

use crate::cluster::{assert_reachable, with_nodes};
use crate::scene::{Build, net};

fn table(namespace: &str) -> String {
    sh(&format!("ip netns exec {namespace} nft list table inet russet"))
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root; tool: nft"]
fn the_table_has_the_specified_rules_and_is_repaired() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        nodes[0].inputs = nodes[0].inputs.clone().pool("10.1.64.0/18", Encapsulation::None);
        assert_eq!(nodes[0].reconcile().changed(Kind::Nat), 1);
        assert!(nodes[0].reconcile().is_quiet());
        let text = table("n1");
        for line in [
            "type nat hook postrouting priority srcnat + 10; policy accept;",
            "ip saddr @overlay-nat4 ip daddr != @overlay-pools4 masquerade fully-random",
            "ip saddr @overlay-nat4 ip daddr != @overlay-pools4 meta l4proto udp masquerade to :4790-65535 fully-random",
            "ip6 saddr @overlay-nat6 ip6 daddr != @overlay-pools6 masquerade fully-random",
            "oifname \"vxlan.calico\" ip saddr != 10.1.1.1 fib saddr type local masquerade fully-random",
            "type filter hook prerouting priority raw; policy accept;",
            "udp dport 4789 ip daddr 192.168.77.1 notrack",
            "udp dport 4789 ip6 daddr fd77::1 notrack",
            "type filter hook output priority raw; policy accept;",
            "udp dport 4789 ip saddr 192.168.77.1 notrack",
            "elements = { 10.1.0.0/16 }",
            "elements = { fd10::/48 }",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        for damage in [
            "flush chain inet russet overlay-postrouting",
            "delete table inet russet",
            "add element inet russet overlay-nat4 { 192.0.2.0/24 }",
            "flush set inet russet overlay-pools4",
            "insert rule inet russet overlay-postrouting accept",
            "add chain inet russet overlay-foreign",
            "add set inet russet overlay-foreign { type mark; }",
            "delete element inet russet overlay-nat6 { fd10::/48 }",
        ] {
            sh(&format!("ip netns exec n1 nft {damage}"));
            assert_eq!(nodes[0].reconcile().changed(Kind::Nat), 1, "{damage}");
            assert!(nodes[0].reconcile().is_quiet(), "{damage}");
            assert_eq!(table("n1"), text, "{damage}");
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root; tool: nft"]
fn foreign_objects_in_the_table_and_elsewhere_stay() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        let nft = |command: &str| sh(&format!("ip netns exec n1 nft {command}"));
        nft("add table inet russet");
        nft("add chain inet russet verdicts { type filter hook forward priority 0; }");
        nft("add rule inet russet verdicts ip saddr 192.0.2.1 drop");
        nft("add set inet russet blocked { type ipv4_addr; elements = { 192.0.2.7 }; }");
        nft("add table ip other");
        nft("add chain ip other overlay-postrouting { type nat hook postrouting priority 0; }");
        let before = nft("list ruleset");
        nodes[0].reconcile();
        assert!(table("n1").contains("192.0.2.7") && table("n1").contains("masquerade"));
        nodes[0].inputs.pools.clear();
        assert_eq!(nodes[0].reconcile().changed(Kind::Nat), 1);
        assert!(nodes[0].reconcile().is_quiet());
        assert_eq!(nft("list ruleset"), before);
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root; tool: ping"]
fn pods_take_the_nodes_address_only_outside_of_the_pools() {
    with_nodes(Encapsulation::Vxlan, |nodes| {
        let ping = "ip netns exec n1 ping -c 1 -W 1 -I 10.1.1.5 192.168.77.2";
        assert!(!succeeds(ping), "node 2 has no route back to the pod");
        nodes[0].reconcile();
        sh(ping);
        sh("ip netns exec n1 ping -6 -c 1 -W 1 -I fd10::1:5 fd77::2");
        nodes[0].inputs.pools.iter_mut().for_each(|pool| pool.nat_outgoing = false);
        nodes[0].reconcile();
        assert!(!succeeds(ping));
        nodes.iter_mut().for_each(|node| drop(node.reconcile()));
        assert_reachable();
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root"]
fn masqueraded_udp_avoids_the_tunnels_port() {
    // calico-cni.md section 4.8, last row
    with_nodes(Encapsulation::Vxlan, |nodes| {
        nodes[0].reconcile();
        let bind =
            |node: usize, address: &str| nodes[node].ns.with(|| bound(|| UdpSocket::bind(address))).unwrap();
        let (pod, outside) = (bind(0, "10.1.1.5:3000"), bind(1, "192.168.77.2:9000"));
        outside.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        pod.send_to(b"x", "192.168.77.2:9000").unwrap();
        let (_, from) = outside.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(from.ip().to_string(), "192.168.77.1");
        assert!(from.port() > 4789, "{from}");
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, vxlan, root; tool: nft"]
fn pools_inside_each_other_are_one_element() {
    with_nodes(Encapsulation::None, |nodes| {
        let node = &mut nodes[0];
        node.inputs = node
            .inputs
            .clone()
            .pool("10.1.0.0/17", Encapsulation::None)
            .pool("10.2.0.0/16", Encapsulation::None);
        node.inputs.pools.last_mut().unwrap().cidr = net("10.3.0.0/16");
        assert_eq!(node.reconcile().changed(Kind::Nat), 1);
        assert!(node.reconcile().is_quiet());
        let text = table("n1");
        assert!(text.contains("10.1.0.0/16, 10.3.0.0/16"), "{text}");
        assert!(
            !text.contains("notrack") && !text.contains("4790"),
            "without a tunnel its port is not reserved: {text}"
        );
    });
}
