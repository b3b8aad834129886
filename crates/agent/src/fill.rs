//! How full pools are, for metrics: the blocks of the whole cluster from the loop's watches, and
//! the addresses in this node's own blocks, which are read once a minute. A scrape reads nothing
//! from the store.

use std::collections::BTreeMap;
use std::time::Duration;

use russet_addr::{BlockCidr, Family};
use russet_model::{Block, IpPool, Key, KeyKind, Prefix};
use russet_plugins::Node;
use russet_store::StoreError;

use crate::cluster::Cluster;
use crate::metrics::{Claims, Fill, PoolMetrics};

/// Interval of reading this node's blocks.
const EVERY: Duration = Duration::from_secs(60);
/// The label for blocks that belong to no existing pool.
const NO_POOL: &str = "";

/// Updates the metrics once a minute and never returns. While the store is away, the last values
/// stay.
pub async fn run(node: Node, metrics: PoolMetrics) {
    loop {
        match node.allocator.pools().await {
            Ok(pools) => match look(&node, &pools).await {
                Ok(fill) => metrics.set_fill(&fill),
                Err(error) => tracing::debug!(%error, "this node's blocks cannot be read"),
            },
            Err(error) => tracing::debug!(%error, "the pools cannot be read"),
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn look(node: &Node, pools: &[IpPool]) -> Result<BTreeMap<String, Fill>, StoreError> {
    let mut fills = BTreeMap::new();
    for family in Family::BOTH {
        for key in node.store.keys(&Prefix::affinities_of(&node.name, family)).await? {
            let KeyKind::Affinity { block: cidr, .. } = key.kind() else { continue };
            let Some(record) = node.store.get(&Key::block(cidr)).await? else { continue };
            let Ok(block) = Block::decode(&record.value) else { continue };
            // The affinity may be older than that of the block.
            if block.serves(&node.name) {
                add(&mut fills, pools, &block);
            }
        }
    }
    Ok(fills)
}

fn add(fills: &mut BTreeMap<String, Fill>, pools: &[IpPool], block: &Block) {
    let pool = pool_of(pools.iter(), block.cidr).unwrap_or(NO_POOL);
    let fill: &mut Fill = fills.entry(pool.to_owned()).or_default();
    fill.blocks += 1;
    fill.addresses += block.allocations.len() as u64;
    fill.used += block.allocations.iter().flatten().count() as u64;
}

/// Block affinities by pool, from the loop's watches.
pub fn claims(cluster: &Cluster) -> BTreeMap<String, Claims> {
    let blocks = |pool: &IpPool| BlockCidr::count_in(pool.spec.cidr, pool.spec.block_prefix_len());
    let none = |(name, pool): (&String, &IpPool)| (name.clone(), Claims { blocks: blocks(pool), claimed: 0 });
    let mut all: BTreeMap<String, Claims> = cluster.pools.iter().map(none).collect();
    for (_, block) in cluster.affinities.keys() {
        let pool = cluster.pools.iter().find(|(_, pool)| pool.spec.cidr.contains(&block.net()));
        if let Some(claims) = pool.and_then(|(name, _)| all.get_mut(name)) {
            claims.claimed += 1;
        }
    }
    all
}

fn pool_of<'p>(mut pools: impl Iterator<Item = &'p IpPool>, block: BlockCidr) -> Option<&'p str> {
    pools.find(|pool| pool.spec.cidr.contains(&block.net())).map(|pool| pool.metadata.name.as_str())
}

#[cfg(test)]
mod tests {
    use russet_store::{Event, Record, Revision};

    use super::*;

    fn put(cluster: &mut Cluster, key: &str, value: &str) {
        let key = Key::from_stored(key);
        cluster.apply(Event::Put(Record { key, value: value.into(), revision: Revision(1) }));
    }

    fn pool(name: &str, cidr: &str) -> IpPool {
        IpPool::new(name, russet_model::IpPoolSpec::new(cidr.parse().unwrap()))
    }

    #[test]
    fn affinities_of_all_nodes_count_in_the_pool_that_contains_the_block() {
        let mut cluster = Cluster::of(&"n1".parse().unwrap());
        cluster.pools.insert("v4".into(), pool("v4", "10.1.0.0/24"));
        cluster.pools.insert("v6".into(), pool("v6", "fd00::/48"));
        for (node, block) in [("a", "10.1.0.0-26"), ("b", "10.1.0.64-26"), ("b", "192.0.2.0-26")] {
            let key = format!("/calico/ipam/v2/host/{node}/ipv4/block/{block}");
            put(&mut cluster, &key, r#"{"state":"confirmed","deleted":false}"#);
        }
        let claims = claims(&cluster);
        assert_eq!(claims["v4"], Claims { blocks: 4, claimed: 2 });
        assert_eq!(claims["v6"].claimed, 0);
        assert!(claims["v6"].blocks > 1 << 40, "{claims:?}");
    }

    #[test]
    fn allocated_addresses_count_in_the_pool_of_their_block() {
        let allocations: Vec<_> = (0..64).map(|ordinal| [0, 7].contains(&ordinal).then_some(0)).collect();
        let free: Vec<_> = (0..64).filter(|ordinal| ![0, 7].contains(ordinal)).collect();
        let block = serde_json::json!({
            "cidr": "10.1.0.0/26",
            "affinity": "host:a",
            "allocations": allocations,
            "unallocated": free,
            "attributes": [{ "handle_id": "h", "secondary": {} }],
            "sequenceNumber": 1,
            "sequenceNumberForAllocation": {},
            "deleted": false,
        });
        let block = Block::decode(block.to_string().as_bytes()).unwrap();
        let mut fills = BTreeMap::new();
        add(&mut fills, &[pool("v4", "10.1.0.0/24")], &block);
        add(&mut fills, &[], &block);
        let fill = Fill { blocks: 1, addresses: 64, used: 2 };
        assert_eq!(fills, BTreeMap::from([("v4".to_owned(), fill), (NO_POOL.to_owned(), fill)]));
    }

    #[test]
    fn the_age_of_the_oldest_pending_change_is_reported_once() {
        let mut cluster = Cluster::of(&"n1".parse().unwrap());
        assert_eq!(cluster.reconciled(), None);
        put(&mut cluster, "/calico/ipam/v2/host/a/ipv4/block/10.1.0.0-26", "{}");
        assert!(cluster.reconciled().is_some());
        assert_eq!(cluster.reconciled(), None);
    }
}
