//! What decides on packets of a local address in one direction, and the decisions that follow.

use std::collections::{BTreeMap, BTreeSet};

use russet_addr::Family;

use super::predicate::{Answer, PredicateId, Vector, answer};
use super::row::{Cell, Row, ranges};
use crate::ir::{Action, Direction, Icmp, Protocol};
use crate::table::{SourceRange, Verdict, Word};

/// Blocks of rules. Local addresses with equal programs share their rows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Program {
    pub(super) direction: Direction,
    pub(super) family: Family,
    /// The tiers and then the profiles.
    pub(super) blocks: Vec<Block>,
    /// The EgressNetworkPolicy, which is asked about what the blocks allow.
    pub(super) firewall: Vec<Line>,
}

/// The rules of a tier or of a profile.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block {
    pub(super) lines: Vec<Line>,
    pub(super) end: End,
}

/// What happens if no rule of a block decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// The next block decides.
    Next,
    /// The packet is allowed.
    Allow,
    /// It is denied.
    Deny,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Line {
    pub(super) action: Action,
    pub(super) protocol: Option<Protocol>,
    pub(super) not_protocol: Option<Protocol>,
    pub(super) icmp: Option<Icmp>,
    pub(super) not_icmp: Option<Icmp>,
    /// What is asked of the peer, and what the answer must be.
    pub(super) peer: Vec<(PredicateId, bool)>,
    pub(super) source: PortTest,
    pub(super) destination: PortTest,
}

/// What is asked of a port: of each list one must match, and none of the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PortTest {
    pub(super) any_of: Vec<Vec<Ports>>,
    pub(super) none_of: Vec<Ports>,
}

/// Ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ports {
    /// Of every protocol that has ports.
    Range(u16, u16),
    /// Of one protocol.
    One(Protocol, u16),
    /// Those that a predicate knows of the peer.
    OfPeer(PredicateId),
}

/// Whether a rule matches a point. The port of the source is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Match {
    Yes,
    No,
    /// Some ports of the source match and others do not.
    Depends,
}

/// The rules that are left for one peer.
struct Residue<'a> {
    program: &'a Program,
    vector: &'a Vector,
    blocks: Vec<(Vec<&'a Line>, End)>,
    firewall: Vec<&'a Line>,
}

/// A kind of packets.
#[derive(Debug, Clone, Copy)]
struct Point {
    protocol: Protocol,
    /// The port of the destination, or the ICMP message.
    port: u16,
    /// The port of the source, if it is known.
    source: Option<u16>,
}

/// What may happen to packets of a point.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    allow: bool,
    deny: bool,
    log: bool,
    /// Whether a rule was seen that some ports of the source match and others do not.
    depends: bool,
}

// === impl Program ===

impl Program {
    /// The predicates that it asks, in order.
    pub(super) fn predicates(&self) -> Vec<PredicateId> {
        let mut found = BTreeSet::new();
        for line in self.blocks.iter().flat_map(|block| &block.lines).chain(&self.firewall) {
            found.extend(line.peer.iter().map(|(id, _)| *id));
            for test in [&line.source, &line.destination] {
                let ports = test.any_of.iter().flatten().chain(&test.none_of);
                found.extend(ports.filter_map(|ports| match ports {
                    Ports::OfPeer(id) => Some(*id),
                    Ports::Range(..) | Ports::One(..) => None,
                }));
            }
        }
        found.into_iter().collect()
    }

    /// The decisions for a peer of which `vector` is true, and the number of their segments.
    pub(super) fn row(&self, vector: &Vector) -> (Row, usize) {
        if answer(vector, PredicateId::OVERFLOW).is_some() {
            return (Row::constant(Word::DENY), 0);
        }
        let residue = Residue::new(self, vector);
        let cuts = residue.cuts();
        // No rule names it, so that it stands for all others.
        let other = (0..=u8::MAX).rev().map(Protocol).find(|it| !cuts.contains_key(it));
        let all = other.map_or(Word::DENY, |other| residue.outcome(Point::new(other, 0)).word());
        let segments = cuts.values().map(BTreeSet::len).sum();
        let parts = cuts.into_iter().map(|(protocol, starts)| {
            (protocol, starts.into_iter().map(|start| (start, residue.cell(protocol, start))).collect())
        });
        (Row::new(all, parts), segments)
    }
}

// === impl Residue ===

impl<'a> Residue<'a> {
    fn new(program: &'a Program, vector: &'a Vector) -> Self {
        let holds =
            |line: &&Line| line.peer.iter().all(|(id, expected)| answer(vector, *id).is_some() == *expected);
        let blocks =
            program.blocks.iter().map(|block| (block.lines.iter().filter(holds).collect(), block.end));
        let firewall = program.firewall.iter().filter(holds).collect();
        Self { program, vector, blocks: blocks.collect(), firewall }
    }

    /// The protocols that a rule names, and the ports at which decisions may change.
    fn cuts(&self) -> BTreeMap<Protocol, BTreeSet<u16>> {
        let mut cuts = BTreeMap::new();
        for line in self.blocks.iter().flat_map(|(lines, _)| lines).chain(&self.firewall) {
            line.protocol.into_iter().chain(line.not_protocol).for_each(|it| cut(&mut cuts, it, NO_PORTS));
            let mut add = |protocol: Protocol, range| {
                if line.protocol.is_none_or(|it| it == protocol) {
                    cut(&mut cuts, protocol, range);
                }
            };
            for icmp in line.icmp.into_iter().chain(line.not_icmp) {
                let first = u16::from_be_bytes([icmp.kind, icmp.code.unwrap_or(0)]);
                let last = u16::from_be_bytes([icmp.kind, icmp.code.unwrap_or(u8::MAX)]);
                [Protocol::ICMP, Protocol::ICMPV6].into_iter().for_each(|it| add(it, (first, last)));
            }
            // The port of the source makes a protocol differ from others, but cuts no ports.
            let source = line.source.any_of.iter().flatten().chain(&line.source.none_of);
            source.for_each(|ports| self.each(ports, &mut |protocol, _| add(protocol, NO_PORTS)));
            let destination = line.destination.any_of.iter().flatten().chain(&line.destination.none_of);
            destination.for_each(|ports| self.each(ports, &mut add));
        }
        cuts
    }

    /// Protocols and ranges of some ports.
    fn each(&self, ports: &Ports, found: &mut dyn FnMut(Protocol, (u16, u16))) {
        match ports {
            Ports::Range(first, last) => {
                WITH_PORTS.into_iter().for_each(|protocol| found(protocol, (*first, *last)));
            }
            Ports::One(protocol, port) => found(*protocol, (*port, *port)),
            Ports::OfPeer(id) => {
                if let Some(Answer::Ports(ports)) = answer(self.vector, *id) {
                    ports.iter().for_each(|(protocol, port)| found(*protocol, (*port, *port)));
                }
            }
        }
    }

    fn cell(&self, protocol: Protocol, port: u16) -> Cell {
        let point = Point::new(protocol, port);
        let word = self.outcome(point).word();
        if word.verdict != Verdict::Wide {
            return Cell::Word(word);
        }
        let by_source = |source| (source, self.outcome(Point { source: Some(source), ..point }).word());
        let starts = self.source_cuts(protocol).into_iter().map(by_source).collect();
        let ranges = ranges(starts).into_iter().map(|(first, last, word)| SourceRange { first, last, word });
        let ranges: Vec<SourceRange> = ranges.collect();
        match ranges.as_slice() {
            // What seemed to depend on the port does not: several rules together cover all of them.
            [SourceRange { word, .. }] => Cell::Word(*word),
            _ => Cell::BySource(ranges),
        }
    }

    /// The ports of the source at which decisions may change.
    fn source_cuts(&self, protocol: Protocol) -> BTreeSet<u16> {
        let mut cuts = BTreeMap::new();
        cut(&mut cuts, protocol, NO_PORTS);
        for line in self.blocks.iter().flat_map(|(lines, _)| lines) {
            for ports in line.source.any_of.iter().flatten().chain(&line.source.none_of) {
                self.each(ports, &mut |of, range| {
                    if of == protocol {
                        cut(&mut cuts, protocol, range);
                    }
                });
            }
        }
        cuts.remove(&protocol).unwrap_or_default()
    }

    fn outcome(&self, point: Point) -> Outcome {
        let mut outcome = Outcome::default();
        self.walk(0, point, &mut outcome);
        if outcome.allow && self.program.direction == Direction::Egress {
            self.ask_firewall(point, &mut outcome);
        }
        outcome
    }

    /// Adds what may happen from a block on. The recursion is as deep as there are blocks; each
    /// goes on at most once because of rules that depend on the port of the source.
    fn walk(&self, block: usize, point: Point, outcome: &mut Outcome) {
        let Some((lines, end)) = self.blocks.get(block) else {
            outcome.deny = true;
            return;
        };
        let mut has_passed = false;
        for line in lines {
            let matched = self.matches(line, point);
            if matched == Match::No {
                continue;
            }
            outcome.depends |= matched == Match::Depends;
            match line.action {
                Action::Allow => outcome.allow = true,
                Action::Deny => outcome.deny = true,
                Action::Pass if has_passed => {}
                Action::Pass => self.walk(block + 1, point, outcome),
                Action::Log => {
                    outcome.log = true;
                    continue;
                }
            }
            has_passed |= line.action == Action::Pass;
            if matched == Match::Yes {
                return;
            }
        }
        match end {
            End::Allow => outcome.allow = true,
            End::Deny => outcome.deny = true,
            End::Next if has_passed => {}
            End::Next => self.walk(block + 1, point, outcome),
        }
    }

    /// The first rule of the EgressNetworkPolicy that matches; none of them asks for a port of the source.
    fn ask_firewall(&self, point: Point, outcome: &mut Outcome) {
        let decides = |line: &&&Line| self.matches(line, point) == Match::Yes;
        if self.firewall.iter().find(decides).is_some_and(|line| line.action == Action::Deny) {
            outcome.allow = false;
            outcome.deny = true;
        }
    }

    fn matches(&self, line: &Line, point: Point) -> Match {
        let Point { protocol, port, source } = point;
        let is_icmp = matches!(protocol, Protocol::ICMP | Protocol::ICMPV6);
        let [kind, code] = port.to_be_bytes();
        let is_message = |icmp: Icmp| icmp.kind == kind && icmp.code.is_none_or(|it| it == code);
        let fits = line.protocol.is_none_or(|it| it == protocol)
            && line.not_protocol != Some(protocol)
            && line.icmp.is_none_or(|icmp| is_icmp && is_message(icmp))
            && line.not_icmp.is_none_or(|icmp| is_icmp && !is_message(icmp))
            && self.has_all(&line.destination, protocol, port);
        match (fits, source) {
            (false, _) => Match::No,
            (true, None) => self.match_source(&line.source, protocol),
            (true, Some(source)) if self.has_all(&line.source, protocol, source) => Match::Yes,
            (true, Some(_)) => Match::No,
        }
    }

    fn has_all(&self, test: &PortTest, protocol: Protocol, port: u16) -> bool {
        let has = |ports: &Ports| self.has(ports, protocol, port);
        test.any_of.iter().all(|list| list.iter().any(has)) && !test.none_of.iter().any(has)
    }

    fn has(&self, ports: &Ports, protocol: Protocol, port: u16) -> bool {
        match ports {
            Ports::Range(first, last) => protocol.has_ports() && (*first..=*last).contains(&port),
            Ports::One(of, number) => (*of, *number) == (protocol, port),
            Ports::OfPeer(id) => match answer(self.vector, *id) {
                Some(Answer::Ports(ports)) => ports.contains(&(protocol, port)),
                Some(Answer::Yes) | None => false,
            },
        }
    }

    fn match_source(&self, test: &PortTest, protocol: Protocol) -> Match {
        let mut result = Match::Yes;
        for list in &test.any_of {
            match self.coverage(list, protocol) {
                Match::No => return Match::No,
                Match::Depends => result = Match::Depends,
                Match::Yes => {}
            }
        }
        match self.coverage(&test.none_of, protocol) {
            Match::Yes => Match::No,
            Match::No => result,
            Match::Depends => Match::Depends,
        }
    }

    /// Whether all, none or some ports of a protocol are in a list.
    fn coverage(&self, list: &[Ports], protocol: Protocol) -> Match {
        let mut ranges = Vec::new();
        for ports in list {
            self.each(ports, &mut |of, (first, last)| {
                if of == protocol && first <= last {
                    ranges.push((first, last));
                }
            });
        }
        ranges.sort_unstable();
        // The first port that is not known to be covered.
        let mut next = 0_u32;
        for (first, last) in &ranges {
            if u32::from(*first) <= next {
                next = next.max(u32::from(*last) + 1);
            }
        }
        match (ranges.is_empty(), next > u32::from(u16::MAX)) {
            (true, _) => Match::No,
            (false, true) => Match::Yes,
            (false, false) => Match::Depends,
        }
    }
}

// === impl Point ===

impl Point {
    fn new(protocol: Protocol, port: u16) -> Self {
        Self { protocol, port, source: None }
    }
}

// === impl Outcome ===

impl Outcome {
    fn word(self) -> Word {
        if self.depends && (self.log || (self.allow && self.deny)) {
            return Word::WIDE;
        }
        let verdict = if self.allow { Verdict::Allow } else { Verdict::Deny };
        Word { verdict, log: self.log }
    }
}

/// The protocols with ports.
const WITH_PORTS: [Protocol; 4] = [Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::UDPLITE];

/// A range that contains no port: it only makes a protocol differ from others.
const NO_PORTS: (u16, u16) = (1, 0);

/// Makes a range of ports of its own.
fn cut(cuts: &mut BTreeMap<Protocol, BTreeSet<u16>>, protocol: Protocol, (first, last): (u16, u16)) {
    let starts = cuts.entry(protocol).or_default();
    starts.insert(0);
    if first <= last {
        starts.insert(first);
        starts.extend(last.checked_add(1));
    }
}
