//! Drift detection. When another program removes or changes something that Russet manages in the
//! kernel, its controller restores it within milliseconds ([`crate::controllers`]). This module
//! notices the change, decides when the controller compares, and counts and reports the repair with
//! the process that made it necessary, as far as the kernel says (docs/drift.md). It changes nothing
//! in the kernel.
//!
//! An event of rtnetlink or nf_tables only marks a controller as dirty, if cheap tests say that it
//! may concern a managed object and that Russet did not cause it. Comparisons without an event, and
//! those after a failure, are due by [`schedule::Schedule`].

pub(crate) mod budget;
mod event_filter;
pub(crate) mod kernel_events;
mod log;
mod schedule;
mod who;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use russet_journal::EndpointTable;
use russet_overlay::ReconcileReport;
use tokio::sync::Notify;

use crate::metrics::Metrics;
use event_filter::EventFilter;
use kernel_events::{Batch, KernelEvents};
use log::Log;
use schedule::Schedule;
use who::Traces;

pub use log::{DriftReport, Repair};
pub use who::Who;

/// Path on the agent's socket for `russet drift`.
pub const DRIFT_PATH: &str = "/v1/drift";

/// The controllers that compare separately, in the order of comparison. Verdicts come first,
/// because without them every packet is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ControllerId {
    /// The verdicts of pods' interfaces.
    Verdicts,
    /// OpenShift's data path: its table, tunnel and routes, and the host ends of its pods.
    Openshift,
    /// The host ends of pods' interfaces.
    Endpoints,
    /// Tunnels, routes and forwarding entries to other nodes, and masquerade.
    Overlay,
    /// Pods' masquerade and published ports.
    Nat,
}

/// What is known of changes by other programs.
pub(crate) struct Drift {
    event_filter: Mutex<EventFilter>,
    dirty: Mutex<Option<Dirty>>,
    log: Mutex<Log>,
    metrics: Metrics,
    /// Comparisons that are due without an event.
    schedule: Mutex<Schedule>,
    /// Wakes the loop: a part of the overlay could not be restored, or the underlay has changed.
    disturbed: Notify,
    underlay: AtomicBool,
}

/// Controllers that events marked as dirty since the last comparison.
#[derive(Debug)]
pub(crate) struct Dirty {
    pub since: Instant,
    pub controllers: BTreeSet<ControllerId>,
    traces: Traces,
}

/// A repair whose cause is not searched for yet.
pub(crate) struct Repaired {
    pub controller: ControllerId,
    repair: Repair,
    dirty: Option<Dirty>,
    began: Instant,
    done: Instant,
}

// === impl Drift ===

impl Drift {
    pub fn new(metrics: Metrics, endpoints: EndpointTable) -> Self {
        Self {
            event_filter: Mutex::new(EventFilter::new(endpoints)),
            dirty: Mutex::default(),
            log: Mutex::default(),
            metrics,
            schedule: Mutex::new(Schedule::new(Instant::now())),
            disturbed: Notify::new(),
            underlay: AtomicBool::new(false),
        }
    }

    /// What has to be known of the desired state, before it is applied: then its changes are no
    /// drift.
    pub fn event_filter(&self) -> MutexGuard<'_, EventFilter> {
        lock(&self.event_filter)
    }

    /// Reads the events that have arrived, and marks the controllers that they concern.
    pub fn listen(&self, kernel_events: &mut KernelEvents) -> kernel_events::Heard {
        let now = Instant::now();
        let Batch { controllers, traces, underlay, heard } = kernel_events.read(&self.event_filter);
        if underlay {
            self.underlay.store(true, Ordering::Relaxed);
            self.disturb();
        }
        if !controllers.is_empty() {
            self.mark(Dirty { since: now, controllers, traces });
        }
        heard
    }

    /// Marks controllers until they compare.
    pub fn mark(&self, new: Dirty) {
        match &mut *lock(&self.dirty) {
            Some(kept) => {
                kept.since = kept.since.min(new.since);
                kept.controllers.extend(new.controllers);
                kept.traces.join(new.traces);
            }
            kept => *kept = Some(new),
        }
    }

    /// The controllers that are marked.
    pub fn dirty(&self) -> BTreeSet<ControllerId> {
        lock(&self.dirty).as_ref().map(|dirty| dirty.controllers.clone()).unwrap_or_default()
    }

    /// Takes the mark of one controller, which compares now. Later events mark it again.
    pub fn take(&self, controller: ControllerId) -> Option<Dirty> {
        let mut kept = lock(&self.dirty);
        let dirty = kept.as_mut()?;
        if !dirty.controllers.remove(&controller) {
            return None;
        }
        let (since, traces) = (dirty.since, dirty.traces.clone());
        if dirty.controllers.is_empty() {
            *kept = None;
        }
        Some(Dirty { since, controllers: BTreeSet::from([controller]), traces })
    }

    /// When controllers compare without an event.
    pub fn schedule(&self) -> MutexGuard<'_, Schedule> {
        lock(&self.schedule)
    }

    /// Wakes the loop.
    pub fn disturb(&self) {
        self.disturbed.notify_one();
    }

    /// Resolves when the loop has to reconcile; true when the underlay may have changed.
    pub async fn disturbed(&self) -> bool {
        self.disturbed.notified().await;
        self.underlay.swap(false, Ordering::Relaxed)
    }

    /// Counts and logs a repair. This searches `/proc`, so the caller must not hold a lock.
    pub fn record(&self, repaired: Repaired) {
        let Repaired { mut repair, dirty, began, done, .. } = repaired;
        let since = dirty.as_ref().map_or(began, |dirty| dirty.since);
        let took = done.saturating_duration_since(since);
        repair.set_time(took, dirty.is_some());
        repair.who = dirty.map(|dirty| dirty.traces.resolve()).unwrap_or_default();
        if !repair.kinds.is_empty() {
            self.metrics.drift.repaired(&repair.kinds, took, SystemTime::now());
        }
        lock(&self.log).add(repair);
    }

    /// How many repairs there were, and when the last one was.
    pub fn repairs(&self) -> (u64, Option<String>) {
        lock(&self.log).repairs()
    }

    /// How many repairs there were, and the last `max`, newest first.
    pub fn recent(&self, max: usize) -> (u64, Vec<Repair>) {
        lock(&self.log).recent(max)
    }

    /// The current differences, which the caller has computed, and the repairs so far.
    pub fn report(&self, compared: Vec<Result<Vec<String>, String>>) -> DriftReport {
        lock(&self.log).report(compared)
    }
}

#[cfg(test)]
impl Drift {
    /// Whether a thread holds the event filter's lock.
    pub fn filters_events(&self) -> bool {
        self.event_filter.try_lock().is_err()
    }
}

#[cfg(test)]
impl Dirty {
    /// Every controller, since then.
    pub fn all(since: Instant) -> Self {
        Self { since, controllers: ControllerId::ALL.into(), traces: Traces::default() }
    }
}

// === impl ControllerId ===

impl ControllerId {
    pub const ALL: [Self; 5] = [Self::Verdicts, Self::Openshift, Self::Endpoints, Self::Overlay, Self::Nat];
}

// === impl Repaired ===

impl Repaired {
    /// None if a comparison found no difference.
    pub fn new(
        controller: ControllerId,
        report: &ReconcileReport,
        dirty: Option<Dirty>,
        began: Instant,
        done: Instant,
    ) -> Option<Self> {
        let repair = Repair::new(report);
        (!report.is_quiet()).then_some(Self { controller, repair, dirty, began, done })
    }

    pub fn is_incomplete(&self) -> bool {
        !self.repair.errors.is_empty()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
