//! The plugins `calico` and `calico-ipam` with `datastore_type: kubernetes`, through an agent in Calico's place and without one.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use russet_testkit::{eventually, let_pass};
use serde_json::{Value, json};

use super::policies::{create_policy, delete_policy, policy};
use super::{Cluster, RECOVERY, call_with, shown};
use crate::node::{Answer, TIMEOUT, TestNode, TestPod};

pub const NETWORK: &str = "k8s-pod-network";

/// A node of a cluster of Calico, whose conflist names the kubeconfig that the agent keeps.
pub struct Site {
    pub cluster: Cluster,
    pub node: TestNode,
}

// === impl Site ===

impl Site {
    fn new() -> Self {
        let pool = json!({ "kind": "IPPool", "apiVersion": "crd.projectcalico.org/v1", "metadata": { "name": "default-ipv4-ippool" },
            "spec": { "cidr": "10.65.0.0/16", "blockSize": 26, "ipipMode": "Never", "vxlanMode": "Always", "natOutgoing": true } });
        Self::with_pools(&[pool])
    }

    /// A cluster with these pools only.
    pub fn with_pools(pools: &[Value]) -> Self {
        let mut cluster = Cluster::new();
        let account = json!({ "kind": "ServiceAccount", "metadata": { "name": "calico-cni-plugin", "namespace": "kube-system" } });
        let rbac = "rbac.authorization.k8s.io";
        let binding = json!({ "kind": "ClusterRoleBinding", "apiVersion": format!("{rbac}/v1"), "metadata": { "name": "calico-cni-plugin" },
            "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "kind": "ServiceAccount", "name": "calico-cni-plugin", "namespace": "kube-system" }] });
        cluster.with(|server| server.create(&[pools, &[account, binding]].concat()));
        let mut node = cluster.machine("n1", &["--calico"]);
        let kubeconfig = node.path("etc/cni/net.d/calico-kubeconfig").display().to_string();
        node.agent_args.extend(["--calico-kubeconfig".to_owned(), kubeconfig]);
        cluster.create_node("n1");
        node.start_agent();
        eventually(TIMEOUT, || {
            cluster
                .with(|server| server.object(&format!("{}/clusterinformations/default", super::GROUP)))
                .is_some()
        });
        Self { cluster, node }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.node.path("etc/cni/net.d/calico-kubeconfig")
    }

    pub fn config(&self) -> Value {
        self.node.config(json!({
            "name": NETWORK, "type": "calico", "datastore_type": "kubernetes", "nodename": "n1", "nodename_file_optional": true,
            "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" }, "kubernetes": { "kubeconfig": self.kubeconfig() },
        }))
    }

    fn call(&self, verb: &str, pod: &TestPod, name: &str) -> Answer {
        call_with(&self.node, verb, pod, name, &self.config())
    }

    fn add(&mut self, name: &str, annotations: Value) -> (TestPod, Answer) {
        self.cluster.create_pod(name, "n1", annotations);
        let pod = self.node.pod();
        let answer = self.call("ADD", &pod, name);
        (pod, answer)
    }

    fn del(&self, pod: &TestPod, name: &str) {
        let answer = self.call("DEL", pod, name);
        assert_eq!(answer.status, 0, "{answer:?}");
        eventually(TIMEOUT, || self.node.unfinished() == 0);
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
fn oracle_39_calicos_plugin_costs_one_patch_besides_its_address_and_no_read() {
    // kubernetes.md sections 2.7 and 4.3, K43, K44 and K46
    let mut site = Site::new();
    let (first, answer) = site.add("web-0", json!({}));
    let address = answer.addresses().remove(0);
    assert!(address.starts_with("10.65."), "{address}");
    let announced = site.cluster.announced("web-0");
    assert_eq!(
        (announced["podIP"].as_str(), announced["podIPs"].as_str()),
        (&*format!("{address}/32"), &*format!("{address}/32"))
    );
    assert_eq!(announced["containerID"], first.container);

    // The next one is warm.
    site.cluster.create_pod("web-1", "n1", json!({}));
    let old = site.node.pod();
    let (answer, requests) = site.cluster.requests_of(|| site.call("ADD", &old, "web-1"));
    assert_eq!(answer.status, 0, "{answer:?}");
    assert_eq!(shown(&requests), ["PATCH pods/status 1", "POST ipamhandles 1", "PUT ipamblocks 1"]);
    assert_eq!(site.call("CHECK", &old, "web-1").status, 0);

    // A new sandbox of the pod, and the late DEL of the old one.
    let new = site.node.pod();
    assert_eq!(site.call("ADD", &new, "web-1").status, 0);
    let ((), requests) = site.cluster.requests_of(|| site.del(&old, "web-1"));
    assert!(!requests.contains_key("PATCH pods/status"), "{requests:?}");
    assert_eq!(site.cluster.announced("web-1")["containerID"], new.container);
    let ((), requests) = site.cluster.requests_of(|| site.del(&new, "web-1"));
    // The reads are for a handle of Calico before 3.0, which Go's plugin looks for, too; the pod is deleted by then.
    let expected = ["DELETE ipamhandles 1", "GET ipamhandles 2", "PATCH pods/status 1", "PUT ipamblocks 1"];
    assert_eq!(shown(&requests), expected);
    assert_eq!(site.cluster.announced("web-1")["podIP"], "");
    site.del(&new, "web-1");
    site.cluster.assert_is_clean(&site.node);

    // The API server is away: the pod is deleted all the same, and its address is kept until that is written.
    site.cluster.kill_server();
    assert_eq!(site.call("DEL", &first, "web-0").status, 0);
    assert!(site.node.unfinished() > 0);
    let late = site.node.pod();
    assert_eq!(site.call("ADD", &late, "web-2").code(), 11);
    site.cluster.start_server();
    eventually(RECOVERY, || {
        let_pass(Duration::from_millis(200));
        site.node.unfinished() == 0
    });
    assert_eq!(site.cluster.announced("web-0")["podIP"], "");
    assert_eq!(site.cluster.held(NETWORK), 0);
    site.cluster.assert_is_clean(&site.node);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
fn policies_of_kubernetes_that_are_not_enforced_are_named_in_log_and_readiness() {
    let mut site = Site::new();
    site.node.stop_agent();
    site.node.agent_args.extend(["--policies", "off"].map(str::to_owned));
    site.node.start_agent();
    let ready = || site.node.get("/readyz?verbose");
    eventually(TIMEOUT, || ready().contains("[+] programmed"));
    assert!(!ready().contains("[!] policy"), "{}", ready());
    create_policy(&site.cluster, &policy("deny", "db", &[]));
    let named = "policy: NOT ENFORCED: the datastore holds 1 networkpolicies of Kubernetes, and";
    eventually(TIMEOUT, || ready().contains(&format!("[!] {named}")));
    assert!(site.node.log().contains(named), "{}", site.node.log());
    create_policy(&site.cluster, &policy("web", "web", &["db"]));
    eventually(TIMEOUT, || ready().contains("holds 2 networkpolicies of Kubernetes, and"));
    ["deny", "web"].iter().for_each(|name| delete_policy(&site.cluster, name));
    eventually(TIMEOUT, || !ready().contains("[!] policy"));
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
fn requests_in_annotations_are_served_or_refused_and_plugins_work_without_the_agent() {
    // kubernetes.md sections 2.3 and 2.6, K45 and K52
    let mut site = Site::new();
    let pool = json!({ "kind": "IPPool", "apiVersion": "crd.projectcalico.org/v1", "metadata": { "name": "blue" },
        "spec": { "cidr": "10.66.0.0/24", "blockSize": 28, "vxlanMode": "Always", "ipipMode": "Never" } });
    site.cluster.with(|server| server.create(&[pool]));
    let annotation = |name: &str, text: &str| json!({ format!("cni.projectcalico.org/{name}"): text });
    let (exact, answer) = site.add("exact", annotation("ipAddrs", "[\"10.65.3.77\"]"));
    assert_eq!(answer.addresses(), ["10.65.3.77"]);
    let (_blue, answer) = site.add("blue", annotation("ipv4pools", "[\"blue\"]"));
    assert!(answer.addresses()[0].starts_with("10.66.0."), "{answer:?}");
    let namespaces = annotation("ipv4pools", "[\"10.66.0.0/24\"]");
    let patch = json!({ "metadata": { "annotations": namespaces } });
    site.cluster
        .with(|server| assert_eq!(server.request("PATCH", "/api/v1/namespaces/default", &patch).0, 200));
    let mut number = 0;
    eventually(TIMEOUT, || {
        // Until the event of the namespace has come.
        number += 1;
        site.add(&format!("of-namespace-{number}"), json!({})).1.addresses()[0].starts_with("10.66.0.")
    });
    let held = site.cluster.held(NETWORK);
    let (_, answer) = site.add("floating", annotation("floatingIPs", "[\"192.0.2.7\"]"));
    assert!(answer.error()["msg"].as_str().unwrap().contains("floatingIPs"), "{answer:?}");
    assert_eq!(site.cluster.held(NETWORK), held, "nothing was allocated for it");

    // The datastore is locked.
    let information = format!("{}/clusterinformations/default", super::GROUP);
    let lock = |ready: bool| json!({ "spec": { "datastoreReady": ready } });
    site.cluster.with(|server| assert_eq!(server.request("PATCH", &information, &lock(false)).0, 200));
    site.cluster.create_pod("locked", "n1", json!({}));
    let locked = site.node.pod();
    eventually(TIMEOUT, || {
        let answer = site.call("ADD", &locked, "locked");
        let refused = answer.status != 0 && answer.code() == 11;
        if !refused {
            site.call("DEL", &locked, "locked");
        }
        refused
    });
    site.cluster.with(|server| assert_eq!(server.request("PATCH", &information, &lock(true)).0, 200));

    // Without the agent: the plugins use the kubeconfig that it has left.
    let path = site.kubeconfig();
    eventually(TIMEOUT, || path.exists());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    site.node.stop_agent();
    let answer = site.call("DEL", &exact, "exact");
    assert_eq!(answer.status, 0, "{answer:?}");
    assert_eq!(site.cluster.announced("exact")["podIP"], "");
    let (alone, answer) = site.add("alone", json!({}));
    assert_eq!(answer.status, 0, "{answer:?}");
    assert_eq!(site.cluster.announced("alone")["containerID"], alone.container);
    site.cluster.delete_pod("alone");
    assert_eq!(site.call("DEL", &alone, "alone").status, 0);
    site.cluster.assert_is_clean(&site.node);
}
