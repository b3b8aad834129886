//! Which policies do not have the condition that they should have, and when this agent writes it.

use std::collections::BTreeMap;
use std::time::Duration;

use russet_kube::Piece;
use serde_json::Value;
use tokio::time::Instant;

use super::wanted;

/// What was seen of all policies.
#[derive(Debug, Default)]
pub struct Book {
    /// The number of the list in progress, or of the last one.
    list: u32,
    known: BTreeMap<String, Known>,
    /// The API server refuses writes: none is due before.
    closed_until: Option<Instant>,
}

#[derive(Debug)]
struct Known {
    list: u32,
    generation: Option<u64>,
    /// It had the condition that it should have.
    is_right: bool,
    /// How often another writer has changed the condition since the policy itself was changed.
    lost: u32,
    due: Option<Due>,
}

/// A write is due in the spread after `since`.
#[derive(Debug, Clone, Copy)]
struct Due {
    since: Instant,
    /// Which part of the spread, of `u32::MAX`.
    share: u32,
}

/// The pauses before what another writer changes is written again. All agents see each of these changes, so that they pause together.
const LOST_FIRST: Duration = Duration::from_secs(10);
const LOST_MAX: Duration = Duration::from_secs(600);

// === impl Book ===

impl Book {
    /// Takes what the watch says. `share` is random.
    pub fn see(&mut self, piece: &Piece<Value>, now: Instant, share: u32) {
        match piece {
            Piece::Begin => self.list = self.list.wrapping_add(1),
            Piece::Complete => self.known.retain(|_, known| known.list == self.list),
            Piece::Deleted(policy) => _ = self.known.remove(wanted::name(policy)),
            Piece::Changed(policy) => {
                let generation = policy.pointer("/metadata/generation").and_then(Value::as_u64);
                let is_right = super::is_right(policy);
                let new = Known { list: self.list, generation, is_right, lost: 0, due: None };
                let known = self.known.entry(wanted::name(policy).to_owned()).or_insert(new);
                known.list = self.list;
                known.changed(generation, is_right, Due { since: now, share });
            }
        }
    }

    /// The policy whose write is due next, and when.
    pub fn next(&self, spread: Duration) -> Option<(Instant, &str)> {
        let at = |due: Due| {
            let since = self.closed_until.map_or(due.since, |until| until.max(due.since));
            since + spread.mul_f64(f64::from(due.share) / f64::from(u32::MAX))
        };
        self.known.iter().filter_map(|(name, known)| Some((at(known.due?), name.as_str()))).min()
    }

    /// The write is carried out now. What is seen meanwhile may make it due again.
    pub fn begin(&mut self, name: &str) {
        if let Some(known) = self.known.get_mut(name) {
            known.due = None;
        }
    }

    /// The write has failed and is due again then, unless it is due already.
    pub fn again(&mut self, name: &str, since: Instant, share: u32) {
        if let Some(known) = self.known.get_mut(name) {
            known.due.get_or_insert(Due { since, share });
        }
    }

    /// No write is due before.
    pub fn close(&mut self, until: Instant) {
        self.closed_until = Some(until);
    }
}

// === impl Known ===

impl Known {
    fn changed(&mut self, generation: Option<u64>, is_right: bool, due: Due) {
        let is_lost = self.is_right && !is_right;
        self.lost = match self.generation == generation {
            true => self.lost.saturating_add(u32::from(is_lost)),
            false => 0,
        };
        (self.generation, self.is_right) = (generation, is_right);
        let due = Due { since: due.since + self.pause(), ..due };
        // An object that changes all the time puts nothing off.
        self.due = if is_right { None } else { Some(self.due.unwrap_or(due)) };
    }

    fn pause(&self) -> Duration {
        match self.lost {
            0 => Duration::ZERO,
            lost => LOST_FIRST.saturating_mul(1 << (lost - 1).min(16)).min(LOST_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HALF: u32 = u32::MAX / 2;
    const SPREAD: Duration = Duration::from_secs(100);

    /// A policy that nothing can be read of, with a condition that is right or none.
    fn policy(name: &str, generation: u64, is_right: bool) -> Value {
        let mut policy = json!({ "metadata": { "name": name, "generation": generation } });
        if is_right {
            let now = std::time::SystemTime::now();
            let conditions = wanted::conditions(&policy, super::super::VERSION, now).unwrap();
            policy["status"] = json!({ "conditions": conditions });
        }
        policy
    }

    fn after(book: &Book, start: Instant) -> Option<(u64, &str)> {
        book.next(SPREAD).map(|(at, name)| ((at - start).as_secs(), name))
    }

    #[test]
    fn a_write_is_due_at_a_random_time_that_no_later_event_puts_off() {
        let (mut book, start) = (Book::default(), Instant::now());
        book.see(&Piece::Changed(policy("right", 1, true)), start, 0);
        assert_eq!(after(&book, start), None);
        book.see(&Piece::Changed(policy("late", 1, false)), start, u32::MAX);
        book.see(&Piece::Changed(policy("early", 1, false)), start, HALF);
        assert_eq!(after(&book, start), Some((49, "early")));
        assert_eq!(book.next(SPREAD / 100).map(|(at, _)| (at - start).as_secs()), Some(0), "a small cluster");
        book.see(&Piece::Changed(policy("early", 2, false)), start + SPREAD, u32::MAX);
        assert_eq!(after(&book, start), Some((49, "early")));
        book.see(&Piece::Changed(policy("early", 2, true)), start + SPREAD, 0);
        assert_eq!(after(&book, start), Some((100, "late")), "another agent was faster");
        book.begin("late");
        assert_eq!(after(&book, start), None);
        book.again("late", start + SPREAD, HALF);
        book.again("late", start + SPREAD * 2, HALF);
        assert_eq!(after(&book, start), Some((149, "late")));
        book.close(start + SPREAD * 10);
        assert_eq!(after(&book, start), Some((1049, "late")));
    }

    #[test]
    fn writers_that_undo_each_other_pause_longer_and_longer_until_the_policy_changes() {
        let (mut book, start) = (Book::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            book.see(&Piece::Changed(policy("p", 1, true)), start, 0);
            book.see(&Piece::Changed(policy("p", 1, false)), start, 0);
            pauses.push(after(&book, start).unwrap().0);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
        book.see(&Piece::Changed(policy("p", 2, true)), start, 0);
        book.see(&Piece::Changed(policy("p", 3, false)), start, 0);
        assert_eq!(after(&book, start), Some((0, "p")));
    }

    #[test]
    fn policies_that_are_gone_are_forgotten() {
        let (mut book, start) = (Book::default(), Instant::now());
        let see = |book: &mut Book, piece| book.see(&piece, start, 0);
        see(&mut book, Piece::Begin);
        for name in ["a", "b", "c"] {
            see(&mut book, Piece::Changed(policy(name, 1, false)));
        }
        see(&mut book, Piece::Complete);
        see(&mut book, Piece::Deleted(policy("a", 1, false)));
        assert_eq!(after(&book, start), Some((0, "b")));
        see(&mut book, Piece::Begin);
        see(&mut book, Piece::Changed(policy("c", 1, false)));
        see(&mut book, Piece::Complete);
        assert_eq!(after(&book, start), Some((0, "c")));
        book.again("b", start, 0);
        assert_eq!(book.known.len(), 1);
    }
}
