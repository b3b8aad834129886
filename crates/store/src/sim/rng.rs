//! A splitmix64 generator. Also used by the drivers of simulations, so that one seed determines a
//! whole run.

/// A seeded source of numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

// === impl Rng ===

impl Rng {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is too small to matter in a simulation.
        self.next_u64().checked_rem(bound).unwrap_or(0)
    }
}
