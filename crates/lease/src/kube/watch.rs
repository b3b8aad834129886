//! Follows the other nodes: converts Kubernetes' watch of nodes, which survives 410 and lost
//! connections, to leases. Nodes change with every heartbeat of a kubelet; only changes that matter
//! for a daemon become events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use russet_kube::{KubeError, Node, NodeEvent, NodeWatch};
use russet_model::flannel::SubnetKey;

use super::annotations::AnnotationPrefix;
use super::node::{self, Wanted};
use crate::{BoxFuture, Event, Lease, LeaseWatch};

/// Pause after an error of the watch.
const RETRY: Duration = Duration::from_secs(1);

pub(super) struct KubeWatch {
    watch: Box<dyn NodeWatch>,
    known: KnownLeases,
    ready: VecDeque<Event>,
}

/// A watch for backends that need no other nodes.
pub(super) struct NoPeersWatch {
    sent: bool,
}

/// The leases that were reported, by node.
struct KnownLeases {
    prefix: AnnotationPrefix,
    wanted: Wanted,
    own_node: String,
    own: SubnetKey,
    leases: BTreeMap<String, Lease>,
    /// Why nodes were ignored, so that each reason is logged once.
    refused: BTreeMap<String, String>,
}

// === impl KubeWatch ===

impl KubeWatch {
    /// Returns when the first list has arrived.
    pub(super) async fn open(
        mut watch: Box<dyn NodeWatch>,
        prefix: AnnotationPrefix,
        wanted: Wanted,
        (own_node, own): (String, SubnetKey),
    ) -> Result<Self, KubeError> {
        let (leases, refused) = (BTreeMap::new(), BTreeMap::new());
        let mut known = KnownLeases { prefix, wanted, own_node, own, leases, refused };
        let NodeEvent::Snapshot(nodes) = watch.next().await? else {
            let operation = "list nodes".to_owned();
            let message = "the watch does not begin with all nodes".to_owned();
            return Err(KubeError::Invalid(russet_kube::Said { operation, message }));
        };
        nodes.iter().for_each(|node| _ = known.learn(node));
        let snapshot = Event::Snapshot(known.distinct());
        Ok(Self { watch, known, ready: VecDeque::from([snapshot]) })
    }

    async fn following(&mut self) -> Event {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            match self.watch.next().await {
                Ok(NodeEvent::Snapshot(nodes)) => self.ready.extend(self.known.compare(&nodes)),
                Ok(NodeEvent::Changed(node)) => self.ready.extend(self.known.learn(&node)),
                Ok(NodeEvent::Deleted(node)) => self.ready.extend(self.known.forget(&node.metadata.name)),
                Err(error) => {
                    tracing::warn!(%error, "watch nodes");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

impl LeaseWatch for KubeWatch {
    fn next(&mut self) -> BoxFuture<'_, Event> {
        Box::pin(self.following())
    }
}

// === impl KnownLeases ===

impl KnownLeases {
    /// The events that follow from a node's current state.
    fn learn(&mut self, node: &Node) -> Vec<Event> {
        let name = &node.metadata.name;
        // A node whose annotation was removed keeps its lease, as with real daemons (flannel.md
        // section 5.2, step 7).
        if *name == self.own_node || !self.prefix.is_managed(&node.metadata.annotations) {
            return Vec::new();
        }
        let lease = match node::lease(node, &self.prefix, self.wanted) {
            Ok(lease) if lease.key == self.own => Err(format!("its pod CIDR is this node's, {}", lease.key)),
            read => read,
        };
        match lease {
            Ok(lease) => {
                self.refused.remove(name);
                self.replace(name, lease)
            }
            Err(reason) => {
                if self.refused.get(name) != Some(&reason) {
                    russet_store::refused("a node is passed over", name, &reason);
                    self.refused.insert(name.clone(), reason);
                }
                Vec::new()
            }
        }
    }

    fn replace(&mut self, name: &str, lease: Lease) -> Vec<Event> {
        match self.leases.get(name) {
            Some(known) if *known == lease => Vec::new(),
            known => {
                let moved = known.map(|known| known.key).filter(|key| *key != lease.key);
                self.leases.insert(name.to_owned(), lease.clone());
                moved.map(|key| self.left(key)).into_iter().chain([Event::Put(lease)]).collect()
            }
        }
    }

    /// Handles a deleted node.
    fn forget(&mut self, name: &str) -> Option<Event> {
        self.refused.remove(name);
        let lease = self.leases.remove(name)?;
        Some(self.left(lease.key))
    }

    /// The event after a node lost these subnets: they are free, or belong to another node with the
    /// same subnets.
    fn left(&self, key: SubnetKey) -> Event {
        let heir = self.leases.values().find(|lease| lease.key == key);
        heir.map_or(Event::Gone(key), |lease| Event::Put(lease.clone()))
    }

    /// Handles a new list after the watch was interrupted.
    fn compare(&mut self, nodes: &[Node]) -> Vec<Event> {
        let there: BTreeSet<&str> = nodes.iter().map(|node| node.metadata.name.as_str()).collect();
        let gone: Vec<String> =
            self.leases.keys().filter(|name| !there.contains(name.as_str())).cloned().collect();
        self.refused.retain(|name, _| there.contains(name.as_str()));
        let mut events: Vec<Event> = gone.iter().filter_map(|name| self.forget(name)).collect();
        nodes.iter().for_each(|node| events.extend(self.learn(node)));
        events
    }

    /// One lease for each subnet; of nodes that share one, the last by name, as if they had been
    /// reported one by one.
    fn distinct(&self) -> Vec<Lease> {
        let by_key: BTreeMap<SubnetKey, &Lease> =
            self.leases.values().map(|lease| (lease.key, lease)).collect();
        by_key.into_values().cloned().collect()
    }
}

// === impl NoPeersWatch ===

impl NoPeersWatch {
    pub(super) fn new() -> Self {
        Self { sent: false }
    }
}

impl LeaseWatch for NoPeersWatch {
    fn next(&mut self) -> BoxFuture<'_, Event> {
        Box::pin(async move {
            if std::mem::replace(&mut self.sent, true) {
                std::future::pending::<()>().await;
            }
            Event::Snapshot(Vec::new())
        })
    }
}
