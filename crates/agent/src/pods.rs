//! The pods of this node, from one watch of them (kubernetes.md sections 2.7 and 4.4), and the cluster's namespaces where Calico's plugin reads
//! their annotations: an ADD needs both, and asks the API server for neither.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use russet_addr::NodeName;
use russet_kube::{
    BoxFuture, Client, KubeError, Kubernetes, Namespace, Node, NodeWatch, ObjectEvent, Objects, Pod,
    StatusPatch, Watched,
};
use russet_model::{Key, Prefix};
use russet_store::{Record, Revision};
use russet_store_kube::{KubeStore, Pauses};
use russet_sync::Backoff;
use serde::Deserialize as _;
use serde_json::Value;
use tokio::sync::watch;

/// How long a request waits for the event of its pod before it asks the API server: kubelet, which
/// starts the pod, has the same event.
const EVENT_WAIT: Duration = Duration::from_millis(200);
/// The pauses after a failed watch.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The pods. Clones share them.
#[derive(Clone)]
pub struct Pods(Rc<Inner>);

struct Inner {
    node: NodeName,
    client: Client,
    store: KubeStore,
    pods: RefCell<BTreeMap<PodName, KnownPod>>,
    namespaces: RefCell<BTreeMap<String, Namespace>>,
    /// Whether a watch keeps `pods` up to date.
    is_watched: Cell<bool>,
    /// Sent when a pod was added or changed.
    changes: watch::Sender<()>,
}

/// Namespace and name.
type PodName = (String, String);

struct KnownPod {
    pod: Rc<Pod>,
    revision: Revision,
    /// Its endpoint; none where it has none, and after a write whose result is not known here.
    endpoint: Option<Record>,
}

// === impl Pods ===

impl Pods {
    /// The pods of a node whose data are in this store.
    pub fn new(store: &KubeStore, node: &NodeName) -> Self {
        Self(Rc::new(Inner {
            node: node.clone(),
            client: store.client(),
            store: store.clone(),
            pods: RefCell::default(),
            namespaces: RefCell::default(),
            is_watched: Cell::new(false),
            changes: watch::Sender::new(()),
        }))
    }

    /// The client of the API server.
    pub fn client(&self) -> Client {
        self.0.client.clone()
    }

    /// Watches the pods. Never returns.
    pub async fn run(self) {
        let pods = self.0.client.watch_pods(self.0.node.as_str()).spread(Pauses::RELIST);
        follow("pods", pods, |event| self.apply(event)).await;
    }

    /// Watches the namespaces. Never returns.
    pub async fn run_namespaces(self) {
        let name = |namespace: &Namespace| namespace.metadata.name.clone();
        follow("namespaces", self.0.client.watch_namespaces().spread(Pauses::RELIST), |event| {
            let mut known = self.0.namespaces.borrow_mut();
            match event {
                ObjectEvent::Snapshot(all) => *known = all.into_iter().map(|one| (name(&one), one)).collect(),
                ObjectEvent::Changed(one) => _ = known.insert(name(&one), one),
                ObjectEvent::Deleted(one) => _ = known.remove(&name(&one)),
            }
        })
        .await;
    }

    fn apply(&self, event: ObjectEvent<Value>) {
        match event {
            ObjectEvent::Snapshot(all) => {
                self.0.pods.borrow_mut().clear();
                all.iter().for_each(|pod| self.learn(pod));
                self.0.is_watched.set(true);
            }
            ObjectEvent::Changed(pod) => self.learn(&pod),
            ObjectEvent::Deleted(pod) => {
                let Ok(pod) = Pod::deserialize(&pod) else { return };
                let mut pods = self.0.pods.borrow_mut();
                let name = name_of(&pod);
                if pods.get(&name).is_some_and(|known| known.pod.metadata.uid == pod.metadata.uid) {
                    pods.remove(&name);
                }
            }
        }
        self.0.changes.send_replace(());
    }

    /// Takes a pod, unless a newer state of it is known.
    fn learn(&self, object: &Value) {
        let (Ok(pod), Ok(revision)) = (Pod::deserialize(object), object.revision().parse()) else {
            russet_store::refused("a pod is not used", object.revision(), "it cannot be read");
            return;
        };
        let (name, revision) = (name_of(&pod), Revision(revision));
        let mut pods = self.0.pods.borrow_mut();
        let is_newer =
            |known: &KnownPod| known.revision <= revision || known.pod.metadata.uid != pod.metadata.uid;
        if pods.get(&name).is_none_or(is_newer) {
            let endpoint = self.0.store.endpoint(object);
            pods.insert(name, KnownPod { pod: Rc::new(pod), revision, endpoint });
        }
    }

    /// A pod as it is known now, without a wait.
    pub fn known(&self, namespace: &str, name: &str) -> Option<Rc<Pod>> {
        let name = (namespace.to_owned(), name.to_owned());
        self.0.pods.borrow().get(&name).map(|known| Rc::clone(&known.pod))
    }

    /// Whether the watch has listed all pods, so that one that is not known does not exist, or was made
    /// a moment ago.
    pub fn is_watched(&self) -> bool {
        self.0.is_watched.get()
    }

    /// A pod, with the given UID if there is one; waits a moment for its event before it asks the
    /// server.
    pub async fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<Rc<Pod>, KubeError> {
        let find = || self.known(namespace, name).filter(|pod| uid.is_none_or(|uid| pod.metadata.uid == uid));
        if self.wait_for(|| find().is_some()).await
            && let Some(pod) = find()
        {
            return Ok(pod);
        }
        self.read(namespace, name).await
    }

    /// A pod as the server has it.
    pub async fn read(&self, namespace: &str, name: &str) -> Result<Rc<Pod>, KubeError> {
        self.0.client.pod(namespace, name).await.map(Rc::new)
    }

    /// Waits until something is known; false if that takes longer than the event of a pod.
    async fn wait_for(&self, is_known: impl Fn() -> bool) -> bool {
        if is_known() {
            return true;
        }
        if !self.is_watched() {
            return false;
        }
        let mut changes = self.0.changes.subscribe();
        let known = changes.wait_for(|()| is_known());
        tokio::time::timeout(EVENT_WAIT, known).await.is_ok()
    }

    /// Patches a pod's status, and remembers the answer.
    pub async fn patch(
        &self,
        namespace: &str,
        name: &str,
        patch: &StatusPatch,
    ) -> Result<Rc<Pod>, KubeError> {
        let pod = Rc::new(self.0.client.patch_pod_status(namespace, name, patch).await?);
        let name = name_of(&pod);
        if let (Ok(revision), Some(known)) =
            (pod.metadata.resource_version.parse().map(Revision), self.0.pods.borrow_mut().get_mut(&name))
            && known.revision < revision
        {
            *known = KnownPod { pod: Rc::clone(&pod), revision, endpoint: None };
        }
        Ok(pod)
    }

    /// The record of an endpoint, if its pod is known; waits a moment for its event.
    pub async fn endpoint(&self, key: &Key) -> Option<Record> {
        let find = || self.endpoints_where(|record| record.key == *key).pop();
        self.wait_for(|| find().is_some()).await.then(find).flatten()
    }

    /// The endpoints of this node below a prefix; none if the server has to be asked.
    pub async fn endpoints(&self, prefix: &Prefix) -> Option<Vec<Record>> {
        let find = || self.endpoints_where(|record| prefix.covers(&record.key));
        let is_known = self.wait_for(|| !find().is_empty()).await;
        is_known.then(find)
    }

    /// All endpoints of this node; none if they are not watched, or one of them is not known.
    pub async fn all_endpoints(&self) -> Option<Vec<Record>> {
        let is_unknown = |known: &KnownPod| known.endpoint.is_none() && !known.pod.spec.host_network;
        let are_known = || self.is_watched() && !self.0.pods.borrow().values().any(is_unknown);
        self.wait_for(are_known).await.then(|| self.endpoints_where(|_| true))
    }

    fn endpoints_where(&self, is_wanted: impl Fn(&Record) -> bool) -> Vec<Record> {
        let pods = self.0.pods.borrow();
        let known = pods.values().filter_map(|known| known.endpoint.as_ref());
        known.filter(|record| is_wanted(record)).cloned().collect()
    }

    /// Notes what an endpoint is after a write by this process; none if only the server knows it.
    pub fn wrote(&self, key: &Key, written: Option<(Vec<u8>, Revision)>) {
        let mut pods = self.0.pods.borrow_mut();
        let is_it = |known: &&mut KnownPod| known.endpoint.as_ref().is_some_and(|record| record.key == *key);
        let Some(known) = pods.values_mut().find(is_it) else { return };
        match written {
            Some((value, revision)) if known.revision <= revision => {
                known.revision = revision;
                known.endpoint = Some(Record { key: key.clone(), value, revision });
            }
            Some(_) => {}
            None => known.endpoint = None,
        }
    }
}

impl Kubernetes for Pods {
    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Node, KubeError>> {
        self.0.client.node(name)
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Namespace, KubeError>> {
        match self.0.namespaces.borrow().get(name) {
            Some(known) => Box::pin(std::future::ready(Ok(known.clone()))),
            None => self.0.client.namespace(name),
        }
    }

    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Pod, KubeError>> {
        Box::pin(async move { self.find(namespace, name, None).await.map(|pod| (*pod).clone()) })
    }

    fn patch_pod_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: &'a StatusPatch,
    ) -> BoxFuture<'a, Result<Pod, KubeError>> {
        Box::pin(async move { self.patch(namespace, name, patch).await.map(|pod| (*pod).clone()) })
    }

    fn patch_node_status<'a>(
        &'a self,
        name: &'a str,
        patch: &'a StatusPatch,
    ) -> BoxFuture<'a, Result<Node, KubeError>> {
        self.0.client.patch_node_status(name, patch)
    }

    fn watch_nodes(&self) -> BoxFuture<'_, Result<Box<dyn NodeWatch>, KubeError>> {
        self.0.client.watch_nodes()
    }
}

/// Follows a watch for ever. It continues by itself after most failures; others are retried.
async fn follow<T: Watched>(what: &'static str, mut watch: Objects<T>, take: impl Fn(ObjectEvent<T>)) {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
    loop {
        match watch.advance().await {
            Ok(event) => {
                backoff.reset();
                take(event);
            }
            Err(error) => {
                let pause = backoff.pause();
                tracing::debug!(what, %error, "watch failed");
                if backoff.is_longest() {
                    tracing::warn!(what, %error, "the API server cannot be watched; requests read from it instead");
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
}

fn name_of(pod: &Pod) -> PodName {
    (pod.metadata.namespace.clone(), pod.metadata.name.clone())
}
