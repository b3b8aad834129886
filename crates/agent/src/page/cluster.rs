//! What the page shows of the cluster and memory does not have: other agents' health records, and how full blocks are. A task of the main
//! thread, which owns the store, reads it when it is wanted.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use russet_addr::Family;
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

    /// Reads when it is wanted, for ever.
    pub async fn run(self, node: Node) {
        loop {
            self.0.wanted.notified().await;
            let known = match read(&node).await {
                Ok(known) => known,
                Err(error) => {
                    let facts = lock(&self.0.known).facts.clone();
                    Known { facts, note: Some(format!("The datastore was not read: {error}")) }
                }
            };
            *lock(&self.0.known) = Arc::new(known);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn read(node: &Node) -> Result<Known, Box<dyn std::error::Error>> {
    let store = &*node.store;
    let pools = node.allocator.pools().await?;
    if !store.claims().ttl {
        let note = "Other agents' records are annotations in the Kubernetes API, which an agent does not list: the map shows what this node finds. \
                    `russet map` shows all.";
        let facts = Facts { nodes: Vec::new(), pools, blocks: own_blocks(node).await? };
        return Ok(Known { facts, note: Some(note.to_owned()) });
    }
    let nodes = nodes(store).await?;
    let is_small = nodes.len() <= ALL_BLOCKS_NODES;
    let blocks = if is_small { all_blocks(store).await? } else { own_blocks(node).await? };
    let note = (!is_small).then(|| {
        format!("Only this node's blocks are shown: the cluster has more than {ALL_BLOCKS_NODES} nodes.")
    });
    Ok(Known { facts: Facts { nodes, pools, blocks }, note })
}

/// All nodes with their records.
async fn nodes(store: &dyn Store) -> Result<Vec<NodeFacts>, StoreError> {
    let mut names = BTreeSet::new();
    for key in store.keys(&Prefix::nodes()).await? {
        if let KeyKind::Node(name) = key.kind() {
            names.insert(name.to_string());
        }
    }
    let now = SystemTime::now();
    let records = store.list(&HealthRecord::prefix()).await?.records;
    let mut nodes: Vec<NodeFacts> = records
        .iter()
        .filter_map(|record| HealthRecord::decode(&record.value))
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
    Ok(nodes)
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
