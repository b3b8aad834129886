//! The result of a comparison of the firewall: repairs and failures. Shown by `flanneld`.

use std::fmt;
use std::process::ExitStatus;

use russet_linux::execute::ExecuteError;
use russet_nft::{CommitError, NetlinkError, Table};

/// The result of one comparison.
#[derive(Debug, Default)]
pub struct FirewallReport {
    /// Differences that were repaired.
    pub repaired: Vec<Repair>,
    /// Failures; the next comparison tries again.
    pub failed: Vec<FirewallError>,
    /// The process that last changed the ruleset before this repair, if an event named it.
    pub culprit: Option<Culprit>,
}

/// A process that committed a change to nf_tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Culprit {
    /// Its PID in the initial namespace.
    pub pid: u32,
    /// Its command name: up to 15 bytes.
    pub process: String,
}

/// A repaired difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repair {
    /// One of our tables was missing, or rules or chains in it were.
    Table(Table),
    /// One of our tables is not wanted any more.
    Removed(Table),
    /// A foreign chain drops forwarded packets and has got an exception.
    Accepted {
        /// Where the chain is.
        table: Table,
        /// Its name.
        chain: String,
    },
    /// Exceptions in a foreign chain are not needed any more.
    Withdrawn {
        /// Where the chain is.
        table: Table,
        /// Its name.
        chain: String,
    },
    /// Rules of flannel's iptables mode were in a table of iptables-nft and are not wanted there.
    Leftover(Table),
    /// The rules of a table were changed through iptables.
    Iptables {
        /// The program's name, with its flavour: "ip6tables-legacy".
        program: String,
        table: &'static str,
    },
}

/// Errors of the firewall; each names the operation and its subject.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// Reading the ruleset or its changes.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A transaction was refused; nothing was changed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A foreign table drops forwarded packets, and only its owner can change it. Reported once.
    #[error(
        "accept forwarded packets in table {0}: it belongs to a process, which has to accept them itself"
    )]
    Owned(Table),
    /// A program of iptables is not installed.
    #[error("execute {program}: it is not installed; without iptables use the nftables mode")]
    Missing {
        /// Its name.
        program: String,
    },
    /// Legacy iptables has rules that cannot be read because its programs are missing. Reported
    /// once.
    #[error("look at the rules of legacy iptables, which may drop pods' packets: {program} is not installed")]
    Unseen {
        /// The name of the program that could.
        program: String,
    },
    /// A program of iptables could not be run to its end.
    #[error("execute {program}: {source}")]
    Execute {
        /// Its name.
        program: String,
        source: ExecuteError,
    },
    /// A program of iptables failed.
    #[error("{program}: {status}: {said}")]
    Program {
        /// Its name.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said about that.
        said: String,
    },
    /// iptables accepted a rule and prints it differently from what was given.
    #[error("{program}: table {table}: still to be done after it was done: {edit}")]
    Unsettled {
        /// The program's name.
        program: String,
        table: &'static str,
        /// The first change that had no effect.
        edit: String,
    },
    /// Other programs changed the ruleset during each attempt.
    #[error("commit the firewall: others changed the ruleset during each of {0} tries")]
    Overtaken(usize),
}

// === impl FirewallReport ===

impl FirewallReport {
    /// Whether nothing was repaired and nothing failed.
    pub fn is_quiet(&self) -> bool {
        self.repaired.is_empty() && self.failed.is_empty()
    }
}

// === impl Culprit ===

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.process.escape_debug(), self.pid)
    }
}

// === impl Repair ===

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(table) => write!(f, "table {table}"),
            Self::Removed(table) => write!(f, "removed table {table}"),
            Self::Accepted { table, chain } => write!(f, "accepts in {table} {}", chain.escape_debug()),
            Self::Withdrawn { table, chain } => {
                write!(f, "removed accepts from {table} {}", chain.escape_debug())
            }
            Self::Leftover(table) => write!(f, "removed flannel's rules from {table}"),
            Self::Iptables { program, table } => write!(f, "{program} table {table}"),
        }
    }
}
