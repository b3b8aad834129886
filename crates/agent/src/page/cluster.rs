//! What the page shows of the cluster and memory does not have: other agents' health records, and how full blocks are. A task of the main
//! thread, which owns the store, reads it when it is wanted.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use russet_addr::Family;
use russet_kube::Client;
use russet_model::{Block, Key, KeyKind, Prefix};
use russet_plugins::Node;
use russet_store::{Store, StoreError};
use russet_view::map::{BlockFacts, Facts, NodeFacts};
use tokio::sync::Notify;

use crate::drift::lock;
use crate::health_record::HealthRecord;

/// What was read last. Clones share it.
#[derive(Clone, Default)]
pub struct ClusterView(Arc<Shared>);

#[derive(Default)]
struct Shared {
    wanted: Notify,
    known: Mutex<Arc<Known>>,
}

/// What is known of the cluster.
#[derive(Debug, Default)]
pub struct Known {
    pub facts: Facts,
    /// What is not known, and why.
    pub note: Option<String>,
}

/// The least time between two readings.
const PAUSE: Duration = Duration::from_secs(10);
/// The same where records are leases of the Kubernetes API, each of which comes with more than the record.
const PAUSE_KUBERNETES: Duration = Duration::from_secs(30);
/// In a larger cluster only this node's blocks are read, and no node's addresses: a block is several kilobytes.
const ALL_BLOCKS_NODES: usize = 64;
/// Blocks of this node that are read one by one.
const OWN_BLOCKS_MAX: usize = 64;

// === impl ClusterView ===

impl ClusterView {
    /// What was read last. Asks for more.
    pub fn get(&self) -> Arc<Known> {
        self.0.wanted.notify_one();
        Arc::clone(&lock(&self.0.known))
    }

    /// Reads when it is wanted, for ever. Records are in the API of `kubernetes`, if there is one.
    pub async fn run(self, node: Node, kubernetes: Option<Client>) {
        let pause = if kubernetes.is_some() { PAUSE_KUBERNETES } else { PAUSE };
        loop {
            self.0.wanted.notified().await;
            let known = match read(&node, kubernetes.as_ref()).await {
                Ok(known) => known,
                Err(error) => {
                    let facts = lock(&self.0.known).facts.clone();
                    Known { facts, note: Some(format!("The datastore was not read: {error}")) }
                }
            };
            *lock(&self.0.known) = Arc::new(known);
            tokio::time::sleep(pause).await;
        }
    }
}

async fn read(node: &Node, kubernetes: Option<&Client>) -> Result<Known, Box<dyn std::error::Error>> {
    let store = &*node.store;
    let pools = node.allocator.pools().await?;
    let records = match kubernetes {
        Some(client) => HealthRecord::of_leases(client).await?,
        None => {
            let records = store.list(&HealthRecord::prefix()).await?.records;
            records.iter().filter_map(|record| HealthRecord::decode(&record.value)).collect()
        }
    };
    let nodes = with_records(names(store).await?, records);
    let is_small = nodes.len() <= ALL_BLOCKS_NODES;
    let blocks = if is_small { all_blocks(store).await? } else { own_blocks(node).await? };
    let note = (!is_small).then(|| {
        format!("Only this node's blocks are shown: the cluster has more than {ALL_BLOCKS_NODES} nodes.")
    });
    Ok(Known { facts: Facts { nodes, pools, blocks }, note })
}

/// Of all nodes.
async fn names(store: &dyn Store) -> Result<BTreeSet<String>, StoreError> {
    let keys = store.keys(&Prefix::nodes()).await?;
    let names = keys.iter().filter_map(|key| match key.kind() {
        KeyKind::Node(name) => Some(name.to_string()),
        _ => None,
    });
    Ok(names.collect())
}

/// All nodes with their records. A record of a node that is gone is left out.
fn with_records(mut names: BTreeSet<String>, records: Vec<HealthRecord>) -> Vec<NodeFacts> {
    let now = SystemTime::now();
    let mut nodes: Vec<NodeFacts> = records
        .into_iter()
        .filter(|record| names.remove(&record.node))
        .map(|record| {
            let facts = NodeFacts {
                name: record.node.clone(),
                state: record.state(now),
                age_s: record.age_s(now),
                ..NodeFacts::default()
            };
            record.add_to(facts)
        })
        .collect();
    nodes.extend(names.into_iter().map(|name| NodeFacts { name, ..NodeFacts::default() }));
    nodes
}

async fn all_blocks(store: &dyn Store) -> Result<Vec<BlockFacts>, StoreError> {
    let records = store.list(&Prefix::blocks(None)).await?.records;
    let is_block = |key: &Key| matches!(key.kind(), KeyKind::Block(_));
    let decoded = records
        .iter()
        .filter(|record| is_block(&record.key))
        .filter_map(|record| Block::decode(&record.value).ok());
    Ok(decoded.map(|block| BlockFacts::from(&block)).collect())
}

async fn own_blocks(node: &Node) -> Result<Vec<BlockFacts>, StoreError> {
    let mut blocks = Vec::new();
    for family in Family::BOTH {
        for key in node
            .store
            .keys(&Prefix::affinities_of(&node.name, family))
            .await?
            .into_iter()
            .take(OWN_BLOCKS_MAX)
        {
            let KeyKind::Affinity { block: cidr, .. } = key.kind() else { continue };
            let Some(record) = node.store.get(&Key::block(cidr)).await? else { continue };
            // The affinity may be older than that of the block.
            let block = Block::decode(&record.value).ok().filter(|block| block.serves(&node.name));
            blocks.extend(block.as_ref().map(BlockFacts::from));
        }
    }
    Ok(blocks)
}
