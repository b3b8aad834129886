//! NetworkPolicies of a real API server, in force on the pods of two agents.

use std::time::{Duration, Instant};

use russet_testkit::{eventually, let_pass, succeeds};
use serde_json::{Value, json};

use super::{Cluster, GROUP, call};
use crate::node::{TIMEOUT, TestNode, TestPod};

/// How long after a foreign change of the table of decisions it is whole again (policy.md P124).
const RESTORED: Duration = Duration::from_secs(2);

pub const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
/// Succeeds where decisions are in the kernel.
const LIST: &str = "nft list table inet russet-decisions";
const STAGED: &str = "stagedglobalnetworkpolicies";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The object of a pod with a role, bound to a node.
pub fn create_role(cluster: &Cluster, node: &str, name: &str, role: &str) {
    let object = json!({ "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": { "role": role } },
        "spec": { "nodeName": node, "containers": [{ "name": "web", "image": "web" }] } });
    cluster.with(|server| server.create(&[object]));
}

/// A pod with a role, attached to a node.
pub fn pod(
    cluster: &Cluster,
    (node, node_name): (&mut TestNode, &str),
    name: &str,
    role: &str,
) -> (TestPod, Vec<String>) {
    create_role(cluster, node_name, name, role);
    let pod = node.pod();
    let answer = call(node, "ADD", &pod, name);
    assert_eq!(answer.status, 0, "{answer:?}\n{}", node.log());
    let addresses = answer.addresses();
    cluster.report_running(name, &addresses);
    (pod, addresses)
}

/// Pods with `role` may be reached by pods with one of `from` alone.
pub fn policy(name: &str, role: &str, from: &[&str]) -> Value {
    let peers: Vec<Value> =
        from.iter().map(|role| json!({ "podSelector": { "matchLabels": { "role": role } } })).collect();
    let rules = if peers.is_empty() { json!([]) } else { json!([{ "from": peers }]) };
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "podSelector": { "matchLabels": { "role": role } }, "policyTypes": ["Ingress"], "ingress": rules } })
}

/// The definitions of Calico's policies are served a moment after they are made.
fn create_of_calico(cluster: &Cluster, plural: &str, name: &str, spec: Value) {
    let kind = if plural == STAGED { "StagedGlobalNetworkPolicy" } else { "GlobalNetworkPolicy" };
    let object = json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": kind,
        "metadata": { "name": name }, "spec": spec });
    eventually(TIMEOUT, || {
        cluster.with(|server| server.request("POST", &format!("{GROUP}/{plural}"), &object)).0 == 201
    });
}

pub fn create_policy(cluster: &Cluster, policy: &Value) {
    cluster.with(|server| assert_eq!(server.request("POST", POLICIES, policy).0, 201));
}

pub fn delete_policy(cluster: &Cluster, name: &str) {
    cluster.with(|server| server.delete(&format!("{POLICIES}/{name}")));
}

/// Whether all of these addresses answer; the cluster's nodes, and so pods of two nodes, have IPv4 alone.
fn reaches(pod: &TestPod, addresses: &[String]) -> bool {
    addresses.iter().all(|address| pod.pings(&["-W", "1", address]))
}

/// Whether none of these addresses answers.
fn is_cut_off(pod: &TestPod, addresses: &[String]) -> bool {
    !addresses.iter().any(|address| pod.pings(&["-W", "1", address]))
}

fn has_table(node: &TestNode) -> bool {
    node.netns().with(|| succeeds(LIST)).unwrap()
}

/// Removes the table of decisions, as another program does.
fn assert_restores_the_table(node: &TestNode) {
    node.inside("nft", &["delete", "table", "inet", "russet-decisions"]);
    let removed = Instant::now();
    eventually(TIMEOUT, || has_table(node));
    assert!(removed.elapsed() < RESTORED, "{:?}", removed.elapsed());
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl, ping, nft"]
fn network_policies_are_in_force_from_a_pods_first_packet_and_outlast_agent_and_api_server() {
    // policy.md P02, P08, P23, P29, P36, P121 to P124
    let mut cluster = Cluster::new();
    let (mut one, mut two) = (cluster.node("n1", &[]), cluster.node("n2", &[]));
    let (client, _) = pod(&cluster, (&mut one, "n1"), "client", "client");
    let (other, _) = pod(&cluster, (&mut two, "n2"), "other", "other");
    let (_server, server) = pod(&cluster, (&mut two, "n2"), "server", "server");
    // There is no policy yet.
    eventually(TIMEOUT, || reaches(&client, &server[..1]) && reaches(&other, &server));
    assert!(!has_table(&two), "nothing is decided");

    create_policy(&cluster, &policy("deny", "server", &[]));
    eventually(TIMEOUT, || is_cut_off(&client, &server));
    assert!(is_cut_off(&other, &server));
    let pings = |address: &String| two.netns().with(|| succeeds(&format!("ping -c1 -W1 {address}"))).unwrap();
    assert!(server.iter().all(pings), "its own node reaches it");

    create_policy(&cluster, &policy("allow", "server", &["client"]));
    eventually(TIMEOUT, || reaches(&client, &server[..1]));
    assert!(is_cut_off(&other, &server));

    // A pod that starts under a policy is closed at once, and open to whom it may be soon.
    let (_late, late) = pod(&cluster, (&mut two, "n2"), "late", "server");
    assert!(is_cut_off(&other, &late));
    eventually(TIMEOUT, || reaches(&client, &late[..1]));

    // What is in force stays so without agent and API server.
    two.stop_agent();
    assert!(is_cut_off(&other, &server) && reaches(&client, &server[..1]));
    cluster.kill_server();
    let _agent = two.spawn_agent();
    let_pass(Duration::from_secs(2));
    assert!(is_cut_off(&other, &server) && reaches(&client, &server[..1]));
    // Another program removes the table, while the agent has no objects to decide by.
    assert_restores_the_table(&two);
    assert!(is_cut_off(&other, &server) && reaches(&client, &server[..1]));
    cluster.start_server();
    eventually(TIMEOUT, || two.log().contains("policies are in force"));
    assert!(is_cut_off(&other, &server) && reaches(&client, &server[..1]));

    assert_restores_the_table(&two);
    assert!(is_cut_off(&other, &server) && reaches(&client, &server[..1]));

    for name in ["deny", "allow"] {
        delete_policy(&cluster, name);
    }
    eventually(TIMEOUT, || reaches(&other, &server) && reaches(&other, &late));
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl, ping, nft"]
fn calicos_policies_in_the_kubernetes_api_are_in_force_and_know_services() {
    // policy.md section 1.4
    let mut cluster = Cluster::new();
    let (mut one, mut two) = (cluster.node("n1", &[]), cluster.node("n2", &[]));
    let (client, client_addresses) = pod(&cluster, (&mut one, "n1"), "client", "client");
    let (other, _) = pod(&cluster, (&mut two, "n2"), "other", "other");
    let (_server, server) = pod(&cluster, (&mut two, "n2"), "server", "server");
    eventually(TIMEOUT, || reaches(&client, &server[..1]) && reaches(&other, &server));
    let policy = |order: u32, rule: Value| json!({ "order": order, "selector": "role == 'server'", "types": ["Ingress"], "ingress": [rule] });
    let plural = "globalnetworkpolicies";
    // A Service without endpoints denies nothing, once it is known that it has none.
    let source = json!({ "services": { "name": "clients", "namespace": "default" } });
    create_of_calico(
        &cluster,
        plural,
        "default.by-service",
        policy(1, json!({ "action": "Deny", "source": source })),
    );
    create_of_calico(
        &cluster,
        plural,
        "default.allow",
        policy(2, json!({ "action": "Allow", "source": { "selector": "role == 'client'" } })),
    );
    eventually(TIMEOUT, || is_cut_off(&other, &server));
    eventually(TIMEOUT, || reaches(&client, &server[..1]));
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "clients-1", "namespace": "default", "labels": { "kubernetes.io/service-name": "clients" } },
        "endpoints": [{ "addresses": [client_addresses[0]], "conditions": { "ready": false } }], "ports": [{ "port": 80 }] });
    cluster.with(|server| {
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        assert_eq!(server.request("POST", path, &slice).0, 201);
    });
    eventually(TIMEOUT, || is_cut_off(&client, &server));
    cluster.with(|server| server.delete(&format!("{GROUP}/{plural}/default.by-service")));
    eventually(TIMEOUT, || reaches(&client, &server[..1]));
    assert!(is_cut_off(&other, &server));
}

/// What a verb prints as JSON.
fn json_of(node: &TestNode, verb: &[&str]) -> Value {
    let answer = node.russet_inside(&[verb, &["-o", "json"]].concat());
    serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, nfnetlink_log; tool: kube-apiserver, etcd, etcdctl, curl, openssl, ping, nft"]
fn staged_policies_of_the_kubernetes_api_are_pending_and_a_cluster_may_lack_their_definitions() {
    // policy.md section 1.7, P93
    let mut cluster = Cluster::new();
    let lacking = "stagedkubernetesnetworkpolicies";
    cluster.with(|server| server.delete(&format!("{DEFINITIONS}/{lacking}.crd.projectcalico.org")));
    eventually(TIMEOUT, || {
        cluster.with(|server| server.request("GET", &format!("{GROUP}/{lacking}"), &Value::Null)).0 == 404
    });
    let mut node = cluster.node("n1", &[]);
    let (client, _) = pod(&cluster, (&mut node, "n1"), "client", "client");
    let (_server, server) = pod(&cluster, (&mut node, "n1"), "server", "server");
    eventually(TIMEOUT, || reaches(&client, &server));
    let allow = |action: &str| {
        json!({ "order": 1, "selector": "role == 'server'", "types": ["Ingress"],
        "stagedAction": action, "ingress": [{ "action": "Allow" }] })
    };
    // Before the first policy in force, which begins the watches of all others; releases before 3.32 named it so.
    create_of_calico(&cluster, STAGED, "default.soon", allow("Set"));
    create_policy(&cluster, &policy("deny", "server", &[]));
    eventually(TIMEOUT, || is_cut_off(&client, &server));
    let pending = || {
        assert!(is_cut_off(&client, &server));
        let flows = json_of(&node, &["flows", "--denied", "--last", "1"]);
        flows["flows"][0]["pending"].clone()
    };
    let soon = json!([{ "kind": "StagedGlobalNetworkPolicy", "namespace": null, "name": "soon" }]);
    eventually(TIMEOUT, || {
        let pending = pending();
        pending["verdict"] == "allowed" && pending["policies"] == soon
    });
    let policies = json_of(&node, &["policy", "ls"]);
    let staged = policies["policies"].as_array().unwrap().iter().find(|policy| policy["name"] == "soon");
    assert_eq!(staged.unwrap()["enforced"], "staged", "{policies:#}");
    let listed = node.russet_inside(&["policy", "ls"]);
    assert!(listed.status == 0 && !listed.stderr.contains("could not be read"), "{listed:?}");
    let explained = json_of(&node, &["explain", "default/client", "default/server", "80", "--family", "4"]);
    let notes = explained["flows"][0]["notes"].to_string();
    assert!(notes.contains("with the staged policies in force it would be allowed"), "{explained:#}");

    // It is deleted while the agent watches.
    cluster.with(|server| server.delete(&format!("{GROUP}/{STAGED}/default.soon")));
    eventually(TIMEOUT, || pending().is_null());
    assert!(!node.log().contains("policies may be old"), "{}", node.log());
}
