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
#[derive(Debug)]
pub struct Cluster {
    /// The node of this agent.
    name: NodeName,
    /// Its record.
    pub own: Option<Node>,
    /// What is needed of all nodes, this one too, by name: a fortieth of a record.
    pub nodes: BTreeMap<NodeName, russet_overlay::Node>,
    /// Pools by name.
    pub pools: BTreeMap<String, IpPool>,
    /// Block affinities, by node and block.
    pub affinities: BTreeMap<(NodeName, BlockCidr), Affinity>,
    /// Incremented when something changes that decides where addresses come from: pools, this node,
    /// reservations, settings.
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
    /// Nothing is known yet.
    pub fn of(name: &NodeName) -> Self {
        Self {
            name: name.clone(),
            own: None,
            nodes: BTreeMap::new(),
            pools: BTreeMap::new(),
            affinities: BTreeMap::new(),
            rules: 0,
            strays: BTreeMap::new(),
            felix: BTreeMap::new(),
            policies: BTreeSet::new(),
            has_peers: false,
            pending_since: Cell::new(None),
        }
    }

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
        let Some(known) = self.nodes.get(&name) else { return false };
        Node::decode(&record.value).is_ok_and(|node| match name == self.name {
            true => self.own.as_ref() == Some(&node),
            false => russet_overlay::Node::from(&node) == *known,
        })
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
            KeyKind::Node(name) => Node::decode(&record.value).map(|node| {
                self.nodes.insert(name.clone(), (&node).into());
                if name == self.name {
                    self.own = Some(node);
                }
            }),
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
        let decides = match key.kind() {
            KeyKind::Node(name) => name == self.name,
            kind => matches!(kind, KeyKind::Pool(_) | KeyKind::Reservation(_) | KeyKind::IpamConfig),
        };
        self.rules += u64::from(decides);
    }

    fn remove(&mut self, key: &Key) {
        self.note(key);
        match key.kind() {
            KeyKind::Node(name) => {
                self.nodes.remove(&name);
                self.own.take_if(|_| name == self.name);
            }
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
        let node = |name: &str, labels: &str, address: &str| {
            let value = format!(
                r#"{{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{{"name":"{name}","labels":{labels}}},"spec":{{"bgp":{{"ipv4Address":"{address}"}}}}}}"#
            );
            let key = Key::node(&name.parse().unwrap());
            Event::Put(Record { key, value: value.into(), revision: Revision(1) })
        };
        let mut cluster = Cluster::of(&"own".parse().unwrap());
        for (name, decides) in [("own", 1), ("other", 0)] {
            let before = cluster.rules;
            assert!(cluster.apply(node(name, "{}", "10.0.0.1/24")), "{name}");
            assert!(cluster.reconciled().is_some());
            assert!(!cluster.apply(node(name, "{}", "10.0.0.1/24")), "{name}");
            assert_eq!((cluster.rules - before, cluster.reconciled()), (decides, None), "{name}");
            // Pools select nodes by labels, and an agent asks that of its own node only.
            let labelled = cluster.apply(node(name, r#"{"rack":"a"}"#, "10.0.0.1/24"));
            assert_eq!((labelled, cluster.rules - before), (decides == 1, 2 * decides), "{name}");
            assert!(cluster.apply(node(name, r#"{"rack":"a"}"#, "10.0.0.2/24")), "{name}");
            assert!(
                cluster
                    .apply(Event::Deleted { key: Key::node(&name.parse().unwrap()), revision: Revision(1) })
            );
            assert!(cluster.nodes.is_empty() && cluster.own.is_none(), "{name}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_counts_as_absent() {
        let key = "/calico/ipam/v2/host/node-a/ipv4/block/10.1.0.0-26";
        let mut cluster = Cluster::of(&"n1".parse().unwrap());
        let good = record(key, r#"{"state":"confirmed","deleted":false}"#);
        cluster.apply(Event::Snapshot(Snapshot { records: vec![good], revision: Revision(1) }));
        assert_eq!(cluster.affinities.len(), 1);
        cluster.apply(Event::Put(record(key, "{\"state\":3}")));
        assert!(cluster.affinities.is_empty());
    }
}
