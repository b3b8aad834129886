//! The engine makes what a sandbox consists of: namespaces and a process that holds them.

use std::path::{Path, PathBuf};

use crate::{Config, SandboxId};

/// Makes sandboxes, without their network. Operations on one sandbox are serialised by the caller,
/// those on different ones are concurrent.
///
/// What an engine makes must be found again by its ID alone, by another process after this one was
/// killed at any moment. A process that it starts must not inherit open files: one of them is a
/// lock.
pub trait Engine: Send + Sync {
    /// A short name for people: `built-in`, `containerd`.
    fn name(&self) -> &'static str;

    /// Makes the sandbox, running. `dir` exists and is the sandbox's own: `resolv.conf`, `hosts`
    /// and `hostname` are in it already (the node's contents, with hosts and host name from
    /// `config`), and the engine may keep its own files there. The caller configures `lo` and the
    /// rest of the network afterwards. With host network there is no network namespace.
    ///
    /// [`Engine::remove`] cleans up after a failed or interrupted creation.
    fn create(&self, id: &SandboxId, config: &Config, dir: &Path) -> Result<Made, EngineError>;

    /// Ends its processes at once. May remove its namespace, too. Idempotent; an unknown sandbox
    /// counts as stopped.
    fn stop(&self, id: &SandboxId) -> Result<(), EngineError>;

    /// Removes everything of it, in any state. Idempotent; an unknown sandbox counts as removed.
    fn remove(&self, id: &SandboxId) -> Result<(), EngineError>;

    /// Its current state. Must be cheap: it is called for each sandbox in each list.
    fn state(&self, id: &SandboxId) -> Result<EngineState, EngineError>;

    /// All sandboxes for which [`Engine::remove`] would have something to do.
    fn list(&self) -> Result<Vec<SandboxId>, EngineError>;
}

/// The result of a creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Path of the network namespace; none with host network.
    pub netns: Option<PathBuf>,
    /// The process that holds the sandbox, if it has one.
    pub pid: Option<u32>,
    /// The resolv.conf that the pod sees, if the engine has another than the one in the sandbox's directory.
    pub resolv_conf: Option<PathBuf>,
}

/// The state of a sandbox's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineState {
    /// It runs.
    Running {
        /// The process that holds it, if it has one.
        pid: Option<u32>,
    },
    /// It has ended, and there is something to remove.
    Stopped,
    /// There is nothing.
    Gone,
}

/// An operation of the engine failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {subject}: {source}")]
pub struct EngineError {
    /// The operation, for example `mount the namespace at`.
    pub operation: &'static str,
    /// The subject of the operation.
    pub subject: String,
    /// Why it failed.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

// === impl EngineError ===

impl EngineError {
    /// An error of `operation` on `subject`.
    pub fn new(
        operation: &'static str,
        subject: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { operation, subject: subject.into(), source: source.into() }
    }
}
