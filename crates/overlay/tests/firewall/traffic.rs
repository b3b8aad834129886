//! The effect of the rules on packets.

use russet_overlay::firewall::{Mode, Wanted};
use russet_testkit::sh;

use crate::lab::{
    NODE, NODE6, OUTSIDE, OUTSIDE6, POD, POD6, REMOTE, REMOTE6, apply, open, seen, wanted, with_lab,
};

fn ip(text: &str) -> Option<std::net::IpAddr> {
    Some(text.parse().unwrap())
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root"]
fn only_traffic_that_leaves_the_network_takes_the_nodes_address() {
    // flannel.md section 7.1: the meaning of each rule
    with_lab(|lab| {
        let mut firewall = open(Mode::Nft);
        apply(&mut firewall, &wanted());
        let (pod, nb) = (Some(&lab.pod), &lab.neighbour);
        for (pod_ip, remote, outside, node) in
            [(POD, REMOTE, OUTSIDE, NODE), (POD6, REMOTE6, OUTSIDE6, NODE6)]
        {
            assert_eq!(seen(pod, pod_ip, nb, outside), ip(node), "pod to the world");
            assert_eq!(seen(pod, pod_ip, nb, remote), ip(pod_ip), "pod to another node's pod");
            assert_eq!(seen(Some(nb), remote, &lab.pod, pod_ip), ip(remote), "another node's pod to ours");
            assert_eq!(seen(Some(nb), outside, &lab.pod, pod_ip), ip(outside), "the world to a pod");
        }
        apply(&mut firewall, &Wanted { masquerade: false, ..wanted() });
        assert_eq!(seen(pod, POD, nb, OUTSIDE), ip(POD), "without masquerading");
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root"]
fn the_nodes_traffic_to_another_nodes_pod_has_the_outgoing_interfaces_address() {
    // flannel.md section 7.2: the rule that never matches in flannel's nft mode
    with_lab(|lab| {
        sh("ip addr add 198.51.100.1/32 dev lo");
        sh("ip -n nb route add 198.51.100.1 via 192.168.7.1");
        let mut firewall = open(Mode::Nft);
        apply(&mut firewall, &wanted());
        assert_eq!(seen(None, "198.51.100.1", &lab.neighbour, REMOTE), ip(NODE));
        assert_eq!(seen(None, "198.51.100.1", &lab.neighbour, OUTSIDE), ip("198.51.100.1"));
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: nft"]
fn packets_marked_by_kube_proxy_are_left_to_it() {
    // flannel.md section 9, #1679: double NAT
    with_lab(|lab| {
        apply(&mut open(Mode::Nft), &wanted());
        sh("nft add table ip kube");
        sh("nft add chain ip kube forward { type filter hook forward priority mangle ; }");
        sh("nft add rule ip kube forward meta mark set 0x4000");
        assert_eq!(seen(Some(&lab.pod), POD, &lab.neighbour, OUTSIDE), ip(POD));
    });
}
