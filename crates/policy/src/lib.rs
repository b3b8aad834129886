//! Verdicts on pods' interfaces: verdict maps in nf_tables, table `inet russet-policy`.
//!
//! A host end (`russ*`) without an entry carries nothing, in either direction; with one it carries
//! what the entry permits. So an interface is isolated from its creation until a process that knows
//! its verdict adds the entry, and again from the removal of that entry (ARCHITECTURE.md,
//! invariant 4). [`Verdicts`] is the table; [`Keeper`] is the one thread of a process that works on
//! it, so that callers can stop waiting for it. The plugins' gate adds entries and DEL removes them;
//! the agent reconciles the table when it starts, and after another program changed it.
//!
//! Where policies are enforced, a second table, `inet russet-decisions`, decides on single
//! connections ([`Policies`]). A packet passes only if both tables let it. A third, `inet russet-hosts`,
//! guards the node's own interfaces where host endpoints name the node ([`Hosts`]).
//!
//! The caller knows which pods exist, their verdicts, and the decisions.

#![allow(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]
// It reads what the kernel and other programs have written into tables: none of that may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod error;
mod hosts;
mod keeper;
mod packets;
mod policies;
mod ports;
mod priority;
mod ruleset;
mod table_spec;
mod verdicts;

use std::collections::BTreeMap;
use std::fmt;

use russet_addr::{IfName, IpNet};

pub use error::PolicyError;
pub use hosts::{HostReport, Hosts, hosts_table};
pub use keeper::{Answer, Bell, Keeper, KeeperError, Load, Pending};
pub use policies::{
    Decisions, DeniedPackets, Epoch, EpochObserver, LOG_GROUP, LOGGED_BURST, LOGGED_PER_S, LoggedFlow,
    MarkBits, Policies, PolicyReport, Settings as PolicySettings, decisions_table,
};
pub use ports::{PortGuard, PortSources};
pub use ruleset::{CALICO_PREFIX, Guard, PREFIX, TABLE};
pub use verdicts::{VerdictReport, VerdictState, Verdicts};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The end in the node's namespace.
    pub host_name: IfName,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything.
    Allow,
}

/// The node-dependent settings of the guards against forged packets. An unset one leaves the kernel as
/// it is, because a process without an agent knows none of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guards {
    /// Whether host ends of Calico's plugin (`cali*`) are guarded, too: false where a Felix does that.
    pub calico: Option<bool>,
    /// The prefixes from which pods may send besides the addresses that are routed to them, by host end.
    pub sources: Option<BTreeMap<IfName, Vec<IpNet>>>,
    /// The restrictions of ports of bridges, by host end.
    pub ports: Option<BTreeMap<IfName, PortGuard>>,
}

// === impl Entry ===

impl Entry {
    /// An entry that lets everything pass.
    pub fn allow(host_name: IfName) -> Self {
        Self { host_name, verdict: Verdict::Allow }
    }
}

// === impl Verdict ===

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow => f.write_str("allow"),
        }
    }
}
