//! All sandboxes of this node: the public interface of this crate.
//!
//! An operation on a sandbox holds its pod's lock; the table's own lock is held for moments only.
//! Each step first records on disk what it is about to make, so that one removal routine, which
//! uses these records, serves failed creations, stops, removals and recovery alike.

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
use russet_linux::{FileLock, LockHolder};
use russet_runtime::Runtime;
use russet_sync::KeyedLock;

use crate::checkpoint::{Phase, Records};
use crate::engine::{Engine, EngineState};
use crate::error::SandboxError;
use crate::event::{EventKind, Events, Watchers};
use crate::metrics::{Metrics, STATUS};
use crate::network::{Kernel, NamespaceOps, NetworkSource};
use crate::stats::{self, Stats};
use crate::{Filter, Sandbox, SandboxId, State};

use deaths::DeathWatcher;
pub use gc::{Collect, Collected};
use table::{Record, Table};

/// The engine, runtime and directories of sandboxes.
pub struct Options {
    /// Files that must survive a reboot: `/var/lib/russet/sandbox`.
    pub state_dir: PathBuf,
    /// Files that a reboot removes: `/run/russet/sandbox`.
    pub run_dir: PathBuf,
    pub engine: Box<dyn Engine>,
    pub runtime: Runtime,
    pub networks: Box<dyn NetworkSource>,
    pub metrics: Metrics,
    /// How long to wait for another process that holds these sandboxes.
    pub lock_timeout: Duration,
    /// Called once, after a second of waiting, with the holder.
    pub on_waiting: fn(&LockHolder),
}

/// All sandboxes of this node. All calls block; share it among threads in an `Arc`.
pub struct Sandboxes {
    engine: Box<dyn Engine>,
    runtime: Runtime,
    networks: Box<dyn NetworkSource>,
    inside: Box<dyn NamespaceOps>,
    records: Records,
    dirs: PathBuf,
    table: Mutex<Table>,
    /// By pod (cni-runtime.md section 3.1, `podLock`). GC of networks has all (section 1.13).
    locks: KeyedLock,
    watchers: Watchers,
    deaths: DeathWatcher,
    metrics: Metrics,
    network_status: Mutex<Option<CachedStatus>>,
    settle_timeout: Duration,
    _lock: FileLock,
}

/// A cached STATUS result.
struct CachedStatus {
    at: Instant,
    list: Arc<ConfigList>,
    answer: Result<(), String>,
}

/// kubelet asks every 5 s whether the network is ready; others may ask as well.
const STATUS_FRESH: Duration = Duration::from_secs(4);
/// A plugin with a slower STATUS counts as not ready.
const STATUS_DEADLINE: Duration = Duration::from_secs(5);

// === impl Sandboxes ===

impl Sandboxes {
    /// Takes over the sandboxes of these directories after the previous process: creations in
    /// progress are undone, running sandboxes continue, and removals in progress are completed.
    /// What fails is listed as not ready.
    pub fn open(options: Options) -> Result<Self, SandboxError> {
        let boot_id = russet_linux::host::boot_id();
        let boot_id = boot_id.map_err(|error| SandboxError::step("read", "the boot's ID", error))?;
        Self::open_with(options, Box::new(Kernel), boot_id, recover::SETTLE_TIMEOUT)
    }

    fn open_with(
        options: Options,
        inside: Box<dyn NamespaceOps>,
        boot_id: String,
        settle_timeout: Duration,
    ) -> Result<Self, SandboxError> {
        let Options { state_dir, run_dir, engine, runtime, networks, metrics, lock_timeout, on_waiting } =
            options;
        let records = Records::open(&state_dir, &run_dir, &boot_id)?;
        let lock = lock(&run_dir.join("lock"), lock_timeout, on_waiting)?;
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
            locks: KeyedLock::default(),
            watchers: Watchers::default(),
            deaths: DeathWatcher::new()?,
            metrics,
            network_status: Mutex::default(),
            settle_timeout,
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
            // A ready sandbox without an address tells kubelet that it must be replaced, so an
            // unreadable namespace is an error.
            sandbox.addresses = self.metrics.observe(&STATUS, || self.inside.addresses(&netns))?;
        }
        Ok(sandbox)
    }

    /// The sandboxes that match `filter`, the newest first. Addresses are those of the creation.
    pub fn list(&self, filter: &Filter) -> Vec<Sandbox> {
        let ids = self.table().ids();
        // Members that never change are checked first: the state needs a look at the process.
        let whatever_its_state = Filter { state: None, ..filter.clone() };
        let selected =
            |id: &&SandboxId| self.show(id).is_some_and(|sandbox| whatever_its_state.fits(&sandbox));
        let selected: Vec<&SandboxId> = ids.iter().filter(selected).collect();
        selected.iter().for_each(|id| self.look(id));
        let mut shown: Vec<Sandbox> = selected.into_iter().filter_map(|id| self.show(id)).collect();
        shown.retain(|sandbox| filter.fits(sandbox));
        shown.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
        shown
    }

    /// The IDs with this prefix, of the sandboxes that would be listed; does not check processes.
    pub fn beginning_with(&self, text: &str) -> Vec<SandboxId> {
        let table = self.table();
        let fits = |id: &SandboxId, record: &Record| record.is_listed() && id.as_str().starts_with(text);
        table.iter().filter(|(id, record)| fits(id, record)).map(|(id, _)| id.clone()).collect()
    }

    /// The key of the sandbox's pod, whose operations are serialised: two sandboxes of one pod have
    /// the same. None for an unknown sandbox.
    pub fn pod_key(&self, id: &SandboxId) -> Option<String> {
        self.table().get(id).map(|record| record.pod_key(id))
    }

    /// A sandbox, and its interfaces' counters.
    pub fn stats(&self, id: &SandboxId) -> Result<(Sandbox, Stats), SandboxError> {
        let sandbox = self.show(id).ok_or_else(|| SandboxError::NotFound(id.clone()))?;
        let at = SystemTime::now();
        let interfaces = match (sandbox.state, &sandbox.netns) {
            (State::Ready, Some(netns)) => stats::interfaces(netns)?,
            _ => Vec::new(),
        };
        Ok((sandbox, Stats { id: id.clone(), at, interfaces }))
    }

    /// How many sandboxes are in a state by the table; does not check processes.
    pub fn count(&self, state: State) -> usize {
        let is_ready = state == State::Ready;
        let table = self.table();
        let listed = table.iter().filter(|(_, record)| record.is_listed());
        listed.filter(|(_, record)| (record.live.phase == Phase::Ready) == is_ready).count()
    }

    /// Events from now on. The channel ends when its reader is too slow; then list, and watch
    /// again.
    pub fn events(&self) -> Events {
        self.watchers.watch()
    }

    /// Whether a pod could be attached now; if not, the reason in CRI's words. Runs the plugins'
    /// STATUS at most every few seconds.
    pub fn network_ready(&self) -> Result<(), String> {
        let list = self.networks.current()?;
        let same = |network_status: &&CachedStatus| {
            network_status.list.bytes == list.bytes && network_status.at.elapsed() < STATUS_FRESH
        };
        let known = self
            .network_status
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
        let network_status = CachedStatus { at: Instant::now(), list, answer: answer.clone() };
        *self.network_status.lock().unwrap_or_else(PoisonError::into_inner) = Some(network_status);
        answer
    }

    /// The engine's short name.
    pub fn engine_name(&self) -> &'static str {
        self.engine.name()
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Detects that a sandbox's process has died.
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
            self.notify(id, EventKind::Stopped);
        }
    }

    /// Notifies watchers.
    fn notify(&self, id: &SandboxId, kind: EventKind) {
        let sandbox = self.table().get(id).map(|record| record.show(id, self.dir(id)));
        if let Some(sandbox) = sandbox {
            self.watchers.send(sandbox, kind);
        }
    }

    fn show(&self, id: &SandboxId) -> Option<Sandbox> {
        self.table().get(id).filter(|record| record.is_listed()).map(|record| record.show(id, self.dir(id)))
    }

    fn dir(&self, id: &SandboxId) -> PathBuf {
        self.dirs.join(id.as_str())
    }
}

fn lock(path: &Path, lock_timeout: Duration, notify: fn(&LockHolder)) -> Result<FileLock, SandboxError> {
    FileLock::exclusive_reporting(path, Instant::now() + lock_timeout, notify).map_err(|error| {
        match error.is_timeout() {
            true => SandboxError::InUse { lock: path.display().to_string(), holder: LockHolder::of(path) },
            false => SandboxError::step("lock", path.display(), error),
        }
    })
}
