//! Waits until no other process uses the machine (dataplane.md section 2.1: foreign CPU below 15
//! %).

use std::fs;
use std::time::{Duration, Instant};

/// Above this share of all cores, other processes disturb measurements.
const FOREIGN_MAX: f64 = 0.15;
/// Duration of one measurement of the machine's load.
const LOOK: Duration = Duration::from_millis(400);
/// Limit of a wait: a machine that is busy for so long stays busy, and the report says so.
const WAIT_MAX: Duration = Duration::from_secs(25);

/// The results of the waits, for the report.
#[derive(Default)]
pub struct Quiet {
    /// The share of all cores that others used, at the end of each wait.
    pub foreign: Vec<f64>,
    /// All waits together may last no longer than this; none once it is used up.
    spent: Duration,
}

/// The sum of all waits; a busy machine must not turn minutes into an hour.
const TOTAL_WAIT_MAX: Duration = Duration::from_secs(150);

// === impl Quiet ===

impl Quiet {
    /// Measures the load once, without waiting.
    pub fn impatient() -> Self {
        Self { spent: TOTAL_WAIT_MAX, ..Self::default() }
    }

    /// Waits, while nothing of ours runs, until the machine is quiet or the limit is reached.
    pub fn wait(&mut self) {
        let began = Instant::now();
        let limit = WAIT_MAX.min(TOTAL_WAIT_MAX.saturating_sub(self.spent));
        let share = loop {
            let share = busy_share(LOOK);
            if share < FOREIGN_MAX || began.elapsed() >= limit {
                break share;
            }
        };
        self.spent += began.elapsed();
        self.foreign.push(share);
    }

    /// One line for people, `None` before the first wait.
    pub fn summary(&self) -> Option<String> {
        let mut sorted = self.foreign.clone();
        sorted.sort_by(f64::total_cmp);
        let (median, most) = (sorted.get(sorted.len() / 2)?, sorted.last()?);
        let busy = sorted.iter().filter(|share| **share >= FOREIGN_MAX).count();
        let percent = |share: &f64| share * 100.0;
        let verdict = if busy == 0 { "quiet" } else { "NOT quiet: do not compare with other runs" };
        Some(format!(
            "foreign CPU before each phase: median {:.0} %, most {:.0} %, {busy} of {} above {:.0} %: {verdict}",
            percent(median),
            percent(most),
            sorted.len(),
            FOREIGN_MAX * 100.0
        ))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a look at the machine is a stretch of time, there is no event to wait for"
)]
fn busy_share(look: Duration) -> f64 {
    let before = ticks();
    std::thread::sleep(look);
    let (before, after) = (before.unwrap_or_default(), ticks().unwrap_or_default());
    let (busy, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    if all == 0 { 0.0 } else { busy as f64 / all as f64 }
}

fn ticks() -> Option<(u64, u64)> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

/// Busy and all ticks since boot; what a hypervisor stole counts as busy.
fn parse(stat: &str) -> Option<(u64, u64)> {
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
    // user nice system idle iowait irq softirq steal; guest time, behind them, is in user already
    let ticks: Vec<u64> = numbers.split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    Some((all - ticks.get(3)? - ticks.get(4)?, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_disks_is_not_being_busy() {
        assert_eq!(parse("cpu  10 0 5 80 4 0 1 0 7 0\ncpu0 1"), Some((16, 100)));
        assert_eq!(parse(""), None);
    }
}
