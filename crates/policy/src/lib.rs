//! What pods' interfaces may carry: verdict maps in nf_tables, table `inet russet-policy`.
//!
//! A host end (`russ*`) without an entry carries nothing, in either direction; with one it carries what the entry says. So an interface is isolated
//! from its birth until somebody who knows what it may do has said so, and again from the moment in which that is taken back (ARCHITECTURE.md,
//! invariant 4). [`Verdicts`] is the table; [`Keeper`] is the one thread of a process that works on it, so that whoever waits for it can stop waiting.
//! The plugins' gate puts entries in place and DEL takes them back; the agent makes the table right at its start, and again when something
//! else changed it.
//!
//! Which pods there are is the caller's knowledge, and so is what they may do.

mod error;
mod keeper;
mod ports;
mod ruleset;
mod verdicts;

use std::collections::BTreeMap;
use std::fmt;

use russet_addr::{IfName, IpNet};

pub use error::PolicyError;
pub use keeper::{Answer, Bell, Keeper, KeeperError, Load, Pending};
pub use ports::{PortGuard, PortSources};
pub use ruleset::{CALICO_PREFIX, Guard, PREFIX, TABLE};
pub use verdicts::{Report, Standing, Verdicts};

/// What an interface may carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The end in the node's namespace.
    pub host_name: IfName,
    /// What it may carry.
    pub verdict: Verdict,
}

/// What an interface may carry, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything.
    Allow,
}

/// What of the guards against forged packets depends on the node. What is not said stays as it is in the kernel: a process without an agent
/// knows none of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guards {
    /// Whether host ends of Calico's plugin (`cali*`) are guarded, too: not where a Felix does that.
    pub calico: Option<bool>,
    /// What pods may send from besides the addresses that are routed to them, by host end.
    pub sources: Option<BTreeMap<IfName, Vec<IpNet>>>,
    /// What ports of bridges may send, by host end.
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
