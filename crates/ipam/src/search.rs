//! The order in which a node searches a pool for a block (calico-ipam.md section 3.5), and the
//! blocks in its way. Pure.
//!
//! The order only keeps nodes apart. Russet starts at the node name's FNV-1 hash modulo the number
//! of blocks; peers hash that once more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{BlockCidr, Family, IpNet};

use crate::block_ops::Reserved;

/// The blocks of one pool, each once, starting at a position that depends on the node.
pub struct Search {
    pool: IpNet,
    prefix_len: u8,
    count: u64,
    start: u64,
    seen: u64,
}

/// The existing blocks of one family, to check whether a new one would overlap any.
#[derive(Debug, Default)]
pub struct Occupied {
    starts: BTreeSet<u128>,
    by_len: BTreeMap<u8, BTreeSet<u128>>,
}

/// FNV-1, 32 bits: multiply, then xor.
pub fn fnv1(text: &str) -> u32 {
    text.bytes().fold(2_166_136_261, |hash: u32, byte| hash.wrapping_mul(16_777_619) ^ u32::from(byte))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

// === impl Search ===

impl Search {
    /// The blocks of length `prefix_len` in `pool`, in the order of `node`.
    pub fn new(pool: IpNet, prefix_len: u8, node: &str) -> Self {
        let count = BlockCidr::count_in(pool, prefix_len);
        Self { pool, prefix_len, count, start: u64::from(fnv1(node)) % count.max(1), seen: 0 }
    }

    /// The next block that is not completely reserved.
    pub fn next_outside(&mut self, reserved: &Reserved) -> Option<BlockCidr> {
        while self.seen < self.count {
            let index = self.index();
            let block = BlockCidr::nth_in(self.pool, self.prefix_len, index)?;
            match reserved.covering(block) {
                None => {
                    self.seen += 1;
                    return Some(block);
                }
                Some(net) => self.skip(index, net),
            }
        }
        None
    }

    fn index(&self) -> u64 {
        let wide = (u128::from(self.start) + u128::from(self.seen)) % u128::from(self.count);
        u64::try_from(wide).unwrap_or_default()
    }

    /// Skips the rest of a reservation in one step: it may cover 2^58 blocks.
    fn skip(&mut self, index: u64, net: IpNet) {
        let host_bits = u32::from(Family::of_net(&net).bits() - self.prefix_len);
        let last = number(net.broadcast()).min(number(self.pool.broadcast()));
        let last_index = (last - number(self.pool.network())) >> host_bits;
        let step = last_index.saturating_sub(u128::from(index)) + 1;
        // Past the end the search continues at the pool's first block.
        let step = step.min(u128::from(self.count - index));
        self.seen = self.seen.saturating_add(u64::try_from(step).unwrap_or(u64::MAX));
    }
}

// === impl Occupied ===

impl Occupied {
    /// Adds a block.
    pub fn insert(&mut self, block: BlockCidr) {
        let start = number(block.net().network());
        self.starts.insert(start);
        self.by_len.entry(block.net().prefix_len()).or_default().insert(start);
    }

    /// Whether any of the blocks overlaps `block`: one contains the other.
    pub fn overlaps(&self, block: BlockCidr) -> bool {
        let net = block.net();
        let inside = number(net.network())..=number(net.broadcast());
        self.starts.range(inside).next().is_some()
            || self.by_len.range(..net.prefix_len()).any(|(len, starts)| {
                BlockCidr::containing(net.network(), *len)
                    .is_ok_and(|outer| starts.contains(&number(outer.net().network())))
            })
    }
}

impl FromIterator<BlockCidr> for Occupied {
    fn from_iter<I: IntoIterator<Item = BlockCidr>>(blocks: I) -> Self {
        let mut occupied = Self::default();
        blocks.into_iter().for_each(|block| occupied.insert(block));
        occupied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(mut search: Search, reserved: &[&str]) -> Vec<String> {
        let reserved = Reserved(reserved.iter().map(|text| text.parse().unwrap()).collect());
        std::iter::from_fn(|| search.next_outside(&reserved)).take(100).map(|b| b.to_string()).collect()
    }

    #[test]
    fn the_hash_is_that_of_calico() {
        // calico-ipam.md section 3.5
        let hashes = ["testHost", "node-a", "node-b", "worker-1"].map(fnv1);
        assert_eq!(hashes, [2_118_914_743, 568_266_999, 568_266_996, 2_999_756_865]);
    }

    #[test]
    fn a_walk_visits_every_block_once() {
        let blocks = walk(Search::new("10.1.0.0/24".parse().unwrap(), 29, "node-a"), &[]);
        assert_eq!(blocks.len(), 32);
        assert_eq!(blocks.iter().collect::<BTreeSet<_>>().len(), 32);
        assert_eq!(blocks[0], format!("10.1.0.{}/29", 568_266_999 % 32 * 8));
    }

    #[test]
    fn reserved_blocks_are_skipped_at_any_start() {
        for node in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            let blocks = walk(
                Search::new("10.1.0.0/26".parse().unwrap(), 29, node),
                &["10.1.0.16/28", "10.1.0.56/29", "10.1.0.1/32"],
            );
            let mut sorted = blocks.clone();
            sorted.sort();
            assert_eq!(
                sorted,
                ["10.1.0.0/29", "10.1.0.32/29", "10.1.0.40/29", "10.1.0.48/29", "10.1.0.8/29"],
                "{node}"
            );
        }
    }

    #[test]
    fn a_huge_reservation_is_skipped_in_one_step() {
        let pool: IpNet = "fd72:7573:7365::/64".parse().unwrap();
        let mut search = Search::new(pool, 122, "node-a");
        let all_but_last = Reserved(vec!["fd72:7573:7365::/65".parse().unwrap()]);
        assert!(search.next_outside(&all_but_last).is_some());
        assert!(Search::new(pool, 122, "node-a").next_outside(&Reserved(vec![pool])).is_none());
    }

    #[test]
    fn overlap_is_seen_in_both_directions() {
        // calico-ipam.md section 7, libcalico-go#1377
        let occupied: Occupied = ["10.1.0.64/26", "10.1.1.0/30"].iter().map(|b| b.parse().unwrap()).collect();
        for (block, overlaps) in [
            ("10.1.0.64/26", true),
            ("10.1.0.72/29", true),
            ("10.1.0.0/24", true),
            ("10.1.1.0/29", true),
            ("10.1.0.0/26", false),
            ("10.1.1.4/30", false),
        ] {
            assert_eq!(occupied.overlaps(block.parse().unwrap()), overlaps, "{block}");
        }
    }
}
