//! Where a node finds its next block (calico-ipam.md section 3.5, findUsableBlock): a hole in a pool that overlaps nothing, then one of its own blocks that it
//! did not know of, and at last an empty block that another node has left lying. Pure.
//!
//! Peers list all blocks for that. A hole is found by the blocks' keys alone, a hundredth of the bytes; only where there is none, blocks are looked into.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use russet_addr::{BlockCidr, NodeName};
use russet_model::{Block, IpPool, Key, KeyKind};
use russet_store::Record;

use crate::allocator::readable;
use crate::block_ops::{self, Reserved};
use crate::search::{Occupied, Search};

/// Walks the pools of one request.
pub(crate) struct Finder {
    searches: VecDeque<Search>,
    occupied: Occupied,
    /// Blocks were looked into; what follows was found there.
    is_closer: bool,
    mine: VecDeque<BlockCidr>,
    idle: VecDeque<Idle>,
}

/// An empty block of another node.
pub(crate) struct Idle {
    /// The block.
    pub(crate) block: BlockCidr,
    /// Its node.
    pub(crate) node: NodeName,
    /// Its sequence number when it was seen empty.
    pub(crate) sequence_number: u64,
}

/// A block younger than this is about to be used: its node has claimed it for a request that is under way.
const IDLE_AFTER: Duration = Duration::from_secs(60);

// === impl Finder ===

impl Finder {
    /// A walk through `pools` in their order. `keys` are those of all blocks of the family.
    pub(crate) fn new(node: &NodeName, pools: &[IpPool], keys: &[Key]) -> Self {
        let searches = pools
            .iter()
            .map(|pool| Search::new(pool.spec.cidr, pool.spec.block_prefix_len(), node.as_str()))
            .collect();
        // A block that cannot be read still takes its place.
        let blocks = keys.iter().filter_map(|key| match key.kind() {
            KeyKind::Block(cidr) => Some(cidr),
            _ => None,
        });
        let occupied = blocks.collect();
        Self { searches, occupied, is_closer: false, mine: VecDeque::new(), idle: VecDeque::new() }
    }

    /// The next hole.
    pub(crate) fn next(&mut self, reserved: &Reserved) -> Option<BlockCidr> {
        while let Some(search) = self.searches.front_mut() {
            while let Some(cidr) = search.next_outside(reserved) {
                if !self.occupied.overlaps(cidr) {
                    self.occupied.insert(cidr);
                    return Some(cidr);
                }
            }
            self.searches.pop_front();
        }
        None
    }

    /// Whether blocks must now be looked into: true once.
    pub(crate) fn must_look_closer(&mut self) -> bool {
        !std::mem::replace(&mut self.is_closer, true)
    }

    /// The next block of the node that it did not know of.
    pub(crate) fn next_mine(&mut self) -> Option<BlockCidr> {
        self.mine.pop_front()
    }

    /// The next block that its node might give up.
    pub(crate) fn next_idle(&mut self) -> Option<Idle> {
        self.idle.pop_front()
    }

    /// Looks into one of the blocks.
    pub(crate) fn consider(
        &mut self,
        node: &NodeName,
        pools: &[IpPool],
        record: &Record,
        reserved: &Reserved,
        now: SystemTime,
    ) {
        let KeyKind::Block(cidr) = record.key.kind() else { return };
        let in_pool = pools.iter().any(|pool| {
            pool.spec.cidr.contains(&cidr.net()) && pool.spec.block_prefix_len() == cidr.net().prefix_len()
        });
        let Some(block) = readable(record, Block::decode).filter(|_| in_pool) else { return };
        if !block_ops::has_free(&block, reserved) {
            return;
        }
        if block.serves(node) {
            self.mine.push_back(block.cidr);
            return;
        }
        // A claim time that cannot be read, or is missing, is a very old one.
        let old =
            block.claimed_at().is_none_or(|at| now.duration_since(at).is_ok_and(|age| age >= IDLE_AFTER));
        if let Some(node) = block.node().filter(|_| old && block.is_empty()) {
            self.idle.push_back(Idle { block: block.cidr, node, sequence_number: block.sequence_number });
        }
    }
}
