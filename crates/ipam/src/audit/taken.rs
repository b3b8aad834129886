//! Every address that has a handle, indexed by the handle's hash: 640,000 of them in 10 MB, with as
//! many lookups.

/// One address that has a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Taken {
    /// The hash of the handle's name. With 640,000 handles, two are equal once in ten million
    /// audits.
    pub(super) hash: u64,
    /// The block, by the order of reading.
    pub(super) block: u32,
    /// The ordinal in the block.
    pub(super) ordinal: u16,
    /// Its handle's record was read.
    pub(super) reached: bool,
}

/// All of them; sorted at the first lookup.
#[derive(Debug, Default)]
pub(super) struct TakenByHash {
    taken: Vec<Taken>,
    /// Where the hashes with a given prefix begin; one more than there are prefixes. Empty: not
    /// sorted.
    starts: Vec<u32>,
}

/// Bits of the prefix in `starts`: 256 kB, which fit into a processor's cache, and about ten
/// entries for each prefix in a large cluster.
const START_BITS: u32 = 16;

// === impl TakenByHash ===

impl TakenByHash {
    pub(super) fn push(&mut self, taken: Taken) {
        self.starts.clear();
        self.taken.push(taken);
    }

    /// The addresses of the handle with this hash, in the order of blocks. Marks them as reached.
    pub(super) fn reach(&mut self, hash: u64) -> &[Taken] {
        if self.starts.is_empty() {
            self.sort();
        }
        let place = usize::try_from(hash >> (u64::BITS - START_BITS)).unwrap_or(0);
        let Some([from, to]) = self.starts.get(place..place + 2) else { return &[] };
        let Some(near) = self.taken.get_mut(*from as usize..*to as usize) else { return &[] };
        let (_, near) = near.split_at_mut(near.partition_point(|taken| taken.hash < hash));
        let many = near.iter().take_while(|taken| taken.hash == hash).count();
        let (found, _) = near.split_at_mut(many);
        found.iter_mut().for_each(|taken| taken.reached = true);
        found
    }

    /// Those whose handle was never looked up.
    pub(super) fn unreached(self) -> impl Iterator<Item = Taken> {
        self.taken.into_iter().filter(|taken| !taken.reached)
    }

    fn sort(&mut self) {
        self.taken.sort_unstable();
        let mut at = 0;
        let places = 1_u64 << START_BITS;
        self.starts.reserve_exact(usize::try_from(places + 1).unwrap_or(0));
        for place in 0..places {
            self.starts.push(at);
            let within = |taken: &Taken| taken.hash >> (u64::BITS - START_BITS) == place;
            while self.taken.get(at as usize).is_some_and(within) {
                at += 1;
            }
        }
        self.starts.push(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_returns_exactly_the_addresses_of_the_hash() {
        let hashes = [0, 1, 1, 1 << 47, 1 << 48, (1 << 48) + 1, u64::MAX - 1, u64::MAX, u64::MAX];
        let mut all = TakenByHash::default();
        for (block, hash) in (0..).zip(hashes) {
            all.push(Taken { hash, block, ordinal: 0, reached: false });
        }
        let mut blocks = |hash| all.reach(hash).iter().map(|taken| taken.block).collect::<Vec<_>>();
        assert_eq!(blocks(1), [1, 2]);
        assert_eq!(blocks(u64::MAX), [7, 8]);
        assert_eq!((blocks(1 << 48), blocks(2), blocks(u64::MAX - 2)), (vec![4], vec![], vec![]));
        assert_eq!(blocks(0), [0]);
        all.push(Taken { hash: 2, block: 9, ordinal: 0, reached: false });
        assert_eq!(all.reach(2)[0].block, 9, "one that came later");
        let left: Vec<u32> = all.unreached().map(|taken| taken.block).collect();
        assert_eq!(left, [3, 5, 6]);
    }
}
