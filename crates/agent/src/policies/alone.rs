//! Pods that are attached while no agent runs. An agent marks its node while policies are in force;
//! on such a node the plugin has the addresses of a new pod held, until the next agent decides
//! about them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use russet_attach::{Dialect, Wired};
use russet_cni_spec::CniError;
use russet_linux::file;
use russet_linux::lock::FileLock;
use russet_policy::{Policies, PolicyError, PolicySettings};

use crate::config::Paths;

/// The file that says that policies are in force. It outlives a reboot, because pods start before
/// the agent does.
#[derive(Debug)]
pub struct Marker {
    path: PathBuf,
    /// Whether the file is there, as far as known.
    is_set: Option<bool>,
}

/// How long a request waits for others that hold addresses.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts at a change that commits of other requests overtake; each is repeated by itself, too.
const MAX_TRIES: usize = 20;

/// Holds the addresses of a pod that is about to be wired, if policies are in force on this node.
pub fn hold(paths: &Paths, wired: &Wired) -> Result<(), CniError> {
    let Wired::Routed(attachment) = wired else { return Ok(()) };
    // A container of Calico's plugin has a record, too.
    let is_policed = attachment.dialect == Dialect::Calico || attachment.pod.is_some();
    if !is_policed || !paths.policies_marker().exists() {
        return Ok(());
    }
    let failed = |error: &dyn std::fmt::Display| {
        CniError::try_again_later("policies are in force, and the new pod cannot be held", error)
    };
    // The process that creates the table writes all that it holds: that must be what others have
    // added.
    let lock = FileLock::exclusive(paths.policies_lock(), Instant::now() + LOCK_TIMEOUT);
    let _lock = lock.map_err(|error| failed(&error))?;
    match try_hold(&attachment.addresses.iter().copied().collect()) {
        // Where the kernel cannot enforce policies, no agent does, and the verdicts say so.
        Err(error) if !error.is_unsupported() => Err(failed(&error)),
        _ => Ok(()),
    }
}

fn try_hold(addresses: &BTreeSet<IpAddr>) -> Result<(), PolicyError> {
    let mut tries = 0;
    loop {
        let done = Policies::open(PolicySettings::default())
            .and_then(|mut table| table.hold(addresses, Instant::now()));
        tries += 1;
        match done {
            Err(error) if tries < MAX_TRIES && !error.is_unsupported() => {
                tracing::debug!(%error, "the addresses of a new pod are not held yet; it is tried again");
            }
            other => return other.map(drop),
        }
    }
}

// === impl Marker ===

impl Marker {
    pub fn new(paths: &Paths) -> Self {
        Self { path: paths.policies_marker(), is_set: None }
    }

    /// Says whether policies are in force.
    pub fn set(&mut self, is_in_force: bool) {
        if self.is_set == Some(is_in_force) {
            return;
        }
        match write(&self.path, is_in_force) {
            Ok(()) => self.is_set = Some(is_in_force),
            Err(error) => {
                tracing::warn!(%error, path = %self.path.display(), "a plugin without an agent does not know whether policies are in force");
            }
        }
    }
}

fn write(path: &Path, is_in_force: bool) -> std::io::Result<()> {
    if is_in_force {
        return file::write_atomic(path, &[]).map_err(std::io::Error::other);
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
