//! The manifest that the demo applies: packaging/kubernetes/russet.yaml, as operators apply it, and the objects of the demo itself.

use russet_kube::yaml;
use serde_json::{Value, json};

use super::api::Api;
use crate::demo::DemoError;
use crate::demo::lab::{Node, POD_NAMESPACE};

/// The manifest of the build.
const MANIFEST: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/kubernetes/russet.yaml"));
/// The label by which a Deployment finds its pods.
const APP: &str = "demo";

/// What the manifest contains, in its order.
pub fn objects() -> Result<Vec<Value>, DemoError> {
    let documents = yaml::documents(MANIFEST.as_bytes());
    let documents = documents.map_err(|error| DemoError::step("read the manifest", error))?;
    Ok(documents.into_iter().map(|document| document.value).collect())
}

/// Applies objects to a cluster that has none of them; returns how many there are.
pub fn apply(api: &Api, objects: &[Value]) -> Result<usize, DemoError> {
    for object in objects {
        api.create(&collection(object), object)?;
    }
    Ok(objects.len())
}

/// A file of the manifest's ConfigMap.
pub fn config_file<'a>(objects: &'a [Value], name: &str) -> Option<&'a str> {
    let config = objects.iter().find(|object| object["kind"] == "ConfigMap")?;
    config["data"][name].as_str()
}

/// Where objects of a kind are.
fn collection(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&object["kind"]).to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    };
    let version = text(&object["apiVersion"]);
    let group = if version.contains('/') { format!("apis/{version}") } else { format!("api/{version}") };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{group}/namespaces/{namespace}/{plural}"),
        None => format!("{group}/{plural}"),
    }
}

/// A Node as its kubelet registers it: without a network it is not ready, and takes no pods.
pub fn node(node: &Node) -> Value {
    let addresses: Vec<Value> = node
        .underlay()
        .iter()
        .take(1)
        .map(|net| json!({ "type": "InternalIP", "address": net.addr() }))
        .collect();
    let capacity = json!({ "cpu": "8", "memory": "16Gi", "pods": "110" });
    json!({ "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": node.name, "labels": { "kubernetes.io/os": "linux", "kubernetes.io/hostname": node.name } },
        "spec": { "taints": [{ "key": russet_controller::TAINT, "effect": "NoSchedule" }] },
        "status": { "addresses": addresses, "capacity": capacity, "allocatable": capacity, "conditions": [ready(false)] } })
}

/// The condition of a node as its kubelet reports it.
pub fn ready(is_ready: bool) -> Value {
    match is_ready {
        true => {
            json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the demo posts ready status" })
        }
        false => json!({ "type": "Ready", "status": "False", "reason": "KubeletNotReady",
            "message": "container runtime network not ready: cni config uninitialized" }),
    }
}

/// The pods that the demo shows, in a namespace of their own: the same number on each node.
pub fn deployment(replicas: usize) -> [Value; 2] {
    let labels = json!({ "app": APP });
    let spread = json!({ "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor",
        "labelSelector": { "matchLabels": labels } });
    let spec = json!({ "automountServiceAccountToken": false, "topologySpreadConstraints": [spread],
        "containers": [{ "name": APP, "image": "localhost/demo:1" }] });
    [
        json!({ "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": POD_NAMESPACE } }),
        json!({ "kind": "Deployment", "apiVersion": "apps/v1", "metadata": { "name": APP, "namespace": POD_NAMESPACE },
            "spec": { "replicas": replicas, "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": spec } } }),
    ]
}

/// The path of the Deployment.
pub fn deployment_path() -> String {
    format!("apis/apps/v1/namespaces/{POD_NAMESPACE}/deployments/{APP}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_has_what_the_demo_needs_of_it() {
        let objects = objects().unwrap();
        let settings = config_file(&objects, "russet.toml").unwrap();
        assert!(settings.contains("ipv4_pool"), "{settings}");
        let workload = |kind: &str, name: &str| {
            objects.iter().any(|object| object["kind"] == kind && object["metadata"]["name"] == name)
        };
        assert!(workload("DaemonSet", "russet-agent") && workload("Deployment", "russet-controller"));
        let paths: Vec<String> = objects.iter().map(collection).collect();
        for path in [
            "apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            "apis/apps/v1/namespaces/russet-system/daemonsets",
            "api/v1/namespaces",
        ] {
            assert!(paths.iter().any(|found| found == path), "{path} is not in {paths:?}");
        }
    }
}
