//! Every address that a handle has, found by the handle's hash: 640,000 of them in 10 MB, asked for as often.

/// One address that a handle has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Taken {
    /// Of the handle's name. Two of 640,000 meet in one audit of ten million.
    pub(super) hash: u64,
    /// Which block, by the order of reading.
    pub(super) block: u32,
    /// Where in it.
    pub(super) ordinal: u16,
    /// Its handle's record was seen.
    pub(super) reached: bool,
}

/// All of them; sorted once the first is asked for.
#[derive(Debug, Default)]
pub(super) struct TakenByHash {
    taken: Vec<Taken>,
    /// Where the hashes begin whose first bits are the place's number; one more than there are such numbers. Empty: not sorted.
    starts: Vec<u32>,
}

/// First bits of a hash that have a place in `starts`: 256 kB, which stay in a processor's cache, and about ten entries each in a large cluster.
const START_BITS: u32 = 16;

// === impl TakenByHash ===

impl TakenByHash {
    pub(super) fn push(&mut self, taken: Taken) {
        self.starts.clear();
        self.taken.push(taken);
    }

    /// What the handle of this hash has, in the order of blocks, from now on reached.
    pub(super) fn reach(&mut self, hash: u64) -> &[Taken] {
        if self.starts.is_empty() {
            self.sort();
        }
        let place = usize::try_from(hash >> (u64::BITS - START_BITS)).unwrap_or(0);
        let (from, to) = (self.starts[place] as usize, self.starts[place + 1] as usize);
        let near = &mut self.taken[from..to];
        let first = near.partition_point(|taken| taken.hash < hash);
        let many = near[first..].iter().take_while(|taken| taken.hash == hash).count();
        let found = &mut near[first..first + many];
        found.iter_mut().for_each(|taken| taken.reached = true);
        found
    }

    /// Those whose handle was never asked for.
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
    fn what_a_handle_has_is_found_wherever_its_hash_is_and_only_that() {
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
