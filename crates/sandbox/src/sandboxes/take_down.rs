//! Removes a sandbox from any state, by its records; continues after failures, and can be repeated.

use std::io::ErrorKind;

use super::Sandboxes;
use super::table::{Known, Record};
use crate::SandboxId;
use crate::checkpoint::Phase;
use crate::error::SandboxError;
use crate::event::EventKind;
use crate::fault::step;
use crate::metrics::TEAR_DOWN;
use crate::network::{detach_unknown, still_there};

// === impl Sandboxes ===

impl Sandboxes {
    /// Ends a sandbox's processes and detaches it. Idempotent; an unknown sandbox counts as
    /// stopped. Can be repeated after an error.
    pub fn stop(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.with_pod_lock(id, || self.halt(id, Phase::Stopped))
    }

    /// Stops a sandbox and removes everything of it. Idempotent; an unknown sandbox counts as
    /// removed. Can be repeated after an error.
    pub fn remove(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.with_pod_lock(id, || self.take_down(id))
    }

    /// Runs `work` under the pod's lock.
    fn with_pod_lock(
        &self,
        id: &SandboxId,
        work: impl FnOnce() -> Result<(), SandboxError>,
    ) -> Result<(), SandboxError> {
        let Some(key) = self.table().get(id).map(|record| record.pod_key(id)) else { return Ok(()) };
        let _pod = self.locks.lock_blocking([key]);
        work()
    }

    /// Removes everything of a sandbox; the caller holds its pod's lock.
    pub(super) fn take_down(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.halt(id, Phase::Removing)?;
        let erased = self.erase(id);
        self.record_trouble(id, &erased);
        erased
    }

    /// Detaches and stops. Neither depends on the other: an address that cannot be released must
    /// not keep processes alive.
    fn halt(&self, id: &SandboxId, phase: Phase) -> Result<(), SandboxError> {
        let Some(record) = self.table().get(id).cloned() else { return Ok(()) };
        let was_ready = record.live.phase == Phase::Ready;
        self.change(id, |live| {
            let moves = live.phase != phase && live.phase != Phase::Removing;
            if moves {
                live.phase = phase;
            }
            moves
        });
        self.deaths.forget(id);
        if was_ready {
            self.notify(id, EventKind::Stopped);
        }
        step();
        let mut errors = Vec::new();
        errors.extend(self.detach(id, &record).err());
        step();
        // A removal follows, and then there is no state to record.
        if phase != Phase::Removing || !errors.is_empty() {
            errors.extend(self.engine.stop(id).map_err(SandboxError::from).err());
        }
        step();
        let halted = SandboxError::collect(errors);
        self.record_trouble(id, &halted);
        halted
    }

    fn detach(&self, id: &SandboxId, record: &Record) -> Result<(), SandboxError> {
        let netns = still_there(&*self.inside, record.live.netns.as_ref());
        let detach = || match &record.known {
            Known::As(checkpoint) => match &checkpoint.network {
                Some(network) => network.detach(&self.runtime, id, &checkpoint.config, &netns),
                None => Ok(()),
            },
            Known::Nothing { .. } => detach_unknown(&self.runtime, &*self.networks, id),
        };
        if record.live.attached {
            self.metrics.observe(&TEAR_DOWN, detach)?;
            step();
            self.change(id, |live| std::mem::replace(&mut live.attached, false));
        }
        Ok(())
    }

    /// Removes what is left without processes and network. The checkpoint is removed last.
    fn erase(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.engine.remove(id)?;
        step();
        let dir = self.dir(id);
        match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(SandboxError::step("remove directory", dir.display(), error));
            }
            _ => {}
        }
        step();
        let record = self.table().get(id).cloned();
        let is_unknown = record.as_ref().is_some_and(|it| matches!(it.known, Known::Nothing { .. }));
        if is_unknown {
            self.records.set_aside(id)?;
        }
        self.records.remove(id)?;
        step();
        self.table().remove(id);
        if let Some(record) = record.filter(|record| record.announced) {
            let gone = record.show(id, self.dir(id));
            self.watchers.send(gone, EventKind::Deleted);
        }
        Ok(())
    }

    /// Keeps an error with the sandbox until an attempt succeeds.
    fn record_trouble(&self, id: &SandboxId, result: &Result<(), SandboxError>) {
        if let Some(record) = self.table().get_mut(id) {
            record.trouble = result.as_ref().err().map(ToString::to_string);
        }
        if let Err(error) = result {
            tracing::error!(sandbox = %id, %error, "a sandbox could not be taken down; it is kept as not ready");
        }
    }
}
