//! Errors because of which a verdict is not in force.

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
        /// The failed operation, with its subject.
        operation: String,
        /// The kernel's reason.
        source: CommitError,
    },
    /// The table, or a part of it, is missing, so an entry in it would have no effect. It must be
    /// completed with the entries of all interfaces first.
    #[error("{0} is incomplete: {1}")]
    Incomplete(&'static str, String),
}

// === impl PolicyError ===

impl PolicyError {
    /// Whether the table must be completed first.
    pub fn is_incomplete(&self) -> bool {
        matches!(self, Self::Incomplete(..))
    }
}
