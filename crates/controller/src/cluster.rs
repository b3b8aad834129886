//! What the controller reads from the API server: always the newest state, never the server's cache,
//! because it decides by what is absent (kubernetes.md section 4.2, item 7).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use russet_addr::BlockCidr;
use russet_kube::{
    Client, Failure, HEARTBEAT_NAMESPACE, Heartbeat, KubeError, Kubernetes as _, Lease, ListQuery, Pod,
    Request, Verb, absent_is_none, heartbeat_node,
};
use russet_model::{Block, ClusterInformation, Key, KeyKind, Prefix};
use russet_store::{Store, StoreError};
use serde::Deserialize as _;
use serde_json::Value;

use crate::gone::{Found, Sign};
use crate::verdict::{Allocation, PodName, Pods, allocations};

/// Limit of a request for one object.
const DEADLINE: Duration = Duration::from_secs(5);
/// Annotations of nodes with Calico's data.
const CALICO_PREFIX: &str = "projectcalico.org/";
/// Where Calico's controllers run: its manifest's namespace, and its operator's.
const CALICO_NAMESPACES: [&str; 2] = ["kube-system", "calico-system"];
const CALICO_CONTROLLERS: &str = "calico-kube-controllers";
/// The variable that names which of them run, and the one that frees addresses.
const ENABLED: &str = "ENABLED_CONTROLLERS";
const NODE_CONTROLLER: &str = "node";

/// The API server cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Kube(#[from] KubeError),
    #[error("{what}: {source}")]
    Store { what: String, source: StoreError },
}

/// The records of the allocator.
#[derive(Debug, Default)]
pub struct Books {
    pub allocations: Vec<Allocation>,
    /// The blocks to which each node has an affinity, or which serve it.
    pub blocks: BTreeMap<String, BTreeSet<BlockCidr>>,
    /// Blocks that cannot be read, and may hold anything.
    pub unread: BTreeSet<BlockCidr>,
}

/// The API server.
pub struct Cluster {
    pub client: Client,
    pub store: Rc<dyn Store>,
}

// === impl Books ===

impl Books {
    /// The nodes that they name.
    pub fn nodes(&self) -> BTreeSet<String> {
        let named = self.allocations.iter().filter_map(|allocation| allocation.node.clone());
        self.blocks.keys().cloned().chain(named).collect()
    }

    /// The allocations of a node.
    pub fn of<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Allocation> {
        self.allocations.iter().filter(move |allocation| allocation.node.as_deref() == Some(node))
    }
}

// === impl Cluster ===

impl Cluster {
    /// The records, and then the nodes and their agents: a node that came in between has an object
    /// by then.
    pub async fn look(&self, met: BTreeSet<String>) -> Result<(Books, Found), ReadError> {
        let books = self.books().await?;
        let ((existing, addresses), signs) = (self.nodes().await?, self.signs().await?);
        let named = books.nodes().into_iter().chain(signs.keys().cloned()).collect();
        let found = Found { named, existing, met, signs, addresses };
        Ok((books, found))
    }

    async fn books(&self) -> Result<Books, ReadError> {
        let mut books = Books::default();
        self.scan(&Prefix::all_affinities(), |key, _| {
            if let KeyKind::Affinity { node, block } = key.kind() {
                books.blocks.entry(node.to_string()).or_default().insert(block);
            }
        })
        .await?;
        self.scan(&Prefix::blocks(None), |key, value| match Block::decode_repaired(value) {
            Ok((block, _)) => {
                books.allocations.extend(allocations(&block));
                if let Some(node) = block.node() {
                    books.blocks.entry(node.to_string()).or_default().insert(block.cidr);
                }
            }
            // None of its addresses is freed.
            Err(error) => {
                russet_store::refused("a block that cannot be read is passed over", key, &error);
                if let KeyKind::Block(cidr) = key.kind() {
                    books.unread.insert(cidr);
                }
            }
        })
        .await?;
        Ok(books)
    }

    /// All records under a prefix.
    pub async fn scan(&self, prefix: &Prefix, mut take: impl FnMut(&Key, &[u8])) -> Result<(), ReadError> {
        let mut each = |record: russet_store::Record| take(&record.key, &record.value);
        let scanned = self.store.scan(prefix, &mut each).await;
        scanned.map(drop).map_err(|source| ReadError::Store { what: format!("list {prefix}"), source })
    }

    /// The names of all nodes, and the addresses in their annotations of Calico's (kubernetes.md section 1.7).
    async fn nodes(&self) -> Result<(BTreeSet<String>, BTreeSet<IpAddr>), ReadError> {
        let query = ListQuery { operation: "list nodes", segments: &["api", "v1", "nodes"], labels: None };
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        let take = |node: Value| {
            names.extend(text(&node, "/metadata/name").map(str::to_owned));
            let annotations = node.pointer("/metadata/annotations").and_then(Value::as_object);
            let ours = annotations.into_iter().flatten().filter(|(name, _)| name.starts_with(CALICO_PREFIX));
            let values =
                ours.filter_map(|(_, value)| value.as_str()?.split('/').next()?.parse::<IpAddr>().ok());
            addresses.extend(values);
        };
        self.client.list(&query, take).await.map_err(error)?;
        Ok((names, addresses))
    }

    async fn signs(&self) -> Result<BTreeMap<String, Sign>, ReadError> {
        let segments = ["apis", "coordination.k8s.io", "v1", "namespaces", HEARTBEAT_NAMESPACE, "leases"];
        let query = ListQuery {
            operation: "list agents' leases",
            segments: &segments,
            labels: Some(Heartbeat::SELECTOR),
        };
        let mut signs = BTreeMap::new();
        let take = |object: Value| {
            let lease = Lease::of_object(object);
            if let Some(node) = heartbeat_node(&lease) {
                signs.insert(node.to_owned(), Sign::of(&lease));
            }
        };
        self.client.list(&query, take).await.map_err(error)?;
        Ok(signs)
    }

    /// All pods, page by page: only names, nodes and addresses are kept.
    pub async fn pods(&self, of_nodes: BTreeSet<IpAddr>) -> Result<Pods, ReadError> {
        let query = ListQuery { operation: "list pods", segments: &["api", "v1", "pods"], labels: None };
        let (mut pods, mut failed) = (Pods::beside(of_nodes), None);
        let take = |object: Value| match Pod::deserialize(&object) {
            Ok(pod) => pods.add(&pod),
            // It may have any address.
            Err(error) => _ = failed.get_or_insert(error),
        };
        self.client.list(&query, take).await.map_err(error)?;
        match failed {
            None => Ok(pods),
            Some(cause) => {
                let message = format!("a pod that cannot be read: {cause}");
                Err(error(Failure::nonsense("list pods", message)))
            }
        }
    }

    /// The node's agent is silent since `sign`, and the node has no object, now.
    pub async fn is_still_gone(&self, node: &str, sign: Option<&Sign>) -> Result<bool, ReadError> {
        if absent_is_none(self.client.node(node).await)?.is_some() {
            return Ok(false);
        }
        let lease = self.agents_lease(node).await?;
        Ok(lease.as_ref().map(Sign::of).as_ref() == sign)
    }

    pub async fn agents_lease(&self, node: &str) -> Result<Option<Lease>, ReadError> {
        Ok(self.client.lease(HEARTBEAT_NAMESPACE, &Heartbeat::name_of(node), DEADLINE).await?)
    }

    /// Adds what the API server has of a pod now.
    pub async fn add_pod(&self, name: &PodName, pods: &mut Pods) -> Result<(), ReadError> {
        if let Some(pod) = absent_is_none(self.client.pod(&name.namespace, &name.name).await)? {
            pods.add(&pod);
        }
        Ok(())
    }

    /// Why nothing may be freed, although it would be garbage: the datastore is locked, or Calico's
    /// controllers free addresses (kubernetes.md section 3.2, G11).
    pub async fn reports_only(&self) -> Result<Option<String>, ReadError> {
        let key = Key::cluster_information();
        let record = self.store.get(&key).await;
        let record = record.map_err(|source| ReadError::Store { what: format!("read {key}"), source })?;
        let information = record.and_then(|record| ClusterInformation::decode(&record.value).ok());
        if information.is_some_and(|information| information.spec.datastore_ready == Some(false)) {
            return Ok(Some("the datastore is locked (datastoreReady is false)".to_owned()));
        }
        for namespace in CALICO_NAMESPACES {
            if let Some(reason) = self.calicos_controllers(namespace).await? {
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }

    async fn calicos_controllers(&self, namespace: &str) -> Result<Option<String>, ReadError> {
        let path = ["apis", "apps", "v1", "namespaces", namespace, "deployments", CALICO_CONTROLLERS];
        let named = format!("deployment {namespace}/{CALICO_CONTROLLERS}");
        let request = Request {
            operation: format!("get {named}"),
            verb: Verb::Read,
            segments: path.map(str::to_owned).to_vec(),
            query: Vec::new(),
            body: Vec::new(),
            deadline: DEADLINE,
            limit_bytes: 1 << 20,
        };
        match self.client.request(&request).await.map_err(|failure| failure.error) {
            Ok(answer) => {
                let deployment: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                let frees = frees_addresses(&deployment);
                Ok(frees.then(|| format!("{named} frees addresses: its controller `{NODE_CONTROLLER}` runs")))
            }
            Err(KubeError::NotFound(_)) => Ok(None),
            // Without the right to see it, it may run.
            Err(error @ KubeError::Forbidden(_)) => Ok(Some(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether this deployment of Calico's controllers frees addresses: it does unless it is scaled to
/// none, or its list of controllers leaves out that one.
fn frees_addresses(deployment: &Value) -> bool {
    let replicas = deployment.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
    let containers = deployment.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    let variables = containers.into_iter().flatten().filter_map(|it| it.get("env")?.as_array()).flatten();
    let mut enabled = variables.filter(|it| text(it, "/name") == Some(ENABLED));
    let list = enabled.next().and_then(|variable| text(variable, "/value"));
    replicas > 0 && list.is_none_or(|list| list.split(',').any(|name| name.trim() == NODE_CONTROLLER))
}

fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer).and_then(Value::as_str)
}

fn error(failure: Failure) -> ReadError {
    failure.error.into()
}

// === impl Sign ===

impl Sign {
    fn of(lease: &Lease) -> Self {
        Self { revision: lease.revision().to_owned(), duration: lease.duration() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn calicos_controllers_free_addresses_unless_they_are_told_not_to() {
        // kubernetes.md K86
        let with = |replicas: u64, env: Value| json!({ "spec": { "replicas": replicas, "template": { "spec": { "containers": [{ "env": env }] } } } });
        let list = |value: &str| json!([{ "name": ENABLED, "value": value }]);
        assert!(frees_addresses(&with(1, json!([]))));
        assert!(frees_addresses(&with(1, list("policy, node"))));
        assert!(!frees_addresses(&with(1, list("policy,namespace"))));
        assert!(!frees_addresses(&with(0, list("node"))));
    }
}
