//! The controller of a Kubernetes cluster, `russet controller`: frees what deleted nodes held,
//! corrects handles, removes the taint of nodes whose agents are ready, and if asked to makes OpenShift's
//! networks ([`openshift`]; kubernetes.md sections 3.2, 5.3 and 6). One replica leads, by a lease; the others wait.
//!
//! An address of a pod that lives must never be freed, so:
//! * a living node's addresses are its agent's: the controller frees those of nodes without an
//!   object only, whose agents have been silent for the grace period ([`gone`]);
//! * a pod that reports an address keeps it, whatever the allocator's records say ([`verdict`]);
//! * what is decided by an absence is read again from the API server right before the write, never
//!   from a cache, and the write is guarded by what was read ([`collector`]);
//! * when much vanishes at once, nothing is freed until an operator confirms it;
//! * a replica that could not renew its lease writes nothing ([`fence`], [`election`]).

#![allow(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]
// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod cluster;
mod collector;
mod election;
mod fence;
mod gone;
mod handles;
mod leader;
mod metrics;
mod openshift;
mod report;
mod taints;
mod verdict;

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_kube::Client;
use russet_store::Store;

pub use cluster::ReadError;
pub use election::Timing;
pub use gone::{Limits, Stop};
pub use leader::{LEASE, ResumeError, resume};
pub use metrics::Metrics;
pub use report::{Outcome, Report};
pub use taints::{READY, TAINT};

use cluster::Cluster;
use collector::Collector;
use election::Election;
use fence::{Fence, FencedStore};
use leader::{Candidate, Notes};
use openshift::Sdn;
use taints::Taints;

/// Nodes that one look cleans at most (kubernetes.md section 3.2, G5: per minute).
const NODES_PER_LOOK: usize = 10;
/// The time until the next look if the limits of the last one left something.
const LIMITED_INTERVAL: Duration = Duration::from_secs(60);
/// Limit of writes that are not the store's.
const WRITE_DEADLINE: Duration = Duration::from_secs(5);
/// How long a new leader waits until no write of the last one can be executed any more, where nothing in
/// the API refuses such a write (kubernetes.md section 6.5).
pub const SETTLE: Duration = Duration::from_secs(10);
/// With `once`: what fails in so many looks in a row is kept.
const FAILURES_MAX: u32 = 10;

/// The settings of the controller.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This replica's name, which no other process has.
    pub identity: String,
    /// Where the lease is.
    pub namespace: String,
    pub timing: Timing,
    pub limits: Limits,
    /// Between looks.
    pub interval: Duration,
    /// Between two sweeps that must agree that a handle is wrong.
    pub handle_grace: Duration,
    /// Between sweeps of handles that found nothing.
    pub handle_interval: Duration,
    /// The key of the taint.
    pub taint: String,
    /// Do the work of OpenShift's SDN master, after so long as the leader.
    pub openshift: Option<Duration>,
    /// Write nothing, not even the lease.
    pub dry_run: bool,
    /// End when no look can free more by itself.
    pub once: bool,
}

// === impl Settings ===

impl Settings {
    pub fn new(identity: String, namespace: String) -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        Self {
            identity,
            namespace,
            timing: Timing::default(),
            limits: Limits::default(),
            interval: minutes(5),
            handle_grace: minutes(10),
            handle_interval: minutes(60),
            taint: TAINT.to_owned(),
            openshift: None,
            dry_run: false,
            once: false,
        }
    }

    /// A look of `once` this long after the last progress finds nothing new: what still waits then is
    /// kept alive by something.
    fn longest_wait(&self) -> Duration {
        let Limits { grace, tunnel_grace, .. } = self.limits;
        grace.max(tunnel_grace).max(self.handle_grace) + 2 * self.interval
    }
}

/// Runs until `stop` resolves, or with `once` until the work is done. `looked` gets every report.
pub async fn run(
    client: Client,
    store: Rc<dyn Store>,
    settings: Settings,
    metrics: Metrics,
    looked: &mut dyn FnMut(&Report),
    stop: impl Future<Output = ()>,
) {
    let fence = Fence::default();
    let notes = Rc::new(RefCell::new(Notes::default()));
    let work = |notes: &Rc<RefCell<Notes>>| Work {
        client: client.clone(),
        store: store.clone(),
        fence: fence.clone(),
        settings: settings.clone(),
        notes: notes.clone(),
        metrics: metrics.clone(),
    };
    tokio::pin!(stop);
    if settings.dry_run {
        // The fence stays closed.
        tokio::select! {
            () = work(&notes).run(looked) => {}
            () = &mut stop => {}
        }
        return;
    }
    let election = Election::new(settings.identity.clone(), settings.timing);
    let (client, namespace) = (client.clone(), settings.namespace.clone());
    let mut candidate =
        Candidate::new(client, namespace, election, fence.clone(), notes.clone(), metrics.clone());
    loop {
        tokio::select! {
            () = candidate.acquire() => {}
            () = &mut stop => return,
        }
        // What is dropped here writes nothing any more. The lease is first: of two that are ready,
        // the one that ends the work counts.
        let is_done = tokio::select! {
            biased;
            () = candidate.keep() => false,
            () = work(&notes).run(looked) => true,
            () = &mut stop => true,
        };
        if is_done {
            candidate.release().await;
            return;
        }
    }
}

/// The leader's work.
struct Work {
    client: Client,
    store: Rc<dyn Store>,
    fence: Fence,
    settings: Settings,
    notes: Rc<RefCell<Notes>>,
    metrics: Metrics,
}

// === impl Work ===

impl Work {
    async fn run(self, looked: &mut dyn FnMut(&Report)) {
        let met = Rc::default();
        let taints = Taints {
            client: self.client.clone(),
            key: self.settings.taint.clone(),
            fence: self.fence.clone(),
            metrics: self.metrics.clone(),
            met: Rc::clone(&met),
        };
        let (client, fence) = (self.client.clone(), self.fence.clone());
        let sdn = self.settings.openshift.map(|settle| Sdn { client, fence, settle });
        // Large, and rarely used.
        let sdn: Pin<Box<dyn Future<Output = ()>>> = match sdn {
            Some(sdn) => Box::pin(sdn.run()),
            None => Box::pin(std::future::pending()),
        };
        let cluster = Cluster { client: self.client, store: self.store.clone() };
        let fenced: Rc<dyn Store> = Rc::new(FencedStore::new(self.store, self.fence.clone()));
        let shared = (self.notes, met);
        let collector =
            Collector::new(cluster, fenced, self.fence, self.settings.clone(), shared, self.metrics.clone());
        if self.settings.dry_run {
            return collect(collector, &self.settings, &self.metrics, looked).await;
        }
        tokio::select! {
            () = collect(collector, &self.settings, &self.metrics, looked) => {}
            () = taints.run() => {}
            () = sdn => {}
        }
    }
}

/// Looks again and again.
async fn collect(
    mut collector: Collector,
    settings: &Settings,
    metrics: &Metrics,
    looked: &mut dyn FnMut(&Report),
) {
    let (mut progress, mut failures) = (Instant::now(), 0);
    loop {
        let mut pause = settings.interval;
        match collector.look().await {
            Ok(report) => {
                looked(&report);
                // What failed is tried again, also if everything else was done long ago.
                failures = if report.has_failed() { failures + 1 } else { 0 };
                if report.has_freed() || (1..=FAILURES_MAX).contains(&failures) {
                    progress = Instant::now();
                }
                if settings.once && (!report.is_pending() || progress.elapsed() >= settings.longest_wait()) {
                    return;
                }
                if report.limited {
                    pause = pause.min(LIMITED_INTERVAL);
                }
            }
            Err(error) => {
                metrics.failures.inc();
                progress = Instant::now();
                tracing::warn!(%error, "the look for garbage failed; it is repeated");
            }
        }
        tokio::time::sleep(pause).await;
    }
}
