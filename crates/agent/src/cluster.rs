//! The agent's copy of the nodes, pools and blocks in the store.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use russet_addr::{BlockCidr, NodeName};
use russet_model::{
    Affinity, Block, ClusterInformation, FelixConfiguration, FelixConfigurationSpec, IpPool, Key, KeyKind,
    Node, ResourceKind,
};
use russet_store::{Event, Record};

/// Addresses of one block that are routed differently from the block.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Strays {
    /// Pods' addresses that are in use on another node than the block's, with that node.
    pub borrowed: Vec<(IpAddr, NodeName)>,
}

/// Nodes, pools and affinities as last read. A record that cannot be decoded counts as absent and
/// is logged once.
#[derive(Debug, Default)]
pub struct Cluster {
    /// Nodes by name.
    pub nodes: BTreeMap<NodeName, Node>,
    /// Pools by name.
    pub pools: BTreeMap<String, IpPool>,
    /// Block affinities, by node and block.
    pub affinities: BTreeMap<(NodeName, BlockCidr), Affinity>,
    /// Incremented when something changes that decides where addresses come from: pools, node
    /// labels, reservations, settings.
    pub rules: u64,
    /// By block. Blocks without such addresses are left out. Empty where blocks are not watched.
    pub strays: BTreeMap<BlockCidr, Strays>,
    /// FelixConfiguration resources, by name.
    pub felix: BTreeMap<String, FelixConfigurationSpec>,
    /// The keys of Calico's policies, where policies are watched.
    pub policies: BTreeSet<Key>,
    /// Whether programs of Calico work in the cluster, or did: each writes its release into the
    /// cluster's information. Only where that is watched.
    pub has_peers: bool,
    /// When the oldest change arrived that is not in the kernel yet.
    pending_since: Cell<Option<Instant>>,
}

pub const POLICIES: [ResourceKind; 2] = [ResourceKind::GlobalNetworkPolicy, ResourceKind::NetworkPolicy];

// === impl Cluster ===

impl Cluster {
    /// Applies an event of a watch. Returns whether it can change anything: kubelets write their
    /// Node objects every few minutes, and in most of these writes nothing of ours is new.
    pub fn apply(&mut self, event: Event) -> bool {
        if let Event::Put(record) = &event
            && self.has(record)
        {
            return false;
        }
        self.pending_since.set(self.pending_since.get().or_else(|| Some(Instant::now())));
        match event {
            Event::Snapshot(snapshot) => snapshot.records.iter().for_each(|record| self.put(record)),
            Event::Put(record) => self.put(&record),
            Event::Deleted { key, .. } => self.remove(&key),
        }
        true
    }

    /// Whether this copy has the node of a record as the record describes it.
    fn has(&self, record: &Record) -> bool {
        let KeyKind::Node(name) = record.key.kind() else { return false };
        let known = self.nodes.get(&name);
        known.is_some_and(|known| Node::decode(&record.value).is_ok_and(|node| node == *known))
    }

    /// Records that the kernel matches this copy. Returns how long the oldest pending change
    /// waited, if there was one.
    pub fn reconciled(&self) -> Option<Duration> {
        self.pending_since.take().map(|since| since.elapsed())
    }

    /// Applies one record.
    pub fn put(&mut self, record: &Record) {
        self.note(&record.key);
        let read = match record.key.kind() {
            KeyKind::Node(name) => {
                Node::decode(&record.value).map(|node| drop(self.nodes.insert(name, node)))
            }
            KeyKind::Affinity { node, block } => Affinity::decode(&record.value)
                .map(|affinity| drop(self.affinities.insert((node, block), affinity))),
            KeyKind::Pool(name) => {
                IpPool::decode(&record.value).map(|pool| drop(self.pools.insert(name, pool)))
            }
            KeyKind::Block(cidr) => Block::decode(&record.value).map(|block| {
                match Strays::from_block(&block) {
                    Some(strays) => self.strays.insert(cidr, strays),
                    None => self.strays.remove(&cidr),
                };
            }),
            KeyKind::Resource { kind: ResourceKind::FelixConfiguration, name, .. } => {
                FelixConfiguration::decode(&record.value)
                    .map(|felix| drop(self.felix.insert(name, felix.spec)))
            }
            KeyKind::Resource { kind: ResourceKind::ClusterInformation, .. } => {
                ClusterInformation::decode(&record.value)
                    .map(|information| self.has_peers = !information.spec.calico_version.is_empty())
            }
            // Only the existence of a policy matters here, not its content.
            KeyKind::Resource { kind, .. } if POLICIES.contains(&kind) => {
                self.policies.insert(record.key.clone());
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = read {
            russet_store::refused("a record cannot be read and counts as absent", &record.key, &error);
            self.remove(&record.key);
        }
    }

    fn note(&mut self, key: &Key) {
        let decides = |kind| {
            matches!(
                kind,
                KeyKind::Pool(_) | KeyKind::Node(_) | KeyKind::Reservation(_) | KeyKind::IpamConfig
            )
        };
        self.rules += u64::from(decides(key.kind()));
    }

    fn remove(&mut self, key: &Key) {
        self.note(key);
        match key.kind() {
            KeyKind::Node(name) => drop(self.nodes.remove(&name)),
            KeyKind::Affinity { node, block } => drop(self.affinities.remove(&(node, block))),
            KeyKind::Pool(name) => drop(self.pools.remove(&name)),
            KeyKind::Block(cidr) => drop(self.strays.remove(&cidr)),
            KeyKind::Resource { kind: ResourceKind::FelixConfiguration, name, .. } => {
                drop(self.felix.remove(&name));
            }
            KeyKind::Resource { kind: ResourceKind::ClusterInformation, .. } => self.has_peers = false,
            KeyKind::Resource { kind, .. } if POLICIES.contains(&kind) => drop(self.policies.remove(key)),
            _ => {}
        }
    }
}

// === impl Strays ===

impl Strays {
    /// None if every address is in use on its block's node. Tunnel addresses are left out: they
    /// belong to nodes, and their records name them.
    fn from_block(block: &Block) -> Option<Self> {
        let home = block.node();
        let stray = |ordinal| {
            let owner = block.attribute(ordinal)?;
            let node = NodeName::new(owner.get("node")?).ok()?;
            let tunnel = owner.get("type").is_some_and(|kind| kind.ends_with("TunnelAddress"));
            (home.as_ref() != Some(&node) && !tunnel).then_some((block.cidr.address(ordinal)?, node))
        };
        let borrowed: Vec<_> = (0..block.allocations.len()).filter_map(stray).collect();
        (!borrowed.is_empty()).then_some(Self { borrowed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_store::{Revision, Snapshot};

    fn record(key: &str, value: &str) -> Record {
        Record { key: Key::from_stored(key), value: value.into(), revision: Revision(1) }
    }

    #[test]
    fn a_node_that_is_written_without_a_change_changes_nothing() {
        let node = |labels: &str, revision| {
            let value = format!(
                r#"{{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{{"name":"n1","labels":{labels}}},"spec":{{}}}}"#
            );
            let key = Key::node(&"n1".parse().unwrap());
            Event::Put(Record { key, value: value.into(), revision: Revision(revision) })
        };
        let mut cluster = Cluster::default();
        assert!(cluster.apply(node("{}", 1)));
        assert!(cluster.reconciled().is_some());
        let rules = cluster.rules;
        assert!(!cluster.apply(node("{}", 2)));
        assert_eq!((cluster.rules, cluster.reconciled()), (rules, None));
        assert!(cluster.apply(node(r#"{"rack":"a"}"#, 3)) && cluster.rules > rules);
    }

    #[test]
    fn a_record_that_cannot_be_read_counts_as_absent() {
        let key = "/calico/ipam/v2/host/node-a/ipv4/block/10.1.0.0-26";
        let mut cluster = Cluster::default();
        let good = record(key, r#"{"state":"confirmed","deleted":false}"#);
        cluster.apply(Event::Snapshot(Snapshot { records: vec![good], revision: Revision(1) }));
        assert_eq!(cluster.affinities.len(), 1);
        cluster.apply(Event::Put(record(key, "{\"state\":3}")));
        assert!(cluster.affinities.is_empty());
    }
}
