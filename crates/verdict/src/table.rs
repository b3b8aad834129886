//! What the kernel gets: identities of addresses, and decisions (policy.md section 3.2).
//!
//! For a packet of a policed local address, the kernel looks up the identity of the peer's address,
//! and then, of the entries for (identity, local address), the first of: port, range of ports, protocol, all; and at
//! last the default of the local address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::IpNet;

use crate::ir::{Direction, PolicyId, Protocol};

/// A class of addresses that no active rule can tell apart. Numbers are of this node alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(u32);

/// What is decided. An entry with a log bit also copies the packet to the log group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word {
    /// Whether the packet passes.
    pub verdict: Verdict,
    /// Whether it is logged.
    pub log: bool,
}

/// Whether a packet passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It passes.
    Allow,
    /// It is dropped.
    Deny,
    /// The port of the source decides, as [`Delta::wide`] says.
    Wide,
}

/// The key of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Seen from the local address.
    pub direction: Direction,
    /// The address of a local endpoint.
    pub local: IpAddr,
    /// The peer.
    pub peer: Identity,
    /// What of it.
    pub part: Part,
}

/// The part of the traffic with a peer for which a decision counts. Of several, the narrowest
/// counts, which is the first in this order. Ranges of one protocol do not overlap each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A destination port; for ICMP, type * 256 + code.
    Port(Protocol, u16),
    /// Destination ports from the first to the last, both included.
    Range(Protocol, u16, u16),
    /// A protocol.
    Protocol(Protocol),
    /// Everything. There is an entry with this if there is any other for the same peer and address.
    All,
}

/// What changed since the last flush, in the order of the keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delta {
    /// Identities of addresses: of single ones, as prefixes of one address, and of disjoint prefixes of more than one.
    /// A single address wins over the prefix around it, and may therefore be [`Identity::WORLD`]. `None` is removed:
    /// then the prefix around it counts, and without one the addresses are [`Identity::WORLD`].
    pub identities: BTreeMap<IpNet, Option<Identity>>,
    /// Decisions; `None` is removed.
    pub decisions: BTreeMap<Key, Option<Word>>,
    /// What decides where a decision is [`Verdict::Wide`]; `None` is removed. Very few rules ask for
    /// the port of the source, so that plain rules may do this.
    pub wide: BTreeMap<Key, Option<Vec<SourceRange>>>,
    /// What counts for a local address if no decision does. Every address of a workload of this node has one from the
    /// flush on that knows it, also if it is open. `None` is removed: no workload of this node has the address any more.
    pub defaults: BTreeMap<(Direction, IpAddr), Option<Word>>,
    /// Whether something that was allowed no longer is, so that flows in progress are judged again.
    pub tightens: bool,
    /// What is not enforced as written, of policies that are in use since this flush or changed in it.
    pub problems: Vec<(PolicyId, crate::ir::Problem)>,
    /// All limits that are exceeded, if these are others than before.
    pub exceeded: Option<BTreeSet<Exceeded>>,
}

/// A decision for ports of the source. The ranges of a key are in order, and contain every port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRange {
    /// The first port.
    pub first: u16,
    /// The last one.
    pub last: u16,
    /// What is decided; never [`Verdict::Wide`].
    pub word: Word,
}

/// A limit of the table that is exceeded (policy.md section 2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exceeded {
    /// There are too many decisions: everything of this address in this direction is denied.
    Decisions(Direction, IpAddr),
    /// The ports in the rules for this address are cut too often: what concerns some peers is denied.
    Segments(Direction, IpAddr),
    /// There are no numbers left for identities: all policed addresses deny some peers.
    Identities,
}

// === impl Identity ===

impl Identity {
    /// Every address without another identity.
    pub const WORLD: Self = Self(1);
    /// The smallest number that is given.
    pub const FIRST: u32 = 16;
    /// The largest number that is given.
    pub const LAST: u32 = 0xfffe_ffff;

    /// The identity with a number, if there may be one.
    pub fn new(number: u32) -> Option<Self> {
        (number == Self::WORLD.0 || (Self::FIRST..=Self::LAST).contains(&number)).then_some(Self(number))
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0
    }
}

// === impl Word ===

impl Word {
    /// The packet passes.
    pub const ALLOW: Self = Self { verdict: Verdict::Allow, log: false };
    /// The packet is dropped.
    pub const DENY: Self = Self { verdict: Verdict::Deny, log: false };
    /// The port of the source decides.
    pub const WIDE: Self = Self { verdict: Verdict::Wide, log: false };
}
