//! The work of OpenShift's SDN master, where an operator asks for it (kubernetes.md sections 6.3 and
//! 6.5): a NetNamespace for each namespace, the changes that annotations request, and a HostSubnet for
//! each node.
//!
//! Nothing in Kubernetes makes network IDs or subnets unique. They are, because one replica writes: a new
//! leader waits until every write of the last one has ended, and each plan is made from lists that the
//! API server answered after that, never from a cache. Each write is guarded by what was read. While
//! OpenShift's own master runs, nothing is written. ClusterNetwork is only read.

mod subnets;
mod tenants;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use russet_kube::{
    Client, KubeError, ListQuery, Namespace, Node, ObjectEvent, Objects, Request, Said, Verb, Watched,
    absent_is_none,
};
use russet_model::DecodeError;
use russet_model::openshift::ClusterNetwork;
use russet_sync::Backoff;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::WRITE_DEADLINE;
use crate::fence::Fence;

/// Group and version of OpenShift's kinds.
const VERSION: &str = "network.openshift.io/v1";
/// The namespace and the name of the DaemonSet of OpenShift's own master.
const MASTER: (&str, &str) = ("openshift-sdn", "sdn-controller");
/// How long further events are collected, so that a burst is one round.
const GATHER: Duration = Duration::from_millis(100);
/// Pauses after a round that failed.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// The server gives up before we do.
const SERVER_TIMEOUT: &str = "4s";
/// Limit of one object.
const MAX_OBJECT_BYTES: usize = 1 << 20;

/// The work, while this replica leads.
pub struct Sdn {
    pub client: Client,
    pub fence: Fence,
    /// After this time, no write of an earlier leader, or without an answer, can still be executed.
    pub settle: Duration,
}

/// The kinds that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    NetNamespace,
    HostSubnet,
}

/// One write. Objects are whole, as they were read, with the members that are not known here.
#[derive(Debug, Clone, PartialEq)]
enum Write {
    Create(Kind, Value),
    Replace(Kind, Value),
    Delete(Kind, Value),
}

/// What a round has to do.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    writes: Vec<Write>,
    /// What cannot be done, for the log.
    refused: BTreeSet<String>,
}

/// Why a round did not do its work. It is repeated.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error(transparent)]
    Read(#[from] KubeError),
    /// The write may still be executed.
    #[error(transparent)]
    Write(KubeError),
    #[error("another writer was faster: {0}")]
    Overtaken(Said),
    #[error("OpenShift's own master runs: DaemonSet openshift-sdn/sdn-controller")]
    Master,
    #[error("there is no ClusterNetwork default")]
    NoNetwork,
    #[error("read ClusterNetwork default: {0}")]
    Network(DecodeError),
    /// Every cluster has some.
    #[error("the API server lists no {0}, so nothing is deleted")]
    Empty(&'static str),
    #[error("this replica could not renew its lease")]
    NotLeading,
}

/// The rounds of one kind.
struct Rounds {
    backoff: Backoff,
    settle: Duration,
    /// What was logged last.
    refused: BTreeSet<String>,
    error: String,
}

/// What of a node its subnet depends on: its UID and its address.
type NodeFacts = (String, Option<std::net::Ipv4Addr>);

// === impl Sdn ===

impl Sdn {
    /// Never returns.
    pub async fn run(self) {
        tokio::time::sleep(self.settle).await;
        tokio::join!(Box::pin(self.follow_tenants()), Box::pin(self.follow_subnets()));
    }

    async fn follow_tenants(&self) {
        let changed = Notify::new();
        let tenants = self.client.watch_objects::<Namespace>(VERSION, Kind::NetNamespace.plural());
        tokio::join!(
            notify(self.client.watch_namespaces(), |_| true, &changed),
            notify(tenants, |_| true, &changed),
            self.rounds(&changed, async || self.tenants().await),
        );
    }

    async fn follow_subnets(&self) {
        let changed = Notify::new();
        let nodes = self.client.watch_objects::<Node>("v1", "nodes");
        let subnets = self.client.watch_objects::<Namespace>(VERSION, Kind::HostSubnet.plural());
        let mut known = BTreeMap::new();
        tokio::join!(
            // Kubelets report their nodes' state all the time.
            notify(nodes, |event| is_news(&mut known, event), &changed),
            notify(subnets, |_| true, &changed),
            self.rounds(&changed, async || self.subnets().await),
        );
    }

    /// A round at first, and one after each change.
    async fn rounds(&self, changed: &Notify, round: impl AsyncFn() -> Result<BTreeSet<String>, RoundError>) {
        let mut rounds = Rounds::new(self.settle);
        loop {
            if rounds.end(round().await).await {
                changed.notified().await;
                tokio::time::sleep(GATHER).await;
            }
        }
    }

    /// One round of tenants. They are listed before namespaces: a tenant whose namespace is missing then
    /// has none any more.
    async fn tenants(&self) -> Result<BTreeSet<String>, RoundError> {
        let network = self.network().await?;
        let tenants = self.list(&["apis", "network.openshift.io", "v1", Kind::NetNamespace.plural()]).await?;
        let mut namespaces = BTreeMap::new();
        for object in self.list(&["api", "v1", "namespaces"]).await? {
            let is_ending = object.pointer("/metadata/deletionTimestamp").is_some_and(|it| !it.is_null());
            namespaces.extend(name_of(&object).map(|name| (name.to_owned(), is_ending)));
        }
        if namespaces.is_empty() {
            return Err(RoundError::Empty("namespaces"));
        }
        self.execute(tenants::plan(network.mode, &tenants, &namespaces)).await
    }

    /// One round of subnets, which are listed before nodes.
    async fn subnets(&self) -> Result<BTreeSet<String>, RoundError> {
        let network = self.network().await?;
        let subnets = self.list(&["apis", "network.openshift.io", "v1", Kind::HostSubnet.plural()]).await?;
        let listed = self.list(&["api", "v1", "nodes"]).await?;
        let nodes: BTreeMap<String, NodeFacts> =
            listed.iter().filter_map(|object| Node::deserialize(object).ok()).map(|it| facts(&it)).collect();
        // A node that cannot be read keeps its subnet.
        if nodes.is_empty() || nodes.len() != listed.len() {
            return Err(RoundError::Empty("nodes that can be read"));
        }
        self.execute(subnets::plan(&network, &subnets, &nodes)).await
    }

    async fn network(&self) -> Result<ClusterNetwork, RoundError> {
        let path = ["apis", "network.openshift.io", "v1", "clusternetworks", ClusterNetwork::DEFAULT];
        match absent_is_none(self.get("get ClusterNetwork default", &path).await)? {
            None => Err(RoundError::NoNetwork),
            Some(body) => ClusterNetwork::decode(&body).map_err(RoundError::Network),
        }
    }

    async fn get(&self, operation: &str, path: &[&str]) -> Result<Vec<u8>, KubeError> {
        let request = Request {
            operation: operation.to_owned(),
            verb: Verb::Read,
            segments: path.iter().map(|segment| (*segment).to_owned()).collect(),
            query: Vec::new(),
            body: Vec::new(),
            deadline: WRITE_DEADLINE,
            limit_bytes: MAX_OBJECT_BYTES,
        };
        let answer = self.client.request(&request).await.map_err(|failure| failure.error)?;
        Ok(answer.body.to_vec())
    }

    async fn list(&self, segments: &[&str]) -> Result<Vec<Value>, KubeError> {
        let operation = format!("list {}", segments.last().unwrap_or(&""));
        let query = ListQuery { operation: &operation, segments, labels: None };
        let mut objects = Vec::new();
        self.client.list(&query, |object| objects.push(object)).await.map_err(|failure| failure.error)?;
        Ok(objects)
    }

    /// Executes a plan; returns what it refuses.
    async fn execute(&self, plan: Plan) -> Result<BTreeSet<String>, RoundError> {
        if !plan.writes.is_empty() {
            self.require_no_master().await?;
        }
        for write in &plan.writes {
            if !self.fence.is_open() {
                return Err(RoundError::NotLeading);
            }
            let request = write.request();
            match self.client.request(&request).await.map_err(|failure| failure.error) {
                Ok(_) => tracing::info!("{}", request.operation),
                // What follows in the plan may rest on what has changed.
                Err(KubeError::Conflict(said) | KubeError::NotFound(said) | KubeError::Replaced(said)) => {
                    return Err(RoundError::Overtaken(said));
                }
                Err(error) => return Err(RoundError::Write(error)),
            }
        }
        Ok(plan.refused)
    }

    /// kubernetes.md section 6.5 (d).
    async fn require_no_master(&self) -> Result<(), RoundError> {
        let path = ["apis", "apps", "v1", "namespaces", MASTER.0, "daemonsets", MASTER.1];
        match absent_is_none(self.get("get OpenShift's master", &path).await)? {
            None => Ok(()),
            Some(_) => Err(RoundError::Master),
        }
    }
}

// === impl Rounds ===

impl Rounds {
    fn new(settle: Duration) -> Self {
        let backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        Self { backoff, settle, refused: BTreeSet::new(), error: String::new() }
    }

    /// Logs what is new about a round. Returns whether its work is done; otherwise it has paused.
    async fn end(&mut self, outcome: Result<BTreeSet<String>, RoundError>) -> bool {
        match outcome {
            Ok(refused) => {
                for reason in refused.difference(&self.refused) {
                    tracing::warn!("{reason}");
                }
                (self.refused, self.error) = (refused, String::new());
                self.backoff.reset();
                true
            }
            Err(error) => {
                let text = error.to_string();
                if text != self.error {
                    tracing::warn!(%error, "OpenShift's networks wait");
                }
                self.error = text;
                let pause = self.backoff.pause();
                // The next plan must not give away what a write without an answer may still take.
                let is_open = matches!(error, RoundError::Write(_));
                tokio::time::sleep(if is_open { pause.max(self.settle) } else { pause }).await;
                false
            }
        }
    }
}

// === impl Kind ===

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::NetNamespace => "NetNamespace",
            Self::HostSubnet => "HostSubnet",
        }
    }

    const fn plural(self) -> &'static str {
        match self {
            Self::NetNamespace => "netnamespaces",
            Self::HostSubnet => "hostsubnets",
        }
    }

    /// A new object.
    fn object(self, name: &str, members: Value) -> Value {
        let mut object = json!({ "apiVersion": VERSION, "kind": self.name(), "metadata": { "name": name } });
        if let (Some(object), Value::Object(mut members)) = (object.as_object_mut(), members) {
            object.append(&mut members);
        }
        object
    }
}

// === impl Write ===

impl Write {
    fn request(&self) -> Request {
        let (done, verb, kind, object) = match self {
            Self::Create(kind, object) => ("create", Verb::Create, kind, object),
            Self::Replace(kind, object) => ("change", Verb::Replace, kind, object),
            Self::Delete(kind, object) => ("delete", Verb::Delete, kind, object),
        };
        let name = name_of(object).unwrap_or_default();
        let mut segments = ["apis", "network.openshift.io", "v1", kind.plural()].map(str::to_owned).to_vec();
        if !matches!(self, Self::Create(..)) {
            segments.push(name.to_owned());
        }
        let member = |name: &str| object.pointer(&format!("/metadata/{name}"));
        let body = match self {
            Self::Delete(..) => json!({ "kind": "DeleteOptions", "apiVersion": "v1",
                "preconditions": { "uid": member("uid"), "resourceVersion": member("resourceVersion") } }),
            _ => object.clone(),
        };
        Request {
            operation: format!("{done} {} {name}", kind.name()),
            verb,
            segments,
            query: vec![("timeout", SERVER_TIMEOUT.to_owned())],
            body: body.to_string().into_bytes(),
            deadline: WRITE_DEADLINE,
            limit_bytes: MAX_OBJECT_BYTES,
        }
    }
}

/// Notifies of the events of a watch that are news.
async fn notify<T: Watched>(
    mut watch: Objects<T>,
    mut is_news: impl FnMut(ObjectEvent<T>) -> bool,
    changed: &Notify,
) {
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
    loop {
        match watch.advance().await {
            Ok(event) => {
                backoff.reset();
                if is_news(event) {
                    changed.notify_one();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "OpenShift's networks are not watched");
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

/// Whether an event changes what subnets depend on.
fn is_news(known: &mut BTreeMap<String, NodeFacts>, event: ObjectEvent<Node>) -> bool {
    match event {
        ObjectEvent::Snapshot(nodes) => {
            *known = nodes.iter().map(facts).collect();
            true
        }
        ObjectEvent::Changed(node) => {
            let (name, now) = facts(&node);
            known.insert(name, now.clone()) != Some(now)
        }
        ObjectEvent::Deleted(node) => known.remove(&node.metadata.name).is_some(),
    }
}

fn facts(node: &Node) -> (String, NodeFacts) {
    let internal = node.status.addresses.iter().filter(|address| address.kind == "InternalIP");
    let address = internal.filter_map(|address| address.address.parse().ok()).next();
    (node.metadata.name.clone(), (node.metadata.uid.clone(), address))
}

fn name_of(object: &Value) -> Option<&str> {
    object.pointer("/metadata/name").and_then(Value::as_str)
}

/// An annotation of an object.
fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(name)?.as_str()
}
