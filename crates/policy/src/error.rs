//! Errors because of which a verdict is not in force.

use russet_linux::NetNsError;
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
    /// A temporary network namespace could not be created.
    #[error("{operation}: {source}")]
    NetNs {
        /// The failed operation.
        operation: String,
        /// The kernel's reason.
        source: NetNsError,
    },
    /// The table, or a part of it, is missing, so an entry in it would have no effect. It must be
    /// completed with the entries of all interfaces first.
    #[error("{0} is incomplete: {1}")]
    Incomplete(&'static str, String),
    /// The kernel lacks something.
    #[error("{0}")]
    Unsupported(&'static str),
}

// === impl PolicyError ===

impl PolicyError {
    /// Whether the kernel lacks what is needed.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Netlink(error) => error.is_unsupported(),
            Self::Commit { source, .. } => source.is_unsupported(),
            Self::Unsupported(_) => true,
            Self::NetNs { .. } | Self::Incomplete(..) => false,
        }
    }

    /// Whether the table must be completed first.
    pub fn is_incomplete(&self) -> bool {
        matches!(self, Self::Incomplete(..))
    }
}
