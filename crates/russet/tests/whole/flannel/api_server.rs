//! The daemons of a cluster against a real API server, with the rights that flannel's manifest gives them (flannel.md section 5).

use russet_linux::NetNs;
use russet_testkit::eventually;
use russet_testkit::kubernetes::{ApiServer, Options, Release};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::lab::{Host, Lab};
use crate::node::{TIMEOUT, TestPod};

const PREFIX: &str = "flannel.alpha.coreos.com/";
const NAMESPACE: &str = "kube-flannel";

/// An API server on the hub, which its nodes reach.
struct Cluster {
    lab: Lab,
    hub: NetNs,
    server: ApiServer,
    files: TempDir,
}

/// flannel.md section 5.2
fn objects() -> [Value; 3] {
    let rbac = "rbac.authorization.k8s.io";
    let rule = |resource: &str, verbs: &[&str]| json!({ "apiGroups": [""], "resources": [resource], "verbs": verbs });
    let rules =
        [rule("pods", &["get"]), rule("nodes", &["get", "list", "watch"]), rule("nodes/status", &["patch"])];
    [
        json!({ "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        json!({ "kind": "ClusterRole", "apiVersion": format!("{rbac}/v1"), "metadata": { "name": "flannel" }, "rules": rules }),
        json!({ "kind": "ClusterRoleBinding", "apiVersion": format!("{rbac}/v1"), "metadata": { "name": "flannel" },
            "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": "flannel" },
            "subjects": [{ "kind": "ServiceAccount", "name": "flannel", "namespace": NAMESPACE }] }),
    ]
}

fn node(name: &str, range: &str, annotations: Value) -> Value {
    json!({ "kind": "Node", "metadata": { "name": name, "annotations": annotations },
        "spec": { "podCIDR": range, "podCIDRs": [range] } })
}

// === impl Cluster ===

impl Cluster {
    fn new(release: Release) -> Self {
        let lab = Lab::new("");
        let hub = NetNs::open_named(lab.fabric.hub()).unwrap();
        let options = Options { address: "10.77.0.1".to_owned(), ..Options::new(release) };
        let server = hub.with(|| options.start()).unwrap();
        let files = tempfile::tempdir().unwrap();
        let config = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
        std::fs::write(files.path().join("net-conf.json"), config).unwrap();
        let kubeconfig = hub.with(|| {
            server.create(&objects());
            server.kubeconfig(&server.token(NAMESPACE, "flannel", "flannel"))
        });
        std::fs::write(files.path().join("kubeconfig"), kubeconfig.unwrap()).unwrap();
        Self { lab, hub, server, files }
    }

    /// A node with its running daemon, and a pod on it.
    fn running(&mut self, name: &str, range: &str) -> (Host, TestPod, String) {
        self.create(&node(name, range, json!({})));
        let file = |name: &str| self.files.path().join(name).display().to_string();
        let flags = [
            "-kube-subnet-mgr".to_owned(),
            format!("-kubeconfig-file={}", file("kubeconfig")),
            format!("-net-config-path={}", file("net-conf.json")),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut host = self.lab.host(&flags).with_variable("NODE_NAME", name);
        host.start();
        let (pod, address) = host.pod();
        (host, pod, address)
    }

    fn create(&self, object: &Value) {
        self.hub.with(|| self.server.create(std::slice::from_ref(object))).unwrap();
    }

    fn delete(&self, node: &str) {
        self.hub.with(|| self.server.delete(&format!("/api/v1/nodes/{node}"))).unwrap();
    }

    fn node(&self, name: &str) -> Value {
        self.hub.with(|| self.server.object(&format!("/api/v1/nodes/{name}"))).unwrap().unwrap()
    }

    fn patches(&self) -> u64 {
        let requests = self.hub.with(|| self.server.requests()).unwrap();
        requests.get("PATCH nodes/status").copied().unwrap_or_default()
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: kube-apiserver, etcd, etcdctl, curl, openssl, ping"]
fn kube_daemons_and_the_newest_api_server_connect_pods_also_after_it_was_killed() {
    pods_are_connected(Release::Newest);
}

#[test]
#[ignore = "root: makes network namespaces; tool: kube-apiserver, etcd, etcdctl, curl, openssl, ping"]
fn kube_daemons_and_an_older_api_server_connect_pods_also_after_it_was_killed() {
    pods_are_connected(Release::Older);
}

/// flannel.md sections 5.1, 5.2 and 10.
fn pods_are_connected(release: Release) {
    let mut cluster = Cluster::new(release);
    let (one, from, _) = cluster.running("n1", "10.244.1.0/24");
    let (mut two, _to, address) = cluster.running("n2", "10.244.2.0/24");
    assert_eq!(one.env("FLANNEL_SUBNET"), "10.244.1.1/24");
    eventually(TIMEOUT, || from.pings(&["-W", "1", &address]));
    eventually(TIMEOUT, || cluster.node("n1")["status"]["conditions"].to_string().contains("FlannelIsUp"));
    eventually(TIMEOUT, || cluster.node("n2")["status"]["conditions"].to_string().contains("FlannelIsUp"));
    assert_eq!(cluster.node("n1")["metadata"]["annotations"][format!("{PREFIX}public-ip")], "10.77.0.11");
    assert_eq!(cluster.patches(), 4, "annotations and the condition, once for each node");

    // The API server is killed, and what it knew of past events is forgotten.
    let hub = NetNs::open_named(cluster.lab.fabric.hub()).unwrap();
    hub.with(|| cluster.server.forget_history()).unwrap();
    assert!(from.pings(&["-W", "1", &address]), "pods do not need the API server");
    let data = r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:03"}"#;
    let peer = json!({ format!("{PREFIX}kube-subnet-manager"): "true", format!("{PREFIX}backend-type"): "vxlan",
        format!("{PREFIX}backend-data"): data, format!("{PREFIX}public-ip"): "10.77.0.13" });
    cluster.create(&node("n3", "10.244.3.0/24", peer));
    one.routes_to("10.244.3.0-24");
    eventually(TIMEOUT, || one.fdb().contains("0a:00:00:00:00:03 dst 10.77.0.13"));
    assert_eq!(cluster.patches(), 0, "nothing is patched again");

    two.stop();
    cluster.delete("n2");
    eventually(TIMEOUT, || {
        !one.ip(&["route"]).contains("10.244.2.0/24") && !one.fdb().contains("10.77.0.12")
    });
}
