//! Removes the taint with which nodes are registered, once a node's agent says that pods can start:
//! by its annotation, which has the agent's version and the machine's boot ID (kubernetes.md section
//! 5.3; K93, K94). Other taints are not touched.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use russet_kube::{Client, KubeError, Kubernetes as _, Node, NodeEvent, Request, Verb, absent_is_none};
use russet_sync::Backoff;
use serde_json::{Value, json};

use crate::fence::Fence;
use crate::metrics::Metrics;

/// The annotation by which an agent says that pods can start on its node.
pub const READY: &str = "russet.dev/ready";
/// The taint, unless another key is set.
pub const TAINT: &str = "russet.dev/agent-not-ready";
/// Pauses after a failure: an API server that is away for minutes delays the removal only
/// (kubernetes.md K93).
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_secs(5);

/// Follows nodes while this replica leads.
pub struct Taints {
    pub client: Client,
    pub key: String,
    pub fence: Fence,
    pub metrics: Metrics,
    /// Nodes that were seen with an object, for the collection of garbage.
    pub met: Rc<RefCell<BTreeSet<String>>>,
}

// === impl Taints ===

impl Taints {
    /// Never returns.
    pub async fn run(self) {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        let mut due: BTreeMap<String, Node> = BTreeMap::new();
        let mut watch = loop {
            match self.client.watch_nodes().await {
                Ok(watch) => break watch,
                Err(error) => self.pause(&mut backoff, &error).await,
            }
        };
        loop {
            if due.is_empty() {
                match watch.next().await {
                    Ok(event) => self.note(event, &mut due),
                    Err(error) => self.pause(&mut backoff, &error).await,
                }
                continue;
            }
            match self.remove_all(&mut due).await {
                Ok(()) => backoff.reset(),
                Err(error) => self.pause(&mut backoff, &error).await,
            }
        }
    }

    async fn pause(&self, backoff: &mut Backoff, error: &KubeError) {
        tracing::debug!(%error, "taints of nodes wait");
        tokio::time::sleep(backoff.pause()).await;
    }

    fn note(&self, event: NodeEvent, due: &mut BTreeMap<String, Node>) {
        let nodes = match event {
            NodeEvent::Snapshot(nodes) => nodes,
            NodeEvent::Changed(node) => vec![node],
            NodeEvent::Deleted(_) => Vec::new(),
        };
        for node in nodes {
            self.met.borrow_mut().insert(node.metadata.name.clone());
            if place(&node, &self.key).is_some() {
                due.insert(node.metadata.name.clone(), node);
            }
        }
    }

    async fn remove_all(&self, due: &mut BTreeMap<String, Node>) -> Result<(), KubeError> {
        while let Some((name, node)) = due.pop_first() {
            if let Err(error) = self.remove(&node).await {
                due.insert(name, node);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes the taint of one node, as it is now.
    async fn remove(&self, seen: &Node) -> Result<(), KubeError> {
        let name = &seen.metadata.name;
        let mut node = seen.clone();
        // A patch is refused if anything of the node changed since it was read.
        while let Some(patch) = patch(&node, &self.key) {
            if !self.fence.is_open() {
                let source = "this replica could not renew its lease".into();
                return Err(KubeError::Unavailable { operation: format!("patch node {name}"), source });
            }
            match self.send(name, &patch).await {
                Ok(()) => {
                    tracing::info!(node = %name, taint = %self.key, "the taint was removed: the agent is ready");
                    self.metrics.taints_removed.inc();
                    return Ok(());
                }
                Err(KubeError::Invalid(_) | KubeError::Conflict(_)) => {
                    match absent_is_none(self.client.node(name).await)? {
                        Some(now) if now.metadata.resource_version != node.metadata.resource_version => {
                            node = now
                        }
                        // It is gone; or the server refuses the patch for another reason.
                        _ => return Ok(()),
                    }
                }
                Err(error) if error.is_absent() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn send(&self, name: &str, patch: &Value) -> Result<(), KubeError> {
        let request = Request {
            operation: format!("patch node {name}"),
            verb: Verb::JsonPatch,
            segments: ["api", "v1", "nodes", name].map(str::to_owned).to_vec(),
            query: Vec::new(),
            body: patch.to_string().into_bytes(),
            deadline: DEADLINE,
            limit_bytes: 8 << 20,
        };
        self.client.request(&request).await.map(drop).map_err(|failure| failure.error)
    }
}

/// The taint's place in the list, if the agent is ready.
fn place(node: &Node, key: &str) -> Option<usize> {
    let is_ready = node.metadata.annotations.get(READY).is_some_and(|value| !value.is_empty());
    node.spec.taints.iter().position(|taint| taint.key == key).filter(|_| is_ready)
}

/// Removes one entry of the list, which is what it was when the node was read: the list has no other
/// guard (kubernetes.md section 4.6).
fn patch(node: &Node, key: &str) -> Option<Value> {
    let entry = format!("/spec/taints/{}", place(node, key)?);
    Some(json!([
        { "op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version },
        { "op": "test", "path": format!("{entry}/key"), "value": key },
        { "op": "remove", "path": entry },
    ]))
}
