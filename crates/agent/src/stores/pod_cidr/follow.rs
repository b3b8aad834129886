//! The watches of nodes and of affinities: this node's affinities come from its own store, the others'
//! from their nodes. An agent follows both, and nodes are watched once for both.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use russet_addr::NodeName;
use russet_model::{Key, KeyKind, Prefix};
use russet_store::{BoxFuture, Cause, Event, Record, Revision, Snapshot, StoreError, Watch};
use tokio::sync::broadcast::{self, error::RecvError};

use super::PodCidrStore;

/// Changes of nodes that wait for a watch of affinities. One that falls further behind begins again.
const WAITING: usize = 1024;

/// A watch of nodes, from which watches of affinities may take what they need.
pub(super) struct NodesWatch {
    store: PodCidrStore,
    watch: Box<dyn Watch>,
    /// None until the snapshot was reported.
    shared: Option<Rc<SharedNodes>>,
}

/// What is known of the nodes that are watched. Lives as long as their watch.
pub(super) struct SharedNodes {
    /// The affinities of each other node.
    derived: RefCell<BTreeMap<NodeName, Vec<Record>>>,
    changes: broadcast::Sender<NodeChange>,
}

/// What a node's affinities are after a change of its record.
#[derive(Clone)]
struct NodeChange {
    node: NodeName,
    revision: Revision,
    /// None if it was deleted, and of this node itself.
    affinities: Vec<Record>,
}

pub(super) struct AffinitiesWatch {
    store: PodCidrStore,
    prefix: Prefix,
    local: Box<dyn Watch>,
    /// A watch of nodes of its own, where no other is shared.
    nodes: Option<NodesWatch>,
    changes: broadcast::Receiver<NodeChange>,
    /// The affinities that were reported of each other node.
    derived: BTreeMap<NodeName, Vec<Key>>,
    /// Events to report next.
    ready: VecDeque<Event>,
}

// === impl NodesWatch ===

impl NodesWatch {
    pub(super) async fn open(store: PodCidrStore, prefix: &Prefix) -> Result<Self, StoreError> {
        let watch = store.inner.nodes.watch(prefix).await?;
        Ok(Self { store, watch, shared: None })
    }

    async fn next_event(&mut self) -> Result<Event, StoreError> {
        let event = self.watch.next().await?;
        match (&event, &self.shared) {
            (Event::Snapshot(snapshot), _) => self.share(&snapshot.records),
            (Event::Put(record), Some(shared)) => shared.put(&self.store, record),
            (Event::Deleted { key, revision }, Some(shared)) => shared.delete(&self.store, key, *revision),
            (Event::Put(_) | Event::Deleted { .. }, None) => {}
        }
        Ok(event)
    }

    /// Lets watches of affinities begin with these nodes.
    fn share(&mut self, nodes: &[Record]) {
        let changes = broadcast::Sender::new(WAITING);
        let shared = Rc::new(SharedNodes { derived: RefCell::default(), changes });
        nodes.iter().for_each(|node| shared.put(&self.store, node));
        *self.store.inner.shared.borrow_mut() = Rc::downgrade(&shared);
        self.shared = Some(shared);
    }
}

impl Watch for NodesWatch {
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>> {
        Box::pin(self.next_event())
    }
}

// === impl SharedNodes ===

impl SharedNodes {
    /// Notes a node's record. Most of its writes change no affinity.
    fn put(&self, store: &PodCidrStore, node: &Record) {
        let KeyKind::Node(name) = node.key.kind() else { return };
        if name == store.inner.node {
            store.heed_own(Some(node));
            return self.tell(name, node.revision, Vec::new());
        }
        let affinities = store.derived(node);
        let before = self.derived.borrow_mut().insert(name.clone(), affinities.clone()).unwrap_or_default();
        let is_same = before.len() == affinities.len()
            && before.iter().zip(&affinities).all(|(one, other)| one.key == other.key);
        if !is_same {
            self.tell(name, node.revision, affinities);
        }
    }

    fn delete(&self, store: &PodCidrStore, key: &Key, revision: Revision) {
        let KeyKind::Node(name) = key.kind() else { return };
        if name == store.inner.node {
            store.heed_own(None);
        }
        self.derived.borrow_mut().remove(&name);
        self.tell(name, revision, Vec::new());
    }

    fn tell(&self, node: NodeName, revision: Revision, affinities: Vec<Record>) {
        // An error says that no affinities are watched.
        let _ = self.changes.send(NodeChange { node, revision, affinities });
    }
}

// === impl AffinitiesWatch ===

impl AffinitiesWatch {
    /// Begins with the records of both sides as one snapshot.
    pub(super) async fn open(store: PodCidrStore, prefix: &Prefix) -> Result<Self, StoreError> {
        store.prepare().await?;
        let mut local = store.inner.local.watch(prefix).await?;
        let mut whole = records(local.next().await?);
        let mut nodes = None;
        let mut shared = store.inner.shared.borrow().upgrade();
        if shared.is_none() {
            let mut own = NodesWatch::open(store.clone(), &Prefix::nodes()).await?;
            own.next_event().await?;
            shared.clone_from(&own.shared);
            nodes = Some(own);
        }
        let Some(shared) = shared else { return Err(ended()) };
        let changes = shared.changes.subscribe();
        let known: Vec<_> =
            shared.derived.borrow().iter().map(|(node, all)| (node.clone(), all.clone())).collect();
        // The watch of nodes keeps it alive, and no one else.
        drop(shared);
        let (derived, ready) = (BTreeMap::new(), VecDeque::new());
        let mut watch = Self { store, prefix: prefix.clone(), local, nodes, changes, derived, ready };
        for (node, affinities) in known {
            watch.apply(NodeChange { node, revision: whole.revision, affinities });
        }
        // Of a first list nothing was deleted.
        for event in std::mem::take(&mut watch.ready) {
            if let Event::Put(record) = event {
                whole.records.push(record);
            }
        }
        whole.records.sort_by(|one, other| one.key.cmp(&other.key));
        watch.ready.push_back(Event::Snapshot(whole));
        Ok(watch)
    }

    /// Reports what a node's change means.
    fn apply(&mut self, change: NodeChange) {
        let NodeChange { node, revision, affinities: mut now } = change;
        now.retain(|record| self.prefix.covers(&record.key));
        let keys: Vec<Key> = now.iter().map(|record| record.key.clone()).collect();
        let before = match keys.is_empty() {
            true => self.derived.remove(&node),
            false => self.derived.insert(node, keys.clone()),
        }
        .unwrap_or_default();
        let gone = before.iter().filter(|key| !keys.contains(key));
        self.ready.extend(gone.map(|key| Event::Deleted { key: key.clone(), revision }));
        self.ready.extend(now.into_iter().filter(|record| !before.contains(&record.key)).map(Event::Put));
    }

    async fn next_event(&mut self) -> Result<Event, StoreError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let change = tokio::select! {
                event = self.local.next() => return event,
                change = self.changes.recv() => change,
                // Its changes come by the other arm.
                event = advance(&mut self.nodes) => {
                    event?;
                    continue;
                }
            };
            match change {
                Ok(change) => self.apply(change),
                Err(RecvError::Closed | RecvError::Lagged(_)) => return Err(ended()),
            }
            // If this node's ranges have changed, its own affinities do, too.
            self.store.prepare().await?;
        }
    }
}

impl Watch for AffinitiesWatch {
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>> {
        Box::pin(self.next_event())
    }
}

/// Waits for the next event of a watch of nodes; for ever without one.
async fn advance(nodes: &mut Option<NodesWatch>) -> Result<Event, StoreError> {
    match nodes {
        Some(nodes) => nodes.next_event().await,
        None => std::future::pending().await,
    }
}

/// The watch of nodes has ended, or was too fast.
fn ended() -> StoreError {
    let source = Cause::text("the watch of nodes has to begin again");
    StoreError::Unavailable { operation: "watch the affinities of other nodes".to_owned(), source }
}

/// The records of a watch's first event.
fn records(event: Event) -> Snapshot {
    match event {
        Event::Snapshot(snapshot) => snapshot,
        Event::Put(_) | Event::Deleted { .. } => Snapshot::default(),
    }
}
