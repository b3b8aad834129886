//! The table of host endpoints as elements. Pure.

use std::collections::{BTreeMap, BTreeSet};

use russet_addr::Family;
use russet_nft::{Element, KeyPart, Transaction};
use russet_verdict::hosts::{HostTable, Next, State};
use russet_verdict::table::Part;

use super::skeleton::{Place, others};
use crate::policies::words;
use crate::table_spec::differences;

/// Elements by their sets.
pub(super) type Elements = BTreeMap<Place, Vec<Element>>;

/// What makes one table of another, in an order in which each packet meets all of the old one or
/// all of the new one: states have other numbers if anything behind them differs.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// New states, to which nothing leads yet.
    pub new: Changes,
    /// What leads to states: where nothing did, and named interfaces; then what is for all others; and then what leads to
    /// nothing any more. So a packet that is guarded before and behind a change at one of the entrances is guarded by one of
    /// them.
    pub turn: [Changes; 3],
    /// Old states, to which nothing leads any more.
    pub old: Changes,
}

/// Elements to remove and to add, by set.
#[derive(Debug, Default)]
pub(super) struct Changes(BTreeMap<Place, (Vec<Element>, Vec<Element>)>);

/// All elements of a table.
pub(super) fn elements(table: &HostTable) -> Elements {
    let mut all = Elements::new();
    let mut add = |place, element| all.entry(place).or_default().push(element);
    let to = |state: &State| KeyPart::class_id(state.number());
    for (way, state) in &table.ways {
        let (place, key) = match &way.interface {
            Some(name) => (Place::Ways(way.entrance, way.family), KeyPart::if_name(name)),
            None => (Place::Others, KeyPart::class_id(others(way.entrance, way.family))),
        };
        add(place, Element::new(key).data(to(state)));
    }
    for (span, next) in &table.spans {
        let family = Family::of(span.first);
        let (place, addresses) = match span.first == span.last {
            true => (Place::Exact(span.side, family), KeyPart::from(span.first)),
            false => (Place::Ranges(span.side, family), KeyPart::addresses(span.first..=span.last)),
        };
        add(place, Element::concatenation([to(&span.state), addresses]).data(to(next)));
    }
    for ((state, part), next) in &table.parts {
        let mut key = vec![to(state)];
        let place = match *part {
            Part::Port(protocol, port) => {
                key.extend([KeyPart::protocol(protocol.0), KeyPart::port(port)]);
                Place::Ports
            }
            Part::Range(protocol, first, last) => {
                key.extend([KeyPart::protocol(protocol.0), KeyPart::ports(first..=last)]);
                Place::PortRanges
            }
            Part::Protocol(protocol) => {
                key.push(KeyPart::protocol(protocol.0));
                Place::Protocols
            }
            Part::All => Place::All,
        };
        let next = match next {
            Next::Decided(word) => words::number(*word),
            Next::BySource(list) => list.number(),
        };
        add(place, Element::concatenation(key).data(KeyPart::class_id(next)));
    }
    for ((state, first, last), word) in &table.sources {
        let key = [to(state), KeyPart::ports(*first..=*last)];
        add(Place::Sources, Element::concatenation(key).data(KeyPart::class_id(words::number(*word))));
    }
    all
}

// === impl Steps ===

impl Steps {
    /// What makes `wanted` of what the kernel has.
    pub fn between(found: &Elements, wanted: &Elements) -> Self {
        let mut steps = Self::default();
        for place in Place::each() {
            let of = |all: &Elements| all.get(&place).cloned().unwrap_or_default();
            let (removed, added) = differences(&of(found), &of(wanted));
            let keys = |all: &[Element]| all.iter().map(|it| it.key.clone()).collect::<BTreeSet<_>>();
            let (old, new) = (keys(&removed), keys(&added));
            let part = |all: Vec<Element>, others: &BTreeSet<_>| -> (Vec<Element>, Vec<Element>) {
                all.into_iter().partition(|it| others.contains(&it.key))
            };
            let ((changed, gone), (changing, mut come)) = (part(removed, &new), part(added, &old));
            let [first, others, last] = &mut steps.turn;
            match place {
                Place::Ways(..) => {
                    come.extend(changing);
                    first.put(place, changed, come);
                    last.put(place, gone, Vec::new());
                }
                Place::Others => {
                    first.put(place, Vec::new(), come);
                    others.put(place, changed, changing);
                    last.put(place, gone, Vec::new());
                }
                _ => {
                    // A key that stays with another value has a number that meant something else.
                    first.put(place, changed, changing);
                    steps.new.put(place, Vec::new(), come);
                    steps.old.put(place, gone, Vec::new());
                }
            }
        }
        steps
    }

    pub fn len(&self) -> usize {
        self.new.len() + self.turn.iter().map(Changes::len).sum::<usize>() + self.old.len()
    }

    /// Adds everything to one transaction, removals first.
    pub fn write(&self, transaction: &mut Transaction) {
        let [first, others, last] = &self.turn;
        for changes in [&self.old, last, others, first, &self.new] {
            changes.write(transaction);
        }
    }
}

// === impl Changes ===

impl Changes {
    fn put(&mut self, place: Place, removed: Vec<Element>, added: Vec<Element>) {
        if !removed.is_empty() || !added.is_empty() {
            self.0.insert(place, (removed, added));
        }
    }

    pub fn len(&self) -> usize {
        self.0.values().map(|(removed, added)| removed.len() + added.len()).sum()
    }

    pub fn write(&self, transaction: &mut Transaction) {
        for (place, (removed, added)) in &self.0 {
            let set = place.set();
            transaction.delete_elements(&set, removed).add_elements(&set, added);
        }
    }
}
