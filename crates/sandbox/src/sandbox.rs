//! A sandbox as it is shown.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::Serialize;

use crate::{Config, SandboxId};

/// A sandbox as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sandbox {
    /// Its name for machines.
    pub id: SandboxId,
    /// What it was asked to be.
    pub config: Config,
    /// Whether containers may be started in it.
    pub state: State,
    /// When its creation began.
    pub created_at: SystemTime,
    /// Path of its network namespace; none with host network, and when it is gone.
    pub netns: Option<PathBuf>,
    /// The process that holds it.
    pub pid: Option<u32>,
    /// Its addresses, the primary one first: IPv4 before IPv6. None with host network.
    pub addresses: Vec<IpAddr>,
    /// The resolv.conf, hosts and hostname files for its containers are here.
    pub dir: PathBuf,
    /// Why something of it could not be taken down, if that was tried in vain.
    pub trouble: Option<String>,
}

/// Whether a sandbox can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum State {
    /// It runs and has its network.
    Ready,
    /// It was stopped, has died, or was never finished.
    NotReady,
}

/// Which sandboxes to show: those that fit everything that is given.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The ID, or its beginning.
    pub id: Option<String>,
    /// The state.
    pub state: Option<State>,
    /// Labels that it must have.
    pub labels: BTreeMap<String, String>,
}

// === impl Filter ===

impl Filter {
    /// Whether `sandbox` is to be shown.
    pub fn fits(&self, sandbox: &Sandbox) -> bool {
        let id = self.id.as_ref().is_none_or(|id| sandbox.id.as_str().starts_with(id.as_str()));
        let state = self.state.is_none_or(|state| sandbox.state == state);
        let has = |(key, value): (&String, &String)| sandbox.config.labels.get(key) == Some(value);
        id && state && self.labels.iter().all(has)
    }
}
