//! Removes Russet's marks from this node's object in the Kubernetes API (kubernetes.md section 5.6).

use std::path::PathBuf;

use russet_kube::{Answer, CALL_DEADLINE, Client, Failure, KubeError, Request, Source, Verb};
use serde_json::{Map, Value, json};

/// The node's object, and access to it.
#[derive(Debug, Clone)]
pub struct NodeObject {
    pub name: String,
    /// A kubeconfig; none: the service account of this pod.
    pub kubeconfig: Option<PathBuf>,
    /// Annotations of Calico's form go, too: Russet wrote them where Calico never was.
    pub purge: bool,
}

/// Why the object was not changed.
#[derive(Debug, thiserror::Error)]
pub enum NodeObjectError {
    #[error(transparent)]
    Config(#[from] russet_kube::ConfigError),
    #[error(transparent)]
    Kube(#[from] KubeError),
    #[error("read node {0}: the answer is no object: {1}")]
    Answer(String, #[source] serde_json::Error),
    #[error("start a runtime: {0}")]
    Runtime(#[from] std::io::Error),
    #[error("patch node {0}: other clients change it without pause")]
    Contended(String),
}

/// Other clients, such as its kubelet, change a node every few seconds.
const TRIES: usize = 10;
/// Far above any node: etcd stores at most 1.5 MiB.
const NODE_MAX_BYTES: usize = 4 << 20;
const OWN: &str = "russet.dev/";
const CALICOS: &str = "projectcalico.org/";
const TAINT: &str = "russet.dev/agent-not-ready";
/// The agent's sign of life.
const LEASES: &str = "kube-node-lease";

// === impl NodeObject ===

impl NodeObject {
    /// Removes condition, taint, annotations and the agent's lease. A node without an object has none of them.
    pub fn clean(&self) -> Result<(), NodeObjectError> {
        crate::command::runtime()?.block_on(async {
            let client = Client::new(match &self.kubeconfig {
                Some(path) => Source::kubeconfig(path),
                None => Source::in_cluster(),
            })?;
            for _ in 0..TRIES {
                let Some(node) = self.read(&client).await? else { return Ok(()) };
                match self.patch(&client, &node).await {
                    Err(NodeObjectError::Kube(KubeError::Conflict(_))) => {}
                    Err(error) => return Err(error),
                    Ok(()) => return self.delete_lease(&client).await,
                }
            }
            Err(NodeObjectError::Contended(self.name.clone()))
        })
    }

    async fn read(&self, client: &Client) -> Result<Option<Value>, NodeObjectError> {
        let read = self.request("get", Verb::Read, &["api", "v1", "nodes", &self.name], Vec::new());
        let Some(answer) = absent_is_none(client.request(&read).await)? else { return Ok(None) };
        let node = serde_json::from_slice(&answer.body);
        node.map(Some).map_err(|source| NodeObjectError::Answer(self.name.clone(), source))
    }

    /// The revision guards both patches: what they remove is what was read.
    async fn patch(&self, client: &Client, node: &Value) -> Result<(), NodeObjectError> {
        let mut node = node.clone();
        if let Some(status) = status_patch(&node) {
            let path = ["api", "v1", "nodes", &self.name, "status"];
            let body = status.to_string().into_bytes();
            let answer = client.request(&self.request("patch", Verb::StrategicMerge, &path, body)).await;
            let answer = answer.map_err(|failure| failure.error)?;
            node = serde_json::from_slice(&answer.body)
                .map_err(|source| NodeObjectError::Answer(self.name.clone(), source))?;
        }
        if let Some(patch) = object_patch(&node, self.purge) {
            let path = ["api", "v1", "nodes", &self.name];
            let body = patch.to_string().into_bytes();
            let answer = client.request(&self.request("patch", Verb::StrategicMerge, &path, body)).await;
            answer.map_err(|failure| failure.error)?;
        }
        Ok(())
    }

    async fn delete_lease(&self, client: &Client) -> Result<(), NodeObjectError> {
        let name = format!("russet-{}", self.name);
        let path = ["apis", "coordination.k8s.io", "v1", "namespaces", LEASES, "leases", &name];
        let delete = self.request("delete the lease of", Verb::Delete, &path, b"{}".to_vec());
        absent_is_none(client.request(&delete).await)?;
        Ok(())
    }

    fn request(&self, operation: &str, verb: Verb, segments: &[&str], body: Vec<u8>) -> Request {
        Request {
            operation: format!("{operation} node {}", self.name),
            verb,
            segments: segments.iter().map(ToString::to_string).collect(),
            query: Vec::new(),
            body,
            deadline: CALL_DEADLINE,
            limit_bytes: NODE_MAX_BYTES,
        }
    }
}

fn absent_is_none(answer: Result<Answer, Failure>) -> Result<Option<Answer>, KubeError> {
    russet_kube::absent_is_none(answer.map_err(|failure| failure.error))
}

/// Removes the condition if it is Russet's: while it is True, no pod is scheduled.
fn status_patch(node: &Value) -> Option<Value> {
    let conditions = node["status"]["conditions"].as_array()?;
    let is_ours = |it: &&Value| {
        it["type"] == "NetworkUnavailable" && it["reason"].as_str().is_some_and(|it| it.starts_with("Russet"))
    };
    conditions.iter().find(is_ours)?;
    let removed = json!([{ "$patch": "delete", "type": "NetworkUnavailable" }]);
    Some(
        json!({ "metadata": { "resourceVersion": node["metadata"]["resourceVersion"] }, "status": { "conditions": removed } }),
    )
}

/// Removes annotations, and the taint. Taints are replaced as a whole: they have no key to merge by.
fn object_patch(node: &Value, purge: bool) -> Option<Value> {
    let is_removed = |name: &&String| name.starts_with(OWN) || (purge && name.starts_with(CALICOS));
    let annotations = node["metadata"]["annotations"].as_object().into_iter().flat_map(Map::keys);
    let removed: Map<String, Value> =
        annotations.filter(is_removed).map(|name| (name.clone(), Value::Null)).collect();
    let taints = node["spec"]["taints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let kept: Vec<&Value> = taints.iter().filter(|taint| taint["key"] != TAINT).collect();
    if removed.is_empty() && kept.len() == taints.len() {
        return None;
    }
    let mut patch = json!({ "metadata": { "resourceVersion": node["metadata"]["resourceVersion"], "annotations": removed } });
    if kept.len() < taints.len() {
        patch["spec"] = json!({ "taints": kept });
    }
    Some(patch)
}

#[cfg(test)]
mod tests {
    use russet_kube::testing::Server;

    use super::*;

    fn node() -> Value {
        json!({ "kind": "Node",
            "metadata": { "name": "a", "annotations": { "russet.dev/ready": "1", "projectcalico.org/IPv4Address": "10.0.0.1/24", "other": "x" } },
            "spec": { "taints": [{ "key": "gpu", "effect": "NoSchedule" }, { "key": TAINT, "effect": "NoSchedule" }] },
            "status": { "conditions": [
                { "type": "Ready", "status": "True" },
                { "type": "NetworkUnavailable", "status": "False", "reason": "RussetIsUp" }] } })
    }

    /// kubernetes.md K94 and K96.
    #[test]
    fn only_russets_marks_go() {
        let patch = object_patch(&node(), false).unwrap();
        assert_eq!(patch["metadata"]["annotations"], json!({ "russet.dev/ready": null }));
        assert_eq!(patch["spec"]["taints"], json!([{ "key": "gpu", "effect": "NoSchedule" }]));
        let purged = object_patch(&node(), true).unwrap();
        assert_eq!(purged["metadata"]["annotations"].as_object().unwrap().len(), 2);
        assert!(status_patch(&node()).is_some());

        let mut foreign = node();
        foreign["status"]["conditions"][1]["reason"] = json!("CalicoIsUp");
        assert_eq!(status_patch(&foreign), None);
        foreign["metadata"]["annotations"] = json!({ "other": "x" });
        foreign["spec"]["taints"] = json!([{ "key": "gpu" }]);
        assert_eq!(object_patch(&foreign, true), None);
    }

    #[test]
    fn a_node_without_an_object_has_nothing_to_remove() {
        let server = Server::start();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        server.write_kubeconfig(&kubeconfig);
        let object = NodeObject { name: "a".to_owned(), kubeconfig: Some(kubeconfig), purge: false };
        object.clean().unwrap();
        let stopped = NodeObject { kubeconfig: Some(directory.path().join("absent")), ..object };
        assert!(stopped.clean().is_err());
    }
}
