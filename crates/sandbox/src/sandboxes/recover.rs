//! What an earlier life has left: decided by what is written, then done (cni-runtime.md sections 3.3 and A.5).

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

/// What becomes of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It goes on, without any call of a plugin.
    Runs,
    /// Its processes are gone; whoever has it stops and removes it.
    Died,
    /// Somebody wanted it stopped, and perhaps it is not altogether.
    Stops,
    /// The kernel that had it is gone: its addresses are given back at once, and it is listed until it is removed.
    Rebooted,
    /// Nobody was told of it, or it was to go: nothing is left of it.
    Undone,
}

/// So many are taken down at a time: plugins mostly wait.
const AT_A_TIME: usize = 8;
/// After this nothing more is begun before the first question is answered: where plugins hang, each takes its whole deadline, and kubelet waits for us.
pub(super) const SETTLE_PATIENCE: Duration = Duration::from_secs(10);

// === impl Sandboxes ===

impl Sandboxes {
    /// Called once, before anybody else can be at anything. A record that cannot be had, or understood, ends it before anything is touched: its sandbox
    /// may run, and is not killed for that.
    pub(super) fn recover(&self) -> Result<(), SandboxError> {
        self.records.sweep();
        let mut work = Vec::new();
        for (id, read) in self.records.read_checkpoints()? {
            let fate = match read {
                Ok(checkpoint) => self.take_over(&id, checkpoint)?,
                Err(problem) => {
                    tracing::error!(sandbox = %id, problem, "a checkpoint is damaged: everything of this sandbox is taken down, and the file is set aside");
                    self.take_over_unknown(&id);
                    Fate::Undone
                }
            };
            tracing::info!(sandbox = %id, ?fate, "a sandbox of an earlier life");
            work.extend(matches!(fate, Fate::Rebooted | Fate::Stops | Fate::Undone).then_some((id, fate)));
        }
        let (strays, told) = self.strays();
        if let Err(error) = told {
            // It may be away, as containerd may be: nothing is decided about what only it knows of, and gc asks it again.
            tracing::warn!(%error, "the engine cannot say what it has; what nobody else knows of is left alone until it can");
        }
        for id in strays {
            tracing::warn!(sandbox = %id, "a sandbox without a checkpoint is taken down");
            self.take_over_unknown(&id);
            work.push((id, Fate::Undone));
        }
        orphans::end(&work.iter().map(|(id, _)| id.clone()).collect());
        step();
        self.settle(work);
        Ok(())
    }

    /// What the engine or the run directory has and nobody knows of, before they were asked and after: what went meanwhile was known, and what came
    /// is known. Of an engine that cannot say what it has these are those of the run directory, and its error.
    pub(super) fn strays(&self) -> (Vec<SandboxId>, Result<(), SandboxError>) {
        let known: BTreeSet<SandboxId> = self.table().ids().into_iter().collect();
        let (mut ids, told) = match self.engine.list() {
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
        (ids, told)
    }

    fn take_over(&self, id: &SandboxId, checkpoint: Checkpoint) -> Result<Fate, SandboxError> {
        let live = self.records.read_live(id)?;
        let state = self.engine.state(id).unwrap_or_else(|error| {
            tracing::error!(sandbox = %id, %error, "a sandbox's state cannot be read: it is taken for alive");
            EngineState::Running { pid: None }
        });
        let fate = fate(checkpoint.boot_id == self.records.boot_id, live.as_ref(), state);
        let mut live = live.unwrap_or_default();
        // What is not written may have been begun.
        live.attached |= checkpoint.network.is_some() && live == Live::default();
        match fate {
            Fate::Runs => live.phase = Phase::Ready,
            Fate::Died | Fate::Stops => live.phase = Phase::Stopped,
            Fate::Undone => live.phase = Phase::Removing,
            Fate::Rebooted => {
                let attached = checkpoint.network.is_some();
                live = Live { phase: Phase::Stopped, attached, ..Live::default() };
            }
        }
        let has_ended = fate == Fate::Runs && self.deaths.watch(id, live.pid);
        let known = Known::As(Arc::new(checkpoint));
        self.table().insert(id.clone(), Record { known, live, told: true, trouble: None });
        if has_ended {
            self.look(id);
        }
        Ok(fate)
    }

    pub(super) fn take_over_unknown(&self, id: &SandboxId) {
        // It only says where the namespace is; the cache may know that, too.
        let read = self.records.read_live(id).inspect_err(|error| tracing::warn!(sandbox = %id, %error));
        let mut live = read.ok().flatten().unwrap_or_default();
        (live.phase, live.attached) = (Phase::Removing, true);
        let known = Known::Nothing { since: SystemTime::now() };
        self.table().insert(id.clone(), Record { known, live, told: true, trouble: None });
    }

    /// Takes down what is to be; what cannot be, or not in time, is listed with its reason and left to [`gc`](Self::gc).
    fn settle(&self, work: Vec<(SandboxId, Fate)>) {
        let end = Instant::now() + self.settle_patience;
        let workers = work.len().min(AT_A_TIME);
        let work = Mutex::new(work);
        let next = || work.lock().unwrap_or_else(PoisonError::into_inner).pop();
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some((id, fate)) = next() {
                        if Instant::now() < end {
                            self.settle_one(&id, fate);
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
    fn settle_one(&self, id: &SandboxId, fate: Fate) {
        let settled = if fate == Fate::Undone { self.remove(id) } else { self.stop(id) };
        if fate == Fate::Undone && settled.is_ok() {
            self.metrics.undone.inc();
        }
    }
}

/// What becomes of a sandbox with these records, when its engine says this.
fn fate(same_boot: bool, live: Option<&Live>, state: EngineState) -> Fate {
    let runs = matches!(state, EngineState::Running { .. });
    match live.map(|live| live.phase) {
        None if !same_boot => Fate::Rebooted,
        None | Some(Phase::Creating | Phase::Removing) => Fate::Undone,
        Some(Phase::Ready) if runs => Fate::Runs,
        Some(Phase::Ready) => Fate::Died,
        // Both are idempotent, and cost nothing where there is nothing left to do.
        Some(Phase::Stopped) if runs || live.is_some_and(|live| live.attached) => Fate::Stops,
        Some(Phase::Stopped) => Fate::Died,
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
            (true, live(Phase::Ready, true), runs, Fate::Runs),
            (true, live(Phase::Ready, true), EngineState::Stopped, Fate::Died),
            (true, live(Phase::Ready, true), gone, Fate::Died),
            (true, live(Phase::Stopped, false), gone, Fate::Died),
            (true, live(Phase::Stopped, true), gone, Fate::Stops),
            (true, live(Phase::Stopped, false), runs, Fate::Stops),
            (true, live(Phase::Creating, true), runs, Fate::Undone),
            (true, live(Phase::Removing, false), gone, Fate::Undone),
            (true, None, runs, Fate::Undone),
            (false, None, gone, Fate::Rebooted),
            (false, None, runs, Fate::Rebooted),
            (false, live(Phase::Stopped, false), gone, Fate::Died),
            (false, live(Phase::Stopped, true), gone, Fate::Stops),
        ];
        for (same_boot, live, state, expected) in cases {
            assert_eq!(fate(same_boot, live.as_ref(), state), expected, "{same_boot} {live:?} {state:?}");
        }
    }
}
