//! Pauses between attempts: doubling, with jitter, so that a thousand nodes do not return to a
//! restarted server at the same moment.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The pauses of one call, one watch or one connection.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
    rng: Rng,
}

/// A splitmix64 generator: the same seed gives the same numbers, so that one seed determines a whole
/// simulation.
#[derive(Debug, Clone)]
pub struct Rng(u64);

/// A seed for jitter and for choices that spread load. It is not secret.
pub fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

// === impl Backoff ===

impl Backoff {
    pub fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first, rng: Rng::new(random()) }
    }

    /// The pause to make now: between half and all of the current one, which is then doubled.
    pub fn pause(&mut self) -> Duration {
        let half = self.next / 2;
        let jitter = self.rng.below(u64::try_from(half.as_micros()).unwrap_or(0));
        self.next = (self.next * 2).min(self.max);
        half + Duration::from_micros(jitter)
    }

    /// Whether the next pause is as long as any.
    pub fn is_longest(&self) -> bool {
        self.next == self.max
    }

    /// Returns to the shortest pause after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

// === impl Rng ===

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is too small to matter for jitter and simulations.
        self.next_u64().checked_rem(bound).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_differ() {
        let (first, max) = (Duration::from_millis(20), Duration::from_secs(1));
        let mut backoff = Backoff::new(first, max);
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.pause()).collect();
        assert!(backoff.is_longest());
        assert!(pauses[0] >= first / 2 && pauses[0] <= first);
        assert!(pauses[10..].iter().all(|pause| *pause >= max / 2 && *pause <= max));
        assert!(pauses[10..].windows(2).any(|pair| pair[0] != pair[1]));
        backoff.reset();
        assert!(!backoff.is_longest() && backoff.pause() <= first);
    }
}
