//! When a part is compared without an event: at a regular interval, and soon after it could not be
//! restored, with growing pauses. Pure; `now` is an argument. Used by `drift` and `kernel_events`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::Part;

/// The time of the next comparison of each part.
#[derive(Debug)]
pub(super) struct Schedule(BTreeMap<Part, NextComparison>);

#[derive(Debug)]
struct NextComparison {
    next: Instant,
    /// The pause before the last attempt, if it failed.
    pause: Option<Duration>,
}

/// Interval of full comparisons. The kernel sends no event for sysctls and some table contents, so
/// drift there is found only by polling. One pass reads a handful of files for each pod, and a few
/// tables.
const RESYNC_INTERVAL: Duration = Duration::from_secs(55);
/// The same for the overlay, which the loop compares more often unless it waits for its store.
const RESYNC_INTERVAL_OVERLAY: Duration = Duration::from_secs(65);
/// Roughly the duration of one commit.
const COMMIT_TIME: Duration = Duration::from_millis(2);
/// The first pause after a failure, doubled up to the limit. In most cases another program works on
/// the same object and finishes soon.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_secs(30);

// === impl Schedule ===

impl Schedule {
    /// The schedule at the agent's start. The caller has just compared verdicts, the loop programs
    /// the overlay, and the snapshot of pods' masquerade is new. Only the pods' interfaces, which
    /// may have changed while no agent ran, are due at once.
    pub fn new(now: Instant) -> Self {
        let first = |part| if part == Part::Pods { now } else { now + resync_interval(part) };
        Self(
            Part::ALL
                .into_iter()
                .map(|part| (part, NextComparison { next: first(part), pause: None }))
                .collect(),
        )
    }

    /// Records that a part was compared completely, and restored if it `succeeded`.
    pub fn finished(&mut self, part: Part, succeeded: bool, now: Instant) {
        let Some(entry) = self.0.get_mut(&part) else { return };
        entry.pause = if succeeded {
            None
        } else {
            Some(entry.pause.map_or(RETRY_FIRST, |pause| (pause * 2).min(RETRY_MAX)))
        };
        entry.next = now + entry.pause.unwrap_or_else(|| resync_interval(part));
    }

    /// Marks `part` as being compared. The result is reported through [`Schedule::finished`].
    pub fn started(&mut self, part: Part, now: Instant) {
        if let Some(entry) = self.0.get_mut(&part) {
            entry.next = now + resync_interval(part);
        }
    }

    /// Schedules a part that cannot be compared now, because a request of ours is changing it, for
    /// when that ends.
    pub fn soon(&mut self, part: Part, now: Instant) {
        if let Some(entry) = self.0.get_mut(&part) {
            entry.next = entry.next.min(now + COMMIT_TIME);
        }
    }

    /// The parts that are due.
    pub fn parts(&self, now: Instant) -> BTreeSet<Part> {
        self.0.iter().filter(|(_, entry)| entry.next <= now).map(|(part, _)| *part).collect()
    }

    /// The time until a part other than `held` is due.
    pub fn wait(&self, held: Option<Part>, now: Instant) -> Duration {
        let free = self.0.iter().filter(|(part, _)| Some(**part) != held);
        let next = free.map(|(_, entry)| entry.next).min();
        next.map_or(RESYNC_INTERVAL, |next| next.saturating_duration_since(now))
    }
}

fn resync_interval(part: Part) -> Duration {
    if part == Part::Overlay { RESYNC_INTERVAL_OVERLAY } else { RESYNC_INTERVAL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_retried_with_growing_pauses_and_every_part_is_compared_each_minute() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        assert_eq!(schedule.parts(start), BTreeSet::from([Part::Pods]), "the agent has just been started");
        schedule.finished(Part::Pods, true, start);
        assert!(schedule.parts(start).is_empty());
        assert_eq!(schedule.wait(None, start), RESYNC_INTERVAL);
        assert_eq!(
            schedule.parts(start + RESYNC_INTERVAL),
            BTreeSet::from([Part::Verdicts, Part::Nat, Part::Sdn, Part::Pods])
        );
        assert_eq!(schedule.parts(start + RESYNC_INTERVAL_OVERLAY).len(), Part::ALL.len());
        let (mut now, mut tries) = (start, 0);
        schedule.finished(Part::Verdicts, false, now);
        assert_eq!(schedule.wait(None, now), RETRY_FIRST);
        while now < start + Duration::from_secs(600) {
            now += schedule.wait(None, now);
            for part in schedule.parts(now) {
                schedule.started(part, now);
                assert!(!schedule.parts(now).contains(&part));
                tries += u32::from(part == Part::Verdicts);
                schedule.finished(part, part != Part::Verdicts, now);
            }
        }
        assert!((25..=35).contains(&tries), "{tries}");
        schedule.finished(Part::Verdicts, true, now);
        schedule.soon(Part::Nat, now);
        schedule.soon(Part::Nat, now + COMMIT_TIME);
        assert_eq!(schedule.wait(None, now), COMMIT_TIME);
        assert!(schedule.wait(Some(Part::Nat), now) > COMMIT_TIME);
        schedule.finished(Part::Nat, true, now);
        assert!(schedule.parts(now + RETRY_MAX).iter().all(|part| *part != Part::Verdicts));
        assert!(schedule.parts(now + RESYNC_INTERVAL).contains(&Part::Verdicts));
    }
}
