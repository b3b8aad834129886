//! nf_tables over netlink: tables, chains, sets, maps and rules, changed in atomic transactions.
//!
//! A [`Transaction`] collects encoded changes; [`Nft`] commits them atomically, and lists the
//! existing objects. The `nft` program is never executed: its start alone takes longer than our
//! largest change (dataplane.md section 3.3), and its output is not a stable interface. Tests
//! compare with it.
//!
//! `overlay` has its masquerading here, `policy` its verdict maps, `plugins` its port mappings.
//! This crate makes no decisions.

// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod chain;
pub mod conntrack;
mod evaluate;
mod expr;
#[cfg(test)]
mod hostile;
mod kernel;
pub mod monitor;
mod nft;
mod packet_log;
mod rule;
mod set;
mod sys;
mod table;
mod table_snapshot;
mod trace;
mod transaction;
mod userdata;
mod verdict;

pub use chain::{Base, Chain, ChainInfo, ChainKind, Hook, Policy, priority};
pub use conntrack::Conntrack;
pub use evaluate::{DroppingChain, UdpPacket};
pub use expr::{
    CmpOp, CtKey, Expr, FibResult, LogTo, MetaKey, NatKind, PayloadBase, Register, Reject, ct_state, fib,
};
pub use monitor::Monitor;
pub use nft::Nft;
pub use packet_log::{LoggedPacket, PacketLog};
pub use rule::{Field, L4, Masquerade, Rule, RuleInfo};
pub use russet_netlink::NetlinkError;
pub use set::{Element, KeyPart, KeyType, Set, SetInfo, Value, ValueType};
pub use table::{Table, TableFamily, TableInfo};
pub use table_snapshot::TableSnapshot;
pub use trace::{TraceEvent, TraceMonitor, Traced, TracedAt};
pub use transaction::{CommitError, Transaction};
pub use verdict::Verdict;
