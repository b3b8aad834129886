//! Drift detection. When another program removes or changes something that Russet manages in the
//! kernel, this module restores it within milliseconds, counts it, and reports which process
//! changed it, as far as the kernel says (docs/drift.md).
//!
//! A dedicated thread listens to rtnetlink and nf_tables. An event only marks a [`Part`] as dirty,
//! if cheap tests say that it may concern a managed object and that Russet did not cause it. The
//! thread then compares that part with the kernel, using the inputs of the last reconciliation, and
//! applies the difference. The same thread compares everything once a minute, and retries what
//! could not be restored ([`schedule::Schedule`]). It needs no store, so it works while etcd is
//! away. The loop ([`crate::reconcile`]) and this thread take turns on the same
//! [`overlay::Overlay`].
//!
//! Called by `lib` (start), the loop, and the agent's socket for `russet drift`.

mod attached_interfaces;
mod budget;
mod event_filter;
mod kernel_events;
mod log;
mod nat;
mod overlay;
mod pods;
mod schedule;
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
use russet_linux::watch::WakeHandle;
use russet_netlink::NetlinkError;
use russet_overlay::openshift::Sdn as DataPath;
use russet_overlay::{Inputs, ReconcileReport};
use russet_policy::Keeper;
use tokio::sync::{Notify, watch};

use crate::metrics::Metrics;
use event_filter::EventFilter;
use kernel_events::KernelEvents;
use log::Log;
use nat::Nat;
use overlay::Overlay;
use pods::Pods;
use schedule::Schedule;
use sdn::Sdn;
use verdicts::{PendingComparison, VerdictResult, Verdicts};
use who::Traces;

pub use attached_interfaces::AttachedInterfaces;
pub use log::{DriftReport, Repair};
pub use who::Who;

/// Path on the agent's socket for `russet drift`.
pub const DRIFT_PATH: &str = "/v1/drift";

/// The node's drift detection. Clones share it.
#[derive(Clone)]
pub struct Drift(Arc<Shared>);

struct Shared {
    overlay: Mutex<Overlay>,
    pods: Mutex<Pods>,
    nat: Mutex<Nat>,
    sdn: Mutex<Sdn>,
    verdicts: Verdicts,
    /// Called when an answer about verdicts has arrived.
    answer_ready: Arc<WakeHandle>,
    event_filter: Mutex<EventFilter>,
    dirty: Mutex<Option<DirtyParts>>,
    log: Mutex<Log>,
    metrics: Metrics,
    /// Comparisons that are due without an event.
    schedule: Mutex<Schedule>,
    /// Wakes the loop: a part of the overlay could not be restored, or the underlay has changed.
    disturbed: Notify,
    underlay: AtomicBool,
    /// Other programs keep the node's routes, including those to pods.
    aside: AtomicBool,
}

/// The parts that are compared separately, in the order of comparison. Verdicts come first, because
/// without them every packet is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// The verdicts of pods' interfaces.
    Verdicts,
    /// OpenShift's data path: its table, tunnel and routes, and the host ends of its pods.
    Sdn,
    /// The host ends of pods' interfaces.
    Pods,
    /// Tunnels, routes and forwarding entries to other nodes, and masquerade.
    Overlay,
    /// Pods' masquerade and published ports.
    Nat,
}

/// Parts that events marked as dirty since the last comparison.
#[derive(Debug)]
struct DirtyParts {
    since: Instant,
    parts: BTreeSet<Part>,
    traces: Traces,
}

/// A part in which the comparison found a difference.
struct Repaired {
    part: Part,
    restored: Restored,
    dirty: Option<DirtyParts>,
    began: Instant,
    done: Instant,
}

/// The result of restoring a part.
#[derive(Debug, Default)]
struct Restored {
    /// The differences as text.
    what: Vec<String>,
    /// Kernel objects that were changed, by kind.
    kinds: Vec<(&'static str, u64)>,
    /// Errors of changes that failed.
    errors: Vec<String>,
}

/// The thread only runs netlink requests and comparisons.
const STACK_BYTES: usize = 512 * 1024;

// === impl Drift ===

impl Drift {
    /// Opens the netlink sockets and starts to listen. Changes from now on are noticed, even before
    /// the first comparison. `interfaces` are the attached interfaces, whose host ends are compared
    /// at once. `verdicts` keeps the verdict table.
    pub fn watch(
        metrics: Metrics,
        interfaces: AttachedInterfaces,
        verdicts: Keeper,
    ) -> Result<Self, NetlinkError> {
        let kernel_events = KernelEvents::open()?;
        let shared = Arc::new(Shared::open(metrics, interfaces, verdicts)?);
        let listener = Arc::clone(&shared);
        let thread = thread::Builder::new().name("drift".to_owned()).stack_size(STACK_BYTES);
        let operation = || "start the thread that listens to changes".to_owned();
        thread
            .spawn(move || kernel_events.run(&listener))
            .map_err(|source| NetlinkError::Io { operation: operation(), source })?;
        Ok(Self(shared))
    }

    /// Brings the overlay to the state that `inputs` describe. Later comparisons use these inputs.
    /// Blocks.
    pub fn reconcile(&self, inputs: Inputs) -> ReconcileReport {
        let shared = &*self.0;
        shared.aside.store(false, Ordering::Relaxed);
        let mut overlay = lock(&shared.overlay);
        let same = overlay.is_settled_at(&inputs);
        let mut repaired = Vec::new();
        if !same {
            // Differences that exist already were made by another program, not by the new inputs.
            if let Some(dirty) = shared.take(Part::Overlay) {
                repaired.extend(shared.restore_overlay(&mut overlay, Some(dirty)));
            }
            lock(&shared.event_filter).expect(&inputs);
        }
        let dirty = if same { shared.take(Part::Overlay) } else { None };
        let began = Instant::now();
        let (report, restored) = overlay.reconcile(inputs);
        repaired.extend(shared.finish_overlay(&mut overlay, dirty, began, restored, report.failed == 0));
        drop(overlay);
        repaired.into_iter().for_each(|repaired| shared.record(repaired));
        report
    }

    /// Other programs keep the node's routes from now on: changes of routes are no drift. Blocks.
    pub fn stand_aside(&self) {
        self.0.aside.store(true, Ordering::Relaxed);
        lock(&self.0.overlay).leave_tunnels();
        lock(&self.0.event_filter).forget();
    }

    /// Also keeps OpenShift's data path, for as long as its server exists. Returns why the path is
    /// not in force, or None once it is. Blocks.
    pub fn keep_sdn(&self, path: &Arc<Mutex<DataPath>>) -> watch::Receiver<Option<String>> {
        // The holder of the path may wait for another program's commit. The listening thread must
        // not wait with it, so this lock is taken before that of the filter.
        let cluster = lock(path).settings().cluster.clone();
        lock(&self.0.event_filter).expect_sdn(cluster);
        lock(&self.0.sdn).keep(path)
    }

    /// Compares OpenShift's data path and restores it. Blocks.
    pub fn look_at_sdn(&self) {
        let repaired = self.0.restored(Part::Sdn, Depth::Everything);
        repaired.into_iter().for_each(|repaired| self.0.record(repaired));
    }

    /// Resolves when the loop has to reconcile; true when the underlay may have changed.
    pub async fn disturbed(&self) -> bool {
        self.0.disturbed.notified().await;
        self.0.underlay.swap(false, Ordering::Relaxed)
    }

    /// Reasons why packets cannot pass from or to the other nodes. Blocks.
    pub fn underlay_faults(&self) -> Result<Vec<String>, String> {
        let wanted = lock(&self.0.overlay).wanted().cloned();
        match wanted {
            Some(inputs) => tunnel::faults(&inputs).map_err(|error| error.to_string()),
            None => Ok(Vec::new()),
        }
    }

    /// The current differences, and the repairs so far. Blocks.
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
    fn open(
        metrics: Metrics,
        interfaces: AttachedInterfaces,
        verdicts: Keeper,
    ) -> Result<Self, NetlinkError> {
        let operation = || "create the wake-up of the thread that listens to changes".to_owned();
        let answer_ready =
            WakeHandle::new().map_err(|source| NetlinkError::Io { operation: operation(), source })?;
        let answer_ready = Arc::new(answer_ready);
        Ok(Self {
            overlay: Mutex::new(Overlay::open()?),
            pods: Mutex::new(Pods::open(interfaces.clone())?),
            nat: Mutex::new(Nat::open()),
            sdn: Mutex::default(),
            verdicts: Verdicts::new(verdicts, interfaces.clone(), Arc::clone(&answer_ready)),
            answer_ready,
            event_filter: Mutex::new(EventFilter::new(interfaces)),
            dirty: Mutex::default(),
            log: Mutex::default(),
            metrics,
            schedule: Mutex::new(Schedule::new(Instant::now())),
            disturbed: Notify::new(),
            underlay: AtomicBool::new(false),
            aside: AtomicBool::new(false),
        })
    }

    /// Compares parts with the kernel and restores the differences. For verdicts this only starts
    /// the comparison; `pending` receives it.
    fn restore(
        &self,
        parts: &BTreeMap<Part, Depth>,
        pending: &mut Option<PendingComparison>,
    ) -> Vec<Repaired> {
        if pending.is_none() && parts.contains_key(&Part::Verdicts) {
            lock(&self.schedule).started(Part::Verdicts, Instant::now());
            *pending = Some(self.verdicts.start(self.take(Part::Verdicts)));
        }
        let others = parts.iter().filter(|(part, _)| **part != Part::Verdicts);
        let repaired: Vec<_> = others.filter_map(|(part, depth)| self.restored(*part, *depth)).collect();
        if repaired.iter().any(|it| it.part == Part::Overlay && !it.restored.errors.is_empty()) {
            self.disturbed.notify_one();
        }
        repaired
    }

    /// Handles the result of the comparison of verdicts.
    fn finish_verdicts(&self, (pending, outcome): (PendingComparison, VerdictResult)) -> Option<Repaired> {
        let VerdictResult { restored, succeeded, done, .. } = outcome;
        let PendingComparison { dirty, began, .. } = pending;
        lock(&self.schedule).finished(Part::Verdicts, succeeded, done);
        (!restored.is_nothing()).then_some(Repaired { part: Part::Verdicts, restored, dirty, began, done })
    }

    /// Compares and restores one part. None if it had no difference.
    fn restored(&self, part: Part, depth: Depth) -> Option<Repaired> {
        let dirty = self.take(part);
        let began = Instant::now();
        let (restored, succeeded) = match part {
            // `restore` has started this comparison.
            Part::Verdicts => return None,
            Part::Nat => match lock(&self.nat).restore() {
                Some(done) => done,
                None => {
                    lock(&self.schedule).soon(part, Instant::now());
                    dirty.into_iter().for_each(|dirty| self.keep(dirty));
                    return None;
                }
            },
            Part::Sdn => lock(&self.sdn).restore(),
            Part::Overlay => return self.restore_overlay(&mut lock(&self.overlay), dirty),
            Part::Pods if self.aside.load(Ordering::Relaxed) => (Restored::default(), true),
            Part::Pods => lock(&self.pods).restore(depth),
        };
        let done = Instant::now();
        // A quick comparison leaves out some properties, which may still differ.
        if !(succeeded && part == Part::Pods && depth == Depth::Tables) {
            lock(&self.schedule).finished(part, succeeded, done);
        }
        (!restored.is_nothing()).then_some(Repaired { part, restored, dirty, began, done })
    }

    fn restore_overlay(&self, overlay: &mut Overlay, dirty: Option<DirtyParts>) -> Option<Repaired> {
        let began = Instant::now();
        let (restored, succeeded) = overlay.restore();
        self.finish_overlay(overlay, dirty, began, restored, succeeded)
    }

    /// Handles the result of comparing the overlay.
    fn finish_overlay(
        &self,
        overlay: &mut Overlay,
        dirty: Option<DirtyParts>,
        began: Instant,
        restored: Option<Restored>,
        succeeded: bool,
    ) -> Option<Repaired> {
        let done = Instant::now();
        let devices = overlay.devices();
        lock(&self.event_filter).devices(devices);
        lock(&self.schedule).finished(Part::Overlay, succeeded, done);
        restored.map(|restored| Repaired { part: Part::Overlay, restored, dirty, began, done })
    }

    /// Keeps dirty parts until they are compared.
    fn keep(&self, new: DirtyParts) {
        match &mut *lock(&self.dirty) {
            Some(kept) => {
                kept.since = kept.since.min(new.since);
                kept.parts.extend(new.parts);
                kept.traces.join(new.traces);
            }
            kept => *kept = Some(new),
        }
    }

    /// Takes what is known about one dirty part. Later events mark it again.
    fn take(&self, part: Part) -> Option<DirtyParts> {
        let mut kept = lock(&self.dirty);
        let dirty = kept.as_mut()?;
        if !dirty.parts.remove(&part) {
            return None;
        }
        let taken =
            DirtyParts { since: dirty.since, parts: BTreeSet::from([part]), traces: dirty.traces.clone() };
        if dirty.parts.is_empty() {
            *kept = None;
        }
        Some(taken)
    }

    /// Counts and logs a repair. This searches `/proc`, so the caller must not hold a lock.
    fn record(&self, repaired: Repaired) {
        let Repaired { restored, dirty, began, done, .. } = repaired;
        let heard = dirty.as_ref().map(|dirty| done.saturating_duration_since(dirty.since));
        let took = heard.unwrap_or_else(|| done.saturating_duration_since(began));
        let who = dirty.map(|dirty| dirty.traces.resolve()).unwrap_or_default();
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
    /// A part that could not be restored at all.
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
