//! What the maps hold: decisions as elements, elements as decisions, and what a delta changes.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{Family, IpNet};
use russet_nft::{Element, KeyPart, Transaction};
use russet_verdict::ir::{Direction, Protocol};
use russet_verdict::table::{Delta, Identity, Key, Part, SourceRange, Verdict, Word};

use super::lists::{self, List, Lists, Numbered};
use super::skeleton::Place;
use super::words;
use crate::table_spec::differences;
use phases::{Change, Move, Moved, Moves};

mod phases;
#[cfg(test)]
mod tests;

/// Everything that is decided on a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decisions {
    /// Identities of addresses, as prefixes of one address, and of disjoint prefixes.
    pub identities: BTreeMap<IpNet, Identity>,
    /// Decisions.
    pub decisions: BTreeMap<Key, Word>,
    /// What decides where a decision is [`Verdict::Wide`]; without ranges that is denied.
    pub wide: BTreeMap<Key, Vec<SourceRange>>,
    /// What counts for a local address if no decision does. Without one it is open in this direction.
    pub defaults: BTreeMap<(Direction, IpAddr), Word>,
    /// Local addresses that only the node itself reaches, whatever was decided for them.
    pub held: BTreeSet<IpAddr>,
}

/// Elements to remove and to add, by set.
#[derive(Debug, Clone, Default)]
pub(super) struct Changes {
    sets: BTreeMap<(Place, Family), (Vec<Element>, Vec<Element>)>,
}

/// What a delta changes. Lists of source ports are there before a decision refers to them, and until
/// none does any more.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub before: Changes,
    /// Addresses that are held from now on.
    pub hold: Changes,
    /// What changes nothing by itself. Packets that are judged meanwhile are waited for, if there is any.
    pub complete: Changes,
    /// One transaction each, unless a single one is larger than the limit ([`phases`]).
    pub phases: Vec<Changes>,
    pub behind: Changes,
}

/// What is decided, and its number in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decided {
    pub verdict: Verdict,
    pub number: u32,
}

pub(super) type At = (Place, Family);

// === impl Decisions ===

impl Decisions {
    /// Applies a delta; `decided` are not held any more.
    pub fn apply(&mut self, delta: &Delta, decided: &BTreeSet<IpAddr>) {
        put_all(&mut self.identities, &delta.identities);
        put_all(&mut self.decisions, &delta.decisions);
        put_all(&mut self.wide, &delta.wide);
        put_all(&mut self.defaults, &delta.defaults);
        self.held.retain(|address| !decided.contains(address));
    }

    /// What [`apply`](Self::apply) changes. `lists` are those of these decisions, and become those of
    /// the new ones. More than `elements_max` elements are one phase.
    pub(super) fn steps(
        &self,
        delta: &Delta,
        decided: &BTreeSet<IpAddr>,
        lists: &mut Lists,
        elements_max: usize,
    ) -> Steps {
        let mut steps = Steps::default();
        let (mut moves, mut released) = (Moves::new(), Vec::new());
        let other_lists = delta.wide.keys().filter(|key| !delta.decisions.contains_key(*key));
        for key in delta.decisions.keys().chain(other_lists) {
            let (old_word, word) = (self.decisions.get(key).copied(), new_word(self, delta, key));
            let old_list = list_of(key, old_word, self.wide.get(key));
            let list = list_of(key, word, new_ranges(self, delta, key));
            let old = old_word.map(|word| Decided::of(word, old_list.as_ref(), lists));
            if let Some(list) = &list
                && let Some(new) = lists.acquire(list)
            {
                lists::elements(new, list).for_each(|element| steps.before.add(element));
            }
            let new = word.map(|word| Decided::of(word, list.as_ref(), lists));
            if old != new {
                let of_address = moves.entry((key.direction, key.local)).or_default();
                of_address.push(Move { key: *key, old, new });
            }
            released.extend(old_list);
        }
        let other_defaults = delta.defaults.iter().filter(|(at, new)| self.defaults.get(at) != new.as_ref());
        other_defaults.for_each(|(at, _)| _ = moves.entry(*at).or_default());
        (steps.complete, steps.phases) =
            phases::of(&Change { old: self, delta, lists }, &moves, decided, elements_max);
        for list in released {
            if let Some(old) = lists.release(&list) {
                lists::elements(old, &list).for_each(|element| steps.behind.remove(element));
            }
        }
        steps
    }

    /// What changes these decisions, whose lists are `lists`, to `wanted`. `lists` become those of `wanted`.
    pub(super) fn steps_to(&self, wanted: &Self, lists: &mut Lists, elements_max: usize) -> Steps {
        let delta = Delta {
            identities: changes(&self.identities, &wanted.identities),
            decisions: changes(&self.decisions, &wanted.decisions),
            wide: changes(&self.wide, &wanted.wide),
            defaults: changes(&self.defaults, &wanted.defaults),
            ..Delta::default()
        };
        let first = self.holding(&(&wanted.held - &self.held));
        let holding = Self { held: &self.held | &wanted.held, ..self.clone() };
        let decided = &holding.held - &wanted.held;
        let mut steps = holding.steps(&delta, &decided, lists, elements_max);
        steps.hold = first;
        steps
    }

    /// What these elements decide, and the lists in them; none if some say nothing, or others would be there, too.
    pub(super) fn of_elements(found: &BTreeMap<At, Vec<Element>>) -> Option<(Self, Lists)> {
        let known = lists::read(found);
        let mut content = Self::default();
        for (at, element) in found.iter().flat_map(|(at, all)| all.iter().map(move |element| (at, element))) {
            content.read(*at, element, &known).then_some(())?;
        }
        let lists = Lists::of(&content, &known);
        let mut missing = Changes::default();
        for (at, wanted) in content.elements(&lists) {
            missing.replace(at, found.get(&at).map_or(&[], Vec::as_slice), wanted);
        }
        (missing.len() == 0).then_some((content, lists))
    }

    /// The identities whose addresses change with a delta.
    fn moved(&self, delta: &Delta) -> Moved {
        let moved = || delta.identities.iter().filter(|(net, new)| self.identities.get(net) != new.as_ref());
        let entered: BTreeSet<Identity> = moved()
            .map(|(net, new)| {
                new.unwrap_or_else(|| net.supernet().map_or(Identity::WORLD, |it| self.identity_of(&it)))
            })
            .collect();
        let left =
            moved().map(|(net, _)| self.identity_of(net)).filter(|left| !entered.contains(left)).collect();
        Moved { left, entered }
    }

    /// The identity that the kernel finds for an address of a prefix.
    fn identity_of(&self, net: &IpNet) -> Identity {
        let covering = |bits| IpNet::new(net.addr(), bits).ok().map(|net| net.trunc());
        let mut wider = (0..=net.prefix_len()).rev().filter_map(covering);
        wider.find_map(|net| self.identities.get(&net).copied()).unwrap_or(Identity::WORLD)
    }

    /// The identities that [`apply`](Self::apply) changes.
    fn places(&self, delta: &Delta) -> Changes {
        let mut changes = Changes::default();
        for (net, new) in &delta.identities {
            changes.put(self.identities.get(net), new.as_ref(), |identity| identity_element(net, *identity));
        }
        changes
    }

    /// What [`apply`](Self::apply) changes of the addresses that are judged or held: what forbids, and what lets packets
    /// pass.
    fn changes(&self, delta: &Delta, decided: &BTreeSet<IpAddr>) -> (Changes, Changes) {
        let (mut changes, mut unlocks) = (Changes::default(), Changes::default());
        for address in decided.intersection(&self.held) {
            unlocks.remove(held_element(*address));
        }
        let mut touched: BTreeSet<IpAddr> = decided.intersection(&self.held).copied().collect();
        touched.extend(delta.defaults.keys().map(|(_, address)| *address));
        touched.extend(delta.decisions.keys().map(|key| key.local));
        for address in touched {
            let is_held = self.held.contains(&address) && !decided.contains(&address);
            match (self.is_judged(address), is_held || self.is_policed(address, delta)) {
                (false, true) => changes.add(pod_element(address)),
                (true, false) => unlocks.remove(pod_element(address)),
                _ => {}
            }
        }
        (changes, unlocks)
    }

    /// What holding these addresses changes.
    pub(super) fn holding(&self, addresses: &BTreeSet<IpAddr>) -> Changes {
        let mut changes = Changes::default();
        for address in addresses.difference(&self.held) {
            changes.add(held_element(*address));
            if !self.is_judged(*address) {
                changes.add(pod_element(*address));
            }
        }
        changes
    }

    /// Whether packets of an address are judged. Those of pods that no policy selects are not.
    fn is_judged(&self, address: IpAddr) -> bool {
        self.held.contains(&address) || self.is_policed(address, &Delta::default())
    }

    /// Whether something but its default says what an address may do, or its default denies anything,
    /// after a delta.
    fn is_policed(&self, address: IpAddr, delta: &Delta) -> bool {
        [Direction::Ingress, Direction::Egress].into_iter().any(|direction| {
            let old = self.defaults.get(&(direction, address)).copied();
            let default = delta.defaults.get(&(direction, address)).copied().unwrap_or(old);
            default.is_some_and(|word| word != Word::ALLOW || self.has_decisions(direction, address, delta))
        })
    }

    /// The list of each decision that has one.
    pub(super) fn lists(&self) -> impl Iterator<Item = List> {
        let list = |(key, word): (&Key, &Word)| list_of(key, Some(*word), self.wide.get(key));
        self.decisions.iter().filter_map(list)
    }

    /// Whether there are decisions for an address after a delta.
    fn has_decisions(&self, direction: Direction, local: IpAddr, delta: &Delta) -> bool {
        // The first one in the order of keys.
        let first = Key { direction, local, peer: Identity::WORLD, part: Part::Port(Protocol(0), 0) };
        let is_same = |key: &Key| (key.direction, key.local) == (direction, local);
        let mut old = self.decisions.range(first..).map(|(key, _)| key).take_while(|key| is_same(key));
        let mut new = delta.decisions.range(first..).take_while(|(key, _)| is_same(key));
        new.any(|(_, word)| word.is_some()) || old.any(|key| !delta.decisions.contains_key(key))
    }

    /// The local addresses to which a delta may matter.
    pub(super) fn touched(&self, delta: &Delta) -> BTreeSet<IpAddr> {
        let keys = delta.decisions.keys().chain(delta.wide.keys());
        let mut all: BTreeSet<IpAddr> = keys.map(|key| key.local).collect();
        all.extend(delta.defaults.keys().map(|(_, address)| *address));
        if !delta.identities.is_empty() {
            all.extend(self.defaults.keys().map(|(_, address)| *address));
        }
        all
    }

    /// All elements, by set. `lists` are those of these decisions.
    pub(super) fn elements(&self, lists: &Lists) -> BTreeMap<At, Vec<Element>> {
        let mut changes = Changes::default();
        lists.elements().for_each(|element| changes.add(element));
        self.identities.iter().for_each(|(net, identity)| changes.add(identity_element(net, *identity)));
        for (key, word) in &self.decisions {
            let list = list_of(key, Some(*word), self.wide.get(key));
            changes.add(decision_element(key, number(*word, list.as_ref(), lists)));
        }
        self.defaults.iter().for_each(|(key, word)| changes.add(default_element(*key, *word)));
        self.held.iter().for_each(|address| changes.add(held_element(*address)));
        let local = self.defaults.keys().map(|(_, address)| *address).chain(self.held.iter().copied());
        let judged =
            local.collect::<BTreeSet<IpAddr>>().into_iter().filter(|address| self.is_judged(*address));
        judged.for_each(|address| changes.add(pod_element(address)));
        let places = Family::BOTH.into_iter().flat_map(|family| Place::EACH.map(|place| (place, family)));
        places.map(|at| (at, changes.sets.remove(&at).unwrap_or_default().1)).collect()
    }

    /// Adds what an element of the kernel says, in which the numbers of lists are these; false if it
    /// is not one of ours.
    pub(super) fn read(&mut self, (place, _): At, element: &Element, lists: &Numbered) -> bool {
        self.try_read(place, element, lists).is_some()
    }

    fn try_read(&mut self, place: Place, element: &Element, lists: &Numbered) -> Option<()> {
        let value = element.value.as_ref();
        let address = |at: usize| element.key.get(at)?.first_address();
        match place {
            Place::Pods => _ = address(0)?,
            Place::Sources => _ = element.key.get(1)?,
            Place::Held => _ = self.held.insert(address(0)?),
            Place::Ids | Place::Nets => {
                let net = prefix(element.key.first()?)?;
                self.identities.insert(net, words::identity(value)?);
            }
            Place::Defaults(direction) => {
                self.defaults.insert((direction, address(0)?), words::word(value)?);
            }
            Place::Ports(direction)
            | Place::Ranges(direction)
            | Place::Protocols(direction)
            | Place::All(direction) => {
                let peer = Identity::new(words::class_id(element.key.first()?)?)?;
                let key = Key { direction, local: address(1)?, peer, part: part(place, element)? };
                self.decisions.insert(key, words::word(value)?);
                if let Some((family, ranges)) = words::list(value).and_then(|number| lists.get(&number))
                    && *family == Family::of(key.local)
                {
                    self.wide.insert(key, ranges.clone());
                }
            }
        }
        Some(())
    }
}

// === impl Steps ===

impl Steps {
    /// The number of elements.
    pub fn len(&self) -> usize {
        let phases: usize = self.phases.iter().map(Changes::len).sum();
        self.before.len() + self.hold.len() + self.complete.len() + phases + self.behind.len()
    }

    /// Whether the phases do not fit into transactions of this size: there is a single one then.
    pub fn is_large(&self, elements_max: usize) -> bool {
        self.phases.last().is_some_and(|phase| phase.len() > elements_max)
    }
}

// === impl Decided ===

impl Decided {
    fn of(word: Word, list: Option<&List>, lists: &Lists) -> Self {
        Self { verdict: word.verdict, number: number(word, list, lists) }
    }
}

// === impl Changes ===

impl Changes {
    fn put<T: PartialEq>(&mut self, old: Option<&T>, new: Option<&T>, element: impl Fn(&T) -> (At, Element)) {
        if old != new {
            old.into_iter().for_each(|value| self.remove(element(value)));
            new.into_iter().for_each(|value| self.add(element(value)));
        }
    }

    /// Whether ranges change, which the kernel does a little later than the rest of a transaction.
    pub fn has_ranges(&self) -> bool {
        self.has(|place| matches!(place, Place::Ranges(_)))
    }

    /// Whether elements of such sets change.
    fn has(&self, is_meant: impl Fn(Place) -> bool) -> bool {
        self.sets.iter().any(|((place, _), (removed, added))| {
            is_meant(*place) && !(removed.is_empty() && added.is_empty())
        })
    }

    /// Adds all of other changes, which concern other elements.
    pub fn extend(&mut self, others: Self) {
        for (at, (removed, added)) in others.sets {
            let of_set = self.sets.entry(at).or_default();
            of_set.0.extend(removed);
            of_set.1.extend(added);
        }
    }

    pub fn remove(&mut self, (at, element): (At, Element)) {
        self.sets.entry(at).or_default().0.push(element);
    }

    pub fn add(&mut self, (at, element): (At, Element)) {
        self.sets.entry(at).or_default().1.push(element);
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.sets.values().map(|(removed, added)| removed.len() + added.len()).sum()
    }

    /// Adds them to a transaction. Removals come first: an element that changes is removed and
    /// added, and the kernel refuses prefixes that overlap.
    pub fn write(&self, transaction: &mut Transaction) {
        for ((place, family), (removed, added)) in &self.sets {
            let set = place.set(*family);
            transaction.delete_elements(&set, removed).add_elements(&set, added);
        }
    }

    /// Adds the differences between what a set holds and what it should hold.
    pub fn replace(&mut self, at: At, found: &[Element], wanted: Vec<Element>) {
        let (removed, added) =
            if found.is_empty() { (Vec::new(), wanted) } else { differences(found, &wanted) };
        if !removed.is_empty() || !added.is_empty() {
            self.sets.insert(at, (removed, added));
        }
    }

    /// Parts of at most `max` elements, removals first, without those of [`locks`](Self::locks).
    pub fn parts(self, max: usize) -> Vec<Self> {
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        for (at, of_set) in self.sets {
            if !matches!(at.0, Place::Pods | Place::Held) {
                removed.push((at, of_set.0));
                added.push((at, of_set.1));
            }
        }
        let (mut parts, mut room) = (Vec::new(), 0);
        for (is_new, (at, mut rest)) in [(false, removed), (true, added)]
            .into_iter()
            .flat_map(|(is_new, sets)| sets.into_iter().map(move |it| (is_new, it)))
        {
            while !rest.is_empty() {
                if room == 0 {
                    parts.push(Self::default());
                    room = max.max(1);
                }
                let behind = rest.split_off(rest.len().min(room));
                let elements = std::mem::replace(&mut rest, behind);
                room -= elements.len();
                let Some(part) = parts.last_mut() else { break };
                let of_set: &mut (Vec<Element>, Vec<Element>) = part.sets.entry(at).or_default();
                if is_new { of_set.1.extend(elements) } else { of_set.0.extend(elements) }
            }
        }
        parts
    }

    /// What has to be written before all parts, so that `addresses` are held meanwhile, and what
    /// behind them.
    pub fn locks(&self, addresses: &BTreeSet<IpAddr>) -> (Self, Self) {
        let (mut before, mut behind) = (Self::default(), Self::default());
        for (at, (removed, added)) in &self.sets {
            if matches!(at.0, Place::Pods | Place::Held) {
                before.sets.entry(*at).or_default().1.clone_from(added);
                behind.sets.entry(*at).or_default().0.clone_from(removed);
            }
        }
        for address in addresses {
            before.add(held_element(*address));
            behind.remove(held_element(*address));
        }
        (before, behind)
    }
}

/// The entries that are not the same, as they are in the second map.
fn changes<K: Ord + Clone, V: Clone + PartialEq>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
) -> BTreeMap<K, Option<V>> {
    let gone = old.keys().filter(|key| !new.contains_key(key)).map(|key| (key.clone(), None));
    let changed = new.iter().filter(|(key, value)| old.get(key) != Some(value));
    gone.chain(changed.map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
}

fn put_all<K: Ord + Clone, V: Clone>(all: &mut BTreeMap<K, V>, changes: &BTreeMap<K, Option<V>>) {
    for (key, change) in changes {
        match change {
            Some(value) => _ = all.insert(key.clone(), value.clone()),
            None => _ = all.remove(key),
        }
    }
}

fn pod_element(address: IpAddr) -> (At, Element) {
    ((Place::Pods, Family::of(address)), Element::new(address))
}

fn held_element(address: IpAddr) -> (At, Element) {
    ((Place::Held, Family::of(address)), Element::new(address))
}

fn identity_element(net: &IpNet, identity: Identity) -> (At, Element) {
    let is_address = net.prefix_len() == net.max_prefix_len();
    let place = if is_address { Place::Ids } else { Place::Nets };
    ((place, Family::of_net(net)), Element::new(net.trunc()).data(KeyPart::class_id(identity.number())))
}

fn default_element((direction, address): (Direction, IpAddr), word: Word) -> (At, Element) {
    let element = Element::new(address).data(KeyPart::class_id(words::number(word)));
    ((Place::Defaults(direction), Family::of(address)), element)
}

/// The word of a decision after a delta.
fn new_word(old: &Decisions, delta: &Delta, key: &Key) -> Option<Word> {
    delta.decisions.get(key).copied().unwrap_or_else(|| old.decisions.get(key).copied())
}

/// The ranges of source ports of a decision after a delta.
fn new_ranges<'a>(old: &'a Decisions, delta: &'a Delta, key: &Key) -> Option<&'a Vec<SourceRange>> {
    delta.wide.get(key).map(Option::as_ref).unwrap_or_else(|| old.wide.get(key))
}

/// The list of a decision; none if the port of the source does not decide, or it is not known how.
fn list_of(key: &Key, word: Option<Word>, ranges: Option<&Vec<SourceRange>>) -> Option<List> {
    let ranges = ranges.filter(|_| word.is_some_and(|word| word.verdict == Verdict::Wide))?;
    Some((Family::of(key.local), ranges.clone()))
}

/// What a decision is in a map.
fn number(word: Word, list: Option<&List>, lists: &Lists) -> u32 {
    list.map_or_else(|| words::number(word), |list| lists.number(list))
}

fn decision_element(key: &Key, number: u32) -> (At, Element) {
    let mut parts = vec![KeyPart::class_id(key.peer.number()), KeyPart::from(key.local)];
    let place = match key.part {
        Part::Port(protocol, port) => {
            parts.extend([KeyPart::protocol(protocol.0), KeyPart::port(port)]);
            Place::Ports(key.direction)
        }
        Part::Range(protocol, first, last) => {
            parts.extend([KeyPart::protocol(protocol.0), KeyPart::ports(first..=last)]);
            Place::Ranges(key.direction)
        }
        Part::Protocol(protocol) => {
            parts.push(KeyPart::protocol(protocol.0));
            Place::Protocols(key.direction)
        }
        Part::All => Place::All(key.direction),
    };
    let element = Element::concatenation(parts).data(KeyPart::class_id(number));
    ((place, Family::of(key.local)), element)
}

fn part(place: Place, element: &Element) -> Option<Part> {
    let bytes = |at: usize| Some(element.key.get(at)?.bytes());
    let protocol = || Some(Protocol(*bytes(2)?.0.first()?));
    let port = |bytes: &[u8]| Some(u16::from_be_bytes(bytes.try_into().ok()?));
    Some(match place {
        Place::Ports(_) => Part::Port(protocol()?, port(bytes(3)?.0)?),
        Place::Ranges(_) => Part::Range(protocol()?, port(bytes(3)?.0)?, port(bytes(3)?.1)?),
        Place::Protocols(_) => Part::Protocol(protocol()?),
        _ => Part::All,
    })
}

/// The prefix that is exactly a range of addresses.
fn prefix(range: &KeyPart) -> Option<IpNet> {
    let (first, last) = (range.first_address()?, range.last_address()?);
    let bits = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => (first.to_bits() ^ last.to_bits()).leading_zeros(),
        (IpAddr::V6(first), IpAddr::V6(last)) => (first.to_bits() ^ last.to_bits()).leading_zeros(),
        _ => return None,
    };
    let net = IpNet::new(first, u8::try_from(bits).ok()?).ok()?;
    ((net.network(), net.broadcast()) == (first, last)).then_some(net)
}
