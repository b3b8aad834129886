//! What accounts may do and what they may not, by real requests with their tokens.

use russet_testkit::eventually;
use russet_testkit::kubernetes::Release;
use serde_json::{Value, json};

use super::{Cluster, NAMESPACE, TIMEOUT};
use crate::kubernetes::{CLUSTER_POLICIES, cluster_policy, create_cluster_policy};

const BLOCKS: &str = "/apis/crd.projectcalico.org/v1/ipamblocks";
const AFFINITIES: &str = "/apis/crd.projectcalico.org/v1/blockaffinities";
const HANDLES: &str = "/apis/crd.projectcalico.org/v1/ipamhandles";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// Of a policy; a right that is missing is 403.
const DENIED: u16 = 422;

/// Requests of one account.
struct Caller<'a> {
    cluster: &'a Cluster,
    token: String,
}

impl Caller<'_> {
    fn code(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.cluster.server.request_with(&self.token, method, path, body)
    }

    #[track_caller]
    fn may(&self, method: &str, path: &str, body: &Value) -> Value {
        let (code, answer) = self.code(method, path, body);
        assert!(matches!(code, 200 | 201), "{method} {path}: {code} {answer}");
        answer
    }

    #[track_caller]
    fn has_no_right(&self, method: &str, path: &str, body: &Value) {
        let (code, answer) = self.code(method, path, body);
        assert_eq!(code, 403, "{method} {path}: {answer}");
    }

    #[track_caller]
    fn is_denied(&self, method: &str, path: &str, body: &Value) {
        let (code, answer) = self.code(method, path, body);
        assert!(
            code == DENIED && answer["message"].as_str().unwrap().contains("ValidatingAdmissionPolicy"),
            "{method} {path}: {code} {answer}"
        );
    }
}

impl Cluster {
    fn agent(&self, node: &str) -> Caller<'_> {
        Caller { cluster: self, token: self.server.pod_token(NAMESPACE, "russet-agent", node) }
    }

    fn pod(&self, name: &str, node: &str) {
        self.server.create(&[json!({ "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
            "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "main" }] } })]);
    }
}

fn annotations(value: &str) -> Value {
    json!({ "metadata": { "annotations": { "cni.projectcalico.org/podIP": value } } })
}

fn affinity(node: &str) -> Value {
    json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity",
        "metadata": { "name": format!("{node}-10-1-0-0-26") },
        "spec": { "cidr": "10.1.0.0/26", "node": node, "state": "pending", "type": "host", "deleted": "false" } })
}

/// A block of a node, in which each of `owners` has one address.
fn block(name: &str, node: &str, owners: &[&str]) -> Value {
    let attribute = |(at, owner): (usize, &&str)| json!({ "handle_id": format!("net.{owner}-{at}"), "secondary": { "node": owner } });
    let attributes: Vec<Value> = owners.iter().enumerate().map(attribute).collect();
    let mut allocations: Vec<Value> = (0..owners.len()).map(Value::from).collect();
    allocations.resize(256.max(owners.len()), Value::Null);
    let unallocated: Vec<usize> = (owners.len()..256).collect();
    json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": { "name": name },
        "spec": { "cidr": "10.1.0.0/24", "affinity": format!("host:{node}"), "strictAffinity": false,
            "allocations": allocations, "unallocated": unallocated, "attributes": attributes } })
}

/// The block without the owner of one of its addresses.
fn without(block: &Value, owner: usize) -> Value {
    let mut block = block.clone();
    block["spec"]["attributes"].as_array_mut().unwrap().remove(owner);
    for allocation in block["spec"]["allocations"].as_array_mut().unwrap() {
        *allocation = match allocation.as_u64().map(|index| index as usize) {
            Some(index) if index == owner => Value::Null,
            Some(index) if index > owner => json!(index - 1),
            _ => allocation.clone(),
        };
    }
    block
}

fn at(collection: &str, object: &Value) -> String {
    format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap())
}

#[test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, kubectl, curl, openssl"]
fn accounts_have_the_rights_that_they_need_and_no_others() {
    let cluster = Cluster::with_russet(Release::Newest, &["a", "b"]);
    let agent = cluster.agent("a");
    for path in [
        "/api/v1/nodes",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Da",
        "/api/v1/namespaces",
        BLOCKS,
        AFFINITIES,
    ] {
        agent.may("GET", path, &Value::Null);
    }
    let handle = json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle", "metadata": { "name": "net.x" },
        "spec": { "handleID": "net.x", "block": { "10.1.0.0/26": 1 }, "deleted": false } });
    agent.may("POST", HANDLES, &handle);
    agent.may("DELETE", &at(HANDLES, &handle), &Value::Null);
    let nothing = json!({ "metadata": { "name": "x" } });
    for (method, path) in [
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/namespaces/russet-system/secrets/x"),
        ("GET", "/api/v1/namespaces/russet-system/configmaps"),
        ("DELETE", "/api/v1/namespaces/default/pods/x"),
        ("PATCH", "/api/v1/namespaces/default/pods/x"),
        ("POST", "/api/v1/namespaces/default/pods/x/eviction"),
        ("PATCH", "/api/v1/nodes/a"),
        ("DELETE", "/api/v1/nodes/a"),
        ("GET", HANDLES),
        ("DELETE", BLOCKS),
        ("POST", "/api/v1/namespaces/kube-system/serviceaccounts/calico-cni-plugin/token"),
        ("DELETE", "/apis/crd.projectcalico.org/v1/ippools/x"),
        ("PATCH", "/apis/crd.projectcalico.org/v1/clusterinformations/default"),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ] {
        agent.has_no_right(method, path, &nothing);
    }

    let token = cluster.server.pod_token(NAMESPACE, "russet-controller", "a");
    let controller = Caller { cluster: &cluster, token };
    for path in ["/api/v1/nodes", "/api/v1/pods?limit=500", BLOCKS, AFFINITIES, HANDLES, LEASES] {
        controller.may("GET", path, &Value::Null);
    }
    controller.may("PATCH", "/api/v1/nodes/b", &json!({ "spec": { "taints": [] } }));
    for (method, path) in [
        ("GET", "/api/v1/secrets"),
        ("DELETE", "/api/v1/nodes/b"),
        ("DELETE", "/api/v1/namespaces/default/pods/x"),
        ("PATCH", "/api/v1/namespaces/default/pods/x/status"),
        ("PATCH", "/api/v1/nodes/b/status"),
        ("POST", BLOCKS),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"),
        ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/russet-system/leases/other"),
    ] {
        controller.has_no_right(method, path, &nothing);
    }
}

#[test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, kubectl, curl, openssl"]
fn the_newest_api_server_limits_an_agent_to_its_own_node() {
    // kubernetes.md K16 and K97
    an_agent_is_limited(Release::Newest);
}

#[test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, kubectl, curl, openssl"]
fn an_older_api_server_limits_an_agent_to_its_own_node() {
    // kubernetes.md K16 and K97
    an_agent_is_limited(Release::Older);
}

fn an_agent_is_limited(release: Release) {
    let cluster = Cluster::with_russet(release, &["a", "b"]);
    cluster.pod("own", "a");
    cluster.pod("other", "b");
    let agent = cluster.agent("a");
    let ready = json!({ "metadata": { "annotations": { "russet.dev/ready": "1" } } });
    eventually(TIMEOUT, || agent.code("PATCH", "/api/v1/nodes/b/status", &ready).0 == DENIED);

    agent.may("PATCH", "/api/v1/nodes/a/status", &ready);
    let condition = json!({ "status": { "conditions": [{ "type": "NetworkUnavailable", "status": "False", "reason": "RussetIsUp" }] } });
    agent.may("PATCH", "/api/v1/nodes/a/status", &condition);
    agent.is_denied("PATCH", "/api/v1/nodes/a/status", &json!({ "metadata": { "labels": { "zone": "x" } } }));

    let status = |pod: &str| format!("/api/v1/namespaces/default/pods/{pod}/status");
    eventually(TIMEOUT, || agent.code("PATCH", &status("other"), &annotations("10.1.0.1/32")).0 == DENIED);
    agent.may("PATCH", &status("own"), &annotations("10.1.0.1/32"));
    agent.is_denied("PATCH", &status("own"), &json!({ "metadata": { "labels": { "role": "admin" } } }));
    agent.is_denied("PATCH", &status("own"), &json!({ "status": { "podIP": "10.1.0.9" } }));

    eventually(TIMEOUT, || agent.code("POST", AFFINITIES, &affinity("b")).0 == DENIED);
    let made = agent.may("POST", AFFINITIES, &affinity("a"));
    cluster.server.request("POST", AFFINITIES, &affinity("b"));
    agent.is_denied("DELETE", &at(AFFINITIES, &affinity("b")), &Value::Null);
    agent.may("DELETE", &at(AFFINITIES, &made), &Value::Null);

    let lease = |node: &str| json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": format!("russet-{node}") }, "spec": {} });
    eventually(TIMEOUT, || agent.code("POST", LEASES, &lease("b")).0 == DENIED);
    agent.may("POST", LEASES, &lease("a"));

    blocks_of_other_nodes_are_safe(&cluster, &agent);
    what_others_say_of_policies_is_safe(&cluster, &agent);
    // A token that names no node.
    let token = cluster.server.token(NAMESPACE, "russet-agent", "unbound");
    Caller { cluster: &cluster, token }.is_denied("PATCH", "/api/v1/nodes/a/status", &ready);
}

fn what_others_say_of_policies_is_safe(cluster: &Cluster, agent: &Caller<'_>) {
    let policy = cluster_policy("p", &json!({ "domainNames": ["example.com"] }));
    create_cluster_policy(&cluster.server, &policy);
    let (path, status) = (format!("{CLUSTER_POLICIES}/p"), format!("{CLUSTER_POLICIES}/p/status"));
    let condition = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": "Tried", "message": "",
        "lastTransitionTime": "2026-01-02T03:04:05Z" })
    };
    let patch = |conditions: &[Value]| json!({ "status": { "conditions": conditions } });
    let (other, own) = (condition("example.com/Ready", "True"), condition("russet.dev/Enforced", "False"));
    eventually(TIMEOUT, || {
        let (code, answer) = cluster.server.request("PATCH", &status, &patch(&[other.clone(), own.clone()]));
        assert_eq!(code, 200, "{answer}");
        agent.code("PATCH", &status, &patch(std::slice::from_ref(&own))).0 == DENIED
    });
    agent.is_denied("PATCH", &status, &patch(&[condition("example.com/Ready", "False"), own.clone()]));
    agent.may("PATCH", &status, &patch(&[other.clone(), condition("russet.dev/Enforced", "True")]));
    agent.may("PATCH", &status, &patch(&[other]));
    agent.has_no_right("PATCH", &path, &json!({ "spec": { "priority": 2 } }));
    agent.has_no_right("PUT", &status, &policy);
}

fn blocks_of_other_nodes_are_safe(cluster: &Cluster, agent: &Caller<'_>) {
    eventually(TIMEOUT, || agent.code("POST", BLOCKS, &block("of-b", "b", &[])).0 == DENIED);
    let own = agent.may("POST", BLOCKS, &block("of-a", "a", &["a", "a"]));
    agent.may("PUT", &at(BLOCKS, &own), &without(&own, 0));
    agent.may("DELETE", &at(BLOCKS, &own), &Value::Null);

    // As large as blocks get: the policy's expressions have a limit of cost. The node "a" has borrowed the addresses 3 and 200.
    let mut owners = ["b"; 256];
    (owners[3], owners[200]) = ("a", "a");
    let (code, other) = cluster.server.request("POST", BLOCKS, &block("of-b", "b", &owners));
    assert_eq!(code, 201, "{other}");
    let path = at(BLOCKS, &other);
    agent.is_denied("DELETE", &path, &Value::Null);
    agent.is_denied("PUT", &path, &without(&other, 4));
    let mut freed = other.clone();
    freed["spec"]["allocations"][4] = Value::Null;
    agent.is_denied("PUT", &path, &freed);
    let mut taken = other.clone();
    taken["spec"]["affinity"] = json!("host:a");
    agent.is_denied("PUT", &path, &taken);
    agent.may("PUT", &path, &without(&other, 200));
}
