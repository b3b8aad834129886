//! When a part is to be compared although nobody said anything: every so often, and soon after something of it could not be put back, with pauses that
//! grow. Pure; `now` is an argument. Used by `drift` and `ears`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::Part;

/// The next look at each part.
#[derive(Debug)]
pub(super) struct Due(BTreeMap<Part, Look>);

#[derive(Debug)]
struct Look {
    next: Instant,
    /// How long it was waited for it, if the last one failed.
    pause: Option<Duration>,
}

/// What the kernel does not tell of is found this soon: a handful of files for each pod, and a few tables.
const SWEEP: Duration = Duration::from_secs(55);
/// The loop compares the overlay more often than that, unless it waits for its store.
const SWEEP_OVERLAY: Duration = Duration::from_secs(65);
/// What a commit takes.
const SOON: Duration = Duration::from_millis(2);
/// The first pause after a failure; doubled up to the limit. Mostly somebody else is at work on the same thing, who is done soon.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_secs(30);

// === impl Due ===

impl Due {
    /// At the agent's start: verdicts are compared and the overlay is programmed by others then, and the picture of pods' masquerade has just been taken. What pods'
    /// interfaces have lost while no agent was there is nobody else's to find.
    pub fn new(now: Instant) -> Self {
        let first = |part| if part == Part::Pods { now } else { now + sweep(part) };
        Self(Part::ALL.into_iter().map(|part| (part, Look { next: first(part), pause: None })).collect())
    }

    /// All of a part was compared, and put back if it `succeeded`.
    pub fn looked(&mut self, part: Part, succeeded: bool, now: Instant) {
        let Some(look) = self.0.get_mut(&part) else { return };
        look.pause = if succeeded {
            None
        } else {
            Some(look.pause.map_or(RETRY_FIRST, |pause| (pause * 2).min(RETRY_MAX)))
        };
        look.next = now + look.pause.unwrap_or_else(|| sweep(part));
    }

    /// It has been begun to compare a part; what comes of that is told later.
    pub fn begun(&mut self, part: Part, now: Instant) {
        if let Some(look) = self.0.get_mut(&part) {
            look.next = now + sweep(part);
        }
    }

    /// A request of ours is at work on a part, which cannot be compared now: as soon as that is over.
    pub fn soon(&mut self, part: Part, now: Instant) {
        if let Some(look) = self.0.get_mut(&part) {
            look.next = look.next.min(now + SOON);
        }
    }

    /// What is to be compared now.
    pub fn parts(&self, now: Instant) -> BTreeSet<Part> {
        self.0.iter().filter(|(_, look)| look.next <= now).map(|(part, _)| *part).collect()
    }

    /// How long nothing is but what is `held` up.
    pub fn wait(&self, held: Option<Part>, now: Instant) -> Duration {
        let free = self.0.iter().filter(|(part, _)| Some(**part) != held);
        let next = free.map(|(_, look)| look.next).min();
        next.map_or(SWEEP, |next| next.saturating_duration_since(now))
    }
}

fn sweep(part: Part) -> Duration {
    if part == Part::Overlay { SWEEP_OVERLAY } else { SWEEP }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_tried_again_soon_and_then_ever_more_seldom_and_all_is_compared_every_minute() {
        let start = Instant::now();
        let mut due = Due::new(start);
        assert_eq!(due.parts(start), BTreeSet::from([Part::Pods]), "the agent has just been started");
        due.looked(Part::Pods, true, start);
        assert!(due.parts(start).is_empty());
        assert_eq!(due.wait(None, start), SWEEP);
        assert_eq!(
            due.parts(start + SWEEP),
            BTreeSet::from([Part::Verdicts, Part::Nat, Part::Sdn, Part::Pods])
        );
        assert_eq!(due.parts(start + SWEEP_OVERLAY).len(), Part::ALL.len());
        let (mut now, mut tries) = (start, 0);
        due.looked(Part::Verdicts, false, now);
        assert_eq!(due.wait(None, now), RETRY_FIRST);
        while now < start + Duration::from_secs(600) {
            now += due.wait(None, now);
            for part in due.parts(now) {
                due.begun(part, now);
                assert!(!due.parts(now).contains(&part));
                tries += u32::from(part == Part::Verdicts);
                due.looked(part, part != Part::Verdicts, now);
            }
        }
        assert!((25..=35).contains(&tries), "{tries}");
        due.looked(Part::Verdicts, true, now);
        due.soon(Part::Nat, now);
        due.soon(Part::Nat, now + SOON);
        assert_eq!(due.wait(None, now), SOON);
        assert!(due.wait(Some(Part::Nat), now) > SOON);
        due.looked(Part::Nat, true, now);
        assert!(due.parts(now + RETRY_MAX).iter().all(|part| *part != Part::Verdicts));
        assert!(due.parts(now + SWEEP).contains(&Part::Verdicts));
    }
}
