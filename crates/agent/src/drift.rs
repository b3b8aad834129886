//! Drift: what something else removes or changes of ours in the kernel comes back within milliseconds, is counted, and is told with who did it, as far
//! as the kernel says that (docs/drift.md).
//!
//! A thread of its own listens to rtnetlink and nf_tables. An event decides nothing: it makes a [`Part`] suspect if cheap tests say that it may be about
//! something of ours and not our own doing; then that part is compared with the kernel, from what the loop last wanted of it, and the difference is carried
//! out. The same thread looks at everything once a minute, and again at what could not be put back ([`due::Due`]). So it needs no store, and goes on while etcd
//! is away. The loop ([`crate::reconcile`]) and this thread work on the same [`overlay::Overlay`] in turns.
//! Called by `lib` (start), the loop, and the socket's door for `russet drift`.

mod budget;
mod due;
mod ears;
mod judge;
mod log;
mod mirror;
mod nat;
mod overlay;
mod pods;
mod sdn;
mod tunnel;
mod verdicts;
mod who;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Instant, SystemTime};

use russet_attach::restore::Depth;
use russet_linux::watch::Call;
use russet_netlink::NetlinkError;
use russet_overlay::openshift::Sdn as DataPath;
use russet_overlay::{Inputs, Report};
use russet_policy::Keeper;
use tokio::sync::{Notify, watch};

use crate::metrics::Metrics;
use due::Due;
use ears::Ears;
use judge::Judge;
use log::Log;
use nat::Nat;
use overlay::Overlay;
use pods::Pods;
use sdn::Sdn;
use verdicts::{Asked, Outcome, Verdicts};
use who::Traces;

pub use log::{DriftReport, Repair};
pub use mirror::Mirror;
pub use who::Who;

/// Where the agent's socket answers `russet drift`.
pub const DRIFT_PATH: &str = "/v1/drift";

/// The node's guard against drift; clones are the same one.
#[derive(Clone)]
pub struct Drift(Arc<Shared>);

struct Shared {
    overlay: Mutex<Overlay>,
    pods: Mutex<Pods>,
    nat: Mutex<Nat>,
    sdn: Mutex<Sdn>,
    verdicts: Verdicts,
    /// An answer about verdicts is there.
    bell: Arc<Call>,
    judge: Mutex<Judge>,
    suspicion: Mutex<Option<Suspicion>>,
    log: Mutex<Log>,
    metrics: Metrics,
    /// What is compared next, although nobody said anything.
    due: Mutex<Due>,
    /// The loop is to look: something of the overlay could not be restored, or the underlay is another one.
    disturbed: Notify,
    underlay: AtomicBool,
    /// Others keep the node's routes, and pods' with them.
    aside: AtomicBool,
}

/// What is ours, in the parts that are compared for themselves, in the order in which that is done: without verdicts everything is let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// What pods' interfaces may carry.
    Verdicts,
    /// OpenShift's data path: its table, tunnel and ways, and pods' host ends.
    Sdn,
    /// The node's side of pods' interfaces.
    Pods,
    /// Tunnels, routes and entries to other nodes, masquerade.
    Overlay,
    /// Pods' masquerade and published ports.
    Nat,
}

/// What has been heard since the last comparison.
#[derive(Debug)]
struct Suspicion {
    since: Instant,
    parts: BTreeSet<Part>,
    traces: Traces,
}

/// A part that was compared, and of which something was wrong.
struct Repaired {
    part: Part,
    restored: Restored,
    suspicion: Option<Suspicion>,
    began: Instant,
    done: Instant,
}

/// What came of the restoration of a part.
#[derive(Debug, Default)]
struct Restored {
    /// What was different, in words.
    what: Vec<String>,
    /// Kernel objects that were changed, by kind.
    kinds: Vec<(&'static str, u64)>,
    /// What could not be done.
    errors: Vec<String>,
}

/// Netlink and comparisons; nothing deep.
const STACK_BYTES: usize = 512 * 1024;

// === impl Drift ===

impl Drift {
    /// Opens the kernel's side and begins to listen: what changes from now on is heard, also before the first comparison.
    /// `mirror` is what is attached: its host ends are compared at once. `verdicts` is who keeps what that may carry.
    pub fn watch(metrics: Metrics, mirror: Mirror, verdicts: Keeper) -> Result<Self, NetlinkError> {
        let ears = Ears::open()?;
        let shared = Arc::new(Shared::open(metrics, mirror, verdicts)?);
        let listener = Arc::clone(&shared);
        let thread = thread::Builder::new().name("drift".to_owned()).stack_size(STACK_BYTES);
        let operation = || "start the thread that listens to changes".to_owned();
        thread
            .spawn(move || ears.run(&listener))
            .map_err(|source| NetlinkError::Io { operation: operation(), source })?;
        Ok(Self(shared))
    }

    /// Brings the overlay to what `inputs` ask for, which is from now on what it is kept at. Blocks.
    pub fn reconcile(&self, inputs: Inputs) -> Report {
        let shared = &*self.0;
        shared.aside.store(false, Ordering::Relaxed);
        let mut overlay = lock(&shared.overlay);
        let same = overlay.is_kept_at(&inputs);
        let mut repaired = Vec::new();
        if !same {
            // What is wrong already is somebody's doing, and not the new inputs'.
            if let Some(suspicion) = shared.take(Part::Overlay) {
                repaired.extend(shared.restore_overlay(&mut overlay, Some(suspicion)));
            }
            lock(&shared.judge).expect(&inputs);
        }
        let suspicion = if same { shared.take(Part::Overlay) } else { None };
        let began = Instant::now();
        let (report, restored) = overlay.reconcile(inputs);
        repaired.extend(shared.looked(&mut overlay, suspicion, began, restored, report.failed == 0));
        drop(overlay);
        repaired.into_iter().for_each(|repaired| shared.record(repaired));
        report
    }

    /// Others keep the node's routes: nothing of them is drift. Blocks.
    pub fn stand_aside(&self) {
        self.0.aside.store(true, Ordering::Relaxed);
        lock(&self.0.overlay).leave_tunnels();
        lock(&self.0.judge).forget();
    }

    /// OpenShift's data path is kept, too, as long as its server has it. Gives what keeps it from being in force, which is news before the first look. Blocks.
    pub fn keep_sdn(&self, path: &Arc<Mutex<DataPath>>) -> watch::Receiver<Option<String>> {
        // Whoever has the path may wait for somebody's commit: nobody who listens is to wait with them.
        let cluster = lock(path).settings().cluster.clone();
        lock(&self.0.judge).expect_sdn(cluster);
        lock(&self.0.sdn).keep(path)
    }

    /// Compares that, and restores it. Blocks.
    pub fn look_at_sdn(&self) {
        let repaired = self.0.restored(Part::Sdn, Depth::Everything);
        repaired.into_iter().for_each(|repaired| self.0.record(repaired));
    }

    /// Resolves when the loop has to look; true when the underlay may be another one.
    pub async fn disturbed(&self) -> bool {
        self.0.disturbed.notified().await;
        self.0.underlay.swap(false, Ordering::Relaxed)
    }

    /// What keeps packets from or to the other nodes, in words. Blocks.
    pub fn underlay_faults(&self) -> Result<Vec<String>, String> {
        let wanted = lock(&self.0.overlay).wanted().cloned();
        match wanted {
            Some(inputs) => tunnel::faults(&inputs).map_err(|error| error.to_string()),
            None => Ok(Vec::new()),
        }
    }

    /// What differs now, and what was repaired. Blocks.
    pub fn report(&self) -> DriftReport {
        let (verdicts, nat) = (self.0.verdicts.differences(), lock(&self.0.nat).differences());
        let mut compared = vec![verdicts, nat, lock(&self.0.sdn).differences()];
        if !self.0.aside.load(Ordering::Relaxed) {
            compared.push(lock(&self.0.overlay).differences());
            compared.push(self.underlay_faults());
            compared.push(lock(&self.0.pods).differences());
        }
        lock(&self.0.log).report(compared)
    }
}

// === impl Shared ===

impl Shared {
    fn open(metrics: Metrics, mirror: Mirror, verdicts: Keeper) -> Result<Self, NetlinkError> {
        let operation = || "make what wakes the thread that listens to changes".to_owned();
        let bell = Call::new().map_err(|source| NetlinkError::Io { operation: operation(), source })?;
        let bell = Arc::new(bell);
        Ok(Self {
            overlay: Mutex::new(Overlay::open()?),
            pods: Mutex::new(Pods::open(mirror.clone())?),
            nat: Mutex::new(Nat::open()),
            sdn: Mutex::default(),
            verdicts: Verdicts::new(verdicts, mirror.clone(), Arc::clone(&bell)),
            bell,
            judge: Mutex::new(Judge::new(mirror)),
            suspicion: Mutex::default(),
            log: Mutex::default(),
            metrics,
            due: Mutex::new(Due::new(Instant::now())),
            disturbed: Notify::new(),
            underlay: AtomicBool::new(false),
            aside: AtomicBool::new(false),
        })
    }

    /// Compares parts with the kernel, and restores the differences. Of verdicts that is only begun; what has come of it is `asked`.
    fn restore(&self, parts: &BTreeMap<Part, Depth>, asked: &mut Option<Asked>) -> Vec<Repaired> {
        if asked.is_none() && parts.contains_key(&Part::Verdicts) {
            lock(&self.due).begun(Part::Verdicts, Instant::now());
            *asked = Some(self.verdicts.ask(self.take(Part::Verdicts)));
        }
        let others = parts.iter().filter(|(part, _)| **part != Part::Verdicts);
        let repaired: Vec<_> = others.filter_map(|(part, depth)| self.restored(*part, *depth)).collect();
        if repaired.iter().any(|it| it.part == Part::Overlay && !it.restored.errors.is_empty()) {
            self.disturbed.notify_one();
        }
        repaired
    }

    /// What has come of the comparison of verdicts is known.
    fn answered(&self, (asked, outcome): (Asked, Outcome)) -> Option<Repaired> {
        let Outcome { restored, succeeded, done, .. } = outcome;
        let Asked { suspicion, began, .. } = asked;
        lock(&self.due).looked(Part::Verdicts, succeeded, done);
        (!restored.is_nothing()).then_some(Repaired {
            part: Part::Verdicts,
            restored,
            suspicion,
            began,
            done,
        })
    }

    /// Compares a part and restores it; none where nothing was wrong.
    fn restored(&self, part: Part, depth: Depth) -> Option<Repaired> {
        let suspicion = self.take(part);
        let began = Instant::now();
        let (restored, succeeded) = match part {
            // Asked for.
            Part::Verdicts => return None,
            Part::Nat => match lock(&self.nat).restore() {
                Some(done) => done,
                None => {
                    lock(&self.due).soon(part, Instant::now());
                    suspicion.into_iter().for_each(|suspicion| self.keep(suspicion));
                    return None;
                }
            },
            Part::Sdn => lock(&self.sdn).restore(),
            Part::Overlay => return self.restore_overlay(&mut lock(&self.overlay), suspicion),
            Part::Pods if self.aside.load(Ordering::Relaxed) => (Restored::default(), true),
            Part::Pods => lock(&self.pods).restore(depth),
        };
        let done = Instant::now();
        // What is left out of a quick look may still be wrong.
        if !(succeeded && part == Part::Pods && depth == Depth::Tables) {
            lock(&self.due).looked(part, succeeded, done);
        }
        (!restored.is_nothing()).then_some(Repaired { part, restored, suspicion, began, done })
    }

    fn restore_overlay(&self, overlay: &mut Overlay, suspicion: Option<Suspicion>) -> Option<Repaired> {
        let began = Instant::now();
        let (restored, succeeded) = overlay.restore();
        self.looked(overlay, suspicion, began, restored, succeeded)
    }

    /// The overlay was compared.
    fn looked(
        &self,
        overlay: &mut Overlay,
        suspicion: Option<Suspicion>,
        began: Instant,
        restored: Option<Restored>,
        succeeded: bool,
    ) -> Option<Repaired> {
        let done = Instant::now();
        let devices = overlay.devices();
        lock(&self.judge).devices(devices);
        lock(&self.due).looked(Part::Overlay, succeeded, done);
        restored.map(|restored| Repaired { part: Part::Overlay, restored, suspicion, began, done })
    }

    /// Keeps a suspicion until its parts are compared.
    fn keep(&self, new: Suspicion) {
        match &mut *lock(&self.suspicion) {
            Some(kept) => {
                kept.since = kept.since.min(new.since);
                kept.parts.extend(new.parts);
                kept.traces.join(new.traces);
            }
            kept => *kept = Some(new),
        }
    }

    /// The suspicion about a part; what is heard from now on is another one.
    fn take(&self, part: Part) -> Option<Suspicion> {
        let mut kept = lock(&self.suspicion);
        let suspicion = kept.as_mut()?;
        if !suspicion.parts.remove(&part) {
            return None;
        }
        let taken = Suspicion {
            since: suspicion.since,
            parts: BTreeSet::from([part]),
            traces: suspicion.traces.clone(),
        };
        if suspicion.parts.is_empty() {
            *kept = None;
        }
        Some(taken)
    }

    /// Counts and tells a repair. Searches `/proc`: nobody may wait for a lock meanwhile.
    fn record(&self, repaired: Repaired) {
        let Repaired { restored, suspicion, began, done, .. } = repaired;
        let heard = suspicion.as_ref().map(|suspicion| done.saturating_duration_since(suspicion.since));
        let took = heard.unwrap_or_else(|| done.saturating_duration_since(began));
        let who = suspicion.map(|suspicion| suspicion.traces.resolve()).unwrap_or_default();
        if !restored.kinds.is_empty() {
            self.metrics.drift.repaired(&restored.kinds, took, SystemTime::now());
        }
        lock(&self.log).add(Repair::new(restored, who, heard.is_some(), took));
    }
}

// === impl Part ===

impl Part {
    const ALL: [Self; 5] = [Self::Verdicts, Self::Sdn, Self::Pods, Self::Overlay, Self::Nat];
}

// === impl Restored ===

impl Restored {
    /// Nothing could be done about it.
    fn failed(what: &str, error: String) -> Self {
        Self { what: vec![what.to_owned()], errors: vec![error], ..Self::default() }
    }

    fn is_nothing(&self) -> bool {
        self.what.is_empty() && self.kinds.is_empty() && self.errors.is_empty()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
