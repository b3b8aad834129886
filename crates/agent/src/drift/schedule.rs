//! When a controller compares without an event: at a regular interval, and soon after it could not
//! restore everything, with growing pauses. Pure; `now` is an argument. Used by the repair thread.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::ControllerId;

/// The time of the next comparison of each controller.
#[derive(Debug)]
pub(crate) struct Schedule(BTreeMap<ControllerId, NextComparison>);

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
        let first = |controller| {
            if controller == ControllerId::Endpoints { now } else { now + resync_interval(controller) }
        };
        Self(
            ControllerId::ALL
                .into_iter()
                .map(|controller| (controller, NextComparison { next: first(controller), pause: None }))
                .collect(),
        )
    }

    /// Records that a controller compared everything, and restored it if it `succeeded`.
    pub fn finished(&mut self, controller: ControllerId, succeeded: bool, now: Instant) {
        let Some(entry) = self.0.get_mut(&controller) else { return };
        entry.pause = if succeeded {
            None
        } else {
            Some(entry.pause.map_or(RETRY_FIRST, |pause| (pause * 2).min(RETRY_MAX)))
        };
        entry.next = now + entry.pause.unwrap_or_else(|| resync_interval(controller));
    }

    /// Marks `controller` as comparing. The result is reported through [`Schedule::finished`].
    pub fn started(&mut self, controller: ControllerId, now: Instant) {
        if let Some(entry) = self.0.get_mut(&controller) {
            entry.next = now + resync_interval(controller);
        }
    }

    /// Schedules a controller that cannot compare now, because a request of ours is changing its
    /// state, for when that ends.
    pub fn soon(&mut self, controller: ControllerId, now: Instant) {
        if let Some(entry) = self.0.get_mut(&controller) {
            entry.next = entry.next.min(now + COMMIT_TIME);
        }
    }

    /// The controllers that are due.
    pub fn due(&self, now: Instant) -> BTreeSet<ControllerId> {
        self.0.iter().filter(|(_, entry)| entry.next <= now).map(|(controller, _)| *controller).collect()
    }

    /// The time until a controller other than `held` is due.
    pub fn wait(&self, held: Option<ControllerId>, now: Instant) -> Duration {
        let free = self.0.iter().filter(|(controller, _)| Some(**controller) != held);
        let next = free.map(|(_, entry)| entry.next).min();
        next.map_or(RESYNC_INTERVAL, |next| next.saturating_duration_since(now))
    }
}

fn resync_interval(controller: ControllerId) -> Duration {
    if controller == ControllerId::Overlay { RESYNC_INTERVAL_OVERLAY } else { RESYNC_INTERVAL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_retried_with_growing_pauses_and_every_controller_compares_each_minute() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        assert_eq!(
            schedule.due(start),
            BTreeSet::from([ControllerId::Endpoints]),
            "the agent has just been started"
        );
        schedule.finished(ControllerId::Endpoints, true, start);
        assert!(schedule.due(start).is_empty());
        assert_eq!(schedule.wait(None, start), RESYNC_INTERVAL);
        assert_eq!(
            schedule.due(start + RESYNC_INTERVAL),
            BTreeSet::from([
                ControllerId::Verdicts,
                ControllerId::Nat,
                ControllerId::Openshift,
                ControllerId::Endpoints
            ])
        );
        assert_eq!(schedule.due(start + RESYNC_INTERVAL_OVERLAY).len(), ControllerId::ALL.len());
        let (mut now, mut tries) = (start, 0);
        schedule.finished(ControllerId::Verdicts, false, now);
        assert_eq!(schedule.wait(None, now), RETRY_FIRST);
        while now < start + Duration::from_secs(600) {
            now += schedule.wait(None, now);
            for controller in schedule.due(now) {
                schedule.started(controller, now);
                assert!(!schedule.due(now).contains(&controller));
                tries += u32::from(controller == ControllerId::Verdicts);
                schedule.finished(controller, controller != ControllerId::Verdicts, now);
            }
        }
        assert!((25..=35).contains(&tries), "{tries}");
        schedule.finished(ControllerId::Verdicts, true, now);
        schedule.soon(ControllerId::Nat, now);
        schedule.soon(ControllerId::Nat, now + COMMIT_TIME);
        assert_eq!(schedule.wait(None, now), COMMIT_TIME);
        assert!(schedule.wait(Some(ControllerId::Nat), now) > COMMIT_TIME);
        schedule.finished(ControllerId::Nat, true, now);
        assert!(schedule.due(now + RETRY_MAX).iter().all(|controller| *controller != ControllerId::Verdicts));
        assert!(schedule.due(now + RESYNC_INTERVAL).contains(&ControllerId::Verdicts));
    }
}
