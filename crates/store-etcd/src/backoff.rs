//! Pauses between attempts: doubling, with jitter, so that a thousand nodes do not return to a new
//! leader at the same moment.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use russet_store::sim::Rng;

/// The first pause: about the time that a follower needs to answer "no leader" and a local election
/// needs to progress.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause: an etcd election takes one to two seconds, and its end should be noticed
/// soon.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The pauses of one call or one watch.
pub(crate) struct Backoff {
    next: Duration,
    chance: Rng,
}

/// Randomness for jitter, the choice of the first endpoint, and lease ids; none of it is secret.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

// === impl Backoff ===

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: PAUSE_MIN, chance: Rng::new(random()) }
    }

    /// The pause to make now: between half and all of the current one, which is then doubled.
    pub(crate) fn pause(&mut self) -> Duration {
        let half = self.next / 2;
        let jitter = self.chance.below(u64::try_from(half.as_micros()).unwrap_or(0));
        self.next = (self.next * 2).min(PAUSE_MAX);
        half + Duration::from_micros(jitter)
    }

    /// Returns to the shortest pause after a success.
    pub(crate) fn reset(&mut self) {
        self.next = PAUSE_MIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_differ() {
        let mut backoff = Backoff::new();
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.pause()).collect();
        assert!(pauses[0] >= PAUSE_MIN / 2 && pauses[0] <= PAUSE_MIN);
        assert!(pauses[10..].iter().all(|pause| *pause >= PAUSE_MAX / 2 && *pause <= PAUSE_MAX));
        assert!(pauses[10..].windows(2).any(|pair| pair[0] != pair[1]));
        backoff.reset();
        assert!(backoff.pause() <= PAUSE_MIN);
    }
}
