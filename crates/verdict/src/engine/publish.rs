//! What earlier deltas said, and how the table must differ from it now.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::{Family, IpNet};

use super::classes::{Class, ClassId, Classes, Rows};
use super::nets;
use super::peers::Resolved;
use super::row::Row;
use crate::ir::Direction;
use crate::table::{Delta, Exceeded, Identity, Key, SourceRange, Verdict, Word};

/// What the kernel has after the deltas so far.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// Identities of single addresses.
    hosts: BTreeMap<IpNet, Identity>,
    /// Those of prefixes of more than one address, which are disjoint.
    nets: BTreeMap<IpNet, Identity>,
    addresses: BTreeMap<Place, Returned>,
    exceeded: BTreeSet<Exceeded>,
}

/// A local address in a direction.
pub(super) type Place = (Direction, IpAddr);

/// What it has for a local address.
#[derive(Debug, Clone)]
struct Returned {
    /// `None` if it is beyond a limit.
    class: Option<ClassId>,
    default: Word,
    rows: Rows,
}

/// Addresses that passed from one identity to another, by their families.
type Moves = BTreeSet<(Family, Identity, Identity)>;

// === impl Published ===

impl Published {
    /// Compares, and takes over what is new. `is_class_changed` says whether a local address or a
    /// class has something else than before.
    pub(super) fn publish(
        &mut self,
        resolved: &Resolved,
        classes: &Classes,
        bindings: &BTreeMap<Place, ClassId>,
        max_decisions: usize,
        is_class_changed: bool,
    ) -> Delta {
        let mut delta = Delta::default();
        let moves = self.publish_identities(resolved, &mut delta);
        if !is_class_changed {
            delta.tightens =
                self.addresses.iter().any(|((_, address), it)| it.is_cut_by(it, address, &moves));
            return delta;
        }
        let collapsed = collapsed(classes, bindings, max_decisions);
        let gone: Vec<_> =
            self.addresses.keys().filter(|place| !bindings.contains_key(place)).copied().collect();
        for place in gone {
            if let Some(old) = self.addresses.remove(&place) {
                delta.defaults.insert(place, None);
                old.rows.keys().for_each(|identity| compare(place, *identity, Some(&old), None, &mut delta));
            }
        }
        for (place, id) in bindings {
            let Some(class) = classes.get(*id) else { continue };
            let id = Some(*id).filter(|_| !collapsed.contains(place));
            self.publish_address(*place, (id, class), resolved, &moves, &mut delta);
        }
        let exceeded = exceeded(resolved, classes, bindings, &collapsed);
        if exceeded != self.exceeded {
            delta.exceeded = Some(exceeded.clone());
            self.exceeded = exceeded;
        }
        delta
    }

    fn publish_identities(&mut self, resolved: &Resolved, delta: &mut Delta) -> Moves {
        let is_new =
            |(net, identity): &(&IpNet, &Option<Identity>)| self.map_of(net).get(*net) != identity.as_ref();
        let changed: BTreeMap<IpNet, Option<Identity>> =
            resolved.addresses.iter().filter(is_new).map(|(net, identity)| (*net, *identity)).collect();
        let before: Vec<_> = changed.keys().map(|net| (*net, self.identities_in(*net))).collect();
        for (net, identity) in &changed {
            let map = if nets::is_host(*net) { &mut self.hosts } else { &mut self.nets };
            match identity {
                Some(identity) => _ = map.insert(*net, *identity),
                None => _ = map.remove(net),
            }
        }
        let mut moves = Moves::new();
        for (net, old) in before {
            let (family, new) = (Family::of_net(&net), self.identities_in(net));
            moves.extend(old.iter().flat_map(|old| new.iter().map(move |new| (family, *old, *new))));
        }
        moves.retain(|(_, old, new)| old != new);
        delta.identities = changed;
        moves
    }

    fn map_of(&self, net: &IpNet) -> &BTreeMap<IpNet, Identity> {
        if nets::is_host(*net) { &self.hosts } else { &self.nets }
    }

    /// The identities that addresses of a prefix have: its own, else that of the prefix around it,
    /// else those of the prefixes in it and that of the rest.
    fn identities_in(&self, net: IpNet) -> BTreeSet<Identity> {
        if let Some(identity) = self.map_of(&net).get(&net) {
            return BTreeSet::from([*identity]);
        }
        // These prefixes are disjoint: only the last one before it can contain it.
        if let Some((outer, identity)) = self.nets.range(..net).next_back()
            && outer.contains(&net)
        {
            return BTreeSet::from([*identity]);
        }
        let inside = self.nets.range(nets::all_inside(net));
        inside.map(|(_, identity)| *identity).chain([Identity::WORLD]).collect()
    }

    fn publish_address(
        &mut self,
        place: Place,
        (id, class): (Option<ClassId>, &Class),
        resolved: &Resolved,
        moves: &Moves,
        delta: &mut Delta,
    ) {
        let old = self.addresses.get(&place);
        let new = match id {
            Some(_) => Returned { class: id, default: class.default(), rows: class.rows.clone() },
            None => Returned { class: None, default: Word::DENY, rows: Rows::default() },
        };
        let changed = class.changed.as_ref().filter(|_| old.is_some_and(|old| old.class == id));
        let identities = changed.cloned().unwrap_or_else(|| {
            let old = old.into_iter().flat_map(|old| old.rows.keys());
            old.chain(new.rows.keys()).copied().chain([Identity::WORLD]).collect()
        });
        let existed =
            |identity: &&Identity| !resolved.fresh.contains(identity) && !resolved.removed.contains(identity);
        delta.tightens = delta.tightens
            || match old {
                None => !new.is_open(),
                Some(old) => {
                    identities.iter().filter(existed).any(|it| old.is_cut(*it, &new, *it))
                        || old.is_cut_by(&new, &place.1, moves)
                }
            };
        if old.map(|old| old.default) != Some(new.default) {
            delta.defaults.insert(place, Some(new.default));
        }
        identities.iter().for_each(|identity| compare(place, *identity, old, Some(&new), delta));
        self.addresses.insert(place, new);
    }

    /// How many decisions the kernel has.
    pub(super) fn decisions(&self) -> usize {
        self.addresses.values().flat_map(|returned| returned.rows.values()).map(|row| row.len()).sum()
    }
}

/// Adds how the decisions for one peer and one address changed.
fn compare(
    (direction, local): Place,
    peer: Identity,
    old: Option<&Returned>,
    new: Option<&Returned>,
    delta: &mut Delta,
) {
    let row = |returned: Option<&Returned>| returned.and_then(|returned| returned.rows.get(&peer)).cloned();
    let (old, new) = (row(old), row(new));
    if old == new {
        return;
    }
    let key = |part| Key { direction, local, peer, part };
    let words = |row: &Option<Arc<Row>>| -> BTreeMap<Key, Word> {
        row.iter().flat_map(|row| row.entries()).map(|(part, word)| (key(part), word)).collect()
    };
    let wide = |row: &Option<Arc<Row>>| -> BTreeMap<Key, Vec<SourceRange>> {
        row.iter().flat_map(|row| row.wide()).map(|(part, ranges)| (key(part), ranges.clone())).collect()
    };
    delta.decisions.extend(difference(&words(&old), words(&new)));
    delta.wide.extend(difference(&wide(&old), wide(&new)));
}

/// What makes `new` of `old`.
fn difference<V: PartialEq>(old: &BTreeMap<Key, V>, new: BTreeMap<Key, V>) -> BTreeMap<Key, Option<V>> {
    let gone = old.keys().filter(|key| !new.contains_key(key)).map(|key| (*key, None));
    let mut changes: BTreeMap<Key, Option<V>> = gone.collect();
    let come = new.into_iter().filter(|(key, value)| old.get(key) != Some(value));
    changes.extend(come.map(|(key, value)| (key, Some(value))));
    changes
}

/// The addresses for which there is no room in the table: those with most decisions.
fn collapsed(
    classes: &Classes,
    bindings: &BTreeMap<Place, ClassId>,
    max_decisions: usize,
) -> BTreeSet<Place> {
    let size = |id: &ClassId| classes.get(*id).map_or(0, |class| class.size);
    let mut total: usize = bindings.values().map(size).sum();
    let mut collapsed = BTreeSet::new();
    if total <= max_decisions {
        return collapsed;
    }
    let mut by_size: Vec<_> = bindings.iter().map(|(place, id)| (size(id), *place)).collect();
    by_size.sort_unstable();
    while let Some((size, place)) = by_size.pop().filter(|_| total > max_decisions) {
        total -= size;
        collapsed.insert(place);
    }
    collapsed
}

fn exceeded(
    resolved: &Resolved,
    classes: &Classes,
    bindings: &BTreeMap<Place, ClassId>,
    collapsed: &BTreeSet<Place>,
) -> BTreeSet<Exceeded> {
    let is_cut = |id: &ClassId| classes.get(*id).is_some_and(|class| class.is_cut_too_often);
    let cut = bindings.iter().filter(|(_, id)| is_cut(id));
    cut.map(|((direction, address), _)| Exceeded::Segments(*direction, *address))
        .chain(collapsed.iter().map(|(direction, address)| Exceeded::Decisions(*direction, *address)))
        .chain((resolved.overflowed > 0).then_some(Exceeded::Identities))
        .collect()
}

// === impl Returned ===

impl Returned {
    /// Whether nothing is denied.
    fn is_open(&self) -> bool {
        self.default.verdict == Verdict::Allow && self.rows.values().all(|row| row.is_open())
    }

    /// Whether an identity was allowed something that `new` does not allow to `now`.
    fn is_cut(&self, identity: Identity, new: &Self, now: Identity) -> bool {
        match (self.rows.get(&identity), new.rows.get(&now)) {
            (Some(old), Some(new)) if Arc::ptr_eq(old, new) => false,
            (Some(old), Some(new)) => new.forbids_more_than(old),
            (Some(old), None) => Row::constant(new.default).forbids_more_than(old),
            (None, Some(new)) => new.forbids_more_than(&Row::constant(self.default)),
            (None, None) => Row::constant(new.default).forbids_more_than(&Row::constant(self.default)),
        }
    }

    /// Whether addresses that passed to other identities may do less than before.
    fn is_cut_by(&self, new: &Self, address: &IpAddr, moves: &Moves) -> bool {
        let mut mine = moves.iter().filter(|(family, ..)| *family == Family::of(*address));
        mine.any(|(_, old, now)| self.is_cut(*old, new, *now))
    }
}
