//! Recovers the sandboxes of an earlier process: decides by the records, then acts (cni-runtime.md
//! sections 3.3 and A.5).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::Sandboxes;
use super::table::{Known, Record};
use crate::SandboxId;
use crate::checkpoint::{Checkpoint, Live, Phase};
use crate::engine::EngineState;
use crate::error::SandboxError;
use crate::fault::step;
use crate::orphans;

/// The action for a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecoveryAction {
    /// It keeps running, without any call of a plugin.
    Runs,
    /// Its processes are gone; clients stop and remove it.
    Died,
    /// A client requested its stop, which may be incomplete.
    Stops,
    /// It is from an earlier boot: its addresses are released at once, and it is listed until it is
    /// removed.
    Rebooted,
    /// Its creation was not reported, or its removal was in progress: it is removed.
    Undone,
}

// === impl RecoveryAction ===

impl RecoveryAction {
    /// For logs.
    const fn name(self) -> &'static str {
        match self {
            Self::Runs => "it keeps running",
            Self::Died => "its processes are gone",
            Self::Stops => "its stop is completed",
            Self::Rebooted => "it is from an earlier boot: its addresses are released",
            Self::Undone => "it is removed",
        }
    }
}

/// Concurrent removals: plugins mostly wait.
const AT_A_TIME: usize = 8;
/// After this no further removal starts before requests are served: if plugins hang, each takes its
/// whole deadline, and kubelet waits for the server.
pub(super) const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

// === impl Sandboxes ===

impl Sandboxes {
    /// Called once, before any other operation. A record that cannot be read, or understood, is an
    /// error before anything is changed: its sandbox may run, and must not be killed for that.
    pub(super) fn recover(&self) -> Result<(), SandboxError> {
        self.records.sweep();
        let mut work = Vec::new();
        for (id, read) in self.records.read_checkpoints()? {
            let recovery_action = match read {
                Ok(checkpoint) => self.take_over(&id, checkpoint)?,
                Err(problem) => {
                    tracing::error!(sandbox = %id, problem, "a checkpoint is damaged: everything of this sandbox is taken down, and the file is set aside");
                    self.take_over_unknown(&id);
                    RecoveryAction::Undone
                }
            };
            tracing::info!(sandbox = %id, outcome = recovery_action.name(), "a sandbox of an earlier life");
            work.extend(
                matches!(
                    recovery_action,
                    RecoveryAction::Rebooted | RecoveryAction::Stops | RecoveryAction::Undone
                )
                .then_some((id, recovery_action)),
            );
        }
        let (strays, announced) = self.strays();
        if let Err(error) = announced {
            // The engine may be down, as containerd may be: nothing is decided about sandboxes that
            // only it knows, and gc lists it again.
            tracing::warn!(%error, "the engine cannot say what it has; sandboxes that only it knows are left alone until it can");
        }
        for id in strays {
            tracing::warn!(sandbox = %id, "a sandbox without a checkpoint is taken down");
            self.take_over_unknown(&id);
            work.push((id, RecoveryAction::Undone));
        }
        orphans::end(&work.iter().map(|(id, _)| id.clone()).collect());
        step();
        self.settle(work);
        Ok(())
    }

    /// Sandboxes that the engine or the run directory has and the table has not, neither before
    /// they were listed nor after: those that were removed or added meanwhile were known. If the
    /// engine cannot list, these are those of the run directory, and its error.
    pub(super) fn strays(&self) -> (Vec<SandboxId>, Result<(), SandboxError>) {
        let known: BTreeSet<SandboxId> = self.table().ids().into_iter().collect();
        let (mut ids, announced) = match self.engine.list() {
            Ok(ids) => (ids, Ok(())),
            Err(error) => (Vec::new(), Err(SandboxError::from(error))),
        };
        ids.extend(self.records.live_ids());
        let dirs = std::fs::read_dir(&self.dirs).into_iter().flatten().flatten();
        ids.extend(dirs.filter_map(|entry| entry.file_name().to_str()?.parse::<SandboxId>().ok()));
        ids.sort();
        ids.dedup();
        let table = self.table();
        ids.retain(|id| !known.contains(id) && table.get(id).is_none());
        (ids, announced)
    }

    fn take_over(&self, id: &SandboxId, checkpoint: Checkpoint) -> Result<RecoveryAction, SandboxError> {
        let live = self.records.read_live(id)?;
        let state = self.engine.state(id).unwrap_or_else(|error| {
            tracing::error!(sandbox = %id, %error, "a sandbox's state cannot be read: it is taken for alive");
            EngineState::Running { pid: None }
        });
        let recovery_action =
            recovery_action(checkpoint.boot_id == self.records.boot_id, live.as_ref(), state);
        let mut live = live.unwrap_or_default();
        // An ADD without a record may have been started.
        live.attached |= checkpoint.network.is_some() && live == Live::default();
        match recovery_action {
            RecoveryAction::Runs => live.phase = Phase::Ready,
            RecoveryAction::Died | RecoveryAction::Stops => live.phase = Phase::Stopped,
            RecoveryAction::Undone => live.phase = Phase::Removing,
            RecoveryAction::Rebooted => {
                let attached = checkpoint.network.is_some();
                live = Live { phase: Phase::Stopped, attached, ..Live::default() };
            }
        }
        let has_ended = recovery_action == RecoveryAction::Runs && self.deaths.watch(id, live.pid);
        let known = Known::As(Arc::new(checkpoint));
        self.table().insert(id.clone(), Record { known, live, announced: true, trouble: None });
        if has_ended {
            self.look(id);
        }
        Ok(recovery_action)
    }

    pub(super) fn take_over_unknown(&self, id: &SandboxId) {
        // It only has the namespace's path; the cache may have that, too.
        let read = self.records.read_live(id).inspect_err(|error| tracing::warn!(sandbox = %id, %error));
        let mut live = read.ok().flatten().unwrap_or_default();
        (live.phase, live.attached) = (Phase::Removing, true);
        let known = Known::Nothing { since: SystemTime::now() };
        self.table().insert(id.clone(), Record { known, live, announced: true, trouble: None });
    }

    /// Removes sandboxes; what fails, or not in time, is listed with its reason and left to
    /// [`gc`](Self::gc).
    fn settle(&self, work: Vec<(SandboxId, RecoveryAction)>) {
        let end = Instant::now() + self.settle_timeout;
        let workers = work.len().min(AT_A_TIME);
        let work = Mutex::new(work);
        let next = || work.lock().unwrap_or_else(PoisonError::into_inner).pop();
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some((id, recovery_action)) = next() {
                        if Instant::now() < end {
                            self.settle_one(&id, recovery_action);
                        } else {
                            self.put_off(&id);
                        }
                    }
                });
            }
        });
    }

    fn put_off(&self, id: &SandboxId) {
        tracing::warn!(sandbox = %id, "others take long to be taken down: this one is left to the next look");
        if let Some(record) = self.table().get_mut(id) {
            record.trouble = Some("it is not taken down yet".to_owned());
        }
    }

    /// Failures are logged and kept with the sandbox.
    fn settle_one(&self, id: &SandboxId, recovery_action: RecoveryAction) {
        let settled = if recovery_action == RecoveryAction::Undone { self.remove(id) } else { self.stop(id) };
        if recovery_action == RecoveryAction::Undone && settled.is_ok() {
            self.metrics.undone.inc();
        }
    }
}

/// The action for a sandbox with these records and this engine state.
fn recovery_action(same_boot: bool, live: Option<&Live>, state: EngineState) -> RecoveryAction {
    let runs = matches!(state, EngineState::Running { .. });
    match live.map(|live| live.phase) {
        None if !same_boot => RecoveryAction::Rebooted,
        None | Some(Phase::Creating | Phase::Removing) => RecoveryAction::Undone,
        Some(Phase::Ready) if runs => RecoveryAction::Runs,
        Some(Phase::Ready) => RecoveryAction::Died,
        // Both are idempotent, and cost nothing if there is nothing left to do.
        Some(Phase::Stopped) if runs || live.is_some_and(|live| live.attached) => RecoveryAction::Stops,
        Some(Phase::Stopped) => RecoveryAction::Died,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_engine_together_decide_what_becomes_of_a_sandbox() {
        // cni-runtime.md section A.5: live netns READY, others NotReady; another boot, release at once
        let live = |phase, attached| Some(Live { phase, attached, ..Live::default() });
        let (runs, gone) = (EngineState::Running { pid: Some(1) }, EngineState::Gone);
        let cases = [
            (true, live(Phase::Ready, true), runs, RecoveryAction::Runs),
            (true, live(Phase::Ready, true), EngineState::Stopped, RecoveryAction::Died),
            (true, live(Phase::Ready, true), gone, RecoveryAction::Died),
            (true, live(Phase::Stopped, false), gone, RecoveryAction::Died),
            (true, live(Phase::Stopped, true), gone, RecoveryAction::Stops),
            (true, live(Phase::Stopped, false), runs, RecoveryAction::Stops),
            (true, live(Phase::Creating, true), runs, RecoveryAction::Undone),
            (true, live(Phase::Removing, false), gone, RecoveryAction::Undone),
            (true, None, runs, RecoveryAction::Undone),
            (false, None, gone, RecoveryAction::Rebooted),
            (false, None, runs, RecoveryAction::Rebooted),
            (false, live(Phase::Stopped, false), gone, RecoveryAction::Died),
            (false, live(Phase::Stopped, true), gone, RecoveryAction::Stops),
        ];
        for (same_boot, live, state, expected) in cases {
            assert_eq!(
                recovery_action(same_boot, live.as_ref(), state),
                expected,
                "{same_boot} {live:?} {state:?}"
            );
        }
    }
}
