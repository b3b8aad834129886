//! A test's luck: the same numbers for the same seed.

use std::time::Duration;

/// SplitMix64.
pub struct Random(u64);

// === impl Random ===

impl Random {
    /// The luck of one thread of many that share a seed.
    pub fn new(seed: u64, thread: u64) -> Self {
        let mut random = Self(seed ^ thread.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    /// True once in `of` times.
    pub fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// Up to `limit`, to the microsecond.
    pub fn delay(&mut self, limit: Duration) -> Duration {
        Duration::from_micros(self.next() % u64::try_from(limit.as_micros()).unwrap())
    }

    /// 64 digits.
    pub fn hex(&mut self) -> String {
        (0..4).map(|_| format!("{:016x}", self.next())).collect()
    }
}
