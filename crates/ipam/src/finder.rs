//! Where a node finds its next block (calico-ipam.md section 3.5, findUsableBlock): a hole in a pool that overlaps nothing, one of its own blocks that it
//! did not know of, and at last an empty block that another node has left lying. Pure, over one listing of the blocks.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

use russet_addr::{BlockCidr, NodeName};
use russet_model::{Block, IpPool, KeyKind};
use russet_store::Record;

use crate::allocator::readable;
use crate::block_ops::{self, Reserved};
use crate::search::{Occupied, Search};

/// Walks the pools of one request.
pub(crate) struct Finder {
    searches: VecDeque<Search>,
    occupied: Occupied,
    mine: BTreeSet<BlockCidr>,
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
    /// A walk through `pools` in their order. `records` are all blocks of the family.
    pub(crate) fn new(
        node: &NodeName,
        pools: &[IpPool],
        reserved: &Reserved,
        records: &[Record],
        now: SystemTime,
    ) -> Self {
        let searches = pools
            .iter()
            .map(|pool| Search::new(pool.spec.cidr, pool.spec.block_prefix_len(), node.as_str()))
            .collect();
        let mut finder =
            Self { searches, occupied: Occupied::default(), mine: BTreeSet::new(), idle: VecDeque::new() };
        for record in records {
            // A block that cannot be read still takes its place.
            let KeyKind::Block(cidr) = record.key.kind() else { continue };
            finder.occupied.insert(cidr);
            let in_pool = pools.iter().any(|pool| {
                pool.spec.cidr.contains(&cidr.net())
                    && pool.spec.block_prefix_len() == cidr.net().prefix_len()
            });
            if in_pool && let Some(block) = readable(record, Block::decode) {
                finder.consider(node, &block, reserved, now);
            }
        }
        finder
    }

    /// The next block to claim.
    pub(crate) fn next(&mut self, reserved: &Reserved) -> Option<BlockCidr> {
        while let Some(search) = self.searches.front_mut() {
            while let Some(cidr) = search.next_outside(reserved) {
                if self.mine.remove(&cidr) {
                    return Some(cidr);
                }
                if !self.occupied.overlaps(cidr) {
                    self.occupied.insert(cidr);
                    return Some(cidr);
                }
            }
            self.searches.pop_front();
        }
        None
    }

    /// The next block that its node might give up.
    pub(crate) fn next_idle(&mut self) -> Option<Idle> {
        self.idle.pop_front()
    }

    fn consider(&mut self, node: &NodeName, block: &Block, reserved: &Reserved, now: SystemTime) {
        if !block_ops::has_free(block, reserved) {
            return;
        }
        if block.serves(node) {
            self.mine.insert(block.cidr);
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
