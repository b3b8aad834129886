//! `russet agent --calico`: a node of a Calico cluster whose routes Russet programs (calico-cni.md sections 4.1 to 4.7).

use std::process::Command;

use russet_testkit::{eventually, run};
use serde_json::json;

use crate::fabric::Fabric;
use crate::node::{TIMEOUT, TestNode};

const POOLS: &str = "/calico/resources/v3/projectcalico.org/ippools";
const NODES: &str = "/calico/resources/v3/projectcalico.org/nodes";

fn put_pool(fabric: &Fabric, vxlan_mode: &str) {
    let pool = json!({
        "kind": "IPPool", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "default-ipv4-ippool", "creationTimestamp": "2026-08-22T10:00:00Z"},
        "spec": {"cidr": "10.65.0.0/16", "vxlanMode": vxlan_mode, "ipipMode": "Never", "natOutgoing": true,
                 "blockSize": 26, "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"]},
    });
    fabric.put(&format!("{POOLS}/default-ipv4-ippool"), &pool.to_string());
}

/// The datastore records of calico/node and Felix on a Go node: the node, a block with one pod in
/// it, and an address that another node's pod has borrowed.
fn put_go_node(fabric: &Fabric, name: &str, address: &str, borrower: &str) {
    let node = json!({
        "kind": "Node", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name, "creationTimestamp": "2026-08-22T10:00:00Z"},
        "spec": {"bgp": {"ipv4Address": format!("{address}/24")}, "ipv4VXLANTunnelAddr": "10.65.9.0"},
    });
    fabric.put(&format!("{NODES}/{name}"), &node.to_string());
    let affinity = format!("/calico/ipam/v2/host/{name}/ipv4/block/10.65.9.0-26");
    fabric.put(&affinity, r#"{"state":"confirmed","deleted":false}"#);
    let mut allocations = vec![json!(null); 64];
    (allocations[0], allocations[1], allocations[2]) = (json!(0), json!(1), json!(2));
    let owner = |handle: &str, node: &str, kind: serde_json::Value| {
        let mut secondary = json!({"node": node});
        secondary.as_object_mut().unwrap().extend(kind.as_object().unwrap().clone());
        json!({"handle_id": handle, "secondary": secondary})
    };
    let block = json!({
        "cidr": "10.65.9.0/26", "affinity": format!("host:{name}"), "allocations": allocations,
        "unallocated": (3..64).collect::<Vec<u32>>(),
        "attributes": [
            owner(&format!("vxlan-tunnel-addr-{name}"), name, json!({"type": "vxlanTunnelAddress"})),
            owner("k8s-pod-network.aaa", name, json!({"pod": "a", "namespace": "shop"})),
            owner("k8s-pod-network.bbb", borrower, json!({"pod": "b", "namespace": "shop"})),
        ],
        "deleted": false,
    });
    fabric.put("/calico/ipam/v2/assignment/ipv4/block/10.65.9.0-26", &block.to_string());
}

fn routes(node: &TestNode, protocol: &str) -> String {
    node.ip(&["route", "show", "proto", protocol])
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, ping"]
fn two_agents_in_calicos_place_and_a_go_node_are_peers() {
    let mut fabric = Fabric::new();
    put_pool(&fabric, "Always");
    let (mut n1, mut n2) = (fabric.node("n1", &["--calico"]), fabric.node("n2", &["--calico"]));
    n1.start_agent();
    n2.start_agent();
    let (a, b) = (n1.pod(), n2.pod());
    let to = n2.add(&b).addresses().remove(0);
    n1.add(&a).result();
    eventually(TIMEOUT, || a.pings(&["-W", "1", &to]));

    // calico-cni.md section 4.6: node data, tunnel addresses and their handles are Calico's.
    let node = fabric.get(&format!("{NODES}/n1"));
    assert_eq!(node["spec"]["bgp"]["ipv4Address"], "10.77.0.11/24");
    assert!(node["spec"]["ipv4VXLANTunnelAddr"].is_string(), "{node}");
    let handles = fabric.keys("/calico/ipam/v2/handle/vxlan-tunnel-addr-");
    assert_eq!(
        handles,
        [1, 2].map(|n| format!("/calico/ipam/v2/handle/vxlan-tunnel-addr-n{n}")),
        "calico-cni.md section 4.6"
    );
    assert_eq!(std::fs::read_to_string(n1.path("var/lib/calico/nodename")).unwrap(), "n1");
    assert_eq!(std::fs::read_to_string(n1.path("var/lib/calico/mtu")).unwrap(), "1450");
    assert_eq!(fabric.keys(POOLS).len(), 1, "in Calico's place no pool is created");

    // calico-cni.md sections 4.3 and 4.4; oracles 57 and 58.
    put_go_node(&fabric, "node1", "10.77.0.99", "n2");
    eventually(TIMEOUT, || routes(&n1, "80").contains("10.65.9.0/26 via 10.65.9.0 dev vxlan.calico onlink"));
    assert!(routes(&n1, "80").contains("blackhole 10.65."));
    assert!(!routes(&n1, "114").contains("10.65.9."), "only the pods that the native plugin wired");
    let fdb = run("bridge", &["-n", n1.netns_name(), "fdb", "show", "dev", "vxlan.calico"]);
    assert!(fdb.contains("66:f9:37:c3:7e:94 dst 10.77.0.99"), "{fdb}");
    // The borrowed address is routed to the node that uses it, in preference to the block's route.
    let tunnel = fabric.get(&format!("{NODES}/n2"))["spec"]["ipv4VXLANTunnelAddr"].clone();
    let borrowed = format!("10.65.9.2 via {} dev vxlan.calico", tunnel.as_str().unwrap());
    eventually(TIMEOUT, || routes(&n1, "80").contains(&borrowed));
    assert!(!routes(&n2, "80").contains("10.65.9.2 "), "n2 has the pod's own route");

    // calico-cni.md section 4.6: a node that lacks its data is omitted.
    fabric.etcdctl(&["del", &format!("{NODES}/node1")]);
    eventually(TIMEOUT, || !routes(&n1, "80").contains("10.65.9.0/26"));
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip"]
fn agents_that_are_not_in_calicos_place_route_what_pods_of_calicos_plugin_borrow() {
    // calico-cni.md section 4.3; ARCHITECTURE.md: the native plugin borrows nothing, so blocks are not watched for it
    let mut fabric = Fabric::new();
    put_pool(&fabric, "Always");
    let native = ["--ipv6-pool", "none"];
    let (mut n1, mut n2) = (fabric.node("n1", &native), fabric.node("n2", &native));
    n1.start_agent();
    n2.start_agent();
    put_go_node(&fabric, "node1", "10.77.0.99", "n2");
    eventually(TIMEOUT, || routes(&n1, "114").contains("10.65.9.0/26 via 10.65.9.0 "));
    assert!(!routes(&n1, "114").contains("10.65.9.2 "));
    // The first pod of Calico's plugin, on any node.
    let endpoint = "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/n2-k8s-b-eth0";
    fabric.put(endpoint, r#"{"kind":"WorkloadEndpoint","metadata":{"name":"n2-k8s-b-eth0"},"spec":{}}"#);
    let tunnel = || fabric.get(&format!("{NODES}/n2"))["spec"]["ipv4VXLANTunnelAddr"].clone();
    let routed = || {
        let borrowed = format!("10.65.9.2 via {} ", tunnel().as_str().unwrap());
        routes(&n1, "114").contains(&borrowed)
    };
    eventually(TIMEOUT, routed);
    assert!(n1.log().contains("the cluster has pods of Calico's plugin"), "{}", n1.log());
    assert!(!routes(&n2, "114").contains("10.65.9.2 "), "n2 has the pod's own route");
    // The address moves to the block's own node, and is released.
    put_go_node(&fabric, "node1", "10.77.0.99", "node1");
    eventually(TIMEOUT, || !routes(&n1, "114").contains("10.65.9.2 "));
    // A starting agent finds existing ones.
    n1.stop_agent();
    put_go_node(&fabric, "node1", "10.77.0.99", "n2");
    n1.start_agent();
    let borrowed = format!("10.65.9.2 via {} ", tunnel().as_str().unwrap());
    eventually(TIMEOUT, || routes(&n1, "114").contains(&borrowed));
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip"]
fn an_agent_in_calicos_place_leaves_routes_to_a_running_felix() {
    let mut fabric = Fabric::new();
    put_pool(&fabric, "CrossSubnet");
    let mut node = fabric.node("n1", &["--calico"]);
    for rival in ["calico-felix", "bird"] {
        let felix = node.decoy(rival);
        node.start_agent();
        put_go_node(&fabric, "node1", "10.77.0.99", "node1");
        node.ip(&["route", "replace", "blackhole", "10.66.0.0/26", "proto", "80"]);
        // The log has the lines of the agents of all rounds.
        let pid = format!("pid={}", felix.id());
        eventually(TIMEOUT, || node.log().contains(&pid));
        assert!(node.log().contains("another program keeps this node's routes"), "{}", node.log());
        assert_eq!(node.status().status, 0, "pods can be attached");
        assert_eq!(routes(&node, "80").trim(), "blackhole 10.66.0.0/26");
        assert!(fabric.keys(&format!("{NODES}/n1")).is_empty(), "calico/node registers the node");
        drop(felix);
        node.stop_agent();
    }
    // Felix has ended: its routes are replaced, and on one subnet the route is direct (calico-cni.md oracle 57).
    node.start_agent();
    let direct = "10.65.9.0/26 via 10.77.0.99 dev eth0 onlink";
    eventually(TIMEOUT, || {
        let routes = routes(&node, "80");
        routes.contains(direct) && !routes.contains("10.66.0.0/26")
    });
    // A Felix that starts later is detected, and finds the routes that it would have made.
    let felix = node.decoy("calico-felix");
    eventually(TIMEOUT, || node.log().contains(&format!("pid={}", felix.id())));
    node.ip(&["route", "del", "10.65.9.0/26"]);
    fabric.etcdctl(&["put", "/calico/resources/v3/projectcalico.org/nodes/other", "{}"]);
    node.stop_agent();
    assert!(!routes(&node, "80").contains(direct), "the agent had stepped aside");
    drop(felix);
}

/// The source prefixes in the endpoint of a node's pod.
fn put_endpoint(fabric: &Fabric, node: &str, host_end: &str, prefixes: &[&str]) {
    let endpoint = json!({
        "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": format!("{node}-k8s-vpn-eth0"), "namespace": "shop"},
        "spec": {"orchestrator": "k8s", "node": node, "pod": "vpn", "endpoint": "eth0", "interfaceName": host_end,
                 "ipNetworks": ["10.65.1.2/32"], "allowSpoofedSourcePrefixes": prefixes},
    });
    let key = format!("/calico/resources/v3/projectcalico.org/workloadendpoints/shop/{node}-k8s-vpn-eth0");
    fabric.put(&key, &endpoint.to_string());
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, nf_tables; tool: etcd, ip, nft"]
fn an_agent_in_calicos_place_guards_ends_and_tunnel_and_leaves_both_to_a_felix() {
    let mut fabric = Fabric::new();
    put_pool(&fabric, "Always");
    put_go_node(&fabric, "node1", "10.77.0.99", "node1");
    put_endpoint(&fabric, "n1", "cali0123456789a", &["192.0.2.0/24"]);
    put_endpoint(&fabric, "node1", "cali9876543210f", &["198.51.100.0/24"]);
    let mut node = fabric.node("n1", &["--calico"]);
    let netns = node.netns_name().to_owned();
    let list = |what: &str| {
        let words = ["netns", "exec", &netns, "nft", "list"].into_iter().chain(what.split(' '));
        let output = Command::new("ip").args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let ends = || list("chain inet russet-policy calico-ends").contains("goto guard");
    let allowed = || list("set inet russet-policy sources4");
    let peers = || list("set inet russet overlay-peers4").contains("10.77.0.99");
    node.start_agent();
    eventually(TIMEOUT, || ends() && peers());
    assert!(
        allowed().contains("\"cali0123456789a\" . 192.0.2.0/24") && !allowed().contains("198.51"),
        "{}",
        allowed()
    );
    // The rules are restored, whatever other programs do to them.
    node.inside("nft", &["flush", "ruleset"]);
    eventually(TIMEOUT, || ends() && peers() && allowed().contains("cali0123456789a"));
    let felix = node.decoy("calico-felix");
    eventually(TIMEOUT, || !ends() && !list("table inet russet").contains("peers"));
    assert!(!allowed().contains("cali0123456789a"), "Felix allows it now");
    drop(felix);
    // A starting agent does not wait for a Felix that may be about to restart.
    node.stop_agent();
    node.start_agent();
    eventually(TIMEOUT, || ends() && peers() && allowed().contains("cali0123456789a"));
    node.stop_agent();
    assert!(ends() && peers(), "what guards stays when the agent ends");
}

fn iptables(node: &TestNode, args: &str) -> String {
    let words: Vec<&str> = args.split(' ').collect();
    node.inside("iptables", &[&["-w"], &words[..]].concat())
}

/// The packet counters of the agent's accept rules in FORWARD.
fn accepted_packets(node: &TestNode) -> Vec<u64> {
    let text = iptables(node, "-v -S FORWARD");
    let ours = text.lines().filter(|line| line.contains("--comment \"russet-agent forward\""));
    let packets = ours.map(|line| line.split_once(" -c ").unwrap().1.split(' ').next().unwrap());
    packets.map(|packets| packets.parse().unwrap()).collect()
}

/// calico-cni.md section 5: a foreign FORWARD chain drops, as Docker's does, in iptables-nft.
#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, nf_tables; tool: etcd, ip, iptables, ping"]
fn oracle_76_pods_reach_each_other_where_the_forward_policy_drops() {
    for dialect in [&["--calico"][..], &["--ipv6-pool", "none"]] {
        let mut fabric = Fabric::new();
        put_pool(&fabric, "Always");
        let (mut n1, mut n2) = (fabric.node("n1", dialect), fabric.node("n2", dialect));
        for node in [&mut n1, &mut n2] {
            iptables(node, "-P FORWARD DROP");
            node.start_agent();
        }
        let (a, b) = (n1.pod(), n2.pod());
        let to = n2.add(&b).addresses().remove(0);
        n1.add(&a).result();
        eventually(TIMEOUT, || a.pings(&["-W", "1", &to]));
        for node in [&n1, &n2] {
            let counts = accepted_packets(node);
            assert!(counts.len() == 2 && counts.iter().sum::<u64>() >= 2, "{dialect:?}: {counts:?}");
        }
        // Another program flushes the chain; then its policy accepts; then it drops again.
        iptables(&n1, "-F FORWARD");
        eventually(TIMEOUT, || accepted_packets(&n1).len() == 2);
        eventually(TIMEOUT, || a.pings(&["-W", "1", &to]));
        iptables(&n1, "-P FORWARD ACCEPT");
        eventually(TIMEOUT, || accepted_packets(&n1).is_empty());
        iptables(&n1, "-P FORWARD DROP");
        eventually(TIMEOUT, || a.pings(&["-W", "1", &to]));
        // An agent that stops leaves them: pods keep working.
        n2.stop_agent();
        assert_eq!(accepted_packets(&n2).len(), 2);
        n2.start_agent();
        fabric.etcdctl(&["del", POOLS, "--prefix"]);
        for node in [&n1, &n2] {
            eventually(TIMEOUT, || accepted_packets(node).is_empty());
        }
        assert!(!a.pings(&["-W", "1", &to]), "{dialect:?}");
    }
}
