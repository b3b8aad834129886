//! What keeps a verdict from being in force.

use russet_nft::{CommitError, NetlinkError};

/// Why the table could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// It cannot be read.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The kernel refused a change.
    #[error("{operation}: {source}")]
    Commit {
        /// What was to be done, with its subject.
        operation: String,
        /// The kernel's reason.
        source: CommitError,
    },
    /// The table, or a part of it, is not there; an entry in it would say nothing. To be made whole with the entries of all interfaces.
    #[error("{0} is not whole: {1}")]
    Incomplete(&'static str, String),
}

// === impl PolicyError ===

impl PolicyError {
    /// Whether the table has to be made whole first.
    pub fn is_incomplete(&self) -> bool {
        matches!(self, Self::Incomplete(..))
    }
}
