//! What makes the thing that a sandbox is: namespaces and a process that holds them.

use std::path::{Path, PathBuf};

use crate::{Config, SandboxId};

/// Makes sandboxes, without their network. Operations on one sandbox come one after another, those on different ones at the same time.
///
/// What an engine makes must be found again by its ID alone, by another process after this one was killed at any moment. A process that it
/// starts must not inherit our files: one of them is a lock.
pub trait Engine: Send + Sync {
    /// A short name for people: `built-in`, `containerd`.
    fn name(&self) -> &'static str;

    /// Makes the sandbox, running. `dir` exists and is the sandbox's own: `resolv.conf`, `hosts` and `hostname` are in it already (what the node
    /// has, and what `config` says of hosts and host name), and the engine may keep its own things there. `lo` and everything else of the network
    /// are made by the caller afterwards. With host network there is no namespace of the network.
    ///
    /// Of a failed or interrupted creation everything is found and taken away by [`Engine::remove`].
    fn create(&self, id: &SandboxId, config: &Config, dir: &Path) -> Result<Made, EngineError>;

    /// Ends its processes at once. Its namespace may go, too. Idempotent; a sandbox that is unknown is stopped.
    fn stop(&self, id: &SandboxId) -> Result<(), EngineError>;

    /// Takes away everything of it, whatever state it is in. Idempotent; a sandbox that is unknown is removed.
    fn remove(&self, id: &SandboxId) -> Result<(), EngineError>;

    /// What it does now. Cheap: it is asked for each sandbox in each list.
    fn state(&self, id: &SandboxId) -> Result<EngineState, EngineError>;

    /// Everything that [`Engine::remove`] would have something to do for.
    fn list(&self) -> Result<Vec<SandboxId>, EngineError>;
}

/// What an engine made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Path of the network namespace; none with host network.
    pub netns: Option<PathBuf>,
    /// The process that holds the sandbox, if it has one.
    pub pid: Option<u32>,
    /// The resolv.conf that the pod sees, if the engine has another than the one in the sandbox's directory.
    pub resolv_conf: Option<PathBuf>,
}

/// What a sandbox does.
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

/// An engine could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {subject}: {source}")]
pub struct EngineError {
    /// What was tried, as in `mount the namespace at`.
    pub operation: &'static str,
    /// What it was tried on.
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
