//! What can go wrong with a sandbox.

use std::fmt;

use russet_linux::Holder;
use russet_runtime::RuntimeError;

use crate::{ConfigError, EngineError, SandboxId};

/// An operation on a sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A sandbox of this name exists, or is being made.
    #[error("name {name:?} is reserved for {id}")]
    Reserved {
        /// `name_namespace_uid_attempt`.
        name: String,
        /// Which one.
        id: SandboxId,
    },
    /// There is no such sandbox.
    #[error("no sandbox {0}")]
    NotFound(SandboxId),
    /// There is no network that a sandbox could be attached to.
    #[error("network is not ready: {0}")]
    NetworkNotReady(String),
    /// A creation failed. Nothing is left of it, unless `left` says what.
    #[error("create sandbox {id}: {source}{}", Left(left))]
    Create {
        /// Its ID; it can be listed, stopped and removed if something is left.
        id: SandboxId,
        /// Why it failed.
        source: Box<SandboxError>,
        /// Why it could not be undone.
        left: Option<Box<SandboxError>>,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The network's plugins failed.
    #[error("{operation}: {source}")]
    Network {
        /// `attach eth0` or `detach eth0`, and to what.
        operation: String,
        /// Why.
        source: Box<RuntimeError>,
    },
    /// The plugins succeeded, and the interface has no address.
    #[error("network {network:?} gave eth0 no address")]
    NoAddress {
        /// The network.
        network: String,
    },
    /// Another process has these sandboxes.
    #[error("{holder} has the sandboxes ({lock})")]
    InUse {
        /// What is locked.
        lock: String,
        /// By whom.
        holder: Holder,
    },
    /// Something is always under way, so that GC, which must be alone, did not come to its turn.
    #[error("collect what nobody wants: sandboxes are being made or taken down; try again later")]
    Busy,
    /// Another step failed.
    #[error("{operation} {subject}: {source}")]
    Step {
        /// What was tried.
        operation: &'static str,
        /// On what.
        subject: String,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Several things failed; each is here.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<SandboxError>),
}

/// What is left of a failed creation, in words.
struct Left<'a>(&'a Option<Box<SandboxError>>);

// === impl SandboxError ===

impl SandboxError {
    pub(crate) fn step(
        operation: &'static str,
        subject: impl fmt::Display,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Step { operation, subject: subject.to_string(), source: source.into() }
    }

    /// One error for all of `errors`; none when there are none.
    pub(crate) fn collect(mut errors: Vec<SandboxError>) -> Result<(), SandboxError> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }
}

// === impl Left ===

impl fmt::Display for Left<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(error) => write!(f, "; it could not be undone and is kept: {error}"),
        }
    }
}
