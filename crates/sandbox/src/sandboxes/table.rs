//! The table of known sandboxes, and of reserved names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Sandboxes;
use crate::checkpoint::{Checkpoint, Live, Phase};
use crate::error::SandboxError;
use crate::{Config, Metadata, Sandbox, SandboxId, State};

/// Every sandbox, including those that are being made.
#[derive(Default)]
pub(super) struct Table {
    records: BTreeMap<SandboxId, Record>,
    names: BTreeMap<Metadata, SandboxId>,
}

/// One sandbox.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) known: Known,
    pub(super) live: Live,
    /// Watchers got a Created event, or may have got one from an earlier process.
    pub(super) announced: bool,
    pub(super) trouble: Option<String>,
}

/// The configuration of a sandbox, if it is known.
#[derive(Clone)]
pub(super) enum Known {
    As(Arc<Checkpoint>),
    /// Only the ID is known, since the checkpoint is damaged or missing.
    Nothing {
        /// When that was detected.
        since: SystemTime,
    },
}

/// A reserved name; released when this is dropped, unless it is kept.
pub(super) struct Claim<'a> {
    sandboxes: &'a Sandboxes,
    metadata: Metadata,
    id: SandboxId,
    /// A sandbox that is not ready had this name.
    pub(super) stale: Option<SandboxId>,
    kept: bool,
}

// === impl Table ===

impl Table {
    pub(super) fn ids(&self) -> Vec<SandboxId> {
        self.records.keys().cloned().collect()
    }

    pub(super) fn get(&self, id: &SandboxId) -> Option<&Record> {
        self.records.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &SandboxId) -> Option<&mut Record> {
        self.records.get_mut(id)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.names.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&SandboxId, &Record)> {
        self.records.iter()
    }

    /// With its name, if no other sandbox has it.
    pub(super) fn insert(&mut self, id: SandboxId, record: Record) {
        if let Known::As(checkpoint) = &record.known {
            self.names.entry(checkpoint.config.metadata.clone()).or_insert_with(|| id.clone());
        }
        self.records.insert(id, record);
    }

    /// With its name, if it is still its own.
    pub(super) fn remove(&mut self, id: &SandboxId) {
        if let Some(Record { known: Known::As(checkpoint), .. }) = self.records.remove(id) {
            self.release(&checkpoint.config.metadata, id);
        }
    }

    fn release(&mut self, metadata: &Metadata, id: &SandboxId) {
        if self.names.get(metadata) == Some(id) {
            self.names.remove(metadata);
        }
    }
}

// === impl Record ===

impl Record {
    /// Sandboxes that are being made are not listed.
    pub(super) fn is_listed(&self) -> bool {
        self.live.phase != Phase::Creating
    }

    pub(super) fn config(&self) -> Config {
        match &self.known {
            Known::As(checkpoint) => checkpoint.config.clone(),
            Known::Nothing { .. } => Config::default(),
        }
    }

    /// The key of the lock under which it is removed.
    pub(super) fn pod_key(&self, id: &SandboxId) -> String {
        match &self.known {
            Known::As(checkpoint) => checkpoint.config.metadata.pod_key(),
            Known::Nothing { .. } => id.to_string(),
        }
    }

    pub(super) fn show(&self, id: &SandboxId, dir: PathBuf) -> Sandbox {
        let ready = self.live.phase == Phase::Ready;
        let created_at = match &self.known {
            Known::As(checkpoint) => UNIX_EPOCH + Duration::from_nanos(checkpoint.created_at_ns),
            Known::Nothing { since } => *since,
        };
        Sandbox {
            id: id.clone(),
            config: self.config(),
            state: if ready { State::Ready } else { State::NotReady },
            created_at,
            netns: self.live.netns.clone().filter(|_| ready),
            pid: self.live.pid.filter(|_| ready),
            addresses: if ready { self.live.addresses.clone() } else { Vec::new() },
            dir,
            trouble: self.trouble.clone(),
        }
    }
}

// === impl Sandboxes ===

impl Sandboxes {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a sandbox's state, in the table and then on disk; returns false if there is no such
    /// sandbox, or if `change` does.
    ///
    /// A write error is tolerated here: with the older state on disk more is undone than necessary,
    /// never less.
    pub(super) fn change(&self, id: &SandboxId, change: impl FnOnce(&mut Live) -> bool) -> bool {
        let mut table = self.table();
        let Some(record) = table.get_mut(id) else { return false };
        let changed = change(&mut record.live);
        if changed && let Err(error) = self.records.write_live(id, &record.live) {
            tracing::error!(sandbox = %id, %error, "the state of a sandbox cannot be written");
        }
        changed
    }

    /// Reserves a name for a new sandbox.
    pub(super) fn claim(&self, metadata: &Metadata, id: &SandboxId) -> Result<Claim<'_>, SandboxError> {
        let mut table = self.table();
        let holder = table.names.get(metadata).cloned();
        let stale = |holder: &SandboxId| {
            let phase = table.get(holder).map(|record| record.live.phase);
            matches!(phase, Some(Phase::Stopped | Phase::Removing))
        };
        match holder {
            Some(holder) if !stale(&holder) => {
                Err(SandboxError::Reserved { name: metadata.reserved_name(), id: holder })
            }
            stale => {
                table.names.insert(metadata.clone(), id.clone());
                let (metadata, id) = (metadata.clone(), id.clone());
                Ok(Claim { sandboxes: self, metadata, id, stale, kept: false })
            }
        }
    }
}

// === impl Claim ===

impl Claim<'_> {
    /// The name stays with the sandbox.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let mut table = self.sandboxes.table();
        table.release(&self.metadata, &self.id);
        // A sandbox whose removal failed keeps its name.
        if let Some(stale) = self.stale.take().filter(|stale| table.get(stale).is_some()) {
            table.names.entry(self.metadata.clone()).or_insert(stale);
        }
    }
}
