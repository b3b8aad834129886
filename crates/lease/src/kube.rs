//! Subnets from Kubernetes: a node's subnets are its pod CIDRs, and nodes publish their attributes
//! in annotations (flannel.md section 5). Nothing is renewed and nothing ends: a lease exists as
//! long as its Node object.

mod annotations;
mod node;
mod watch;

use std::cell::Cell;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use russet_kube::{Condition, KubeError, Kubernetes, Node, NodeEvent, StatusPatch};
use russet_model::flannel::{Attributes, NetworkConfig, SubnetKey};
use russet_model::time::rfc3339;

pub use annotations::{AnnotationPrefix, DEFAULT_PREFIX, PrefixError, Stored};

use crate::{BoxFuture, Lease, LeaseError, LeaseWatch, Lost, SubnetManager, Wish};
use node::Wanted;
use watch::{KubeWatch, NoPeersWatch};

/// Where the DaemonSet mounts its ConfigMap.
pub const NET_CONF: &str = "/etc/kube-flannel/net-conf.json";
/// Limit of the network configuration: a ConfigMap has at most 1 MiB.
const NET_CONF_MAX_BYTES: u64 = 1 << 20;
/// Interval of attempts to publish that the network works, as in flannel.
const RETRY: Duration = Duration::from_secs(3);

/// How nodes are read and written.
#[derive(Debug, Clone)]
pub struct KubeSettings {
    /// `kube-annotation-prefix`.
    pub prefix: AnnotationPrefix,
    /// `net-config-path`.
    pub net_conf: PathBuf,
    /// `set-node-network-unavailable`.
    pub set_network_unavailable: bool,
}

/// Subnets from the API server.
pub struct KubeManager {
    api: Rc<dyn Kubernetes>,
    node: String,
    settings: KubeSettings,
    wanted: Cell<Wanted>,
}

/// The name of this process's node: `NODE_NAME`, or the node of the pod `POD_NAMESPACE`/`POD_NAME`
/// (flannel.md section 5.2, step 1). `variable` reads the environment.
pub async fn node_name(
    api: &dyn Kubernetes,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<String, LeaseError> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(name) = set("NODE_NAME") {
        return Ok(name);
    }
    let (Some(namespace), Some(pod)) = (set("POD_NAMESPACE"), set("POD_NAME")) else {
        let reason = "neither NODE_NAME nor POD_NAMESPACE and POD_NAME are set".to_owned();
        return Err(LeaseError::Refused { operation: "find out this node's name".to_owned(), reason });
    };
    let operation = format!("find out where pod {namespace}/{pod} runs");
    let found = api.pod(&namespace, &pod).await.map_err(failed(&operation))?;
    match found.spec.node_name {
        name if name.is_empty() => {
            Err(LeaseError::Refused { operation, reason: "its spec has no nodeName".to_owned() })
        }
        name => Ok(name),
    }
}

/// Classifies errors: an unreachable or overloaded server, an expired token and a missing node may
/// be resolved by themselves. Missing permissions need an operator.
fn failed(operation: &str) -> impl FnOnce(KubeError) -> LeaseError {
    let operation = operation.to_owned();
    move |error| match error {
        KubeError::Forbidden(_) | KubeError::Invalid(_) => {
            LeaseError::Refused { operation, reason: error.to_string() }
        }
        error => LeaseError::Unavailable { operation, source: error.into() },
    }
}

// === impl KubeSettings ===

impl Default for KubeSettings {
    fn default() -> Self {
        Self { prefix: AnnotationPrefix::default(), net_conf: NET_CONF.into(), set_network_unavailable: true }
    }
}

// === impl KubeManager ===

impl KubeManager {
    /// Creates a manager for the node with this name.
    pub fn new(api: Rc<dyn Kubernetes>, node: impl Into<String>, settings: KubeSettings) -> Self {
        let wanted = Cell::new(Wanted { v4: true, v6: false, alone: false });
        Self { api, node: node.into(), settings, wanted }
    }

    /// The attributes in the node's annotations that a daemon needs before it chooses addresses and
    /// creates devices.
    pub async fn stored(&self) -> Result<Stored, LeaseError> {
        let node = self.own_node().await?;
        Ok(self.settings.prefix.stored(&node.metadata.annotations))
    }

    /// Reads the node's object. Manifests of older releases permit to list and watch nodes, but not
    /// to get one.
    async fn own_node(&self) -> Result<Node, LeaseError> {
        let operation = format!("get node {}", self.node);
        match self.api.node(&self.node).await {
            Err(KubeError::Forbidden(said)) => {
                tracing::debug!(error = %said, "nodes are listed instead");
                let mut watch = self.api.watch_nodes().await.map_err(failed(&operation))?;
                let nodes = match watch.next().await.map_err(failed(&operation))? {
                    NodeEvent::Snapshot(nodes) => nodes,
                    _ => Vec::new(),
                };
                let own = nodes.into_iter().find(|node| node.metadata.name == self.node);
                let source = "it is not among the nodes".into();
                own.ok_or(LeaseError::Unavailable { operation, source })
            }
            answer => answer.map_err(failed(&operation)),
        }
    }

    fn read_network(&self) -> Result<NetworkConfig, LeaseError> {
        let path = &self.settings.net_conf;
        let refused = |reason: String| {
            let operation = format!("read network config {}", path.display());
            LeaseError::Refused { operation, reason }
        };
        let mut bytes = Vec::new();
        // One byte more than the limit detects a longer file.
        let read =
            File::open(path).and_then(|file| file.take(NET_CONF_MAX_BYTES + 1).read_to_end(&mut bytes));
        if read.map_err(|error| refused(error.to_string()))? as u64 > NET_CONF_MAX_BYTES {
            return Err(refused(format!("it is longer than {NET_CONF_MAX_BYTES} bytes")));
        }
        let config = NetworkConfig::parse(&bytes).map_err(|error| refused(error.to_string()))?;
        self.wanted.set(Wanted::of(&config));
        Ok(config)
    }

    async fn take(&self, config: &NetworkConfig, wish: &Wish) -> Result<Lease, LeaseError> {
        let wanted = Wanted::of(config);
        self.wanted.set(wanted);
        let node = self.own_node().await?;
        let operation = || format!("take the subnet of node {}", self.node);
        let refused = |reason| LeaseError::Refused { operation: operation(), reason };
        let key = node::subnets(&node, wanted).map_err(refused)?;
        node::within(&key, config).map_err(refused)?;
        if (wanted.v4, wanted.v6) != (key.v4.is_some(), key.v6.is_some()) {
            tracing::warn!(node = self.node, subnets = %key, "the node has no pod CIDR of one of the families that are on");
        }
        self.write(&node, &wish.attributes).await?;
        Ok(Lease { key, attributes: wish.attributes.clone().into(), expires: None })
    }

    /// Patches the annotations that differ.
    async fn write(&self, node: &Node, attributes: &Attributes) -> Result<(), LeaseError> {
        let changes = self.settings.prefix.changes(attributes, &node.metadata.annotations);
        if changes.is_empty() {
            return Ok(());
        }
        tracing::info!(
            node = self.node,
            annotations = changes.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
            "annotate node"
        );
        let patch = StatusPatch::of_annotations(changes);
        let patched = self.api.patch_node_status(&self.node, &patch).await;
        patched.map(drop).map_err(failed(&format!("annotate node {}", self.node)))
    }

    async fn follow(&self, own: &SubnetKey) -> Result<Box<dyn LeaseWatch>, LeaseError> {
        let wanted = self.wanted.get();
        if wanted.alone {
            return Ok(Box::new(NoPeersWatch::new()));
        }
        let nodes = self.api.watch_nodes().await.map_err(failed("watch nodes"))?;
        let watch =
            KubeWatch::open(nodes, self.settings.prefix.clone(), wanted, (self.node.clone(), *own)).await;
        Ok(Box::new(watch.map_err(failed("list nodes"))?))
    }

    /// Sets the condition by which the scheduler accepts pods for the node (flannel.md section 5.2,
    /// step 6).
    async fn tell(&self) -> Result<(), LeaseError> {
        if !self.settings.set_network_unavailable {
            return Ok(());
        }
        let operation = format!("set NetworkUnavailable of node {} to False", self.node);
        loop {
            let now = Some(rfc3339(SystemTime::now()));
            let patch = StatusPatch::of_condition(Condition {
                kind: "NetworkUnavailable".to_owned(),
                status: "False".to_owned(),
                reason: "FlannelIsUp".to_owned(),
                message: "Flannel is running on this node".to_owned(),
                last_heartbeat_time: now.clone(),
                last_transition_time: now,
            });
            match self.api.patch_node_status(&self.node, &patch).await.map_err(failed(&operation)) {
                Ok(_) => return Ok(()),
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) => tracing::warn!(%error, "tried again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

impl SubnetManager for KubeManager {
    fn network(&self) -> BoxFuture<'_, Result<NetworkConfig, LeaseError>> {
        Box::pin(async { self.read_network() })
    }

    fn acquire<'a>(
        &'a self,
        config: &'a NetworkConfig,
        wish: &'a Wish,
    ) -> BoxFuture<'a, Result<Lease, LeaseError>> {
        Box::pin(self.take(config, wish))
    }

    fn watch<'a>(&'a self, own: &'a SubnetKey) -> BoxFuture<'a, Result<Box<dyn LeaseWatch>, LeaseError>> {
        Box::pin(self.follow(own))
    }

    fn keep<'a>(&'a self, _lease: &'a Lease, _margin: Duration) -> BoxFuture<'a, Lost> {
        Box::pin(std::future::pending())
    }

    fn publish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), LeaseError>> {
        Box::pin(async { self.write(&self.own_node().await?, &lease.attributes).await })
    }

    fn ready<'a>(&'a self, _lease: &'a Lease) -> BoxFuture<'a, Result<(), LeaseError>> {
        Box::pin(self.tell())
    }
}
