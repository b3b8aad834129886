//! Pauses between attempts: doubling, with jitter, so that a thousand nodes do not return to a
//! restarted API server at the same moment.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// First pause: a server that was just restarted needs longer, one that dropped a connection does not.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause; it bounds how late a pod's sandbox notices that the server is back.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The next pause of one call or one watch.
pub(crate) struct Backoff {
    next: Duration,
}

/// State of the random numbers for jitter; they need not be unpredictable.
pub(crate) fn random_below(bound: u64) -> u64 {
    RandomState::new().hash_one(std::process::id()).checked_rem(bound).unwrap_or(0)
}

// === impl Backoff ===

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: PAUSE_MIN }
    }

    /// The next pause: between half and all of the current one, which then doubles.
    pub(crate) fn pause(&mut self) -> Duration {
        let half = self.next / 2;
        let jitter = random_below(u64::try_from(half.as_micros()).unwrap_or(0));
        self.next = (self.next * 2).min(PAUSE_MAX);
        half + Duration::from_micros(jitter)
    }

    /// After a success the next pause is the shortest again.
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
