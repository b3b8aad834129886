//! The decisions for one peer and one local address.

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::Protocol;
use crate::table::{Part, SourceRange, Verdict, Word};

/// Decisions for everything that a peer may send, or be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// For what no part says. Such protocols have no ports.
    all: Word,
    /// In order.
    parts: BTreeMap<Part, Cell>,
}

/// What is decided for a part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cell {
    Word(Word),
    /// The port of the source decides.
    BySource(Vec<SourceRange>),
}

// === impl Row ===

impl Row {
    /// One decision for everything.
    pub(super) fn constant(all: Word) -> Self {
        Self { all, parts: BTreeMap::new() }
    }

    /// The decisions for protocols, by the ports at which they begin to count; the first is 0.
    pub(super) fn new(all: Word, protocols: impl Iterator<Item = (Protocol, Vec<(u16, Cell)>)>) -> Self {
        let mut row = Self::constant(all);
        for (protocol, starts) in protocols {
            row.add(protocol, &ranges(starts));
        }
        row
    }

    fn add(&mut self, protocol: Protocol, ranges: &[(u16, u16, Cell)]) {
        let mut sizes: BTreeMap<&Cell, u32> = BTreeMap::new();
        for (first, last, cell) in ranges {
            *sizes.entry(cell).or_default() += u32::from(*last) - u32::from(*first) + 1;
        }
        let Some((base, _)) = sizes.into_iter().max_by_key(|(_, size)| *size) else { return };
        for (first, last, cell) in ranges.iter().filter(|(.., cell)| cell != base) {
            let part = match first == last {
                true => Part::Port(protocol, *first),
                false => Part::Range(protocol, *first, *last),
            };
            self.parts.insert(part, cell.clone());
        }
        if *base != Cell::Word(self.all) {
            self.parts.insert(Part::Protocol(protocol), base.clone());
        }
    }

    /// What counts without a part.
    pub(super) fn all(&self) -> Word {
        self.all
    }

    /// Whether it says what the default of the address says anyway.
    pub(super) fn is_plain(&self, default: Word) -> bool {
        self.parts.is_empty() && self.all == default
    }

    /// Whether it allows everything.
    pub(super) fn is_open(&self) -> bool {
        self.all.verdict == Verdict::Allow && self.parts.values().all(Cell::is_open)
    }

    /// What the kernel must know of it.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Part, Word)> {
        self.parts.iter().map(|(part, cell)| (*part, cell.word())).chain([(Part::All, self.all)])
    }

    /// The parts for which the port of the source decides.
    pub(super) fn wide(&self) -> impl Iterator<Item = (Part, &Vec<SourceRange>)> {
        self.parts.iter().filter_map(|(part, cell)| match cell {
            Cell::Word(_) => None,
            Cell::BySource(ranges) => Some((*part, ranges)),
        })
    }

    /// How many entries that is.
    pub(super) fn len(&self) -> usize {
        self.parts.len() + 1
    }

    /// The decision for a protocol and a port.
    fn cell(&self, protocol: Protocol, port: u16) -> Cell {
        let in_range = |(part, _): &(&Part, &Cell)| match part {
            Part::Range(of, first, last) => *of == protocol && (*first..=*last).contains(&port),
            _ => false,
        };
        let exact = || self.parts.get(&Part::Port(protocol, port));
        let range = || self.parts.iter().find(in_range).map(|(_, cell)| cell);
        let whole = || self.parts.get(&Part::Protocol(protocol));
        exact().or_else(range).or_else(whole).cloned().unwrap_or(Cell::Word(self.all))
    }

    /// Whether it forbids something that another one allowed. Where ports of the source decide
    /// differently, it is taken for granted that it does.
    pub(super) fn forbids_more_than(&self, old: &Self) -> bool {
        let mut points = BTreeSet::new();
        for part in self.parts.keys().chain(old.parts.keys()) {
            match *part {
                Part::Port(protocol, port) => {
                    points.extend([(protocol, 0), (protocol, port)]);
                    points.extend(port.checked_add(1).map(|next| (protocol, next)));
                }
                Part::Range(protocol, first, last) => {
                    points.extend([(protocol, 0), (protocol, first)]);
                    points.extend(last.checked_add(1).map(|next| (protocol, next)));
                }
                Part::Protocol(protocol) => _ = points.insert((protocol, 0)),
                Part::All => {}
            }
        }
        let cut = |before: &Cell, after: &Cell| before != after && before.may_allow() && !after.is_open();
        cut(&Cell::Word(old.all), &Cell::Word(self.all))
            || points
                .into_iter()
                .any(|(protocol, port)| cut(&old.cell(protocol, port), &self.cell(protocol, port)))
    }
}

// === impl Cell ===

impl Cell {
    /// What the table says.
    fn word(&self) -> Word {
        match self {
            Self::Word(word) => *word,
            Self::BySource(_) => Word::WIDE,
        }
    }

    fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        let (word, ranges) = match self {
            Self::Word(word) => (Some(word), [].as_slice()),
            Self::BySource(ranges) => (None, ranges.as_slice()),
        };
        word.into_iter().chain(ranges.iter().map(|range| &range.word)).map(|word| word.verdict)
    }

    fn is_open(&self) -> bool {
        self.verdicts().all(|verdict| verdict == Verdict::Allow)
    }

    fn may_allow(&self) -> bool {
        self.verdicts().any(|verdict| verdict == Verdict::Allow)
    }
}

/// First and last port of every decision, of which each counts from one port to the next one's;
/// neighbours that are equal are one.
pub(super) fn ranges<T: PartialEq>(starts: Vec<(u16, T)>) -> Vec<(u16, u16, T)> {
    let mut ranges: Vec<(u16, u16, T)> = Vec::new();
    for (start, value) in starts {
        if let Some((_, last, before)) = ranges.last_mut() {
            if *before == value {
                continue;
            }
            *last = start - 1;
        }
        ranges.push((start, u16::MAX, value));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(all: Word, starts: &[(u16, Word)]) -> Row {
        let cells = starts.iter().map(|(start, word)| (*start, Cell::Word(*word))).collect();
        Row::new(all, [(Protocol::TCP, cells)].into_iter())
    }

    #[test]
    fn a_protocol_is_one_entry_and_each_exception_another() {
        let (allow, deny) = (Word::ALLOW, Word::DENY);
        let row = tcp(deny, &[(0, allow), (80, deny), (81, allow), (90, deny), (91, deny), (100, allow)]);
        let entries: Vec<_> = row.entries().collect();
        assert_eq!(
            entries,
            [
                (Part::Port(Protocol::TCP, 80), deny),
                (Part::Range(Protocol::TCP, 90, 99), deny),
                (Part::Protocol(Protocol::TCP), allow),
                (Part::All, deny),
            ]
        );
        let found = [79, 80, 81, 89, 90, 99, 100].map(|port| row.cell(Protocol::TCP, port).word());
        assert_eq!(found, [allow, deny, allow, allow, deny, deny, allow]);
        assert_eq!(row.cell(Protocol::UDP, 80), Cell::Word(deny));
    }

    #[test]
    fn a_row_forbids_more_if_one_port_of_one_protocol_is_closed() {
        let open = Row::constant(Word::ALLOW);
        let but_one = tcp(Word::ALLOW, &[(0, Word::ALLOW), (80, Word::DENY), (81, Word::ALLOW)]);
        assert!(but_one.forbids_more_than(&open));
        assert!(!open.forbids_more_than(&but_one));
        assert!(!but_one.forbids_more_than(&but_one));
        assert!(Row::constant(Word::DENY).forbids_more_than(&but_one));
        let last = tcp(Word::DENY, &[(0, Word::DENY), (u16::MAX, Word::ALLOW)]);
        assert!(Row::constant(Word::DENY).forbids_more_than(&last));
    }
}
