//! Reads and patches.

use russet_kube::testing::Server;
use russet_kube::{Condition, KubeError, Kubernetes, StatusPatch, absent_is_none};
use serde_json::json;

use crate::{client, node, pod};

const POD_IP: &str = "cni.projectcalico.org/podIP";
const POD_IPS: &str = "cni.projectcalico.org/podIPs";

#[tokio::test]
async fn nodes_namespaces_and_pods_are_read() {
    let server = Server::start();
    server.put(node("n1", "10.1.0.0/24"));
    server.put(pod("web-0"));
    let annotations = json!({ "cni.projectcalico.org/ipv4pools": "[\"pool-a\"]" });
    server.put(json!({ "kind": "Namespace", "metadata": { "name": "shop", "annotations": annotations } }));
    let client = client(&server);
    assert_eq!(client.node("n1").await.unwrap().pod_cidrs(), ["10.1.0.0/24"]);
    let namespace = client.namespace("shop").await.unwrap();
    assert_eq!(namespace.metadata.annotations["cni.projectcalico.org/ipv4pools"], "[\"pool-a\"]");
    let pod = client.pod("shop", "web-0").await.unwrap();
    assert_eq!((pod.spec.node_name.as_str(), pod.metadata.labels["app"].as_str()), ("n1", "web"));
    assert_eq!(server.connections(), 1, "one connection serves all");
}

#[tokio::test]
async fn a_missing_object_is_not_found() {
    let server = Server::start();
    let client = client(&server);
    let error = client.pod("shop", "web-0").await.unwrap_err();
    assert!(matches!(error, KubeError::NotFound(_)), "{error}");
    assert_eq!(error.to_string(), "get pod shop/web-0: pods \"web-0\" not found");
    assert!(absent_is_none(client.namespace("shop").await).unwrap().is_none());
    let patch = StatusPatch::of_annotations([(POD_IP, "10.1.0.1/32")]);
    assert!(matches!(client.patch_pod_status("shop", "web-0", &patch).await, Err(KubeError::NotFound(_))));
}

/// calico-cni.md section 2.2.4
#[tokio::test]
async fn a_pods_addresses_are_written_at_add_and_emptied_at_del() {
    let server = Server::start();
    server.put(pod("web-0"));
    let client = client(&server);
    let before = client.pod("shop", "web-0").await.unwrap();
    let patch = StatusPatch::of_annotations([(POD_IP, "10.1.0.1/32"), (POD_IPS, "10.1.0.1/32,fd00::1/128")])
        .with_uid(&before.metadata.uid);
    let after = client.patch_pod_status("shop", "web-0", &patch).await.unwrap();
    assert_eq!(after.metadata.annotations[POD_IPS], "10.1.0.1/32,fd00::1/128");
    assert_ne!(after.metadata.resource_version, before.metadata.resource_version);
    assert_eq!(after.metadata.labels, before.metadata.labels);
    let seen = server.seen().pop().unwrap();
    assert_eq!(
        (seen.method.as_str(), seen.path.as_str()),
        ("PATCH", "/api/v1/namespaces/shop/pods/web-0/status")
    );
    assert_eq!(seen.content_type, "application/strategic-merge-patch+json");

    let emptied = StatusPatch::of_annotations([(POD_IP, ""), (POD_IPS, "")])
        .with_uid(&after.metadata.uid)
        .with_resource_version(&after.metadata.resource_version);
    client.patch_pod_status("shop", "web-0", &emptied).await.unwrap();
    assert_eq!(server.annotation("Pod", "shop", "web-0", POD_IP).as_deref(), Some(""));
}

#[tokio::test]
async fn a_patch_of_an_old_revision_conflicts_and_changes_nothing() {
    let server = Server::start();
    server.put(pod("web-0"));
    let client = client(&server);
    let patch = StatusPatch::of_annotations([(POD_IP, "10.1.0.1/32")]).with_resource_version("1");
    client.patch_pod_status("shop", "web-0", &patch).await.unwrap();
    let late = StatusPatch::of_annotations([(POD_IP, "10.1.0.2/32")]).with_resource_version("1");
    let error = client.patch_pod_status("shop", "web-0", &late).await.unwrap_err();
    assert!(matches!(error, KubeError::Conflict(_)), "{error}");
    assert_eq!(server.annotation("Pod", "shop", "web-0", POD_IP).as_deref(), Some("10.1.0.1/32"));
}

/// A StatefulSet's pod is deleted and recreated under its name while its DEL is still running
/// (cni-plugin#310).
#[tokio::test]
async fn a_patch_for_another_pod_of_the_name_is_refused_as_replaced() {
    let server = Server::start();
    server.put(pod("web-0"));
    let client = client(&server);
    let old = client.pod("shop", "web-0").await.unwrap();
    server.delete("Pod", "shop", "web-0");
    server.put(pod("web-0"));
    let patch = StatusPatch::of_annotations([(POD_IP, "")]).with_uid(&old.metadata.uid);
    let error = client.patch_pod_status("shop", "web-0", &patch).await.unwrap_err();
    assert!(matches!(error, KubeError::Replaced(_)) && error.is_absent(), "{error}");
    assert_eq!(server.annotation("Pod", "shop", "web-0", POD_IP), None);
}

/// flannel.md section 5.2, steps 5 and 6
#[tokio::test]
async fn flannels_annotations_arrive_byte_for_byte_and_its_condition_is_merged() {
    let server = Server::start();
    server.put(node("n1", "10.1.0.0/24"));
    let client = client(&server);
    let data = r#"{"VNI":1,"VtepMAC":"32:fc:b5:dc:f0:38"}"#;
    let key = "flannel.alpha.coreos.com/backend-data";
    client.patch_node_status("n1", &StatusPatch::of_annotations([(key, data)])).await.unwrap();
    assert_eq!(server.annotation("Node", "", "n1", key).as_deref(), Some(data));
    assert_eq!(server.seen()[0].path, "/api/v1/nodes/n1/status");

    let condition = Condition {
        kind: "NetworkUnavailable".to_owned(),
        status: "False".to_owned(),
        reason: "FlannelIsUp".to_owned(),
        message: "Flannel is running on this node".to_owned(),
        last_heartbeat_time: Some("2026-01-02T03:04:05Z".to_owned()),
        last_transition_time: Some("2026-01-02T03:04:05Z".to_owned()),
    };
    let patched =
        client.patch_node_status("n1", &StatusPatch::of_condition(condition.clone())).await.unwrap();
    let kinds: Vec<&str> =
        patched.status.conditions.iter().map(|condition| condition.kind.as_str()).collect();
    assert_eq!(kinds, ["Ready", "NetworkUnavailable"]);
    assert_eq!(patched.status.conditions[1], condition);
    assert_eq!(patched.pod_cidrs(), ["10.1.0.0/24"]);
}

#[tokio::test]
async fn a_patch_without_effect_makes_no_new_revision() {
    let server = Server::start();
    server.put(node("n1", "10.1.0.0/24"));
    let client = client(&server);
    let patch = StatusPatch::of_annotations([("a", "b")]);
    let once = client.patch_node_status("n1", &patch).await.unwrap();
    assert_eq!(client.patch_node_status("n1", &patch).await.unwrap(), once);
    assert_eq!(client.patch_node_status("n1", &StatusPatch::default()).await.unwrap(), once);
    let removed = StatusPatch { annotations: [("a".to_owned(), None)].into(), ..StatusPatch::default() };
    assert!(client.patch_node_status("n1", &removed).await.unwrap().metadata.annotations.is_empty());
}

#[tokio::test]
async fn concurrent_calls_get_their_own_answers() {
    let server = Server::start();
    for number in 0..40 {
        server.put(pod(&format!("web-{number}")));
    }
    let client = client(&server);
    let names: Vec<String> = (0..40).map(|number| format!("web-{number}")).collect();
    let tasks = tokio::task::LocalSet::new();
    let read = tasks.run_until(async {
        let asked = names.iter().cloned().map(|name| {
            let client = client.clone();
            tokio::task::spawn_local(async move { client.pod("shop", &name).await.unwrap().metadata.name })
        });
        let mut read = Vec::new();
        for task in asked.collect::<Vec<_>>() {
            read.push(task.await.unwrap());
        }
        read
    });
    assert_eq!(read.await, names);
    let opened = server.connections();
    for name in &names {
        client.pod("shop", name).await.unwrap();
    }
    assert_eq!(server.connections(), opened, "kept connections are used again");
}
