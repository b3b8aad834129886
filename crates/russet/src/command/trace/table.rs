//! The table that marks the packets of a trace.
//!
//! ```text
//! table inet russet-trace-0 {
//!     set pairs4 { type ipv4_addr . ipv4_addr; flags timeout; }
//!     chain prerouting { type filter hook prerouting priority -399; ip saddr . ip daddr @pairs4 counter limit ... meta nftrace set 1 }
//!     chain output     { the same at output }
//!     chain input, postrouting { the last chains of their hooks, without rules: a packet that is reported there has passed }
//! }
//! ```
//!
//! On a node that translates addresses there are also rules for the answers that come to or from a translated address, which only
//! connection tracking knows:
//!
//! ```text
//!     set asked4 { the pairs from A to B alone }
//!     chain answers-prerouting { type filter hook prerouting priority -199;
//!         ct direction reply ct original ip saddr . ct original ip daddr @asked4 ip saddr . ip daddr != @pairs4 counter limit ... }
//!     chain answers-output     { the same at output }
//! ```
//!
//! A trace has a table of its own. It is in use while it has an element, so what a killed command leaves is known by its sets,
//! which are empty then.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use russet_addr::Family;
use russet_nft::{
    Chain, ChainInfo, ChainKind, CmpOp, CommitError, CtKey, Element, Expr, Field, Hook, KeyPart, KeyType,
    MetaKey, NetlinkError, Nft, Register, Rule, Set, Table, TableFamily, Transaction,
};

/// The chains that mark packets, with their hooks.
const MARKS: [(&str, Hook, MarkedBy); 4] = [
    ("prerouting", Hook::Prerouting, MarkedBy::Addresses),
    ("output", Hook::Output, MarkedBy::Addresses),
    ("answers-prerouting", Hook::Prerouting, MarkedBy::Connection),
    ("answers-output", Hook::Output, MarkedBy::Connection),
];
/// The last chains that a packet passes, with their hooks.
const ENDS: [(&str, Hook); 2] = [("input", Hook::Input), ("postrouting", Hook::Postrouting)];
/// Behind defragmentation (`NF_IP_PRI_CONNTRACK_DEFRAG`, -400), which takes fragments away and goes on with the whole packet; before
/// raw chains and connection tracking.
const FIRST: i32 = -399;
/// Behind connection tracking (`NF_IP_PRI_CONNTRACK`, -200), before mangle chains and the translation of addresses.
const TRACKED: i32 = -199;
/// Before the confirmation of connections, which drops nothing that rules decide.
const LAST: i32 = i32::MAX - 1;
/// The beginning of the names of the tables.
const PREFIX: &str = "russet-trace-";
/// Each costs every packet of the node two comparisons.
const TRACES_MAX: usize = 16;
/// The most pairs of addresses of one trace.
pub const PAIRS_MAX: usize = 64;
/// The most packets that a rule marks in a second. Each is reported in some ten messages.
pub const MARKED_PER_S: u64 = 100;
/// The tables of legacy iptables in the thread's network namespace, one a line.
const LEGACY_TABLES: [&str; 2] =
    ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];
/// A program that commits all the time must not keep a trace from starting.
const TRIES_MAX: usize = 10;

/// What is traced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    /// Both ends of each pair, the first being A.
    pub pairs: BTreeSet<(IpAddr, IpAddr)>,
    /// The protocol; 1 is ICMP of either family.
    pub protocol: Option<u8>,
    /// The port of B.
    pub port: Option<u16>,
}

/// By what a packet is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkedBy {
    /// Its own addresses.
    Addresses,
    /// Those of the packet that opened its connection, from A to B: it is an answer whose addresses are still to be translated.
    Connection,
}

/// The table of a trace, while it runs.
#[derive(Debug)]
pub struct TraceTable {
    nft: Nft,
    table: Table,
    /// The kernel's handle, which no other table gets: a later trace can use the name again.
    handle: u64,
    /// How many rules it has.
    rules: usize,
    is_there: bool,
}

/// Why packets cannot be marked.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("read the tables of nf_tables: {0}; it needs root, and a kernel with nf_tables")]
    Read(#[from] NetlinkError),
    #[error("make the table {PREFIX}N, which marks packets: {0}")]
    Commit(#[from] CommitError),
    #[error("remove the table {0}: {1}; its marks end by themselves, and the next trace removes it")]
    Remove(Table, CommitError),
    #[error(
        "the rules of the table {0}, which mark packets, are gone: another program removed them (`nft flush ruleset`, a firewall's restart), or the trace was stopped for longer than its time; start it again"
    )]
    Gone(Table),
    #[error("{TRACES_MAX} traces run on this node; wait until one ends")]
    TooMany,
    #[error("other programs change nf_tables all the time; try again")]
    Busy,
}

// === impl TraceTable ===

impl TraceTable {
    /// Marks packets until `lifetime` is over, or this is dropped. Removes the tables of killed commands.
    pub fn install(wanted: &Wanted, lifetime: Duration) -> Result<Self, TableError> {
        let mut nft = Nft::open()?;
        for _ in 0..TRIES_MAX {
            let generation = nft.generation()?;
            let (live, dead) = of_traces(&mut nft)?;
            let has_answers = translates(&mut nft)?;
            let free = (0..TRACES_MAX).map(|number| Table::inet(format!("{PREFIX}{number}")));
            let table = free.into_iter().find(|table| !live.contains(table)).ok_or(TableError::TooMany)?;
            let mut change = Transaction::new();
            change.only_at(generation);
            dead.iter().for_each(|table| _ = change.delete_table(table));
            fill(&mut change, (&table, has_answers), wanted, lifetime);
            match nft.commit(&change) {
                Ok(()) => return Self::of(nft, table),
                Err(error) if error.is_stale() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(TableError::Busy)
    }

    fn of(mut nft: Nft, table: Table) -> Result<Self, TableError> {
        let handle = handle(&mut nft, &table)?.ok_or_else(|| TableError::Gone(table.clone()))?;
        let rules = nft.rules(&table)?.len();
        Ok(Self { nft, table, handle, rules, is_there: true })
    }

    /// Whether it is this table.
    pub fn is(&self, table: &Table) -> bool {
        self.table == *table
    }

    /// Whether it is that of any trace.
    pub fn is_of_a_trace(table: &Table) -> bool {
        table.family == TableFamily::Inet && table.name.starts_with(PREFIX)
    }

    /// How a chain of the table marks packets; none of the others do.
    pub fn marked_by(chain: &str) -> Option<MarkedBy> {
        MARKS.iter().find(|(name, ..)| *name == chain).map(|(.., by)| *by)
    }

    /// What a packet that reaches this chain of the table has passed.
    pub fn end(chain: &str) -> Option<Hook> {
        ENDS.iter().find(|(name, _)| *name == chain).map(|(_, hook)| *hook)
    }

    /// How many packets its rules have seen, marked or not. Fails if they are not all there.
    pub fn seen(&mut self) -> Result<u64, TableError> {
        let rules = self.nft.rules(&self.table)?;
        let is_there = handle(&mut self.nft, &self.table)? == Some(self.handle);
        if !is_there || rules.len() < self.rules {
            return Err(TableError::Gone(self.table.clone()));
        }
        Ok(rules.iter().filter_map(|rule| rule.packets).sum())
    }

    /// Removes it. One that is not there any more is no error, and another trace's table of the same name stays.
    pub fn remove(&mut self) -> Result<(), TableError> {
        if !std::mem::take(&mut self.is_there) {
            return Ok(());
        }
        for _ in 0..TRIES_MAX {
            let generation = self.nft.generation()?;
            if handle(&mut self.nft, &self.table)? != Some(self.handle) {
                return Ok(());
            }
            let mut change = Transaction::new();
            change.only_at(generation).delete_table(&self.table);
            match self.nft.commit(&change) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) if error.is_stale() => {}
                Err(error) => return Err(TableError::Remove(self.table.clone(), error)),
            }
        }
        Err(TableError::Busy)
    }
}

impl Drop for TraceTable {
    fn drop(&mut self) {
        // The end of a trace that failed. What cannot be removed is as that of a killed command.
        let _ = self.remove();
    }
}

fn handle(nft: &mut Nft, table: &Table) -> Result<Option<u64>, NetlinkError> {
    Ok(nft.tables()?.into_iter().find(|info| info.table == *table).map(|info| info.handle))
}

/// Whether rules translate addresses here. Otherwise no rule of a trace may turn on connection tracking.
fn translates(nft: &mut Nft) -> Result<bool, NetlinkError> {
    let is_nat = |info: &ChainInfo| info.chain.base.as_ref().is_some_and(|base| base.kind == ChainKind::Nat);
    let has_nat = |path| fs::read_to_string(path).is_ok_and(|names| names.lines().any(|name| name == "nat"));
    Ok(nft.all_chains()?.iter().any(is_nat) || LEGACY_TABLES.into_iter().any(has_nat))
}

/// The tables of traces that run, and those of killed commands.
fn of_traces(nft: &mut Nft) -> Result<(Vec<Table>, Vec<Table>), NetlinkError> {
    let all = nft.tables()?.into_iter().map(|info| info.table).filter(TraceTable::is_of_a_trace);
    let (mut live, mut dead) = (Vec::new(), Vec::new());
    for table in all {
        let mut is_used = false;
        for family in Family::BOTH {
            is_used |= match nft.elements(&pairs(&table, family)) {
                Err(error) if error.is_not_found() => false,
                elements => !elements?.is_empty(),
            };
        }
        if is_used { &mut live } else { &mut dead }.push(table);
    }
    Ok((live, dead))
}

fn pairs(table: &Table, family: Family) -> Set {
    let name = match family {
        Family::V4 => "pairs4",
        Family::V6 => "pairs6",
    };
    set_of_ends(table, name, family).comment("ends of traced packets, both ways")
}

fn asked(table: &Table, family: Family) -> Set {
    let name = match family {
        Family::V4 => "asked4",
        Family::V6 => "asked6",
    };
    set_of_ends(table, name, family).comment("ends of connections whose answers are traced")
}

fn set_of_ends(table: &Table, name: &str, family: Family) -> Set {
    let address = KeyType::address(family);
    Set::new(table, name, [address, address]).timeout(None)
}

fn fill(change: &mut Transaction, (table, has_answers): (&Table, bool), wanted: &Wanted, lifetime: Duration) {
    change.add_table_with_comment(table, "russet trace: marks packets, and decides about none");
    for family in Family::BOTH {
        let there: BTreeSet<_> =
            wanted.pairs.iter().filter(|(from, _)| Family::of(*from) == family).copied().collect();
        // Of two ends that are the same, or asked in both orders, each way is one element.
        let ways: BTreeSet<_> = there.iter().flat_map(|(from, to)| [(*from, *to), (*to, *from)]).collect();
        let sets = [(pairs(table, family), ways), (asked(table, family), there)];
        for (set, ends) in sets.into_iter().take(if has_answers { 2 } else { 1 }) {
            let element = |(source, destination): (IpAddr, IpAddr)| {
                Element::concatenation([KeyPart::from(source), KeyPart::from(destination)]).timeout(lifetime)
            };
            let elements: Vec<Element> = ends.into_iter().map(element).collect();
            change.add_set(&set).add_elements(&set, &elements);
        }
    }
    for (name, hook, by) in MARKS {
        if by == MarkedBy::Connection && !has_answers {
            continue;
        }
        let priority = match by {
            MarkedBy::Addresses => FIRST,
            MarkedBy::Connection => TRACKED,
        };
        let chain = Chain::base(table, name, ChainKind::Filter, hook, priority);
        change.add_chain(&chain);
        for family in Family::BOTH {
            let matched = match by {
                MarkedBy::Addresses => of_ends(&chain, family, wanted),
                MarkedBy::Connection => vec![of_answers(&chain, family, wanted)],
            };
            matched.into_iter().for_each(|rule| _ = change.add_rule(&marking(rule)));
        }
    }
    for (name, hook) in ENDS {
        change.add_chain(&Chain::base(table, name, ChainKind::Filter, hook, LAST));
    }
}

/// The packets between the ends. With a port there are two rules, one for each direction; a packet that both would match is marked by
/// the first.
fn of_ends(chain: &Chain, family: Family, wanted: &Wanted) -> Vec<Rule> {
    let set = pairs(&chain.table, family).name;
    let of_pair = Rule::new(chain).is_in(&[Field::Saddr(family), Field::Daddr(family)], set);
    let of_protocol = of_protocol(of_pair, family, wanted);
    match wanted.port {
        Some(port) => vec![of_protocol.clone().dport(port), of_protocol.sport(port).dport_not(port)],
        None => vec![of_protocol],
    }
}

/// The answers of connections from A to B that have other addresses than these before they are translated.
fn of_answers(chain: &Chain, family: Family, wanted: &Wanted) -> Rule {
    let (source, destination, second) = match family {
        Family::V4 => (CtKey::Saddr4, CtKey::Daddr4, Register(1)),
        Family::V6 => (CtKey::Saddr6, CtKey::Daddr6, Register::SECOND),
    };
    let answer = Rule::new(chain)
        .ct_reply()
        .expr(Expr::CtOriginal { key: source, to: Register::FIRST })
        .expr(Expr::CtOriginal { key: destination, to: second })
        .expr(Expr::Lookup { set: asked(&chain.table, family).name, key: Register::FIRST, not: false })
        .is_not_in(&[Field::Saddr(family), Field::Daddr(family)], pairs(&chain.table, family).name);
    let of_protocol = of_protocol(answer, family, wanted);
    match wanted.port {
        Some(port) => equals(
            of_protocol.expr(Expr::CtOriginal { key: CtKey::Dport, to: Register::FIRST }),
            port.to_be_bytes().to_vec(),
        ),
        None => of_protocol,
    }
}

fn of_protocol(rule: Rule, family: Family, wanted: &Wanted) -> Rule {
    match wanted.protocol {
        Some(protocol) => equals(
            rule.expr(Expr::Meta { key: MetaKey::L4Proto, to: Register::FIRST }),
            vec![number_in(protocol, family)],
        ),
        None => rule,
    }
}

fn equals(rule: Rule, value: Vec<u8>) -> Rule {
    rule.expr(Expr::Cmp { op: CmpOp::Eq, register: Register::FIRST, value })
}

fn marking(rule: Rule) -> Rule {
    let burst = u32::try_from(MARKED_PER_S).unwrap_or(u32::MAX);
    rule.counter().limit_with_burst(MARKED_PER_S, burst).trace()
}

/// The number of a protocol in a family: ICMP has one in each.
pub fn number_in(protocol: u8, family: Family) -> u8 {
    const ICMP: u8 = 1;
    const ICMP_V6: u8 = 58;
    match (protocol, family) {
        (ICMP, Family::V6) => ICMP_V6,
        (protocol, _) => protocol,
    }
}
