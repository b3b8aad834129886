//! Nodes probe each other through the data path of their pods: what is wrong between them is named,
//! with the reason.

use russet_testkit::{eventually, run};

use crate::fabric::{Fabric, RESOURCES};
use crate::node::{TIMEOUT, TestNode};

/// IPv4 only, as the fabric is, and quickly.
pub const FAST: [&str; 4] = ["--peer-probe-interval", "1s", "--ipv6-pool", "none"];

/// The same in both families, with the fabric's IPv6 addresses that [`both_families`] gives.
pub const DUAL: [&str; 2] = ["--peer-probe-interval", "1s"];

/// The value of a metric with these labels; none if it has no such series.
pub fn metric(node: &TestNode, series: &str) -> Option<u64> {
    let text = node.get("/metrics");
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.trim().parse().ok())
}

fn reaches(node: &TestNode, other: &str) -> Option<bool> {
    reaches_by(node, other, 4)
}

pub fn reaches_by(node: &TestNode, other: &str, ip_version: u8) -> Option<bool> {
    let series = format!("russet_peer_reachable{{node=\"{other}\",ip_version=\"{ip_version}\"}}");
    metric(node, &series).map(|value| value == 1)
}

/// Two nodes with addresses of both families, whose agents run.
pub fn both_families(fabric: &mut Fabric) -> [TestNode; 2] {
    let mut nodes = ["node-a", "node-b"].map(|name| fabric.node(name, &DUAL));
    nodes.iter().for_each(|node| fabric.add_ipv6(node));
    nodes.iter_mut().for_each(TestNode::start_agent);
    nodes
}

/// What the status of a node says of the only other node, by family: its state, and the reason.
pub fn by_family(node: &TestNode) -> Vec<(u64, String, String)> {
    let status = node.russet(&["status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    let mut all: Vec<(u64, String, String)> = status["peers"]["peers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|peer| {
            let text = |member: &str| peer[member].as_str().unwrap_or_default().to_owned();
            (peer["ip_version"].as_u64().unwrap(), text("state"), text("reason"))
        })
        .collect();
    all.sort();
    all
}

/// The last line of a node's log that has `what` and the name of another node.
fn logged(node: &TestNode, what: &str, other: &str) -> String {
    let log = node.log();
    let found = log.lines().rev().find(|line| line.contains(what) && line.contains(other));
    found.unwrap_or_default().to_owned()
}

/// Waits until `node` does not reach `other`, and the log has this reason.
#[track_caller]
fn is_cut_off(node: &TestNode, other: &str, reason: &str) {
    eventually(TIMEOUT, || reaches(node, other) == Some(false));
    eventually(TIMEOUT, || {
        let line = logged(node, "the node is not reached", other);
        println!("{line}");
        line.contains(reason)
    });
}

#[test]
#[ignore = "root: three nodes on an etcd, a foreign rule, an interface that goes down, a network with a small MTU; kernel: vxlan; tool: etcd, ip, nft"]
fn a_closed_tunnel_a_node_that_is_gone_and_a_small_mtu_are_each_named() {
    let mut fabric = Fabric::new();
    let mut nodes = ["node-a", "node-b", "node-c"].map(|name| fabric.node(name, &FAST));
    nodes.iter_mut().for_each(TestNode::start_agent);
    let [a, b, _c] = &nodes;
    let all = || reaches(a, "node-b") == Some(true) && reaches(a, "node-c") == Some(true);
    eventually(TIMEOUT, all);
    assert!(!a.log().contains("the node is not reached"), "{}", a.log());
    assert_eq!(metric(a, "russet_peers{state=\"reachable\"}"), Some(2));

    let rule =
        "table inet foreign { chain guard { type filter hook input priority 0; udp dport 4789 drop; }; }";
    b.inside("nft", &[rule]);
    is_cut_off(
        a,
        "node-b",
        "the node answers at 10.77.0.12, its tunnel does not: something drops UDP port 4789",
    );
    assert_eq!(reaches(a, "node-c"), Some(true));
    // The other one knows the rule, which is its own.
    is_cut_off(b, "node-a", "chain inet foreign guard drops packets from other nodes at UDP port 4789");
    b.inside("nft", &["delete", "table", "inet", "foreign"]);
    eventually(TIMEOUT, all);
    assert!(!logged(a, "the node is reached again", "node-b").is_empty());

    b.inside("ip", &["link", "set", "eth0", "down"]);
    is_cut_off(a, "node-b", "nor at its own address 10.77.0.12");
    // The network carries less than its nodes believe: seen when the node is back.
    run("ip", &["-n", fabric.hub(), "link", "set", "w2", "mtu", "1300"]);
    b.inside("ip", &["link", "set", "eth0", "up"]);
    b.inside("ip", &["route", "replace", "default", "via", "10.77.0.1"]);
    eventually(TIMEOUT, || metric(a, "russet_peers{state=\"small-packets-only\"}") == Some(1));
    let line = logged(a, "large packets do not reach the node", "node-b");
    // 1300 bytes less the outer headers.
    let found: u32 =
        line.split_once("more than about ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    assert!((1242..=1250).contains(&found), "{line}");
    assert!(line.contains("pods send up to 1450"), "{line}");
    run("ip", &["-n", fabric.hub(), "link", "set", "w2", "mtu", "1500"]);
    eventually(TIMEOUT, || metric(a, "russet_peers{state=\"small-packets-only\"}") == Some(0));
}

#[test]
#[ignore = "root: two nodes with addresses of both families on an etcd, foreign rules of IPv6; kernel: vxlan; tool: etcd, ip, nft"]
fn a_node_that_only_ipv6_does_not_reach_is_named_with_the_family() {
    let mut fabric = Fabric::new();
    let nodes = both_families(&mut fabric);
    let [a, b] = &nodes;
    let both = |node: &TestNode, other: &str| [4, 6].map(|version| reaches_by(node, other, version));
    let reached = [Some(true), Some(true)];
    eventually(TIMEOUT, || both(a, "node-b") == reached && both(b, "node-a") == reached);
    eventually(TIMEOUT, || a.russet(&["status"]).status == 0);

    // The tunnel of one family.
    b.inside(
        "nft",
        &["table ip6 foreign { chain guard { type filter hook input priority 0; udp dport 4789 drop; }; }"],
    );
    eventually(TIMEOUT, || both(a, "node-b") == [Some(true), Some(false)]);
    eventually(TIMEOUT, || {
        let all = by_family(a);
        matches!(&all[..], [(4, four, _), (6, six, reason)] if four == "reachable" && six == "unreachable"
            && reason.starts_with("the node answers at fd00:77::12, its tunnel does not"))
    });
    let counted = |state: &str| metric(a, &format!("russet_peers{{state=\"{state}\"}}"));
    eventually(TIMEOUT, || [counted("reachable"), counted("unreachable")] == [Some(1), Some(1)]);
    let shown = a.russet(&["status"]);
    println!("{}", shown.stdout);
    assert_eq!(shown.status, 3);
    assert!(shown.stdout.contains("! node node-b is not reached (IPv6, tunnel): "), "{}", shown.stdout);
    assert!(
        !shown.stdout.contains("(IPv4, tunnel)") && shown.stdout.contains(", 1 problem "),
        "{}",
        shown.stdout
    );
    let health = a.get("/readyz");
    assert!(health.contains(" 200 "), "{health}");

    // And the whole family, of which nothing arrives any more.
    b.inside("nft", &["add rule ip6 foreign guard icmpv6 type echo-request drop"]);
    eventually(TIMEOUT, || {
        let all = by_family(a);
        matches!(&all[..], [(4, four, _), (6, six, reason)] if four == "reachable" && six == "unreachable"
            && reason.contains("nor at its own address fd00:77::12"))
    });
    b.inside("nft", &["delete", "table", "ip6", "foreign"]);
    eventually(TIMEOUT, || both(a, "node-b") == reached && a.russet(&["status"]).status == 0);
}

#[test]
#[ignore = "root: a node, and a kernel with a vxlan device and no agent; kernel: vxlan; tool: etcd, ip, bridge"]
fn a_node_whose_tunnel_another_program_keeps_is_probed_as_well() {
    let mut fabric = Fabric::new();
    let mut node = fabric.node("node-a", &FAST);
    node.start_agent();
    let (plain, mac) = (fabric.node("plain", &[]), "66:00:00:00:00:01");
    let tunnel = "10.244.200.0";
    eventually(TIMEOUT, || {
        fabric.get(&format!("{RESOURCES}/nodes/node-a"))["spec"]["ipv4VXLANTunnelAddr"].is_string()
    });
    let own = node.ip(&["-j", "address", "show", "vxlan.calico"]);
    let own: serde_json::Value = serde_json::from_str(&own).unwrap();
    let (own_mac, own_tunnel) =
        (own[0]["address"].as_str().unwrap(), own[0]["addr_info"][0]["local"].as_str().unwrap());
    for args in [
        &[
            "link",
            "add",
            "vxlan.calico",
            "address",
            mac,
            "type",
            "vxlan",
            "id",
            "4096",
            "dstport",
            "4789",
            "nolearning",
            "local",
            "10.77.0.12",
            "dev",
            "eth0",
        ][..],
        &["address", "add", &format!("{tunnel}/32"), "dev", "vxlan.calico"],
        &["link", "set", "vxlan.calico", "up"],
        &["neighbour", "add", own_tunnel, "lladdr", own_mac, "dev", "vxlan.calico", "nud", "permanent"],
        &["route", "add", own_tunnel, "dev", "vxlan.calico"],
    ] {
        plain.ip(args);
    }
    plain.inside("bridge", &["fdb", "append", own_mac, "dev", "vxlan.calico", "dst", "10.77.0.11"]);
    let spec = serde_json::json!({"bgp": {"ipv4Address": "10.77.0.12/24"}, "ipv4VXLANTunnelAddr": tunnel, "vxlanTunnelMACAddr": mac});
    fabric.put_resource("nodes", "Node", "plain", spec);
    eventually(TIMEOUT, || reaches(&node, "plain") == Some(true));
    plain.ip(&["link", "set", "vxlan.calico", "down"]);
    is_cut_off(&node, "plain", "the node answers at 10.77.0.12, its tunnel does not");
}

#[test]
#[ignore = "root: two nodes without encapsulation, one of which is not ready while no other node answers; tool: etcd, ip"]
fn nodes_without_a_tunnel_are_probed_and_can_gate_readiness() {
    let mut fabric = Fabric::new();
    let args = [&FAST[..], &["--encapsulation", "none", "--ready-needs-peers"]].concat();
    let mut nodes = ["node-a", "node-b"].map(|name| fabric.node(name, &args));
    nodes.iter_mut().for_each(TestNode::start_agent);
    let [a, b] = &nodes;
    eventually(TIMEOUT, || reaches(a, "node-b") == Some(true) && a.get("/readyz").contains("200"));
    b.ip(&["link", "set", "eth0", "down"]);
    is_cut_off(a, "node-b", "nor at its own address 10.77.0.12");
    eventually(TIMEOUT, || a.get("/readyz?verbose").contains("[-] peers: none of 1 probed nodes answers"));
    // Pods can be attached meanwhile.
    assert_eq!(a.status().status, 0);
    b.ip(&["link", "set", "eth0", "up"]);
    eventually(TIMEOUT, || a.get("/readyz?verbose").contains("[+] peers"));
}

#[test]
#[ignore = "root: a node without probes; tool: etcd, ip"]
fn a_node_whose_probes_are_off_sends_none() {
    let mut fabric = Fabric::new();
    let mut nodes = ["node-a", "node-b"].map(|name| fabric.node(name, &FAST));
    nodes[0].agent_args.extend(["--peer-probes".to_owned(), "off".to_owned()]);
    nodes.iter_mut().for_each(TestNode::start_agent);
    eventually(TIMEOUT, || reaches(&nodes[1], "node-a") == Some(true));
    let metrics = nodes[0].get("/metrics");
    let mut sent = metrics.lines().filter(|line| line.starts_with("russet_peer_probes_total{"));
    assert!(sent.all(|line| line.ends_with(" 0")), "{metrics}");
    let thread = |node: &TestNode| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", node.agent_pid())).unwrap().flatten();
        tasks
            .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
            .any(|name| name.trim() == "peer-probes")
    };
    assert_eq!([thread(&nodes[0]), thread(&nodes[1])], [false, true]);
}
