//! What rules ask of a peer's address. Each question has a number while a rule in use asks it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use russet_addr::IpNet;
use russet_model::Selector;

use crate::ir::{Protocol, ServiceId};

/// A question about an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Predicate {
    /// An endpoint or a set that has the address matches the first selector and not the second.
    Selected(Selector, Option<Selector>),
    /// The address is in one of the first prefixes and in none of the second.
    Nets(Vec<IpNet>, Vec<IpNet>),
    /// The address is of a node that matches.
    Node(Selector),
    /// The address is of an endpoint of the service.
    Service(ServiceId),
    /// Which protocols and ports of the address are endpoints of the service.
    ServicePorts(ServiceId),
    /// Which protocols and ports endpoints with the address give the name; only those count that
    /// match the selector.
    Named(Arc<str>, Option<Selector>),
}

/// The number of a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PredicateId(u32);

/// Protocols with ports, in order.
pub(super) type Services = Vec<(Protocol, u16)>;

/// The answer to a predicate, if it is not "no".
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    Yes,
    Ports(Arc<Services>),
}

/// The answers for one address, in the order of the numbers. What is missing is "no".
pub(super) type Vector = Vec<(PredicateId, Answer)>;

/// The predicates in use.
#[derive(Debug, Default)]
pub(super) struct Predicates {
    ids: BTreeMap<Arc<Predicate>, PredicateId>,
    entries: BTreeMap<PredicateId, (Arc<Predicate>, usize)>,
    added: BTreeSet<PredicateId>,
    unused: BTreeSet<PredicateId>,
    next: u32,
}

// === impl PredicateId ===

impl PredicateId {
    /// Stands in the vector of addresses for whose classes there are no numbers left.
    pub(super) const OVERFLOW: Self = Self(u32::MAX);

    /// A number, where [`Predicates`] are not used.
    pub(super) fn nth(place: usize) -> Self {
        u32::try_from(place).map_or(Self::OVERFLOW, Self)
    }
}

// === impl Predicates ===

impl Predicates {
    /// Counts a use.
    pub(super) fn acquire(&mut self, predicate: Predicate) -> PredicateId {
        if let Some(&id) = self.ids.get(&predicate) {
            if let Some((_, users)) = self.entries.get_mut(&id) {
                *users += 1;
            }
            self.unused.remove(&id);
            return id;
        }
        let id = PredicateId(self.next);
        self.next += 1;
        let predicate = Arc::new(predicate);
        self.ids.insert(predicate.clone(), id);
        self.entries.insert(id, (predicate, 1));
        self.added.insert(id);
        id
    }

    /// Takes a use back. The predicate stays until [`Self::take_changes`].
    pub(super) fn release(&mut self, id: PredicateId) {
        if let Some((_, users)) = self.entries.get_mut(&id) {
            *users -= 1;
            if *users == 0 {
                self.unused.insert(id);
            }
        }
    }

    /// The predicates that are new, and those of which the last use is gone, since the last call.
    pub(super) fn take_changes(&mut self) -> (Vec<PredicateId>, Vec<(PredicateId, Arc<Predicate>)>) {
        let mut removed = Vec::new();
        for id in std::mem::take(&mut self.unused) {
            let Some((predicate, _)) = self.entries.remove(&id) else { continue };
            self.ids.remove(&predicate);
            // One that came and went between two calls concerns nothing.
            if !self.added.remove(&id) {
                removed.push((id, predicate));
            }
        }
        (std::mem::take(&mut self.added).into_iter().collect(), removed)
    }

    pub(super) fn get(&self, id: PredicateId) -> Option<&Arc<Predicate>> {
        self.entries.get(&id).map(|(predicate, _)| predicate)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len().max(self.ids.len())
    }
}

/// The answer of a predicate in a vector.
pub(super) fn answer(vector: &Vector, id: PredicateId) -> Option<&Answer> {
    let at = vector.binary_search_by_key(&id, |(id, _)| *id).ok()?;
    vector.get(at).map(|(_, answer)| answer)
}
