//! Reads and patches of single objects, and credentials.

use std::time::Duration;

use russet_kube::{Client, Condition, KubeError, Kubernetes, Source, StatusPatch, absent_is_none};
use serde_json::json;

use super::{Subject, cases, client};
use crate::{LIMIT, node, pod, words};

const POD_IP: &str = "cni.projectcalico.org/podIP";
/// Often enough for a token that is accepted for seconds after its end, and no load for the server.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
const POD_IPS: &str = "cni.projectcalico.org/podIPs";

cases! {
    nodes_namespaces_and_pods_are_read
    a_missing_object_is_not_found
    a_pods_addresses_are_written_at_add_and_emptied_at_del
    a_patch_of_an_old_revision_conflicts_and_changes_nothing
    a_patch_for_another_pod_of_the_name_is_refused_as_replaced
    flannels_annotations_arrive_byte_for_byte_and_its_condition_is_merged
    a_patch_without_effect_makes_no_new_revision
    a_missing_permission_is_forbidden
    a_token_that_ends_is_unauthorized_and_a_rewritten_kubeconfig_is_reloaded
}

fn annotation(subject: &dyn Subject, kind: &str, namespace: &str, name: &str, key: &str) -> Option<String> {
    let object = subject.object(kind, namespace, name)?;
    object["metadata"]["annotations"][key].as_str().map(str::to_owned)
}

async fn nodes_namespaces_and_pods_are_read(subject: &dyn Subject) {
    let annotations = json!({ "cni.projectcalico.org/ipv4pools": "[\"pool-a\"]" });
    subject.create(&[node("n1", "10.1.0.0/24"), pod("web-0")]);
    subject
        .replace(&json!({ "kind": "Namespace", "metadata": { "name": "shop", "annotations": annotations } }));
    let client = client(subject);
    assert_eq!(client.node("n1").await.unwrap().pod_cidrs(), ["10.1.0.0/24"]);
    let namespace = client.namespace("shop").await.unwrap();
    assert_eq!(namespace.metadata.annotations["cni.projectcalico.org/ipv4pools"], "[\"pool-a\"]");
    let pod = client.pod("shop", "web-0").await.unwrap();
    assert_eq!((pod.spec.node_name.as_str(), pod.metadata.labels["app"].as_str()), ("n1", "web"));
}

async fn a_missing_object_is_not_found(subject: &dyn Subject) {
    let client = client(subject);
    let error = client.pod("shop", "web-0").await.unwrap_err();
    assert!(matches!(error, KubeError::NotFound(_)), "{error}");
    assert_eq!(error.to_string(), "get pod shop/web-0: pods \"web-0\" not found");
    assert!(absent_is_none(client.namespace("market").await).unwrap().is_none());
    assert!(absent_is_none(client.node("n1").await).unwrap().is_none());
    let patch = StatusPatch::of_annotations([(POD_IP, "10.1.0.1/32")]);
    assert!(matches!(client.patch_pod_status("shop", "web-0", &patch).await, Err(KubeError::NotFound(_))));
    assert!(matches!(client.patch_node_status("n1", &patch).await, Err(KubeError::NotFound(_))));
}

/// calico-cni.md section 2.2.4
async fn a_pods_addresses_are_written_at_add_and_emptied_at_del(subject: &dyn Subject) {
    subject.create(&[pod("web-0")]);
    let client = client(subject);
    let before = client.pod("shop", "web-0").await.unwrap();
    let patch = StatusPatch::of_annotations([(POD_IP, "10.1.0.1/32"), (POD_IPS, "10.1.0.1/32,fd00::1/128")])
        .with_uid(&before.metadata.uid);
    let after = client.patch_pod_status("shop", "web-0", &patch).await.unwrap();
    assert_eq!(after.metadata.annotations[POD_IPS], "10.1.0.1/32,fd00::1/128");
    assert_ne!(after.metadata.resource_version, before.metadata.resource_version);
    assert_eq!(after.metadata.labels, before.metadata.labels);

    let emptied = StatusPatch::of_annotations([(POD_IP, ""), (POD_IPS, "")])
        .with_uid(&after.metadata.uid)
        .with_resource_version(&after.metadata.resource_version);
    client.patch_pod_status("shop", "web-0", &emptied).await.unwrap();
    assert_eq!(annotation(subject, "Pod", "shop", "web-0", POD_IP).as_deref(), Some(""));
}

async fn a_patch_of_an_old_revision_conflicts_and_changes_nothing(subject: &dyn Subject) {
    subject.create(&[pod("web-0")]);
    let client = client(subject);
    let old = client.pod("shop", "web-0").await.unwrap().metadata.resource_version;
    let patch = StatusPatch::of_annotations([(POD_IP, "10.1.0.1/32")]).with_resource_version(&old);
    client.patch_pod_status("shop", "web-0", &patch).await.unwrap();
    let late = StatusPatch::of_annotations([(POD_IP, "10.1.0.2/32")]).with_resource_version(&old);
    let error = client.patch_pod_status("shop", "web-0", &late).await.unwrap_err();
    assert!(matches!(error, KubeError::Conflict(_)), "{error}");
    assert_eq!(annotation(subject, "Pod", "shop", "web-0", POD_IP).as_deref(), Some("10.1.0.1/32"));
}

/// A StatefulSet's pod is deleted and recreated under its name while its DEL is still running
/// (cni-plugin#310).
async fn a_patch_for_another_pod_of_the_name_is_refused_as_replaced(subject: &dyn Subject) {
    subject.create(&[pod("web-0")]);
    let client = client(subject);
    let old = client.pod("shop", "web-0").await.unwrap();
    subject.delete("Pod", "shop", "web-0");
    subject.create(&[pod("web-0")]);
    let patch = StatusPatch::of_annotations([(POD_IP, "")]).with_uid(&old.metadata.uid);
    let error = client.patch_pod_status("shop", "web-0", &patch).await.unwrap_err();
    assert!(matches!(error, KubeError::Replaced(_)) && error.is_absent(), "{error}");
    assert_eq!(annotation(subject, "Pod", "shop", "web-0", POD_IP), None);
}

/// flannel.md section 5.2, steps 5 and 6
async fn flannels_annotations_arrive_byte_for_byte_and_its_condition_is_merged(subject: &dyn Subject) {
    subject.create(&[node("n1", "10.1.0.0/24")]);
    let client = client(subject);
    let data = r#"{"VNI":1,"VtepMAC":"32:fc:b5:dc:f0:38"}"#;
    let key = "flannel.alpha.coreos.com/backend-data";
    client.patch_node_status("n1", &StatusPatch::of_annotations([(key, data)])).await.unwrap();
    assert_eq!(annotation(subject, "Node", "", "n1", key).as_deref(), Some(data));

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
    assert_eq!(kinds, ["NetworkUnavailable", "Ready"]);
    assert_eq!(patched.status.conditions[0], condition);
    assert_eq!(patched.pod_cidrs(), ["10.1.0.0/24"]);
}

async fn a_patch_without_effect_makes_no_new_revision(subject: &dyn Subject) {
    subject.create(&[node("n1", "10.1.0.0/24")]);
    let client = client(subject);
    let patch = StatusPatch::of_annotations([("a", "b")]);
    let once = client.patch_node_status("n1", &patch).await.unwrap();
    assert_eq!(client.patch_node_status("n1", &patch).await.unwrap(), once);
    assert_eq!(client.patch_node_status("n1", &StatusPatch::default()).await.unwrap(), once);
    let removed = StatusPatch { annotations: [("a".to_owned(), None)].into(), ..StatusPatch::default() };
    assert!(client.patch_node_status("n1", &removed).await.unwrap().metadata.annotations.is_empty());
}

async fn a_missing_permission_is_forbidden(subject: &dyn Subject) {
    subject.create(&[pod("web-0")]);
    let client = Client::new(subject.reader()).unwrap();
    client.pod("shop", "web-0").await.unwrap();
    let error = client.patch_pod_status("shop", "web-0", &StatusPatch::default()).await.unwrap_err();
    assert!(matches!(error, KubeError::Forbidden(_)), "{error}");
    let text = "cannot patch resource \"pods/status\" in API group \"\" in the namespace \"shop\"";
    assert!(words(&error).contains(text), "{error}");
}

/// calico-cni.md section 1.9: the installer rewrites the kubeconfig with a new token. A real server accepts a token for 10 seconds after its end.
async fn a_token_that_ends_is_unauthorized_and_a_rewritten_kubeconfig_is_reloaded(subject: &dyn Subject) {
    subject.create(&[pod("web-0")]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, subject.kubeconfig()).unwrap();
    let client = Client::new(Source::kubeconfig(&path)).unwrap();
    client.pod("shop", "web-0").await.unwrap();
    subject.renew_token();
    let ended = async {
        loop {
            match client.pod("shop", "web-0").await {
                Ok(_) => tokio::time::sleep(BETWEEN_LOOKS).await,
                Err(error) => return error,
            }
        }
    };
    let error = tokio::time::timeout(LIMIT * 3, ended).await.unwrap();
    assert!(matches!(error, KubeError::Unauthorized(_)), "{error}");
    std::fs::write(&path, subject.kubeconfig()).unwrap();
    client.pod("shop", "web-0").await.unwrap();
}
