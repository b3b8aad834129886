//! What the interfaces of a node itself may carry: the table of its host endpoints (policy.md section
//! 1.8).
//!
//! Any address may be at either end of a packet that a node forwards, so both ends decide, and not one
//! end and an identity as for workloads. The kernel goes from [`State`] to [`State`]: the interface gives
//! the first one, the address of the source the next, that of the destination another, and protocol
//! and port decide. An address for which nothing is said leaves the state as it is.
//!
//! The number of a state follows from all that is decided behind it, so that a number never means
//! something else than before: what is new can be written before anything leads to it, and what is old
//! removed after nothing does.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::{Family, IfName};

use crate::felix::Failsafe;
use crate::flow::Flow;
use crate::ir::Direction;
use crate::table::{Part, Word};
use crate::world::EndpointToHost;

/// Where packets of an interface are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entrance {
    /// They come in, to the node itself.
    Input,
    /// They go out, from the node itself.
    Output,
    /// They come in, to something else.
    ForwardIn,
    /// They go out, from something else.
    ForwardOut,
    /// They come in, and their destination is not translated yet.
    PreDnat,
    /// They come in, before connection tracking: whether something forbids it.
    RawIn,
    /// They go out from the node itself, before connection tracking: whether something forbids it.
    RawOut,
    /// They come in, before connection tracking: whether a rule allows it, so that they are not tracked and
    /// nothing else is asked of them.
    UntrackedIn,
    /// The same of those that go out from the node itself.
    UntrackedOut,
}

/// An end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Where it comes from.
    Source,
    /// Where it goes.
    Destination,
}

/// A step between a packet and its decision. Numbers are of this node alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State(u32);

/// What begins a walk: where a packet is, and its interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Way {
    /// Where it is judged.
    pub entrance: Entrance,
    /// The family of its addresses.
    pub family: Family,
    /// The interface; `None` is every one that has no way of its own and is not a workload's.
    pub interface: Option<IfName>,
}

/// Addresses that lead from a state to another. Those of a side and a state are disjoint, but for
/// single addresses, which win.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The end of the packet that has the address.
    pub side: Side,
    /// The state.
    pub state: State,
    /// The first address.
    pub first: IpAddr,
    /// The last one, of the same family.
    pub last: IpAddr,
}

/// What protocol and port of a packet lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Next {
    /// The decision; never [`Word::WIDE`].
    Decided(Word),
    /// The port of the source decides, as [`HostTable::sources`] says.
    BySource(State),
}

/// Everything that host endpoints decide on a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostTable {
    /// The first states. An interface without one is not guarded there.
    pub ways: BTreeMap<Way, State>,
    /// The next ones.
    pub spans: BTreeMap<Span, State>,
    /// Decisions; of several parts the narrowest counts, and without one a packet is denied.
    pub parts: BTreeMap<(State, Part), Next>,
    /// Decisions by the port of the source, from a first to a last one.
    pub sources: BTreeMap<(State, u16, u16), Word>,
    /// What becomes of packets of workloads to the node, besides what policies of workloads say.
    pub endpoint_to_host: EndpointToHost,
    /// What passes at the node itself whatever policies say.
    pub failsafe: Failsafe,
}

/// The table would be larger than the kernel should hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the policies of this node's host endpoints need too many decisions")]
pub struct TooLarge;

// === impl Entrance ===

impl Entrance {
    /// All of them.
    pub const EACH: [Self; 9] = [
        Self::Input,
        Self::Output,
        Self::ForwardIn,
        Self::ForwardOut,
        Self::PreDnat,
        Self::RawIn,
        Self::RawOut,
        Self::UntrackedIn,
        Self::UntrackedOut,
    ];

    /// The direction, seen from the interface.
    pub const fn direction(self) -> Direction {
        match self {
            Self::Input | Self::ForwardIn | Self::PreDnat | Self::RawIn | Self::UntrackedIn => {
                Direction::Ingress
            }
            Self::Output | Self::ForwardOut | Self::RawOut | Self::UntrackedOut => Direction::Egress,
        }
    }

    /// Whether one end of its packets is the node itself, and what policies do not decide is left to
    /// profiles.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Input | Self::Output)
    }
}

// === impl State ===

impl State {
    /// The state of an interface that a host endpoint leaves open, though another one for all
    /// interfaces may not.
    pub const OPEN: Self = Self(2);
    /// The smallest number that is given.
    pub const FIRST: u32 = 32;
    /// The largest number that is given.
    pub const LAST: u32 = 0xfffe_ffff;

    /// The state with a number, if there may be one.
    pub fn new(number: u32) -> Option<Self> {
        (number == Self::OPEN.0 || (Self::FIRST..=Self::LAST).contains(&number)).then_some(Self(number))
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

// === impl HostTable ===

impl HostTable {
    /// How many elements its decisions have.
    pub fn len(&self) -> usize {
        self.ways.len() + self.spans.len() + self.parts.len() + self.sources.len()
    }

    /// Whether it guards nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.endpoint_to_host != EndpointToHost::Drop
    }

    /// What the kernel finds for a packet; `None` if the interface is not guarded there.
    pub fn decide(&self, entrance: Entrance, interface: &IfName, flow: &Flow) -> Option<Word> {
        let family = Family::of(flow.source);
        let way = |interface| self.ways.get(&Way { entrance, family, interface });
        let first = *way(Some(interface.clone())).or_else(|| way(None))?;
        if first == State::OPEN {
            return None;
        }
        let state = self.step(Side::Source, first, flow.source);
        let state = self.step(Side::Destination, state, flow.destination);
        let word = match self.next(state, flow) {
            Some(Next::Decided(word)) => Some(word),
            Some(Next::BySource(list)) => self
                .sources
                .iter()
                .find(|((of, first, last), _)| *of == list && (*first..=*last).contains(&flow.source_port))
                .map(|(_, word)| *word),
            None => None,
        };
        Some(word.unwrap_or(Word::DENY))
    }

    fn step(&self, side: Side, state: State, address: IpAddr) -> State {
        let exact = self.spans.get(&Span { side, state, first: address, last: address });
        let is_around = |span: &Span| {
            (span.side, span.state) == (side, state) && (span.first..=span.last).contains(&address)
        };
        let around = || self.spans.iter().find(|(span, _)| is_around(span)).map(|(_, next)| next);
        exact.or_else(around).copied().unwrap_or(state)
    }

    fn next(&self, state: State, flow: &Flow) -> Option<Next> {
        let Flow { protocol, destination_port: port, .. } = *flow;
        let part = |part| self.parts.get(&(state, part));
        let in_range = |part: &Part| match part {
            Part::Range(of, first, last) => *of == protocol && (*first..=*last).contains(&port),
            _ => false,
        };
        let range =
            || self.parts.iter().find(|((of, part), _)| *of == state && in_range(part)).map(|(_, next)| next);
        let found = part(Part::Port(protocol, port))
            .or_else(range)
            .or_else(|| part(Part::Protocol(protocol)))
            .or_else(|| part(Part::All));
        found.copied()
    }
}
