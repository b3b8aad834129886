//! One look after the other: reads, and asks the pure parts what may be freed. The leader's work.

mod clean;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_ipam::Allocator;
use russet_model::{Handle, HandleId, Prefix};
use russet_store::{Revision, Store};

use crate::cluster::{Books, Cluster, ReadError};
use crate::fence::Fence;
use crate::gone::{GoneNodes, Phase, Stop};
use crate::handles::{Held, Sweeps, Wrong};
use crate::leader::Notes;
use crate::metrics::{Metrics, Reason};
use crate::report::{AddressReport, HandleReport, NodeReport, Outcome, Report, phase_name};
use crate::verdict::{Allocation, Owner, Pods, Verdict, verdict};
use crate::{NODES_PER_LOOK, Settings};

/// Addresses and handles that one look frees at most (kubernetes.md section 3.2, G5: per minute).
const RELEASES_PER_LOOK: usize = 500;
/// Percent of all addresses that one look may find to be free, and a number that is always allowed:
/// about two nodes full of pods, so that a small cluster can lose a node.
const ADDRESSES_PERCENT: usize = 10;
const ADDRESSES_MIN: usize = 256;

/// Finds and frees.
pub struct Collector {
    pub cluster: Cluster,
    /// Refuses to write when this replica does not lead.
    pub fenced: Rc<dyn Store>,
    pub allocator: Allocator,
    pub fence: Fence,
    pub settings: Settings,
    pub notes: Rc<RefCell<Notes>>,
    pub met: Rc<RefCell<BTreeSet<String>>>,
    pub metrics: Metrics,
    gone: GoneNodes,
    sweeps: Sweeps,
    start: Instant,
}

/// What one look may still free.
struct Budget {
    nodes: usize,
    releases: usize,
}

// === impl Collector ===

impl Collector {
    /// A collector of a replica that has just begun to lead: every grace period starts anew.
    pub fn new(
        cluster: Cluster,
        fenced: Rc<dyn Store>,
        fence: Fence,
        settings: Settings,
        shared: (Rc<RefCell<Notes>>, Rc<RefCell<BTreeSet<String>>>),
        metrics: Metrics,
    ) -> Self {
        let allocator = Allocator::new(fenced.clone(), Rc::new(russet_ipam::SystemClock));
        let sweeps = Sweeps::new(settings.handle_grace, settings.handle_interval);
        let (notes, met) = shared;
        let (gone, start) = (GoneNodes::default(), Instant::now());
        Self { cluster, fenced, allocator, fence, settings, notes, met, metrics, gone, sweeps, start }
    }

    /// One look, and what follows from it.
    pub async fn look(&mut self) -> Result<Report, ReadError> {
        let met = self.met.borrow().clone();
        let (books, found) = self.cluster.look(met.clone()).await?;
        self.met.borrow_mut().retain(|name| !met.contains(name));
        let now = self.start.elapsed();
        self.gone.look(&found, now);
        let mut report = Report::new(self.settings.dry_run);
        report.reports_only = self.cluster.reports_only().await?;
        let due = self.gone.names().any(|name| self.phase(name, now) != Phase::Waiting);
        let pods = if due { self.cluster.pods(found.addresses.clone()).await? } else { Pods::default() };
        let accepted = self.notes.borrow().accepted.clone();
        let stop = self.gone.stopped(&found, &accepted, &self.settings.limits, now);
        report.stopped = stop.or_else(|| self.too_many_addresses(&books, &pods, &accepted, now));
        self.note_stop(&report, &accepted);
        let mut budget = Budget { nodes: NODES_PER_LOOK, releases: RELEASES_PER_LOOK };
        for name in self.gone.names().cloned().collect::<Vec<_>>() {
            let acts = !report.dry_run && report.reports_only.is_none() && report.stopped.is_none();
            let node = self.node(&name, &books, &pods, now, acts, &mut budget).await;
            let is_limited = node.error.as_deref() == Some(LIMITED);
            report.limited |= acts && (is_limited || node.addresses.iter().any(|it| it.reason == LIMITED));
            report.nodes.push(node);
        }
        if self.sweeps.is_due(now) {
            self.sweep(&books, now, &mut report, &mut budget).await?;
        } else {
            report.handles =
                self.sweeps.waiting().map(|(id, wrong)| handle_report(id, wrong, Outcome::Waiting)).collect();
        }
        self.count(&report);
        Ok(report)
    }

    fn phase(&self, node: &str, now: Duration) -> Phase {
        self.gone.phase(node, &self.settings.limits, now)
    }

    /// Whether what could be freed is so much that something else must be wrong.
    fn too_many_addresses(
        &self,
        books: &Books,
        pods: &Pods,
        accepted: &BTreeSet<String>,
        now: Duration,
    ) -> Option<Stop> {
        let due = |name: &&String| !accepted.contains(*name) && self.phase(name, now) != Phase::Waiting;
        let (mut count, mut nodes) = (0, BTreeSet::new());
        for name in self.gone.names().filter(due) {
            let free = books.of(name).filter(|it| matches!(verdict(it, pods), Verdict::Free(_))).count();
            count += free;
            nodes.extend((free > 0).then(|| name.clone()));
        }
        let all = books.allocations.len();
        let is_too_many = count > ADDRESSES_MIN && count * 100 > ADDRESSES_PERCENT * all;
        let reason = format!("{count} of {all} addresses would be freed at once");
        is_too_many.then_some(Stop { reason, nodes })
    }

    fn note_stop(&self, report: &Report, accepted: &BTreeSet<String>) {
        let mut notes = self.notes.borrow_mut();
        if notes.stop != report.stopped {
            match &report.stopped {
                Some(Stop { reason, nodes }) => tracing::error!(
                    reason,
                    nodes = nodes.len(),
                    "nothing is freed: when these nodes are gone for good, say so with `russet gc resume`"
                ),
                None => tracing::info!("addresses of gone nodes are freed again"),
            }
        }
        notes.stop.clone_from(&report.stopped);
        let gone: BTreeSet<&String> = self.gone.names().collect();
        notes.settled = accepted.iter().filter(|name| !gone.contains(name)).cloned().collect();
        self.metrics.stopped.set(i64::from(report.stopped.is_some()));
    }

    /// Judges one node, and with `acts` frees what may be freed.
    async fn node(
        &self,
        name: &str,
        books: &Books,
        pods: &Pods,
        now: Duration,
        acts: bool,
        budget: &mut Budget,
    ) -> NodeReport {
        let phase = self.phase(name, now);
        let blocks = books.blocks.get(name).cloned().unwrap_or_default();
        let mut report = NodeReport {
            node: name.to_owned(),
            silent_s: self.gone.silent_for(name, now).as_secs(),
            phase: phase_name(phase),
            addresses: Vec::new(),
            blocks: blocks.iter().map(ToString::to_string).collect(),
            is_clean: false,
            error: None,
        };
        let judged: Vec<(&Allocation, Verdict)> = books.of(name).map(|it| (it, verdict(it, pods))).collect();
        let free = plan(&judged, phase, &mut report, !acts);
        if !acts || phase == Phase::Waiting {
            return report;
        }
        if budget.nodes == 0 || budget.releases == 0 {
            report.error = Some(LIMITED.to_owned());
            return report;
        }
        budget.nodes -= 1;
        if let Err(error) = self.clean(name, phase, free, &blocks, &mut report, budget).await {
            tracing::warn!(node = name, %error, "a node without an object was not cleaned; it is looked at again");
            report.error = Some(error.to_string());
        }
        report
    }

    /// Compares all handles with the blocks, and corrects those that two sweeps found wrong.
    async fn sweep(
        &mut self,
        books: &Books,
        now: Duration,
        report: &mut Report,
        budget: &mut Budget,
    ) -> Result<(), ReadError> {
        let held = Held::of(&books.allocations);
        let mut wrong: BTreeMap<HandleId, Wrong> = BTreeMap::new();
        let mut each = |record: russet_store::Record| {
            let id = record.key.handle_name().and_then(|name| HandleId::new(name).ok());
            let (Some(id), Ok(handle)) = (id, Handle::decode(&record.value)) else { return };
            let found = held.check(&id, &handle, Revision(record.revision.0), &books.unread);
            wrong.extend(found.map(|found| (id, found)));
        };
        let prefix = Prefix::handles();
        let scanned = self.cluster.store.scan(&prefix, &mut each).await;
        scanned.map_err(|source| ReadError::Store { what: format!("list {prefix}"), source })?;
        let agreed = self.sweeps.compare(wrong.clone(), now);
        let acts = !report.dry_run && report.reports_only.is_none() && report.stopped.is_none();
        for (id, wrong) in &wrong {
            let outcome = match agreed.contains_key(id) {
                false => Outcome::Waiting,
                true if !acts => Outcome::WouldFree,
                true if budget.releases == 0 => Outcome::Waiting,
                true => self.correct(id, wrong, budget).await,
            };
            report.handles.push(handle_report(id, wrong, outcome));
        }
        Ok(())
    }

    async fn correct(&self, id: &HandleId, wrong: &Wrong, budget: &mut Budget) -> Outcome {
        budget.releases -= 1;
        let corrected = self.allocator.correct_handle(id, wrong.revision, wrong.held.iter().copied()).await;
        match corrected {
            Ok(true) => {
                tracing::info!(handle = %id, "the counts of a handle were corrected");
                self.metrics.freed.get_or_create(&Reason { reason: "handle" }).inc();
                Outcome::Freed
            }
            Ok(false) => Outcome::Kept,
            Err(error) => {
                tracing::warn!(handle = %id, %error, "a handle was not corrected");
                Outcome::Failed
            }
        }
    }

    fn count(&self, report: &Report) {
        let addresses = || report.nodes.iter().flat_map(|node| &node.addresses);
        let open = |it: &&AddressReport| it.outcome != Outcome::Freed && it.outcome != Outcome::Kept;
        let confirmed = |it: &&AddressReport| matches!(it.outcome, Outcome::WouldFree | Outcome::Failed);
        self.metrics.candidates.set(i64::try_from(addresses().filter(open).count()).unwrap_or(i64::MAX));
        self.metrics.confirmed.set(i64::try_from(addresses().filter(confirmed).count()).unwrap_or(i64::MAX));
    }
}

/// The reason of what the limits of a look leave to the next one.
pub const LIMITED: &str = "the limits of one look";

fn limit(report: &mut AddressReport) {
    (report.outcome, report.reason) = (Outcome::Waiting, LIMITED.to_owned());
}

/// What may be freed of a node, with a report of each address. Its tunnels wait until no pod of it
/// has an address.
fn plan(
    judged: &[(&Allocation, Verdict)],
    phase: Phase,
    report: &mut NodeReport,
    only_report: bool,
) -> Vec<Allocation> {
    let is_kept = judged.iter().any(|(_, verdict)| matches!(verdict, Verdict::Kept(_)));
    let mut free = Vec::new();
    for (allocation, verdict) in judged {
        let waits = phase == Phase::Waiting
            || allocation.owner == Owner::Tunnel && (phase != Phase::Everything || is_kept);
        let (outcome, reason) = match verdict {
            Verdict::Kept(reason) => (Outcome::Kept, reason.clone()),
            Verdict::Unknown(reason) => (Outcome::Unknown, (*reason).to_owned()),
            Verdict::Free(_) if waits => (Outcome::Waiting, "the grace period".to_owned()),
            Verdict::Free(reason) => {
                free.push((*allocation).clone());
                (if only_report { Outcome::WouldFree } else { Outcome::Waiting }, (*reason).to_owned())
            }
        };
        let pod = match &allocation.owner {
            Owner::Pod(pod) => Some(pod.to_string()),
            _ => None,
        };
        let (address, handle) =
            (allocation.address.to_string(), allocation.handle.as_ref().map(ToString::to_string));
        report.addresses.push(AddressReport { address, handle, pod, outcome, reason });
    }
    free
}

fn handle_report(id: &HandleId, wrong: &Wrong, outcome: Outcome) -> HandleReport {
    HandleReport { handle: id.to_string(), is_orphan: wrong.held.is_empty(), outcome }
}

// === impl AddressReport ===

impl AddressReport {
    fn is(&self, allocation: &Allocation) -> bool {
        self.address == allocation.address.to_string()
    }
}
