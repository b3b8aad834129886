//! The tunnel's own packets: what decides about them has its effect, and what the kernel's path carries for pods needs
//! no tunnel's device once it has let such packets pass.

use std::net::SocketAddr;

use russet_testkit::{eventually, let_pass};
use serde_json::Value;

use super::{Exchange, SILENT, Setup, is_carried};
use crate::node::{TIMEOUT, TestNode};

/// An address of no pod, which the first node translates to the server's.
const SERVICE: &str = "10.96.0.1";
const CONNECTIONS: u64 = 30;

/// Packets that a node has sent through its tunnel's device.
fn through_device(node: &TestNode) -> u64 {
    let link: Value = serde_json::from_str(&node.ip(&["-j", "-s", "link", "show", "vxlan.calico"])).unwrap();
    link[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
}

/// How many packets pass the tunnel's device of the client's node while connections begin and end.
fn device_packets(setup: &Setup, to: SocketAddr) -> u64 {
    let before = through_device(&setup.one);
    for _ in 0..CONNECTIONS {
        setup.client.exchanges(to, 1);
    }
    through_device(&setup.one) - before
}

fn drop_outer_packets(node: &TestNode, hook: &str) {
    let chain = format!("{{ type filter hook {hook} priority 0; }}");
    node.inside("nft", &["add", "table", "inet", "foreign"]);
    node.inside("nft", &["add", "chain", "inet", "foreign", "f", &chain]);
    node.inside("nft", &["add", "rule", "inet", "foreign", "f", "udp", "dport", "4789", "drop"]);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF; tool: etcd, ping, nft"]
fn what_decides_about_the_tunnels_packets_decides_about_the_fast_path() {
    // dataplane.md section 4 L1
    let setup = Setup::new("vxlan");
    let (one, two) = (&setup.one, &setup.two);
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    let datagrams = Exchange::udp(&setup.client, &setup.server);
    is_carried(&far, &[one, two]);
    datagrams.goes_on();
    for (node, hook) in [(one, "output"), (one, "postrouting"), (two, "prerouting"), (two, "input")] {
        drop_outer_packets(node, hook);
        datagrams.stops();
        far.stops();
        node.inside("nft", &["delete", "table", "inet", "foreign"]);
        far.resumes();
        datagrams.resumes();
        is_carried(&far, &[one, two]);
    }
    // The kernel reports no such change: it has effect when packets of the tunnel take the kernel's path again.
    let to_others = ["dst", "10.77.0.0/24", "proto", "udp", "dport", "4789", "dir", "out"];
    one.ip(&[&["xfrm", "policy", "add"], &to_others[..], &["action", "block"]].concat());
    datagrams.stops();
    far.stops();
    one.ip(&["xfrm", "policy", "flush"]);
    far.resumes();
    is_carried(&far, &[one, two]);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF; tool: etcd, ping, nft"]
fn connections_begin_and_end_without_the_tunnels_device_also_those_to_translated_addresses() {
    let setup = Setup::new("vxlan");
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    is_carried(&far, &[&setup.one, &setup.two]);
    let address = setup.server.answers();
    let node = &setup.one;
    node.inside("nft", &["add", "table", "ip", "translated"]);
    let chain = "{ type nat hook prerouting priority -100; }";
    node.inside("nft", &["add", "chain", "ip", "translated", "c", chain]);
    let target = address.to_string();
    let rule = ["ip", "daddr", SERVICE, "tcp", "dport", "80", "dnat", "to", &target];
    node.inside("nft", &[&["add", "rule", "ip", "translated", "c"], &rule[..]].concat());
    let service = SocketAddr::new(SERVICE.parse().unwrap(), 80);
    for to in [address, service] {
        // A change of rules has the tunnel's packets decided about again, as the next 20 s without any do.
        eventually(TIMEOUT, || device_packets(&setup, to) < CONNECTIONS / 3);
    }
    // Without an agent they pass it.
    let mut setup = setup;
    setup.one.kill_agent();
    let_pass(SILENT);
    assert!(device_packets(&setup, service) > 4 * CONNECTIONS);
}
