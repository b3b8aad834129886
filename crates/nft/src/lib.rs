//! nf_tables over netlink: tables, chains, sets, maps and rules, changed in one transaction.
//!
//! A [`Transaction`] collects changes as bytes, [`Nft`] commits it, all or nothing, and lists what is there. The `nft`
//! program is never run: its start alone costs more than our largest change (dataplane.md section 3.3), and its output
//! is no interface. It is the second opinion in the tests.
//!
//! `overlay` keeps its masquerading here, `policy` its verdict maps, `plugins` its port mappings. Nothing here decides.

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
mod photo;
mod rule;
mod set;
mod sys;
mod table;
mod transaction;
mod userdata;
mod verdict;

pub use chain::{Base, Chain, ChainInfo, ChainKind, Hook, Policy, priority};
pub use conntrack::Conntrack;
pub use evaluate::UdpPacket;
pub use expr::{
    CmpOp, CtKey, Expr, FibResult, MetaKey, NatKind, PayloadBase, Register, Reject, ct_state, fib,
};
pub use monitor::Monitor;
pub use nft::Nft;
pub use photo::Photo;
pub use rule::{Field, L4, Masquerade, Rule, RuleInfo};
pub use russet_netlink::NetlinkError;
pub use set::{Element, KeyPart, KeyType, Set, SetInfo, Value, ValueType};
pub use table::{Table, TableFamily, TableInfo};
pub use transaction::{CommitError, Transaction};
pub use verdict::Verdict;
