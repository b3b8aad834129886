//! Addresses of the Node's podCIDRs (`--ipam node`), in a cluster without resource definitions.

use russet_testkit::eventually;
use serde_json::json;

use super::{Cluster, call};
use crate::node::{TIMEOUT, TestNode, TestPod};

const ARGS: [&str; 4] = ["--ipam", "node", "--ipv6-pool", "none"];

fn added(node: &mut TestNode, name: &str) -> (TestPod, String) {
    let pod = node.pod();
    let address = call(node, "ADD", &pod, name).addresses().remove(0);
    (pod, address)
}

fn node(cluster: &mut Cluster, name: &str, range: &str) -> TestNode {
    let mut node = cluster.machine(name, &ARGS);
    cluster.create_node_with(name, json!({ "podCIDR": range, "podCIDRs": [range] }));
    node.start_agent();
    node
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl, ping"]
fn pods_get_addresses_of_their_nodes_ranges_and_no_pod_costs_a_request() {
    // kubernetes.md section 4.5
    let mut cluster = Cluster::without_definitions();
    let mut one = node(&mut cluster, "n1", "10.244.1.0/24");
    let mut two = node(&mut cluster, "n2", "10.244.2.0/24");
    for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "n1")] {
        cluster.create_pod(name, node, json!({}));
    }
    let (a, _) = added(&mut one, "a");
    let (_b, address) = added(&mut two, "b");
    assert!(address.starts_with("10.244.2."), "{address}");
    eventually(TIMEOUT, || a.pings(&["-W", "1", &address]));

    let ((c, address), requests) = cluster.requests_of(|| added(&mut one, "c"));
    assert!(address.starts_with("10.244.1."), "{address}");
    assert!(requests.is_empty(), "{requests:?}");
    let ((), requests) = cluster.requests_of(|| {
        assert_eq!(call(&one, "DEL", &c, "c").status, 0);
        eventually(TIMEOUT, || one.unfinished() == 0);
    });
    assert!(requests.is_empty(), "{requests:?}");

    // The ranges are known, so a server that is away stops no pod.
    cluster.kill_server();
    let (late, address) = added(&mut one, "late");
    assert!(address.starts_with("10.244.1."), "{address}");
    assert_eq!(call(&one, "DEL", &late, "late").status, 0);
    cluster.start_server();

    let shown = one.russet_inside(&["ipam", "show", "--show-blocks"]);
    assert!(shown.stdout.contains("10.244.1.0/24"), "{}{}", shown.stdout, shown.stderr);
    one.stop_agent();
    assert_eq!(call(&one, "CHECK", &a, "a").status, 0, "without an agent");
    let (direct, address) = added(&mut one, "direct");
    assert!(address.starts_with("10.244.1."), "{address}");
    assert_eq!(call(&one, "DEL", &direct, "direct").status, 0);
    one.start_agent();
    assert_eq!(call(&one, "DEL", &a, "a").status, 0);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
fn a_node_without_ranges_is_not_ready_and_says_what_gives_them() {
    // kubernetes.md section 2.5
    let mut cluster = Cluster::without_definitions();
    let one = cluster.machine("n1", &ARGS);
    cluster.create_node("n1");
    let agent = one.spawn_agent();
    eventually(TIMEOUT, || one.log().contains("--allocate-node-cidrs"));
    assert_ne!(one.status().status, 0);
    drop(agent);
}
