//! Finds a node's next block (calico-ipam.md section 3.5, findUsableBlock): a free range in a pool,
//! then one of its own blocks without an affinity record, and at last an idle block of another
//! node. Pure.
//!
//! Peers list all blocks for that. A free range is found by the blocks' keys alone, a hundredth of
//! the bytes; blocks are read only if there is none.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use russet_addr::{BlockCidr, NodeName};
use russet_model::{Block, IpPool, Key, KeyKind};
use russet_store::Record;

use crate::allocator::readable;
use crate::block_ops::{self, Reserved};
use crate::search::{Occupied, Search};

/// The search through the pools of one request.
pub(crate) struct Finder {
    searches: VecDeque<Search>,
    occupied: Occupied,
    /// Blocks were read; the results follow.
    is_closer: bool,
    mine: VecDeque<BlockCidr>,
    idle: VecDeque<Idle>,
}

/// An idle block of another node.
pub(crate) struct Idle {
    /// The block.
    pub(crate) block: BlockCidr,
    /// Its node.
    pub(crate) node: NodeName,
    /// Its sequence number when it was empty.
    pub(crate) sequence_number: u64,
}

/// A younger block is about to be used: its node has claimed it for a request in progress.
const IDLE_AFTER: Duration = Duration::from_secs(60);

// === impl Finder ===

impl Finder {
    /// A search through `pools` in their order. `keys` are those of all blocks of the family.
    pub(crate) fn new(node: &NodeName, pools: &[IpPool], keys: &[Key]) -> Self {
        let searches = pools
            .iter()
            .map(|pool| Search::new(pool.spec.cidr, pool.spec.block_prefix_len(), node.as_str()))
            .collect();
        // A block that cannot be decoded still occupies its range.
        let blocks = keys.iter().filter_map(|key| match key.kind() {
            KeyKind::Block(cidr) => Some(cidr),
            _ => None,
        });
        let occupied = blocks.collect();
        Self { searches, occupied, is_closer: false, mine: VecDeque::new(), idle: VecDeque::new() }
    }

    /// The next free range.
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

    /// Whether blocks must be read now: true once.
    pub(crate) fn must_look_closer(&mut self) -> bool {
        !std::mem::replace(&mut self.is_closer, true)
    }

    /// The next block of the node without an affinity record.
    pub(crate) fn next_mine(&mut self) -> Option<BlockCidr> {
        self.mine.pop_front()
    }

    /// The next block that its node might release.
    pub(crate) fn next_idle(&mut self) -> Option<Idle> {
        self.idle.pop_front()
    }

    /// Considers one of the blocks.
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
        // A missing or invalid claim time counts as very old.
        let old =
            block.claimed_at().is_none_or(|at| now.duration_since(at).is_ok_and(|age| age >= IDLE_AFTER));
        if let Some(node) = block.node().filter(|_| old && block.is_empty()) {
            self.idle.push_back(Idle { block: block.cidr, node, sequence_number: block.sequence_number });
        }
    }
}
