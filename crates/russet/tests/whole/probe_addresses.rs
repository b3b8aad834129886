//! Nodes without encapsulation probe each other through the data path of their pods, at an address that each holds for
//! that.

use std::collections::BTreeMap;

use russet_testkit::kubernetes::{ApiServer, Release};
use russet_testkit::{eventually, run};
use serde_json::{Value, json};

use crate::fabric::{Fabric, RESOURCES};
use crate::kubernetes::{Cluster, GROUP};
use crate::node::{StoreProcess, TIMEOUT, TestNode};
use crate::peers::{DUAL, FAST, by_family, reaches_by};

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/kubernetes/russet.yaml");

/// The state and path of each other node in each family, by what the status of a node says.
fn paths(node: &TestNode) -> BTreeMap<(String, u64), (String, String, String)> {
    let status = node.russet(&["status", "-o", "json"]);
    let status: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
    let peers = status["peers"]["peers"].as_array().cloned().unwrap_or_default();
    let text = |peer: &Value, member: &str| peer[member].as_str().unwrap_or_default().to_owned();
    let of = |peer: &Value| {
        let version = peer["ip_version"].as_u64().unwrap_or_default();
        ((text(peer, "node"), version), (text(peer, "path"), text(peer, "state"), text(peer, "probed")))
    };
    peers.iter().map(of).collect()
}

/// Whether a node reaches so many others, each by this path.
fn reaches_all_by(node: &TestNode, count: usize, path: &str) -> bool {
    let found = paths(node);
    found.len() == count && found.values().all(|(by, state, _)| by == path && state == "reachable")
}

/// The addresses of Russet on the loopback interface.
fn on_loopback(node: &TestNode) -> Vec<String> {
    let shown: Value = serde_json::from_str(&node.ip(&["-j", "address", "show", "lo"])).unwrap();
    let all = shown[0]["addr_info"].as_array().unwrap().iter();
    let single = all.map(|info| info["local"].as_str().unwrap().to_owned());
    let mut found: Vec<String> =
        single.filter(|local| local.starts_with("10.244.") || local.starts_with("fd72:")).collect();
    found.sort();
    found
}

/// What a node's record in etcd says.
fn published(fabric: &Fabric, name: &str) -> Vec<String> {
    let annotations = &fabric.get(&format!("{RESOURCES}/nodes/{name}"))["metadata"]["annotations"];
    let of = |version: &str| {
        annotations[format!("russet.dev/probe-address-{version}")].as_str().map(str::to_owned)
    };
    let mut found: Vec<String> = ["v4", "v6"].into_iter().filter_map(of).collect();
    found.sort();
    found
}

/// Gives nodes of the network their IPv6 addresses, and starts their agents.
fn start_both_families(fabric: &Fabric, nodes: &mut [TestNode]) {
    nodes.iter().for_each(|node| fabric.add_ipv6(node));
    nodes.iter_mut().for_each(TestNode::start_agent);
}

/// Has the network drop what has an address of pods.
fn drop_pods_addresses(fabric: &Fabric) {
    let rules = "table bridge foreign { chain guard { type filter hook forward priority 0; ip saddr 10.244.0.0/16 drop; ip6 saddr fd72:7573:7365::/48 drop; }; }";
    run("ip", &["netns", "exec", fabric.hub(), "nft", rules]);
}

fn accept_pods_addresses(fabric: &Fabric) {
    run("ip", &["netns", "exec", fabric.hub(), "nft", "delete", "table", "bridge", "foreign"]);
}

fn set_encapsulation(fabric: &Fabric, mode: &str) {
    for name in ["default-ipv4", "default-ipv6"] {
        let key = format!("{RESOURCES}/ippools/{name}");
        let mut pool = fabric.get(&key);
        pool["spec"]["vxlanMode"] = json!(mode);
        fabric.put(&key, &pool.to_string());
    }
}

#[test]
#[ignore = "root: three nodes without encapsulation on an etcd, a network that drops pods' addresses, a change to vxlan; kernel: vxlan, nf_tables of bridges; tool: etcd, ip, nft"]
fn a_network_that_drops_pods_addresses_is_noticed_and_the_addresses_for_that_are_given_back() {
    let mut fabric = Fabric::new();
    let args = [&DUAL[..], &["--encapsulation", "none"]].concat();
    let mut nodes = ["node-a", "node-b", "node-c"].map(|name| fabric.node(name, &args));
    start_both_families(&fabric, &mut nodes);
    eventually(TIMEOUT, || nodes.iter().all(|node| reaches_all_by(node, 4, "route")));
    let held: Vec<Vec<String>> = nodes.iter().map(on_loopback).collect();
    println!("{held:?}");
    for (name, held) in ["node-a", "node-b", "node-c"].into_iter().zip(&held) {
        assert_eq!((held.len(), &published(&fabric, name)), (2, held));
    }
    // No other packet of this node has them as its source.
    for target in ["10.77.0.12", "fd00:77::12", "10.244.255.1"] {
        let route = nodes[0].ip(&["route", "get", target]);
        assert!(!held[0].iter().any(|address| route.contains(&format!("src {address} "))), "{route}");
    }
    let checked = nodes[0].russet_inside(&["ipam", "check"]);
    assert_eq!(checked.status, 0, "{}", checked.stdout);

    drop_pods_addresses(&fabric);
    let [a, b, _] = &nodes;
    eventually(TIMEOUT, || [4, 6].map(|version| reaches_by(a, "node-b", version)) == [Some(false); 2]);
    eventually(TIMEOUT, || {
        let found = by_family(a);
        let says = |(_, state, reason): &(u64, String, String)| {
            state == "unreachable"
                && reason.starts_with("the node answers at ")
                && reason.contains(", and not at its pods' address ")
        };
        found.len() == 4 && found.iter().all(says)
    });
    println!("{}", a.russet(&["status"]).stdout);
    accept_pods_addresses(&fabric);
    eventually(TIMEOUT, || reaches_all_by(a, 4, "route") && reaches_all_by(b, 4, "route"));

    // Drift is repaired, and the next agent keeps the addresses.
    for address in &held[0] {
        nodes[0].ip(&["address", "del", address, "dev", "lo"]);
    }
    eventually(TIMEOUT, || on_loopback(&nodes[0]) == held[0]);
    nodes[0].kill_agent();
    nodes[0].start_agent();
    eventually(TIMEOUT, || reaches_all_by(&nodes[0], 4, "route"));
    nodes[1].stop_agent();
    nodes[1].start_agent();
    eventually(TIMEOUT, || reaches_all_by(&nodes[1], 4, "route"));
    assert_eq!([on_loopback(&nodes[0]), on_loopback(&nodes[1])], [held[0].clone(), held[1].clone()]);

    set_encapsulation(&fabric, "Always");
    eventually(TIMEOUT, || nodes.iter().all(|node| reaches_all_by(node, 4, "tunnel")));
    let handles = || fabric.keys("/calico/ipam/v2/handle/russet-probe-addr-");
    eventually(TIMEOUT, || handles().is_empty());
    for (name, node) in ["node-a", "node-b", "node-c"].into_iter().zip(&nodes) {
        assert!(published(&fabric, name).is_empty() && on_loopback(node).is_empty());
    }
    let blocks = fabric.etcdctl(&["get", "/calico/ipam/v2/assignment/", "--prefix"]);
    assert!(!blocks.contains("russet-probe-addr-"), "{blocks}");
    let checked = nodes[0].russet_inside(&["ipam", "check"]);
    assert_eq!(checked.status, 0, "{}", checked.stdout);

    set_encapsulation(&fabric, "CrossSubnet");
    let by_route = |node: &TestNode| {
        reaches_all_by(node, 4, "route") && on_loopback(node).iter().all(|address| address.starts_with("fd"))
    };
    eventually(TIMEOUT, || nodes.iter().all(by_route));
    assert!(nodes.iter().all(|node| on_loopback(node).len() == 1), "IPv4 has the tunnel's address");
}

#[test]
#[ignore = "root: nodes without encapsulation that share an embedded store, one without probes; kernel: nf_tables of bridges; tool: etcd, ip, nft"]
fn nodes_of_an_embedded_store_use_addresses_for_probes_and_those_without_are_probed_at_their_own() {
    let mut fabric = Fabric::new();
    let root = tempfile::tempdir().unwrap();
    let store = StoreProcess::start(root.path());
    let location = format!("unix:{}", store.socket.display());
    let mut nodes = ["node-a", "node-b", "node-c"].map(|name| {
        let mut node = fabric.node_with_own_store(name);
        let args = [&FAST[..], &["--encapsulation", "none", "--store", &location]].concat();
        node.agent_args.extend(args.iter().map(ToString::to_string));
        node
    });
    nodes[2].agent_args.extend(["--peer-probes".to_owned(), "off".to_owned()]);
    nodes.iter_mut().for_each(TestNode::start_agent);
    let path =
        |node: &TestNode, other: &str| paths(node).get(&(other.to_owned(), 4)).cloned().unwrap_or_default();
    let is = |node: &TestNode, other: &str, wanted: &str| {
        let (path, state, _) = path(node, other);
        path == wanted && state == "reachable"
    };
    eventually(TIMEOUT, || is(&nodes[0], "node-b", "route") && is(&nodes[1], "node-a", "route"));
    eventually(TIMEOUT, || is(&nodes[0], "node-c", "underlay"));
    let held = [0, 1, 2].map(|at: usize| on_loopback(&nodes[at]).len());
    assert_eq!(held, [1, 1, 0]);

    drop_pods_addresses(&fabric);
    eventually(TIMEOUT, || {
        let (_, state, probed) = path(&nodes[0], "node-b");
        state == "unreachable" && on_loopback(&nodes[1]) == [probed]
    });
    assert!(is(&nodes[0], "node-c", "underlay"), "{:?}", paths(&nodes[0]));
    accept_pods_addresses(&fabric);
    eventually(TIMEOUT, || is(&nodes[0], "node-b", "route"));

    // A node without probes gives its address back, and others fall back to its own one.
    nodes[1].stop_agent();
    nodes[1].agent_args.extend(["--peer-probes".to_owned(), "off".to_owned()]);
    nodes[1].start_agent();
    eventually(TIMEOUT, || on_loopback(&nodes[1]).is_empty() && is(&nodes[0], "node-b", "underlay"));
    let checked = nodes[0].russet_inside(&["ipam", "check"]);
    assert_eq!(checked.status, 0, "{}", checked.stdout);
    nodes[0].stop_agent();
    let owned = nodes[0].russet_inside(&["owned"]);
    let address = on_loopback(&nodes[0]).remove(0);
    assert!(owned.stdout.contains(&format!("{address}/32")), "{}", owned.stdout);
    let done = nodes[0].russet_inside(&["uninstall", "--force", "--purge"]);
    assert_eq!(done.status, 0, "{}{}", done.stdout, done.stderr);
    assert!(done.stdout.contains(&format!("delete address {address}/32")), "{}", done.stdout);
    assert!(on_loopback(&nodes[0]).is_empty());
}

/// A machine of a Kubernetes cluster whose agent has the rights of the manifest for its node, and no others.
fn machine_with_few_rights(cluster: &mut Cluster, name: &str) -> TestNode {
    let args = [&FAST[..], &["--encapsulation", "none"]].concat();
    let mut node = cluster.machine(name, &args);
    cluster.create_node(name);
    let token =
        |server: &ApiServer| server.kubeconfig(&server.pod_token("russet-system", "russet-agent", name));
    let path = node.path("kubeconfig");
    std::fs::write(&path, cluster.with(token)).unwrap();
    let store = node.agent_args.iter_mut().find(|argument| argument.starts_with("kubernetes:")).unwrap();
    *store = format!("kubernetes:{}", path.display());
    node
}

#[test]
#[ignore = "root: makes network namespaces; tool: kube-apiserver, etcd, etcdctl, kubectl, curl, openssl"]
fn with_the_kubernetes_api_agents_annotate_their_nodes_with_the_rights_of_the_manifest() {
    // kubernetes.md sections 1.7, 5.3 and 5.4
    let mut cluster = Cluster::new();
    cluster.with(|server| {
        let admin = format!("--kubeconfig={}", server.admin_kubeconfig().display());
        let kubectl = Release::Newest.program("kubectl");
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", MANIFEST];
        run(kubectl.to_str().unwrap(), &[&[admin.as_str()], &apply[..]].concat());
    });
    let mut nodes = ["n1", "n2"].map(|name| machine_with_few_rights(&mut cluster, name));
    nodes.iter_mut().for_each(TestNode::start_agent);
    eventually(TIMEOUT, || nodes.iter().all(|node| reaches_all_by(node, 1, "route")));
    let annotation = |name: &str| cluster.node_annotation(name, "russet.dev/probe-address-v4");
    for (name, node) in ["n1", "n2"].into_iter().zip(&nodes) {
        assert_eq!(annotation(name).into_iter().collect::<Vec<_>>(), on_loopback(node));
    }
    cluster.assert_is_clean(&nodes[0]);

    nodes[1].stop_agent();
    nodes[1].agent_args.extend(["--peer-probes".to_owned(), "off".to_owned()]);
    nodes[1].start_agent();
    eventually(TIMEOUT, || annotation("n2").is_none() && on_loopback(&nodes[1]).is_empty());
    eventually(TIMEOUT, || reaches_all_by(&nodes[0], 1, "underlay"));
    let handle = |name: &str| {
        let path = format!("{GROUP}/ipamhandles/russet-probe-addr-{name}");
        cluster.with(|server| server.request("GET", &path, &Value::Null)).0
    };
    eventually(TIMEOUT, || handle("n2") == 404);
    assert_eq!(handle("n1"), 200);
    cluster.assert_is_clean(&nodes[0]);
    for node in &nodes {
        let log = node.log();
        assert!(!log.contains("forbidden") && !log.contains("denied"), "{log}");
    }
}
