//! The errors of a store, in the classes that callers use: lost a race, certainly not done,
//! possibly done, or broken.

use std::fmt;
use std::sync::Arc;

use russet_model::Key;

use crate::LeaseId;

/// The cause of an error. It is shared, because one failed disk write answers every request that
/// waited for it.
#[derive(Clone)]
pub struct Cause(Arc<dyn std::error::Error + Send + Sync>);

/// Why a request to the store failed.
#[derive(Debug, Clone)]
pub enum StoreError {
    /// The record is no longer at the guard's revision: another writer changed it. Read it again.
    Conflict {
        /// The record's key.
        key: Key,
    },
    /// The record to create exists already.
    AlreadyExists {
        /// The record's key.
        key: Key,
    },
    /// The record to change does not exist.
    NotFound {
        /// The record's key.
        key: Key,
    },
    /// The lease has expired or never existed.
    NoLease {
        /// The lease.
        lease: LeaseId,
    },
    /// It is unknown whether it was done: read again, look for your own write, then decide.
    Unknown {
        /// The operation.
        operation: String,
        /// What interrupted it.
        source: Cause,
    },
    /// Certainly not done: the store cannot be reached, or did not answer a read in time.
    Unavailable {
        /// The operation.
        operation: String,
        /// The cause.
        source: Cause,
    },
    /// What is stored cannot be read.
    Corrupt {
        /// The operation, and what the operator can do.
        operation: String,
        /// The cause.
        source: Cause,
    },
    /// The disk is full. Not done; reads still work, and writes work again once there is space.
    Full {
        /// The operation.
        operation: String,
        /// The kernel's error.
        source: Cause,
    },
    /// The request can never succeed.
    Invalid {
        /// The operation.
        operation: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The engine does not support this.
    Unsupported {
        /// The operation.
        operation: String,
    },
}

/// A commit that failed.
#[derive(Debug, Clone)]
pub struct CommitError {
    /// The number of steps that certainly took effect; always 0 on an atomic engine.
    pub done: usize,
    /// The step that failed. With an `Unknown` error it may have taken effect, or on an atomic
    /// engine all of them.
    pub failed: usize,
    /// The error.
    pub error: StoreError,
}

// === impl Cause ===

impl Cause {
    /// Wraps an error.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }

    /// A cause that is only a text.
    pub fn text(text: impl Into<String>) -> Self {
        let boxed: Box<dyn std::error::Error + Send + Sync> = text.into().into();
        Self(Arc::from(boxed))
    }

    /// The error itself.
    pub fn error(&self) -> &(dyn std::error::Error + 'static) {
        &*self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

// === impl StoreError ===

impl StoreError {
    /// Whether the same request may succeed later unchanged. A lost race is not included: it needs
    /// a new read first.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Full { .. })
    }

    /// Whether a guard failed: another writer was faster, and a new read shows its change.
    pub fn lost_race(&self) -> bool {
        matches!(self, Self::Conflict { .. } | Self::AlreadyExists { .. } | Self::NotFound { .. })
    }

    /// Whether the request may have taken effect although it failed.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Unknown { source, .. }
            | Self::Unavailable { source, .. }
            | Self::Corrupt { source, .. }
            | Self::Full { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { key } => write!(f, "{key} was changed by another writer"),
            Self::AlreadyExists { key } => write!(f, "{key} exists already"),
            Self::NotFound { key } => write!(f, "{key} does not exist"),
            Self::NoLease { lease } => write!(f, "lease {} has run out or does not exist", lease.0),
            Self::Unknown { operation, source } => write!(f, "{operation}: outcome unknown: {source}"),
            Self::Unavailable { operation, source } => write!(f, "{operation}: store unavailable: {source}"),
            Self::Corrupt { operation, source } => write!(f, "{operation}: {source}"),
            Self::Full { operation, source } => write!(f, "{operation}: no room: {source}"),
            Self::Invalid { operation, reason } => write!(f, "{operation}: {reason}"),
            Self::Unsupported { operation } => write!(f, "{operation}: this store cannot do that"),
        }
    }
}

impl std::error::Error for StoreError {
    // The text above includes the cause, so the chain continues below it.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause().and_then(|cause| cause.error().source())
    }
}

// === impl CommitError ===

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.done {
            0 => self.error.fmt(f),
            done => write!(f, "{} (after {done} steps that took effect)", self.error),
        }
    }
}

impl std::error::Error for CommitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl AsRef<StoreError> for StoreError {
    fn as_ref(&self) -> &StoreError {
        self
    }
}

impl AsRef<StoreError> for CommitError {
    fn as_ref(&self) -> &StoreError {
        &self.error
    }
}

impl From<StoreError> for CommitError {
    fn from(error: StoreError) -> Self {
        Self { done: 0, failed: 0, error }
    }
}

impl From<CommitError> for StoreError {
    fn from(error: CommitError) -> Self {
        error.error
    }
}
