//! The controllers of this node: each keeps one kind of kernel state as it should be
//! ([`russet_overlay::controller`]). The agent owns them. The loop ([`crate::reconcile`]) changes
//! the desired state of the overlay, requests that of pods' interfaces, and OpenShift's server that
//! of its data path; the repair thread restores what other programs changed. All of them hold the
//! lock of a controller while they use it.
//!
//! None of this needs the store, so repairs continue while etcd is away. [`crate::drift`] says which
//! controllers have to compare, and attributes the changes.
//!
//! Called by `lib` (start), the loop, OpenShift's server, and the agent's socket for `russet drift`.

mod endpoints;
mod forward_accepts;
mod nat;
mod overlay;
mod repair_thread;
mod routes;
mod tunnel;
mod verdicts;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use russet_addr::IpNet;
use russet_attach::restore::Depth;
use russet_journal::EndpointTable;
use russet_linux::watch::WakeHandle;
use russet_netlink::NetlinkError;
use russet_openshift::data_path::Sdn;
use russet_openshift::{DataPathController, DriftRepair};
use russet_overlay::{Inputs, ReconcileReport};
use russet_policy::Keeper;
use tokio::sync::watch;

use crate::drift::{ControllerId, Dirty, Drift, DriftReport, Repair, Repaired, lock};
use crate::fast_path::Signal;
use crate::metrics::Metrics;
use crate::peers::Targets;
use endpoints::Endpoints;
use forward_accepts::ForwardAccepts;
use nat::Nat;
use overlay::Overlay;
use verdicts::Verdicts;

pub use routes::{PathStatus, RoutesStatus};
pub use tunnel::faults as tunnel_faults;

/// The node's controllers. Clones share them.
#[derive(Clone)]
pub struct Controllers(Arc<Shared>);

struct Shared {
    verdicts: Verdicts,
    openshift: Mutex<DataPathController>,
    endpoints: Mutex<Endpoints>,
    overlay: Mutex<Overlay>,
    nat: Mutex<Nat>,
    /// Has a thread of its own, because it works on chains of other programs only.
    forward_accepts: ForwardAccepts,
    drift: Drift,
    /// Called when an answer about verdicts has arrived.
    answer_ready: Arc<WakeHandle>,
    /// Other programs keep the node's routes, including those to pods.
    aside: AtomicBool,
    /// What probes of the other nodes need of the overlay. None while other programs keep the routes.
    peers: Mutex<Arc<Targets>>,
}

// === impl Controllers ===

impl Controllers {
    /// Opens the sockets, starts to listen, and starts the repair thread. Changes from now on are
    /// noticed, even before the first comparison. The host ends of `endpoints`
    /// are compared at once. `verdicts` keeps the verdict table, and `flows` hears of changes.
    pub fn start(
        metrics: Metrics,
        endpoints: EndpointTable,
        verdicts: Keeper,
        flows: Signal,
    ) -> Result<Self, NetlinkError> {
        let shared = Arc::new(Shared::open(metrics, endpoints, verdicts)?);
        repair_thread::start(&shared, flows)?;
        Ok(Self(shared))
    }

    /// Brings the overlay to the state that `inputs` describe. Later comparisons use these inputs, and so do the
    /// probes of other nodes, which take `pod_mtu_bytes` for the largest packet. Blocks.
    pub fn reconcile_overlay(&self, inputs: Inputs, pod_mtu_bytes: u32) -> ReconcileReport {
        let shared = &*self.0;
        shared.aside.store(false, Ordering::Relaxed);
        let mut overlay = lock(&shared.overlay);
        let same = overlay.is_settled_at(&inputs);
        let mut repaired = None;
        if !same {
            // Differences that exist already were made by another program, not by the new inputs.
            if let Some(dirty) = shared.drift.take(ControllerId::Overlay) {
                repaired = shared.reconcile_overlay(&mut overlay, Some(dirty)).1;
            }
            let desired = overlay.set(inputs.clone());
            *lock(&shared.peers) = Arc::new(Targets::new(&inputs, &desired, pod_mtu_bytes));
            shared.drift.event_filter().expect(desired, inputs.underlay);
        }
        let dirty = if same { shared.drift.take(ControllerId::Overlay) } else { None };
        let (report, later) = shared.reconcile_overlay(&mut overlay, dirty);
        drop(overlay);
        repaired.into_iter().chain(later).for_each(|repaired| shared.drift.record(repaired));
        report
    }

    /// Other programs keep the node's routes from now on: changes of routes are no drift. Blocks.
    pub fn stand_aside(&self) {
        self.0.aside.store(true, Ordering::Relaxed);
        lock(&self.0.overlay).leave_tunnels();
        *lock(&self.0.peers) = Arc::default();
        self.0.drift.event_filter().forget();
    }

    /// Sets the pools whose packets other programs' chains have to accept.
    pub fn set_forwarded(&self, pools: impl IntoIterator<Item = IpNet>) {
        self.0.forward_accepts.set_pools(pools);
    }

    /// Resolves when the loop has to reconcile; true when the underlay may have changed.
    pub async fn disturbed(&self) -> bool {
        self.0.drift.disturbed().await
    }

    /// Reasons why packets cannot pass from or to the other nodes. Blocks.
    pub fn underlay_faults(&self) -> Result<Vec<String>, String> {
        let inputs = lock(&self.0.overlay).inputs().cloned();
        match inputs {
            Some(inputs) => tunnel::faults(&inputs).map_err(|error| error.to_string()),
            None => Ok(Vec::new()),
        }
    }

    /// How packets reach the other nodes, and how many of the routes to them are in the kernel. None before the agent has
    /// read its store, and while other programs keep the routes. Blocks.
    pub fn routes(&self) -> Option<Result<RoutesStatus, NetlinkError>> {
        let desired = lock(&self.0.overlay).desired()?;
        Some(RoutesStatus::look(&desired))
    }

    /// How many repairs there were since the start, and when the last one was, in RFC 3339.
    pub fn repairs(&self) -> (u64, Option<String>) {
        self.0.drift.repairs()
    }

    /// How many repairs there were since the start, and the last `max`, newest first.
    pub fn recent_repairs(&self, max: usize) -> (u64, Vec<Repair>) {
        self.0.drift.recent(max)
    }

    /// What is to be probed of the other nodes.
    pub fn peer_targets(&self) -> Arc<Targets> {
        Arc::clone(&lock(&self.0.peers))
    }

    /// The current differences, and the repairs so far. Blocks.
    pub fn report(&self) -> DriftReport {
        let (verdicts, nat) = (self.0.verdicts.differences(), lock(&self.0.nat).differences());
        let mut compared = vec![verdicts, nat, lock(&self.0.openshift).differences()];
        if !self.0.aside.load(Ordering::Relaxed) {
            compared.push(lock(&self.0.overlay).differences());
            compared.push(self.underlay_faults());
            compared.push(lock(&self.0.endpoints).differences());
        }
        self.0.drift.report(compared)
    }
}

impl DriftRepair for Controllers {
    fn keep(&self, path: &Arc<Mutex<Sdn>>) -> watch::Receiver<Option<String>> {
        // The holder of the path may wait for another program's commit. The repair thread must not
        // wait with it, so this lock is taken before that of the filter.
        let cluster = lock(path).settings().cluster.clone();
        self.0.drift.event_filter().expect_sdn(cluster);
        lock(&self.0.openshift).keep(path)
    }

    fn reconcile(&self) {
        let repaired = self.0.reconcile(ControllerId::Openshift, Depth::Everything);
        repaired.into_iter().for_each(|repaired| self.0.drift.record(repaired));
    }
}

// === impl Shared ===

impl Shared {
    fn open(metrics: Metrics, endpoints: EndpointTable, verdicts: Keeper) -> Result<Self, NetlinkError> {
        let operation = || "create the wake-up of the repair thread".to_owned();
        let answer_ready =
            WakeHandle::new().map_err(|source| NetlinkError::Io { operation: operation(), source })?;
        let answer_ready = Arc::new(answer_ready);
        Ok(Self {
            verdicts: Verdicts::new(verdicts, endpoints.clone(), Arc::clone(&answer_ready)),
            openshift: Mutex::default(),
            endpoints: Mutex::new(Endpoints::open(endpoints.clone())?),
            overlay: Mutex::new(Overlay::open()?),
            nat: Mutex::new(Nat::open()),
            forward_accepts: ForwardAccepts::default(),
            drift: Drift::new(metrics, endpoints),
            answer_ready,
            aside: AtomicBool::new(false),
            peers: Mutex::default(),
        })
    }

    /// Has one controller compare and restore. None if it found no difference. Verdicts are compared
    /// by [`Verdicts::start`].
    fn reconcile(&self, controller: ControllerId, depth: Depth) -> Option<Repaired> {
        let dirty = self.drift.take(controller);
        let began = Instant::now();
        let (report, succeeded) = match controller {
            ControllerId::Verdicts => return None,
            ControllerId::Overlay => return self.reconcile_overlay(&mut lock(&self.overlay), dirty).1,
            ControllerId::Nat => match lock(&self.nat).reconcile() {
                Some(report) => succeeded(report),
                None => {
                    self.drift.schedule().soon(controller, Instant::now());
                    dirty.into_iter().for_each(|dirty| self.drift.mark(dirty));
                    return None;
                }
            },
            ControllerId::Openshift => lock(&self.openshift).reconcile(),
            ControllerId::Endpoints if self.aside.load(Ordering::Relaxed) => (Default::default(), true),
            ControllerId::Endpoints => succeeded(lock(&self.endpoints).reconcile(depth)),
        };
        let done = Instant::now();
        // A quick comparison leaves out some properties, which may still differ.
        if !(succeeded && controller == ControllerId::Endpoints && depth == Depth::Tables) {
            self.drift.schedule().finished(controller, succeeded, done);
        }
        Repaired::new(controller, &report, dirty, began, done)
    }

    /// Has the overlay compare and restore. The repair, if what it found was drift.
    fn reconcile_overlay(
        &self,
        overlay: &mut Overlay,
        dirty: Option<Dirty>,
    ) -> (ReconcileReport, Option<Repaired>) {
        let (began, settled) = (Instant::now(), overlay.is_settled());
        let report = overlay.reconcile();
        let done = Instant::now();
        let devices = overlay.devices();
        self.drift.event_filter().devices(devices);
        self.drift.schedule().finished(ControllerId::Overlay, report.failed == 0, done);
        let repaired = Repaired::new(ControllerId::Overlay, &report, dirty, began, done);
        (report, repaired.filter(|_| settled))
    }
}

fn succeeded(report: ReconcileReport) -> (ReconcileReport, bool) {
    let succeeded = report.failed == 0;
    (report, succeeded)
}

#[cfg(test)]
mod tests;
