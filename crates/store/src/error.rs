//! How a store fails. The classes are what callers decide by: lost a race, surely not done, perhaps done, or broken.

use std::fmt;
use std::sync::Arc;

use russet_model::Key;

use crate::LeaseId;

/// What lies beneath a failure. Shared, because one failed disk write answers every request that waited for it.
#[derive(Clone)]
pub struct Cause(Arc<dyn std::error::Error + Send + Sync>);

/// Why a store did not do as asked.
#[derive(Debug, Clone)]
pub enum StoreError {
    /// The record is no longer at the revision that the guard names: somebody else wrote it. Read again.
    Conflict {
        /// Which record.
        key: Key,
    },
    /// The record to be created is there already.
    AlreadyExists {
        /// Which record.
        key: Key,
    },
    /// The record to be changed is not there.
    NotFound {
        /// Which record.
        key: Key,
    },
    /// The lease has run out or never was.
    NoLease {
        /// Which lease.
        lease: LeaseId,
    },
    /// Nobody knows whether it was done: re-read, look for our own mark, then decide.
    Unknown {
        /// What was being done.
        operation: String,
        /// What came between.
        source: Cause,
    },
    /// Surely not done: the store cannot be reached, or did not answer a read in time.
    Unavailable {
        /// What was to be done.
        operation: String,
        /// Why not.
        source: Cause,
    },
    /// What is stored cannot be read.
    Corrupt {
        /// What was being read, and what the operator can do.
        operation: String,
        /// What is wrong with it.
        source: Cause,
    },
    /// No room on the disk. Not done; reads still work, and writes work again once there is room.
    Full {
        /// What was to be written.
        operation: String,
        /// What the kernel said.
        source: Cause,
    },
    /// The request itself can never be carried out.
    Invalid {
        /// What was asked.
        operation: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The engine does not claim this.
    Unsupported {
        /// What was asked.
        operation: String,
    },
}

/// A commit that failed.
#[derive(Debug, Clone)]
pub struct CommitError {
    /// How many steps surely took effect; always 0 on an atomic engine.
    pub done: usize,
    /// The step that failed. With an `Unknown` error this one may have taken effect, or on an atomic engine all of them.
    pub failed: usize,
    /// Why.
    pub error: StoreError,
}

// === impl Cause ===

impl Cause {
    /// Wraps an error.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }

    /// A cause that is only a sentence.
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
    /// Whether the same request, unchanged, may succeed later. A lost race is not among them: it needs a fresh read first.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Full { .. })
    }

    /// Whether a guard failed: somebody else was there first, and a fresh read tells what they did.
    pub fn lost_race(&self) -> bool {
        matches!(self, Self::Conflict { .. } | Self::AlreadyExists { .. } | Self::NotFound { .. })
    }

    /// Whether the request may have been carried out although it failed.
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
            Self::Conflict { key } => write!(f, "{key} was changed by somebody else"),
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
    // The text above already carries the cause, so the chain goes on beneath it.
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
