//! Numbers for the classes of addresses that no predicate in use tells apart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use russet_addr::{Family, IpNet};

use super::predicate::{Answer, PredicateId, Vector};
use crate::table::Identity;

/// The identities in use.
#[derive(Debug)]
pub(super) struct Identities {
    by_vector: BTreeMap<(Family, Arc<Vector>), Identity>,
    entries: BTreeMap<Identity, Entry>,
    /// The number from which free ones are searched. It only grows, so that a number that was given
    /// back is not given again soon.
    next: u32,
    /// What the kernel had before the first flush.
    hints: BTreeMap<IpNet, Identity>,
    limit: usize,
}

/// An identity.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) family: Family,
    pub(super) vector: Arc<Vector>,
    places: usize,
}

/// A prefix whose vector may have changed.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) place: IpNet,
    pub(super) old: Option<Identity>,
    pub(super) new: Target,
}

/// A prefix, and the identity that it had.
type Former = (IpNet, Option<Identity>);

/// What a prefix becomes.
#[derive(Debug)]
pub(super) enum Target {
    /// Nothing of its own.
    Nothing,
    /// One of the addresses without a class.
    World,
    /// One with these answers.
    Vector(Vector),
}

/// What [`Identities::place`] did.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// The identity of each prefix.
    pub(super) places: Vec<(IpNet, Option<Identity>)>,
    /// Identities that are new, or stand for other answers than before.
    pub(super) changed: BTreeSet<Identity>,
    /// Identities that stand for nothing any more.
    pub(super) removed: BTreeSet<Identity>,
    /// Prefixes for which there was no number.
    pub(super) overflowed: Vec<IpNet>,
    /// Numbers that were not in use before.
    pub(super) fresh: BTreeSet<Identity>,
}

// === impl Identities ===

impl Identities {
    pub(super) fn new(hints: BTreeMap<IpNet, Identity>, limit: usize) -> Self {
        let last = hints.values().map(|identity| identity.number()).max().unwrap_or(0);
        let next = if last >= Identity::LAST { Identity::FIRST } else { Identity::FIRST.max(last + 1) };
        Self { by_vector: BTreeMap::new(), entries: BTreeMap::new(), next, hints, limit }
    }

    /// Gives each prefix the identity of its vector.
    ///
    /// A new vector takes the number over that its prefixes had, if all that had it get the vector: then
    /// a predicate that comes or goes moves no address, and only decisions change.
    pub(super) fn place(&mut self, moves: Vec<Move>) -> Placed {
        let mut placed = Placed::default();
        let is_first = !moves.is_empty();
        let mut left = BTreeSet::new();
        for old in moves.iter().filter_map(|it| it.old) {
            if let Some(entry) = self.entries.get_mut(&old) {
                entry.places -= 1;
                left.insert(old);
            }
        }
        let mut leaving: BTreeMap<Identity, usize> = BTreeMap::new();
        moves.iter().filter_map(|it| it.old).for_each(|old| *leaving.entry(old).or_default() += 1);
        let mut pending: BTreeMap<(Family, Arc<Vector>), Vec<Former>> = BTreeMap::new();
        for Move { place, old, new } in moves {
            let vector = match new {
                Target::Nothing => {
                    placed.places.push((place, None));
                    continue;
                }
                Target::World => {
                    placed.places.push((place, Some(Identity::WORLD)));
                    continue;
                }
                Target::Vector(vector) => (Family::of_net(&place), Arc::new(vector)),
            };
            match self.by_vector.get(&vector) {
                Some(&identity) => self.occupy(identity, place, &mut placed),
                None => pending.entry(vector).or_default().push((place, old)),
            }
        }
        for ((family, vector), places) in pending {
            self.settle((family, vector), places, &leaving, &mut placed);
        }
        for identity in left {
            if self.entries.get(&identity).is_some_and(|entry| entry.places == 0) {
                self.forget(identity);
                placed.removed.insert(identity);
                placed.changed.remove(&identity);
            }
        }
        if is_first {
            self.hints.clear();
        }
        placed
    }

    /// Gives a vector that has no identity one, and it to these prefixes. `leaving` is how many leave each.
    fn settle(
        &mut self,
        (family, vector): (Family, Arc<Vector>),
        places: Vec<Former>,
        leaving: &BTreeMap<Identity, usize>,
        placed: &mut Placed,
    ) {
        let mut former: BTreeMap<Identity, usize> = BTreeMap::new();
        places.iter().filter_map(|(_, old)| *old).for_each(|old| *former.entry(old).or_default() += 1);
        // If one of its prefixes went elsewhere, a packet from there would be judged by what is decided about the others, in the
        // middle of the change.
        let is_free = |(identity, here): &(&Identity, &usize)| {
            self.entries.get(identity).is_some_and(|entry| entry.places == 0 && entry.family == family)
                && leaving.get(identity) == Some(*here)
        };
        let taken_over = former.iter().find(is_free).map(|(identity, _)| *identity);
        let identity = if let Some(identity) = taken_over {
            self.forget(identity);
            self.enter(identity, family, vector.clone(), placed);
            identity
        } else if self.entries.len() >= self.limit {
            placed.overflowed.extend(places.iter().map(|(place, _)| *place));
            self.overflow(family, placed)
        } else {
            self.free_number(places.iter().map(|(place, _)| place))
        };
        if !self.entries.contains_key(&identity) {
            self.enter(identity, family, vector, placed);
            placed.fresh.insert(identity);
        }
        for (place, _) in places {
            self.occupy(identity, place, placed);
        }
    }

    /// The identity of addresses for which there are no others.
    fn overflow(&mut self, family: Family, placed: &mut Placed) -> Identity {
        let vector = Arc::new(vec![(PredicateId::OVERFLOW, Answer::Yes)]);
        if let Some(&identity) = self.by_vector.get(&(family, vector.clone())) {
            return identity;
        }
        let identity = self.free_number(std::iter::empty());
        self.enter(identity, family, vector, placed);
        placed.fresh.insert(identity);
        identity
    }

    fn enter(&mut self, identity: Identity, family: Family, vector: Arc<Vector>, placed: &mut Placed) {
        self.by_vector.insert((family, vector.clone()), identity);
        self.entries.insert(identity, Entry { family, vector, places: 0 });
        placed.changed.insert(identity);
    }

    fn occupy(&mut self, identity: Identity, place: IpNet, placed: &mut Placed) {
        if let Some(entry) = self.entries.get_mut(&identity) {
            entry.places += 1;
        }
        placed.places.push((place, Some(identity)));
    }

    fn forget(&mut self, identity: Identity) {
        if let Some(entry) = self.entries.remove(&identity) {
            self.by_vector.remove(&(entry.family, entry.vector));
        }
    }

    /// The number that the kernel has for one of the prefixes, else the next free one.
    fn free_number<'a>(&mut self, mut places: impl Iterator<Item = &'a IpNet>) -> Identity {
        let is_free =
            |identity: &Identity| *identity != Identity::WORLD && !self.entries.contains_key(identity);
        let hinted = places.find_map(|place| self.hints.get(place).copied().filter(is_free));
        if let Some(identity) = hinted {
            return identity;
        }
        loop {
            let number = self.next;
            self.next = if number >= Identity::LAST { Identity::FIRST } else { number + 1 };
            // Far fewer identities than numbers exist, so that the loop ends.
            if let Some(identity) = Identity::new(number)
                && !self.entries.contains_key(&identity)
            {
                return identity;
            }
        }
    }

    /// Whether there is room for another one.
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() < self.limit
    }

    pub(super) fn get(&self, identity: Identity) -> Option<&Entry> {
        self.entries.get(&identity)
    }

    /// The identities of a family.
    pub(super) fn of_family(&self, family: Family) -> impl Iterator<Item = (Identity, &Arc<Vector>)> {
        let mine = self.entries.iter().filter(move |(_, entry)| entry.family == family);
        mine.map(|(identity, entry)| (*identity, &entry.vector))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len().max(self.by_vector.len())
    }
}
