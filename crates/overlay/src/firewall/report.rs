//! How a look at the firewall went: what was repaired and what failed. Shown by `flanneld`.

use std::fmt;

use russet_nft::{CommitError, NetlinkError, Table};

/// How a look at the firewall went.
#[derive(Debug, Default)]
pub struct Report {
    /// What was not as it should be, and is now.
    pub repaired: Vec<Repair>,
    /// What failed; the next look tries again.
    pub failed: Vec<FirewallError>,
}

/// Something that was put right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repair {
    /// One of our tables was missing, or rules or chains in it were.
    Table(Table),
    /// One of our tables is not wanted any more.
    Removed(Table),
}

/// What can go wrong; each names the operation and its subject.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// Reading the ruleset or its changes.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A transaction was refused; nothing was changed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The kernel does not say who we are.
    #[error("read the port of the nf_tables socket: {0}")]
    Port(#[source] std::io::Error),
    /// Others changed the ruleset all the time.
    #[error("commit the firewall: others changed the ruleset during each of {0} tries")]
    Overtaken(usize),
}

// === impl Report ===

impl Report {
    /// Whether everything was, and is, as it should be.
    pub fn is_quiet(&self) -> bool {
        self.repaired.is_empty() && self.failed.is_empty()
    }
}

// === impl Repair ===

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(table) => write!(f, "table {table}"),
            Self::Removed(table) => write!(f, "removed table {table}"),
        }
    }
}
