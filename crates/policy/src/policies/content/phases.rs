//! The transactions of a change. Pure.
//!
//! A packet uses one version of the rules, but the kernel looks up each map in the newest state, and maps of ranges change
//! a little later than the others of their transaction. So a packet that is judged during a commit can find nothing in a
//! narrow map of the old state and then something in a wider one of the new state. It would pass where the new narrow
//! decision denies it, and where the old wide one did. Also its identity can be that of before the commit.
//!
//! Traffic is decided by the narrowest of all keys, old and new, that contain it. Therefore:
//!
//! 1. *complete*: new keys are added with what counts for their traffic already, where a wider key changes too. The others wait
//!    until no packet is judged any more that has missed them;
//! 2. *forbid*: what is denied from now on;
//! 3. *places*: the identities of addresses, and what has to change with them. Prefixes change behind the addresses in
//!    them that get an identity, and before those that lose theirs;
//! 4. *permit*: what is allowed from now on;
//! 5. *late*: decisions about identities that addresses have left, defaults that allow, and the end of holding;
//! 6. *prune*: keys that are not needed any more, where ranges change.
//!
//! The second to the fifth are one transaction where nothing is in the way: ranges that forbid are before places, which are
//! before what is late; and if one direction denies more and the other less, what permits is behind all these, because a
//! packet between two pods of this node is judged in both, one after the other.
//!
//! What is denied before and behind a change is denied in each of its states and in every mixture of two that follow each
//! other, and what is allowed is allowed, but for addresses that leave an identity. Left open: two pods of this node, if
//! both get other identities in one change, or if lists of source ports change in both directions; and a packet whose
//! processor stands still from one of the later phases to the next, which is judged again by the epoch that follows several.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_verdict::ir::{Direction, Protocol};
use russet_verdict::table::{Delta, Identity, Key, Part, Verdict, Word};

use super::{Changes, Decided, Decisions, decision_element, default_element, list_of, new_ranges, new_word};
use crate::policies::lists::Lists;
use crate::policies::skeleton::Place;
use crate::policies::words;

#[cfg(test)]
mod tests;

const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// The decisions that change, by direction and local address. Without any, only the default changes.
pub(super) type Moves = BTreeMap<(Direction, IpAddr), Vec<Move>>;

/// A decision that changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub key: Key,
    pub old: Option<Decided>,
    pub new: Option<Decided>,
}

/// A change. The lists have the numbers of before it and of behind it.
pub(super) struct Change<'a> {
    pub old: &'a Decisions,
    pub delta: &'a Delta,
    pub lists: &'a Lists,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Old,
    New,
}

/// A decision, and what counts for its traffic before and behind a change.
#[derive(Clone, Copy)]
struct Effect {
    made: Move,
    before: Decided,
    behind: Decided,
}

/// Identities whose addresses change.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// Those that addresses leave, and to which none comes: what is decided about one to which an address comes has to
    /// change with it.
    pub left: BTreeSet<Identity>,
    pub entered: BTreeSet<Identity>,
}

/// When a decision changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// Before or with the identities of addresses.
    Early,
    /// Before them if it denies, else with them or behind.
    AsDecided,
    /// Behind them.
    Late,
}

#[derive(Debug, Default)]
struct Phases {
    complete: Changes,
    forbid: Changes,
    /// Identities of addresses, and what has to change with them.
    places: Changes,
    permit: Changes,
    late: Changes,
    prune: Changes,
    /// What may be in any of them.
    idle: Changes,
    moved: Moved,
    /// The directions in which a decision denies what was allowed, and the other way round.
    denying: BTreeSet<Direction>,
    allowing: BTreeSet<Direction>,
    /// Whether addresses are not held or not judged any more.
    is_unlocking: bool,
}

/// The first phase of a change and the others without empty ones; only a single other one if there are more than
/// `elements_max` elements.
pub(super) fn of(
    change: &Change<'_>,
    moves: &Moves,
    decided: &BTreeSet<IpAddr>,
    elements_max: usize,
) -> (Changes, Vec<Changes>) {
    let (forbid, late) = change.old.changes(change.delta, decided);
    let mut phases = Phases { moved: change.old.moved(change.delta), ..Phases::default() };
    if forbid.has(|place| place == Place::Pods) {
        phases.denying.extend(DIRECTIONS);
    }
    phases.is_unlocking = late.len() > 0;
    (phases.forbid, phases.places, phases.late) = (forbid, change.old.places(change.delta), late);
    for (at, moves) in moves {
        phases.add(change, *at, moves);
    }
    let (complete, phases) = phases.in_order();
    if complete.len() + phases.iter().map(Changes::len).sum::<usize>() > elements_max {
        return (Changes::default(), vec![at_once(change, moves, decided)]);
    }
    (complete, phases)
}

/// The change as one transaction.
fn at_once(change: &Change<'_>, moves: &Moves, decided: &BTreeSet<IpAddr>) -> Changes {
    let (mut all, unlocks) = change.old.changes(change.delta, decided);
    all.extend(unlocks);
    all.extend(change.old.places(change.delta));
    for (at, moves) in moves {
        change.put_default(&mut all, *at);
        moves.iter().for_each(|it| all.put_decision(&it.key, it.old, it.new));
    }
    all
}

// === impl Phases ===

impl Phases {
    /// Adds what changes for a direction of a local address.
    fn add(&mut self, change: &Change<'_>, at: (Direction, IpAddr), moves: &[Move]) {
        let (_, local) = at;
        let is_closed = !change.old.is_judged(local) || change.old.held.contains(&local);
        let has_ranges = has_ranges(change, at, moves);
        if is_closed {
            // No packet finds any of it before the address is judged and not held any more.
            let changes = if has_ranges { &mut self.complete } else { &mut self.forbid };
            change.put_default(changes, at);
            for it in moves {
                let is_left = self.moved.left.contains(&it.key.peer);
                let changes = if is_left { &mut self.late } else { &mut *changes };
                changes.put_decision(&it.key, it.old, it.new);
            }
            return;
        }
        let default = [State::Old, State::New].map(|state| change.default(state, at));
        let effects: Vec<Effect> = moves.iter().map(|it| change.effect(*it, default)).collect();
        let is_late = default[0] != default[1] && self.moved.is_late(default[1]);
        let when = if is_late { When::Late } else { When::AsDecided };
        change.put_default(self.phase(at.0, default, when), at);
        if has_ranges || effects.iter().any(Effect::is_partly_reversed) {
            return self.add_completed(change, moves, default);
        }
        // The widest change about each peer.
        let mut widest: BTreeMap<Identity, Part> = BTreeMap::new();
        for Effect { made: Move { key, .. }, .. } in effects.iter().filter(|it| it.before != it.behind) {
            let part = widest.entry(key.peer).or_insert(key.part);
            *part = key.part.max(*part);
        }
        for effect in &effects {
            let Effect { made: Move { key, old, new }, before, behind } = *effect;
            let is_hidden = old.is_none()
                && !is_reversed(before, behind)
                && (default[0] != default[1] || widest.get(&key.peer).is_some_and(|part| *part > key.part));
            let old = if is_hidden { Some(before) } else { old };
            if is_hidden {
                self.complete.put_decision(&key, None, old);
            }
            if old.is_none() && before == behind {
                self.idle.put_decision(&key, None, new);
                continue;
            }
            let when = match self.moved.when(key.peer) {
                When::AsDecided if is_late && new.is_none() && before == behind => When::Late,
                when => when,
            };
            self.phase(key.direction, [before, behind], when).put_decision(&key, old, new);
        }
    }

    /// Adds decisions of which some are for ranges: all keys are there while what they say changes.
    fn add_completed(&mut self, change: &Change<'_>, moves: &[Move], default: [Decided; 2]) {
        let mut ranges: BTreeMap<(Identity, Protocol), Vec<Move>> = BTreeMap::new();
        for it in moves {
            match it.key.part {
                Part::Range(protocol, ..) => ranges.entry((it.key.peer, protocol)).or_default().push(*it),
                _ => self.add_parts(change, &[*it], vec![change.effect(*it, default)]),
            }
        }
        for moves in ranges.into_values() {
            self.add_parts(change, &moves, parts(change, &moves, default));
        }
    }

    /// Adds decisions, whose traffic is that of these parts of them.
    fn add_parts(&mut self, change: &Change<'_>, moves: &[Move], parts: Vec<Effect>) {
        let is_part = |key: &Key| parts.iter().any(|part| part.made.key == *key);
        for Move { key, old, new } in moves.iter().filter(|it| !is_part(&it.key)) {
            self.complete.put_decision(key, *old, None);
            self.prune.put_decision(key, None, *new);
        }
        for Effect { made: Move { key, .. }, before, behind } in &parts {
            let [old, new] = [State::Old, State::New].map(|state| change.decided(state, key));
            self.complete.put_decision(key, old, Some(*before));
            let phase = self.phase(key.direction, [*before, *behind], self.moved.when(key.peer));
            phase.put_decision(key, Some(*before), Some(*behind));
            self.prune.put_decision(key, Some(*behind), new);
        }
    }

    /// The phase in which what counts for some traffic changes.
    fn phase(&mut self, direction: Direction, [old, new]: [Decided; 2], when: When) -> &mut Changes {
        let is_stricter = new.verdict == Verdict::Deny || old.verdict == Verdict::Allow;
        let denies = old.verdict != new.verdict && is_stricter;
        if old != new {
            let directions = if denies { &mut self.denying } else { &mut self.allowing };
            directions.insert(direction);
        }
        match when {
            When::Late => &mut self.late,
            _ if denies => &mut self.forbid,
            When::Early if old != new => &mut self.places,
            _ => &mut self.permit,
        }
    }

    /// Whether a packet between two pods of this node may find the one direction as it was, and the other one as it will be,
    /// and pass. It may not only where decisions deny more: what is decided about another identity may be less.
    fn is_crossed(&self) -> bool {
        let [ingress, egress] = DIRECTIONS.map(|direction| {
            (self.denying.contains(&direction), self.is_unlocking || self.allowing.contains(&direction))
        });
        (ingress.0 && egress.1)
            || (egress.0 && ingress.1)
            || !(self.moved.left.is_empty() || self.allowing.is_empty())
    }

    fn in_order(self) -> (Changes, Vec<Changes>) {
        let is_crossed = self.is_crossed();
        let Self { complete, mut forbid, mut places, permit, mut late, prune, idle, moved, .. } = self;
        let (nets, unnamed) = places.split_places();
        let is_crossed = is_crossed || nets.len() > 0;
        if !is_crossed && !forbid.has_ranges() {
            forbid.extend(std::mem::take(&mut places));
        }
        let with_places = if places.len() > 0 { &mut places } else { &mut forbid };
        let with_permit = if is_crossed { &mut late } else { &mut *with_places };
        with_permit.extend(permit);
        if moved.left.is_empty() && !is_crossed {
            with_places.extend(std::mem::take(&mut late));
        }
        let mut phases = vec![forbid, places, nets, unnamed, late, prune];
        phases.retain(|phase| phase.len() > 0);
        match phases.first_mut() {
            Some(phase) => phase.extend(idle),
            None => phases.extend((idle.len() > 0).then_some(idle)),
        }
        (complete, phases)
    }
}

// === impl Effect ===

impl Effect {
    /// Whether a key goes, and some of its traffic, by the port of its source, passes afterwards that did not, or the other
    /// way round.
    fn is_partly_reversed(&self) -> bool {
        let Self { made, before, behind } = self;
        made.new.is_none()
            && before != behind
            && [before, behind].iter().any(|it| it.verdict == Verdict::Wide)
    }
}

// === impl Moved ===

impl Moved {
    fn when(&self, peer: Identity) -> When {
        match (self.left.contains(&peer), self.entered.contains(&peer)) {
            (true, _) => When::Late,
            (false, true) => When::Early,
            (false, false) => When::AsDecided,
        }
    }

    /// Whether a new default waits until addresses have left their identities.
    fn is_late(&self, default: Decided) -> bool {
        !self.left.is_empty() && default.verdict != Verdict::Deny
    }
}

// === impl Change ===

impl Change<'_> {
    fn decided(&self, state: State, key: &Key) -> Option<Decided> {
        let (word, ranges) = match state {
            State::Old => (self.old.decisions.get(key).copied(), self.old.wide.get(key)),
            State::New => (new_word(self.old, self.delta, key), new_ranges(self.old, self.delta, key)),
        };
        let list = list_of(key, word, ranges);
        word.map(|word| Decided::of(word, list.as_ref(), self.lists))
    }

    /// The default of a local address. Without one everything passes.
    fn default(&self, state: State, at: (Direction, IpAddr)) -> Decided {
        let old = self.old.defaults.get(&at).copied();
        let word = match state {
            State::Old => old,
            State::New => self.delta.defaults.get(&at).copied().unwrap_or(old),
        };
        let word = word.unwrap_or(Word::ALLOW);
        Decided { verdict: word.verdict, number: words::number(word) }
    }

    /// What counts for the traffic of a key that is not there, if no wider one is but the default.
    fn fallback(&self, state: State, key: &Key, default: Decided) -> Decided {
        let at = |part| self.decided(state, &Key { part, ..*key });
        // It is there if any other of the peer is.
        let Some(all) = (key.part != Part::All).then(|| at(Part::All)).flatten() else { return default };
        let found = match key.part {
            Part::Port(protocol, port) => {
                self.range_with(state, key, protocol, port).or_else(|| at(Part::Protocol(protocol)))
            }
            Part::Range(protocol, ..) => at(Part::Protocol(protocol)),
            Part::Protocol(_) | Part::All => None,
        };
        found.unwrap_or(all)
    }

    /// The decision for the range that contains a port. Ranges do not overlap, so it is the last one that begins before it.
    fn range_with(&self, state: State, key: &Key, protocol: Protocol, port: u16) -> Option<Decided> {
        let with = |first, last| Key { part: Part::Range(protocol, first, last), ..*key };
        let near = with(0, 0)..=with(port, u16::MAX);
        let exists = |key: &&Key| self.decided(state, key).is_some();
        let old = self.old.decisions.range(near.clone()).rev().map(|(key, _)| key).find(exists);
        let new = self.delta.decisions.range(near).rev().map(|(key, _)| key).find(exists);
        let last = old.max(new)?;
        self.decided(state, last).filter(|_| matches!(last.part, Part::Range(_, _, last) if port <= last))
    }

    fn effect(&self, made: Move, [before, behind]: [Decided; 2]) -> Effect {
        let Move { key, old, new } = made;
        let before = old.unwrap_or_else(|| self.fallback(State::Old, &key, before));
        let behind = new.unwrap_or_else(|| self.fallback(State::New, &key, behind));
        Effect { made, before, behind }
    }

    fn put_default(&self, changes: &mut Changes, at: (Direction, IpAddr)) {
        if let Some(new) = self.delta.defaults.get(&at) {
            changes.put(self.old.defaults.get(&at), new.as_ref(), |word| default_element(at, *word));
        }
    }
}

// === impl Changes ===

impl Changes {
    /// Takes out the changes of prefixes, and the addresses that lose their identities, if there are both: what is left is
    /// before the first of these, and they are before the second.
    fn split_places(&mut self) -> (Self, Self) {
        let (mut nets, mut unnamed) = (Self::default(), Self::default());
        let is_net = |place| place == Place::Nets;
        if !(self.has(is_net) && self.has(|place| place == Place::Ids)) {
            return (nets, unnamed);
        }
        for (at, (removed, added)) in &mut self.sets {
            match at.0 {
                Place::Nets => _ = nets.sets.insert(*at, (std::mem::take(removed), std::mem::take(added))),
                Place::Ids => {
                    let stays: BTreeSet<_> = added.iter().map(|element| &element.key).collect();
                    let (changed, gone) = removed.drain(..).partition(|element| stays.contains(&element.key));
                    *removed = changed;
                    unnamed.sets.insert(*at, (gone, Vec::new()));
                }
                _ => {}
            }
        }
        (nets, unnamed)
    }

    fn put_decision(&mut self, key: &Key, old: Option<Decided>, new: Option<Decided>) {
        let [old, new] = [old, new].map(|decided| decided.map(|it| it.number));
        self.put(old.as_ref(), new.as_ref(), |number| decision_element(key, *number));
    }
}

/// Whether ranges change beside something else, or in parts of ranges.
fn has_ranges(change: &Change<'_>, at: (Direction, IpAddr), moves: &[Move]) -> bool {
    let is_range = |it: &Move| matches!(it.key.part, Part::Range(..));
    if !moves.iter().any(is_range) {
        return false;
    }
    let local = at.1;
    change.default(State::Old, at) != change.default(State::New, at)
        || !moves.iter().all(is_range)
        || moves.iter().any(|it| it.old.is_none()) && moves.iter().any(|it| it.new.is_none())
        || change.old.is_judged(local) != change.old.is_policed(local, change.delta)
        || change.old.held.contains(&local)
}

/// Whether every packet that passed is denied, or the other way round.
fn is_reversed(old: Decided, new: Decided) -> bool {
    matches!((old.verdict, new.verdict), (Verdict::Allow, Verdict::Deny) | (Verdict::Deny, Verdict::Allow))
}

/// The parts in which old and new ranges of a protocol overlap, or do not.
fn parts(change: &Change<'_>, moves: &[Move], default: [Decided; 2]) -> Vec<Effect> {
    let ends = |it: &Move| match it.key.part {
        Part::Range(_, first, last) => Some((u32::from(first), u32::from(last) + 1)),
        _ => None,
    };
    let cuts: BTreeSet<u32> = moves.iter().filter_map(ends).flat_map(|(first, next)| [first, next]).collect();
    let cuts: Vec<u32> = cuts.into_iter().collect();
    let part = |window: &[u32]| -> Option<Effect> {
        let &[first, next] = window else { return None };
        let contains = |it: &&Move| ends(it).is_some_and(|(from, to)| from <= first && next <= to);
        let with = moves.iter().find(contains)?;
        let Part::Range(protocol, ..) = with.key.part else { return None };
        let ports = Part::Range(protocol, u16::try_from(first).ok()?, u16::try_from(next - 1).ok()?);
        let key = Key { part: ports, ..with.key };
        let old = moves.iter().filter(|it| it.old.is_some()).find(contains).and_then(|it| it.old);
        let new = moves.iter().filter(|it| it.new.is_some()).find(contains).and_then(|it| it.new);
        Some(change.effect(Move { key, old, new }, default))
    };
    cuts.windows(2).filter_map(part).collect()
}
