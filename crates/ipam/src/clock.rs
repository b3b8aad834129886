//! The allocator's time: passed in, so that the simulator controls it.

use std::future::ready;
use std::time::{Duration, SystemTime};

use russet_store::BoxFuture;

/// The time for records.
pub trait Clock {
    /// The current time.
    fn now(&self) -> SystemTime;
}

/// Waits between two attempts at a contended record.
pub trait Backoff {
    /// Waits after attempt `attempt`, counted from 0.
    fn wait(&self, attempt: u32) -> BoxFuture<'_, ()>;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

/// Tries again at once: right for one process on one machine, and for the simulator.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoBackoff;

/// The first delay's upper end; a commit takes about this long.
const FIRST_DELAY_MS: u64 = 2;
/// The longest delay's upper end: 100 attempts stay below the 90 s that peers give an ADD.
const LONGEST_DELAY_MS: u64 = 400;

/// The pause after attempt `attempt`, for a random number: between zero and an upper end that
/// doubles, so that requests that collided once do not collide again.
pub fn delay(attempt: u32, random: u64) -> Duration {
    let end_ms = FIRST_DELAY_MS.saturating_mul(1 << attempt.min(16)).min(LONGEST_DELAY_MS);
    Duration::from_micros(random % (end_ms * 1000))
}

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

impl Backoff for NoBackoff {
    fn wait(&self, _attempt: u32) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_one() {
        let longest = |attempt| (0..50).map(|i| delay(attempt, i * 999_983)).max().unwrap();
        assert!(longest(0) < Duration::from_millis(2));
        assert!(longest(3) < Duration::from_millis(16) && longest(3) > Duration::from_millis(2));
        assert!(longest(99) < Duration::from_millis(400));
    }
}
