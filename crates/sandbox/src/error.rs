//! Errors of operations on sandboxes.

use std::fmt;

use russet_linux::LockHolder;
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
        id: SandboxId,
    },
    /// There is no such sandbox.
    #[error("no sandbox {0}")]
    NotFound(SandboxId),
    /// No network is available for the sandbox.
    #[error("network is not ready: {0}")]
    NetworkNotReady(String),
    /// A creation failed. Nothing is left of it, except for what `left` describes.
    #[error("create sandbox {id}: {source}{}", LeftBehind(left))]
    Create {
        /// Its ID; it can be listed, stopped and removed if something is left.
        id: SandboxId,
        /// Why it failed.
        source: Box<SandboxError>,
        /// Why the clean-up failed.
        left: Option<Box<SandboxError>>,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The network's plugins failed.
    #[error("{operation}: {source}")]
    Network {
        /// `attach eth0` or `detach eth0`, and the network.
        operation: String,
        source: Box<RuntimeError>,
    },
    /// The plugins succeeded, and the interface has no address.
    #[error("network {network:?} gave eth0 no address")]
    NoAddress { network: String },
    /// Another process holds these sandboxes.
    #[error("{holder} has the sandboxes ({lock})")]
    InUse {
        /// What is locked.
        lock: String,
        /// By whom.
        holder: LockHolder,
    },
    /// Other operations were always in progress, so that GC could not run exclusively.
    #[error("collect garbage: sandboxes are being made or removed; try again later")]
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

/// Describes what a failed creation left.
struct LeftBehind<'a>(&'a Option<Box<SandboxError>>);

// === impl SandboxError ===

impl SandboxError {
    pub(crate) fn step(
        operation: &'static str,
        subject: impl fmt::Display,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Step { operation, subject: subject.to_string(), source: source.into() }
    }

    /// Combines `errors`; Ok if there are none.
    pub(crate) fn collect(mut errors: Vec<SandboxError>) -> Result<(), SandboxError> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }
}

// === impl LeftBehind ===

impl fmt::Display for LeftBehind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(error) => write!(f, "; it could not be undone and is kept: {error}"),
        }
    }
}
