//! All sandboxes of this node: the door to everything here.
//!
//! An operation on a sandbox holds its pod's lock; the table's own lock is held for moments only. Each step first says on disk what it is about to
//! make, so that the one way of taking down, by what is said there, serves a failed creation, a stop, a removal and a recovery alike.

mod create;
mod deaths;
mod gc;
mod recover;
mod table;
mod take_down;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use russet_cni_spec::ConfigList;
use russet_linux::file::private_dir;
use russet_linux::{FileLock, Holder};
use russet_runtime::Runtime;

use crate::checkpoint::{Phase, Records};
use crate::engine::{Engine, EngineState};
use crate::error::SandboxError;
use crate::event::{EventKind, Events, Watchers};
use crate::gate::Gate;
use crate::metrics::{Metrics, STATUS};
use crate::network::{Inside, Kernel, NetworkSource};
use crate::pod_locks::PodLocks;
use crate::stats::{self, Stats};
use crate::{Filter, Sandbox, SandboxId, State};

use deaths::Deaths;
pub use gc::{Collect, Collected};
use table::{Record, Table};

/// What sandboxes are made with, and where they are kept.
pub struct Options {
    /// What must outlive the boot: `/var/lib/russet/sandbox`.
    pub state_dir: PathBuf,
    /// What dies with the boot: `/run/russet/sandbox`.
    pub run_dir: PathBuf,
    /// What makes them.
    pub engine: Box<dyn Engine>,
    /// What runs plugins.
    pub runtime: Runtime,
    /// Which network they are attached to.
    pub networks: Box<dyn NetworkSource>,
    /// What is counted.
    pub metrics: Metrics,
    /// How long to wait for another process that has these sandboxes.
    pub patience: Duration,
    /// Hears once, after a second, who that is.
    pub tell_waiting: fn(&Holder),
}

/// All sandboxes of this node. Everything blocks; share it among threads in an `Arc`.
pub struct Sandboxes {
    engine: Box<dyn Engine>,
    runtime: Runtime,
    networks: Box<dyn NetworkSource>,
    inside: Box<dyn Inside>,
    records: Records,
    dirs: PathBuf,
    table: Mutex<Table>,
    locks: PodLocks,
    gate: Gate,
    watchers: Watchers,
    deaths: Deaths,
    metrics: Metrics,
    asked: Mutex<Option<Asked>>,
    settle_patience: Duration,
    _lock: FileLock,
}

/// What plugins answered to STATUS.
struct Asked {
    at: Instant,
    list: Arc<ConfigList>,
    answer: Result<(), String>,
}

/// Kubelet asks every 5 s whether the network is ready; others may ask as well.
const STATUS_FRESH: Duration = Duration::from_secs(4);
/// A plugin that takes longer to say that it is ready is not.
const STATUS_DEADLINE: Duration = Duration::from_secs(5);

// === impl Sandboxes ===

impl Sandboxes {
    /// Takes the sandboxes of these directories over from whoever had them: what was being made is undone, what runs goes on, and what was taken
    /// down half-way is taken down. What cannot be is listed as not ready.
    pub fn open(options: Options) -> Result<Self, SandboxError> {
        let boot_id = russet_linux::host::boot_id();
        let boot_id = boot_id.map_err(|error| SandboxError::step("read", "the boot's ID", error))?;
        Self::open_with(options, Box::new(Kernel), boot_id, recover::SETTLE_PATIENCE)
    }

    fn open_with(
        options: Options,
        inside: Box<dyn Inside>,
        boot_id: String,
        settle_patience: Duration,
    ) -> Result<Self, SandboxError> {
        let Options { state_dir, run_dir, engine, runtime, networks, metrics, patience, tell_waiting } =
            options;
        let records = Records::open(&state_dir, &run_dir, &boot_id)?;
        let lock = lock(&run_dir.join("lock"), patience, tell_waiting)?;
        let dirs = run_dir.join("sandboxes");
        private_dir(&dirs).map_err(|error| SandboxError::step("create directory", dirs.display(), error))?;
        let sandboxes = Self {
            engine,
            runtime,
            networks,
            inside,
            records,
            dirs,
            table: Mutex::default(),
            locks: PodLocks::default(),
            gate: Gate::default(),
            watchers: Watchers::default(),
            deaths: Deaths::new()?,
            metrics,
            asked: Mutex::default(),
            settle_patience,
            _lock: lock,
        };
        sandboxes.runtime.tidy();
        sandboxes.recover()?;
        Ok(sandboxes)
    }

    /// A sandbox that exists.
    pub fn status(&self, id: &SandboxId) -> Result<Sandbox, SandboxError> {
        self.look(id);
        let mut sandbox = self.show(id).ok_or_else(|| SandboxError::NotFound(id.clone()))?;
        if sandbox.state == State::Ready && !sandbox.config.host_network {
            let netns = sandbox.netns.clone().unwrap_or_default();
            // A sandbox that lost its address is ready without one: that is how kubelet learns that it must be replaced. One that cannot be looked at may have it.
            sandbox.addresses = self.metrics.observe(&STATUS, || self.inside.addresses(&netns))?;
        }
        Ok(sandbox)
    }

    /// The sandboxes that `filter` fits, the newest first. Addresses are those of the creation.
    pub fn list(&self, filter: &Filter) -> Vec<Sandbox> {
        let ids = self.table().ids();
        // What never changes decides whose process has to be looked at.
        let whatever_its_state = Filter { state: None, ..filter.clone() };
        let asked = |id: &&SandboxId| self.show(id).is_some_and(|sandbox| whatever_its_state.fits(&sandbox));
        let asked: Vec<&SandboxId> = ids.iter().filter(asked).collect();
        asked.iter().for_each(|id| self.look(id));
        let mut shown: Vec<Sandbox> = asked.into_iter().filter_map(|id| self.show(id)).collect();
        shown.retain(|sandbox| filter.fits(sandbox));
        shown.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
        shown
    }

    /// Those whose IDs begin so, of the sandboxes that would be listed; nobody's process is looked at.
    pub fn beginning_with(&self, text: &str) -> Vec<SandboxId> {
        let table = self.table();
        let fits = |id: &SandboxId, record: &Record| record.is_listed() && id.as_str().starts_with(text);
        table.iter().filter(|(id, record)| fits(id, record)).map(|(id, _)| id.clone()).collect()
    }

    /// The pod that a sandbox is of, whose operations are serial: two sandboxes of one pod have the same. None for a sandbox that nobody knows.
    pub fn pod_key(&self, id: &SandboxId) -> Option<String> {
        self.table().get(id).map(|record| record.pod_key(id))
    }

    /// A sandbox, and what its interfaces have carried.
    pub fn stats(&self, id: &SandboxId) -> Result<(Sandbox, Stats), SandboxError> {
        let sandbox = self.show(id).ok_or_else(|| SandboxError::NotFound(id.clone()))?;
        let at = SystemTime::now();
        let interfaces = match (sandbox.state, &sandbox.netns) {
            (State::Ready, Some(netns)) => stats::interfaces(netns)?,
            _ => Vec::new(),
        };
        Ok((sandbox, Stats { id: id.clone(), at, interfaces }))
    }

    /// How many sandboxes are in a state, as far as is known: nobody's process is looked at.
    pub fn count(&self, state: State) -> usize {
        let is_ready = state == State::Ready;
        let table = self.table();
        let listed = table.iter().filter(|(_, record)| record.is_listed());
        listed.filter(|(_, record)| (record.live.phase == Phase::Ready) == is_ready).count()
    }

    /// What happens from now on. The channel ends when its reader is too slow; then list, and ask again.
    pub fn events(&self) -> Events {
        self.watchers.watch()
    }

    /// Whether a pod could be attached now, and in CRI's words why not. Plugins are asked at most every few seconds.
    pub fn network_ready(&self) -> Result<(), String> {
        let list = self.networks.current()?;
        let same = |asked: &&Asked| asked.list.bytes == list.bytes && asked.at.elapsed() < STATUS_FRESH;
        let known = self
            .asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .filter(same)
            .map(|it| it.answer.clone());
        if let Some(answer) = known {
            return answer;
        }
        let runtime = Runtime { plugin_deadline: STATUS_DEADLINE, ..self.runtime.clone() };
        let answer =
            runtime.status(&list).map_err(|error| format!("network {:?}: {error}", list.name.as_str()));
        let asked = Asked { at: Instant::now(), list, answer: answer.clone() };
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked);
        answer
    }

    /// A short name of what makes the sandboxes.
    pub fn engine_name(&self) -> &'static str {
        self.engine.name()
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Notices that a sandbox's process has died.
    fn look(&self, id: &SandboxId) {
        let ready = |table: &Table| table.get(id).is_some_and(|record| record.live.phase == Phase::Ready);
        if !ready(&self.table()) {
            return;
        }
        let gone = match self.engine.state(id) {
            Ok(state) => !matches!(state, EngineState::Running { .. }),
            Err(error) => {
                tracing::warn!(sandbox = %id, %error, "a sandbox's state cannot be read");
                false
            }
        };
        let died = gone
            && self.change(id, |live| {
                let was_ready = live.phase == Phase::Ready;
                if was_ready {
                    live.phase = Phase::Stopped;
                }
                was_ready
            });
        if died {
            tracing::warn!(sandbox = %id, "a sandbox has died");
            self.tell(id, EventKind::Stopped);
        }
    }

    /// Tells whoever watches.
    fn tell(&self, id: &SandboxId, kind: EventKind) {
        let sandbox = self.table().get(id).map(|record| record.show(id, self.dir(id)));
        if let Some(sandbox) = sandbox {
            self.watchers.tell(sandbox, kind);
        }
    }

    fn show(&self, id: &SandboxId) -> Option<Sandbox> {
        self.table().get(id).filter(|record| record.is_listed()).map(|record| record.show(id, self.dir(id)))
    }

    fn dir(&self, id: &SandboxId) -> PathBuf {
        self.dirs.join(id.as_str())
    }
}

fn lock(path: &Path, patience: Duration, tell: fn(&Holder)) -> Result<FileLock, SandboxError> {
    FileLock::exclusive_telling(path, Instant::now() + patience, tell).map_err(|error| {
        match error.is_timeout() {
            true => SandboxError::InUse { lock: path.display().to_string(), holder: Holder::of(path) },
            false => SandboxError::step("lock", path.display(), error),
        }
    })
}
