//! Limit of the time that comparisons take: a program that changes managed objects in a loop must
//! not keep a processor busy. Pure; `now` is an argument. Used by `kernel_events`.

use std::time::{Duration, Instant};

/// Processor time for comparisons, saved up to a limit.
#[derive(Debug)]
pub(crate) struct Budget {
    saved: Duration,
    overdrawn: Duration,
    at: Instant,
}

/// The most that can be saved. A burst that costs no more than this is handled without a pause,
/// however large the node is.
const SAVED_MAX: Duration = Duration::from_secs(1);
/// The most that one comparison is charged, so that the next one never waits longer than ten times
/// this.
const CHARGE_MAX: Duration = Duration::from_millis(500);
/// The divisor of elapsed time: under endless load, a tenth of one processor goes to comparisons.
const SHARE: u32 = 10;

// === impl Budget ===

impl Budget {
    pub fn full(now: Instant) -> Self {
        Self { saved: SAVED_MAX, overdrawn: Duration::ZERO, at: now }
    }

    /// How long to wait before the next comparison; zero if it may start now.
    pub fn wait(&mut self, now: Instant) -> Duration {
        let earned = now.saturating_duration_since(self.at) / SHARE;
        self.at = now;
        let repaid = earned.min(self.overdrawn);
        self.overdrawn -= repaid;
        self.saved = (self.saved + (earned - repaid)).min(SAVED_MAX);
        self.overdrawn * SHARE
    }

    /// Charges a comparison.
    pub fn spend(&mut self, took: Duration) {
        let took = took.min(CHARGE_MAX);
        let paid = took.min(self.saved);
        self.saved -= paid;
        self.overdrawn += took - paid;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_after_one_long_comparison_is_bounded() {
        let start = Instant::now();
        let mut budget = Budget::full(start);
        (0..3).for_each(|_| budget.spend(Duration::from_secs(3600)));
        assert_eq!(budget.wait(start), CHARGE_MAX * SHARE);
    }

    #[test]
    fn a_burst_is_handled_at_once_and_an_endless_one_takes_a_tenth() {
        let start = Instant::now();
        let mut budget = Budget::full(start);
        let took = Duration::from_millis(50);
        let mut now = start;
        for _ in 0..20 {
            assert_eq!(budget.wait(now), Duration::ZERO);
            budget.spend(took);
        }
        let mut busy = took * 20;
        while now < start + Duration::from_secs(100) {
            let wait = budget.wait(now);
            now += wait;
            if wait.is_zero() {
                budget.spend(took);
                busy += took;
                now += took;
            }
        }
        let share = busy.as_secs_f64() / 100.0;
        assert!((0.05..=0.12).contains(&share), "{share}");
        now += Duration::from_secs(10);
        assert_eq!(budget.wait(now), Duration::ZERO);
        (1..20).for_each(|_| budget.spend(took));
        assert_eq!(budget.wait(now), Duration::ZERO);
    }
}
