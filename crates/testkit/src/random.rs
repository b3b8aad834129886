//! Random numbers for tests: the same numbers for the same seed, everywhere. Every random test of
//! the workspace uses this; simulations have the store's (`russet_store::sim`).

use std::time::Duration;

/// Random numbers of a seed (splitmix64, Steele et al. 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

// === impl Random ===

impl Random {
    /// The same seed gives the same numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The random numbers of one thread of many that share a seed.
    pub fn of_thread(seed: u64, thread: u64) -> Self {
        let mut random = Self(seed ^ thread.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.next_u64();
        random
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`; 0 when that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        let number = self.next_u64().checked_rem(end as u64).unwrap_or(0);
        usize::try_from(number).unwrap_or(0)
    }

    /// One of `among`, which is not empty.
    pub fn pick<'a, T: ?Sized>(&mut self, among: &[&'a T]) -> &'a T {
        among[self.below(among.len())]
    }

    /// True once in `of` times.
    pub fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// Less than `limit`, to the microsecond.
    pub fn delay(&mut self, limit: Duration) -> Duration {
        let limit = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.next_u64().checked_rem(limit).unwrap_or(0))
    }

    /// 64 hexadecimal digits.
    pub fn hex(&mut self) -> String {
        (0..4).map(|_| format!("{:016x}", self.next_u64())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_are_those_of_splitmix64() {
        // The first outputs of the reference implementation (Vigna's splitmix64.c) for the seed 0.
        let mut random = Random::new(0);
        let numbers = [random.next_u64(), random.next_u64(), random.next_u64()];
        assert_eq!(numbers, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
        assert_eq!((random.below(0), random.delay(Duration::ZERO)), (0, Duration::ZERO));
    }
}
