//! How full pools are: in blocks over the whole cluster, and in addresses within this node's own blocks.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// A pool's size may exceed an integer: an IPv6 pool can have more blocks.
type Number = Gauge<f64, AtomicU64>;

/// How full pools are. Clones share the numbers.
#[derive(Debug, Clone, Default)]
pub struct PoolMetrics {
    blocks: Family<Pool, Number>,
    claimed: Family<Pool, Number>,
    node_blocks: Family<Pool, Number>,
    node_addresses: Family<Pool, Number>,
    node_used: Family<Pool, Number>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pool {
    pool: String,
}

/// Blocks of one pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Claims {
    /// Number of blocks that the pool can be divided into.
    pub blocks: u64,
    /// Number that nodes have claimed.
    pub claimed: u64,
}

/// This node's blocks of one pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fill {
    /// Number of blocks.
    pub blocks: u64,
    /// Addresses in them.
    pub addresses: u64,
    /// Number of these that are allocated.
    pub used: u64,
}

// === impl PoolMetrics ===

impl PoolMetrics {
    /// Sets the values of all pools.
    pub fn set_claims(&self, pools: &BTreeMap<String, Claims>) {
        set(&self.blocks, pools, |claims| claims.blocks);
        set(&self.claimed, pools, |claims| claims.claimed);
    }

    /// Sets the values of this node's blocks.
    pub fn set_fill(&self, pools: &BTreeMap<String, Fill>) {
        set(&self.node_blocks, pools, |fill| fill.blocks);
        set(&self.node_addresses, pools, |fill| fill.addresses);
        set(&self.node_used, pools, |fill| fill.used);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let all = [
            ("pool_blocks", "Blocks that a pool can be cut into", &self.blocks),
            (
                "pool_claimed_blocks",
                "Blocks of a pool that nodes have claimed, over the whole cluster",
                &self.claimed,
            ),
            ("node_blocks", "Blocks that this node has claimed, by pool", &self.node_blocks),
            (
                "node_addresses",
                "Addresses in the blocks that this node has claimed, by pool",
                &self.node_addresses,
            ),
            (
                "node_used_addresses",
                "Addresses that are taken in the blocks that this node has claimed, by pool; looked at once a minute",
                &self.node_used,
            ),
        ];
        for (name, help, family) in all {
            registry.register(format!("ipam_{name}"), help, family.clone());
        }
    }
}

/// Removes the values of pools that no longer exist.
fn set<T>(family: &Family<Pool, Number>, pools: &BTreeMap<String, T>, number: impl Fn(&T) -> u64) {
    family.clear();
    for (pool, it) in pools {
        family.get_or_create(&Pool { pool: pool.clone() }).set(number(it) as f64);
    }
}
