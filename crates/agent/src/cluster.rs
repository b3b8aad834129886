//! The agent's copy of what the store says about nodes, pools and blocks.

use std::collections::BTreeMap;

use russet_addr::{BlockCidr, NodeName};
use russet_model::{Affinity, IpPool, Key, KeyKind, Node};
use russet_store::{Event, Record};

/// Nodes, pools and affinities, as last seen. A record that cannot be read counts as absent, and is told once.
#[derive(Debug, Default)]
pub struct Cluster {
    /// Nodes by name.
    pub nodes: BTreeMap<NodeName, Node>,
    /// Pools by name.
    pub pools: BTreeMap<String, IpPool>,
    /// Claims of blocks.
    pub affinities: BTreeMap<(NodeName, BlockCidr), Affinity>,
}

// === impl Cluster ===

impl Cluster {
    /// Takes over what a watch tells.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Snapshot(snapshot) => snapshot.records.iter().for_each(|record| self.put(record)),
            Event::Put(record) => self.put(&record),
            Event::Deleted { key, .. } => self.remove(&key),
        }
    }

    fn put(&mut self, record: &Record) {
        let read = match record.key.kind() {
            KeyKind::Node(name) => {
                Node::decode(&record.value).map(|node| drop(self.nodes.insert(name, node)))
            }
            KeyKind::Affinity { node, block } => Affinity::decode(&record.value)
                .map(|affinity| drop(self.affinities.insert((node, block), affinity))),
            KeyKind::Pool(name) => {
                IpPool::decode(&record.value).map(|pool| drop(self.pools.insert(name, pool)))
            }
            _ => Ok(()),
        };
        if let Err(error) = read {
            tracing::warn!(key = %record.key, %error, "record cannot be read and counts as absent");
            self.remove(&record.key);
        }
    }

    fn remove(&mut self, key: &Key) {
        match key.kind() {
            KeyKind::Node(name) => drop(self.nodes.remove(&name)),
            KeyKind::Affinity { node, block } => drop(self.affinities.remove(&(node, block))),
            KeyKind::Pool(name) => drop(self.pools.remove(&name)),
            _ => {}
        }
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
