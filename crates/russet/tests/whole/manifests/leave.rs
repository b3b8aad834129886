//! `russet uninstall` with the rights of russet-uninstall.yaml.

use std::path::Path;
use std::process::Command;

use russet_testkit::kubernetes::Release;
use serde_json::{Value, json};

use super::{Cluster, NAMESPACE, packaging};
use crate::node::Answer;

const NODE: &str = "/api/v1/nodes/a";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// A node with everything that an agent and users leave on its object.
fn marked_node(cluster: &Cluster) {
    let annotations =
        json!({ "russet.dev/ready": "1", "projectcalico.org/IPv4Address": "10.0.0.1/24", "other": "x" });
    let taints = json!([{ "key": "gpu", "effect": "NoSchedule" }, { "key": "russet.dev/agent-not-ready", "effect": "NoSchedule" }]);
    let conditions = json!([{ "type": "Ready", "status": "True" },
        { "type": "NetworkUnavailable", "status": "True", "reason": "RussetIsDown" }]);
    for (path, patch) in [
        (
            NODE.to_owned(),
            json!({ "metadata": { "annotations": annotations }, "spec": { "taints": taints } }),
        ),
        (format!("{NODE}/status"), json!({ "status": { "conditions": conditions } })),
    ] {
        let (code, answer) = cluster.server.request("PATCH", &path, &patch);
        assert_eq!(code, 200, "{answer}");
    }
    let lease = json!({ "metadata": { "name": "russet-a" }, "spec": {} });
    assert_eq!(cluster.server.request("POST", LEASES, &lease).0, 201);
}

fn uninstall(root: &Path) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.args(["uninstall", "--files-only", "--force", "--purge", "--node-name=a", "--root"]).arg(root);
    command.arg("--kubernetes").arg(root.join("kubeconfig"));
    command.output().unwrap().into()
}

/// kubernetes.md K96.
#[test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, kubectl, curl, openssl"]
fn a_nodes_object_is_left_clean_also_if_the_api_server_was_away() {
    let mut cluster = Cluster::with_russet(Release::Newest, &["a"]);
    cluster.kubectl(&["apply", "-f", &packaging("russet-uninstall.yaml")]);
    marked_node(&cluster);
    let root = tempfile::tempdir().unwrap();
    let conflist = root.path().join("etc/cni/net.d/10-russet.conflist");
    std::fs::create_dir_all(conflist.parent().unwrap()).unwrap();
    std::fs::write(&conflist, "{}").unwrap();
    let token = cluster.server.pod_token(NAMESPACE, "russet-uninstall", "a");
    std::fs::write(root.path().join("kubeconfig"), cluster.server.kubeconfig(&token)).unwrap();

    cluster.server.kill();
    let interrupted = uninstall(root.path());
    assert_eq!(interrupted.status, 1, "{interrupted:?}");
    assert!(!conflist.exists(), "no pod starts from now on");
    cluster.server.start();
    let completed = uninstall(root.path());
    assert_eq!(completed.status, 0, "{completed:?}");

    let node = cluster.server.object(NODE).unwrap();
    assert_eq!(node["metadata"]["annotations"], json!({ "other": "x" }));
    let keys = |list: &Value, key: &str| -> Vec<Value> {
        list.as_array().unwrap().iter().map(|it| it[key].clone()).collect()
    };
    assert!(!keys(&node["spec"]["taints"], "key").contains(&json!("russet.dev/agent-not-ready")));
    assert!(keys(&node["spec"]["taints"], "key").contains(&json!("gpu")));
    assert_eq!(keys(&node["status"]["conditions"], "type"), [json!("Ready")]);
    assert_eq!(cluster.server.object(&format!("{LEASES}/russet-a")), None);
    let again = uninstall(root.path());
    assert_eq!(again.status, 0, "{again:?}");
}
