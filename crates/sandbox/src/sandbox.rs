//! A sandbox in the form for clients.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::Serialize;

use crate::{Config, SandboxId};

/// A sandbox in the form for clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sandbox {
    pub id: SandboxId,
    pub config: Config,
    /// Whether containers may be started in it.
    pub state: State,
    pub created_at: SystemTime,
    /// Path of its network namespace; none with host network, and when it is gone.
    pub netns: Option<PathBuf>,
    /// The process that holds it.
    pub pid: Option<u32>,
    /// Its addresses, the primary one first: IPv4 before IPv6. None with host network.
    pub addresses: Vec<IpAddr>,
    /// The resolv.conf, hosts and hostname files for its containers are here.
    pub dir: PathBuf,
    /// Why the removal of some part failed, if it was tried.
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

/// A filter of sandboxes: those that match every given member.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The ID, or a prefix of it.
    pub id: Option<String>,
    pub state: Option<State>,
    /// Labels that it must have.
    pub labels: BTreeMap<String, String>,
}

// === impl Filter ===

impl Filter {
    /// Whether `sandbox` matches.
    pub fn fits(&self, sandbox: &Sandbox) -> bool {
        let id = self.id.as_ref().is_none_or(|id| sandbox.id.as_str().starts_with(id.as_str()));
        let state = self.state.is_none_or(|state| sandbox.state == state);
        let has = |(key, value): (&String, &String)| sandbox.config.labels.get(key) == Some(value);
        id && state && self.labels.iter().all(has)
    }
}
