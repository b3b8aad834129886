//! Rounds of two checks: by the agent, at an interval and on request at its socket, and by `russet
//! ipam repair` where no agent runs.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use russet_addr::NodeName;
use russet_ipam::{Allocator, SystemClock};
use russet_journal::History;
use russet_linux::random::random;
use russet_linux::{FileLock, LockError};
use russet_model::time;
use russet_plugins::Node;
use russet_store::Store;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::report::{Finding, Outcome, Report};
use super::unheld::unheld;
use super::{Check, LeakFinder, Options, Reach, RepairError, allocations, machine_reader};
use crate::config::Paths;
use crate::metrics::{Kind, Metrics};
use crate::operations::Operations;
use crate::{StoreLocation, node_lock, stores};

/// Path on the agent's socket for a round.
pub const REPAIR_PATH: &str = "/v1/repair";

/// How long a round waits for requests in progress: longer than one of them may take.
pub(super) const REQUESTS_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit of the second check, while requests wait. A runtime waits for a minute or more.
const SECOND_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Rounds that may wait for the current one; further requests get an error.
const QUEUE_MAX: usize = 4;
/// The lock that Calico's IPAM plugins on one host take (calico-ipam.md section 4.4).
const CALICO_LOCK: &str = "var/run/calico/ipam.lock";
/// Between a plugin's release of its lock and its line in the history.
const HISTORY_DELAY: Duration = Duration::from_secs(1);
/// The grace period after a boot: longer than an ADD of this boot takes until it has a link.
const BOOT_GRACE: Duration = Duration::from_secs(30);
/// A second round covers entries that were too young in the first one.
const BOOT_ROUNDS: u32 = 2;
/// Pause before the next attempt after a boot, if the store or the machine could not be read.
const BOOT_PAUSE: Duration = Duration::from_secs(5);
/// Each hour another node checks the handles.
const HANDLE_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// The request at [`REPAIR_PATH`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairRequest {
    /// The time between the checks.
    pub grace_ms: u64,
    /// Release nothing.
    pub dry_run: bool,
}

/// A request in the queue, with the channel for its answer.
pub struct RepairJob {
    request: RepairRequest,
    answer: oneshot::Sender<Result<Report, String>>,
}

/// The socket's end of the queue.
#[derive(Clone)]
pub(crate) struct RepairQueue(mpsc::Sender<RepairJob>);

/// The agent's rounds.
pub(crate) struct Repairs {
    pub(super) finder: LeakFinder,
    pub(super) node: Node,
    pub(super) operations: Rc<Operations>,
    pub(super) metrics: Metrics,
    /// One round at a time.
    pub(super) round_lock: Mutex<()>,
}

// === impl RepairRequest ===

impl From<RepairRequest> for Options {
    fn from(request: RepairRequest) -> Self {
        Self { grace: Duration::from_millis(request.grace_ms), dry_run: request.dry_run }
    }
}

// === impl RepairQueue ===

impl RepairQueue {
    /// Both ends of the queue.
    pub fn new() -> (Self, mpsc::Receiver<RepairJob>) {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        (Self(sender), receiver)
    }

    /// Requests a round and waits for its report.
    pub async fn ask(&self, request: RepairRequest) -> Result<Report, String> {
        let (answer, answered) = oneshot::channel();
        let busy = |_| format!("{QUEUE_MAX} repairs are waiting already");
        self.0.try_send(RepairJob { request, answer }).map_err(busy)?;
        answered.await.map_err(|_| "the agent is stopping".to_owned())?
    }
}

// === impl Repairs ===

impl Repairs {
    /// The rounds of an agent.
    pub fn new(finder: LeakFinder, node: Node, operations: Rc<Operations>, metrics: Metrics) -> Self {
        Self { finder, node, operations, metrics, round_lock: Mutex::new(()) }
    }

    /// Serves requests and never returns.
    pub async fn serve(self: Rc<Self>, mut jobs: mpsc::Receiver<RepairJob>) {
        while let Some(RepairJob { request, answer }) = jobs.recv().await {
            let done = self.round(Reach::Everything, request.into()).await;
            // The receiver may be gone; the round is done anyway.
            let _ = answer.send(done.map_err(|error| error.to_string()));
        }
    }

    /// Soon after a start that found nothing of this boot: addresses of pods of the previous boot
    /// are leaked. Retries until it succeeds, and once more for entries that were too young; the
    /// two checks of a round are at most as far apart as those of [`run`](Self::run).
    pub async fn after_boot(self: Rc<Self>, every: Duration) {
        let options = Options { grace: every.min(BOOT_GRACE), dry_run: false };
        let mut rounds = 0;
        while rounds < BOOT_ROUNDS {
            let pause = match self.round(Reach::OwnBlocks, options).await {
                Ok(report) => {
                    rounds += 1;
                    let findings = report.findings.len();
                    tracing::info!(findings, "leaks of the previous boot were looked for");
                    options.grace
                }
                Err(error) => {
                    tracing::debug!(%error, "leaks of the previous boot cannot be looked for yet");
                    BOOT_PAUSE
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// A round at each interval of `every`, plus or minus a tenth, so that the nodes of a cluster
    /// do not check at the same time.
    pub async fn run(self: Rc<Self>, every: Duration) {
        let mut void = String::new();
        loop {
            tokio::time::sleep(jittered(every)).await;
            let done = match self.reach().await {
                Ok(reach) => self.round(reach, Options { grace: every, dry_run: false }).await,
                Err(error) => Err(error),
            };
            match done {
                Ok(_) => void.clear(),
                Err(error) if error.to_string() == void => {
                    tracing::debug!(%error, "leaks were not looked for")
                }
                Err(error) => {
                    tracing::warn!(%error, "leaks were not looked for");
                    void = error.to_string();
                }
            }
            if let Err(error) = self.sweep(every).await {
                tracing::debug!(%error, "stale attachments were not looked for");
            }
        }
    }

    /// What this node checks now.
    async fn reach(&self) -> Result<Reach, RepairError> {
        if !self.finder.store.claims().atomic {
            // In the Kubernetes API the handles of all nodes are the controller's (kubernetes.md
            // section 3.2, G1 and G8).
            return Ok(Reach::OwnBlocks);
        }
        let hour = self.finder.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
            / HANDLE_CHECK_INTERVAL.as_secs();
        let nodes = allocations::node_names(&*self.finder.store).await?;
        let round_lock = allocations::checks_handles_now(&self.finder.node, &nodes, hour);
        Ok(if round_lock { Reach::Everything } else { Reach::OwnBlocks })
    }

    async fn round(&self, reach: Reach, options: Options) -> Result<Report, RepairError> {
        let _round = self.round_lock.lock().await;
        let done = self.looks(reach, options).await;
        match &done {
            Ok(report) => report.findings.iter().for_each(|finding| self.log(finding)),
            Err(_) => _ = self.metrics.void_repairs.inc(),
        }
        done
    }

    async fn looks(&self, reach: Reach, options: Options) -> Result<Report, RepairError> {
        let mut report = self.leaks(reach, options).await?;
        report.findings.extend(unallocated(&self.finder.allocator).await?);
        Ok(report)
    }

    async fn leaks(&self, reach: Reach, options: Options) -> Result<Report, RepairError> {
        let requested = self.operations.record_requests();
        let first = self.finder.check(reach, options.grace).await?;
        if first.is_clean() {
            return Ok(first.report(&self.finder, reach, options, Vec::new()));
        }
        tracing::debug!(
            addresses = first.leaks.len(),
            handles = first.residues.len(),
            "entries that look leaked are checked again"
        );
        tokio::time::sleep(options.grace).await;
        // Everything that can fail comes before the first release.
        let residues = self.finder.residues_again(&first).await?;
        let mut findings = if first.leaks.is_empty() {
            Vec::new()
        } else {
            let exclusive = tokio::time::timeout(REQUESTS_TIMEOUT, self.operations.exclusive()).await;
            let _exclusive = exclusive.map_err(|_| RepairError::Busy(REQUESTS_TIMEOUT))?;
            let requested = requested.containers();
            self.finder.conclude(reach, &first, &requested, options, SECOND_CHECK_TIMEOUT).await?
        };
        findings.extend(self.finder.conclude_handles(&first, residues, options).await);
        Ok(first.report(&self.finder, reach, options, findings))
    }

    fn log(&self, finding: &Finding) {
        let (kind, subject) = (finding.subject.kind(), &finding.subject);
        match &finding.outcome {
            Outcome::Released => {
                self.metrics.repaired.get_or_create(&Kind { kind: kind.to_owned() }).inc();
                let evidence = finding.evidence.join("; ");
                tracing::warn!(kind, %subject, evidence, "a leak was repaired");
            }
            outcome @ Outcome::Failed { .. } => {
                tracing::warn!(kind, %subject, %outcome, "a leak could not be repaired");
            }
            outcome @ Outcome::Left { .. } => {
                tracing::warn!(kind, %subject, %outcome, "a pod's address is not allocated to it");
            }
            Outcome::Leaked => tracing::info!(kind, %subject, "a leak was found"),
            outcome => tracing::info!(kind, %subject, %outcome, "an entry that looked leaked was kept"),
        }
    }
}

/// Addresses of running pods that are not allocated to them, as findings.
async fn unallocated(allocator: &Allocator) -> Result<Vec<Finding>, RepairError> {
    Ok(unheld(allocator).await?.into_iter().map(Finding::unallocated).collect())
}

fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.9 + 0.2 * (u64::from_ne_bytes(random()) as f64 / u64::MAX as f64))
}

// === impl Check ===

impl Check {
    fn report(&self, finder: &LeakFinder, reach: Reach, options: Options, findings: Vec<Finding>) -> Report {
        Report {
            schema: Report::SCHEMA,
            node: (reach != Reach::GoneNodes).then(|| finder.node.to_string()),
            grace_ms: u64::try_from(options.grace.as_millis()).unwrap_or(u64::MAX),
            dry_run: options.dry_run,
            seen: self.seen.clone(),
            findings,
        }
    }

    /// The addresses of its leaks.
    fn addresses(&self) -> impl Iterator<Item = std::net::IpAddr> + '_ {
        self.leaks.iter().map(|leak| leak.address)
    }
}

/// A round on a node without an agent. Plugins that work by themselves are excluded by the node
/// lock and by the lock of Calico's IPAM plugins. Neither the locks nor the store are held between
/// the checks.
pub async fn run_without_agent(
    paths: &Paths,
    location: &StoreLocation,
    node: &NodeName,
    caches: Vec<std::path::PathBuf>,
    options: Options,
) -> Result<Report, RepairError> {
    let failed = |what| {
        move |error: &dyn std::fmt::Display| RepairError::WithoutAgent { what, reason: error.to_string() }
    };
    let read_machine = machine_reader(caches);
    let finder = |store: &Rc<dyn Store>| LeakFinder {
        node: node.clone(),
        allocator: Rc::new(Allocator::new(Rc::clone(store), Rc::new(SystemClock))),
        store: Rc::clone(store),
        clock: Rc::new(SystemClock),
        read_machine: Rc::clone(&read_machine),
    };
    let reach = Reach::Everything;
    russet_linux::file::private_dir(paths.run_dir()).map_err(|e| failed("make the run directory")(&e))?;
    let lock = node_lock::lock_exclusively(paths, REQUESTS_TIMEOUT)
        .map_err(|e| failed("take the node's lock")(&e))?;
    let opened = stores::open(paths, location).await.map_err(|e| failed("open the store")(&e))?;
    let first_finder = finder(&opened.store);
    let first = first_finder.check(reach, options.grace).await?;
    let unallocated = unallocated(&first_finder.allocator).await?;
    if first.is_clean() {
        return Ok(first.report(&first_finder, reach, options, unallocated));
    }
    drop((first_finder, opened, lock));
    tokio::time::sleep(options.grace).await;
    let _lock = node_lock::lock_exclusively(paths, REQUESTS_TIMEOUT)
        .map_err(|e| failed("take the node's lock")(&e))?;
    let _calico =
        calico_lock(paths.root()).map_err(|e| failed("take the lock of Calico's IPAM plugins")(&e))?;
    tokio::time::sleep(HISTORY_DELAY).await;
    let requested =
        requested_since(&paths.history_file(), &first).map_err(|e| failed("read the history")(&e))?;
    let opened = stores::open(paths, location).await.map_err(|e| failed("open the store")(&e))?;
    let finder = finder(&opened.store);
    let residues = finder.residues_again(&first).await?;
    let mut findings = finder.conclude(reach, &first, &requested, options, SECOND_CHECK_TIMEOUT).await?;
    findings.extend(finder.conclude_handles(&first, residues, options).await);
    findings.extend(unallocated);
    Ok(first.report(&finder, reach, options, findings))
}

/// A round for the addresses of nodes that have no record any more. Their machines cannot be read.
pub async fn gone_nodes(
    store: Rc<dyn Store>,
    node: &NodeName,
    options: Options,
) -> Result<Report, RepairError> {
    let finder = LeakFinder {
        node: node.clone(),
        allocator: Rc::new(Allocator::new(Rc::clone(&store), Rc::new(SystemClock))),
        store,
        clock: Rc::new(SystemClock),
        read_machine: machine_reader(Vec::new()),
    };
    let reach = Reach::GoneNodes;
    let first = finder.check(reach, options.grace).await?;
    let mut findings = Vec::new();
    if !first.leaks.is_empty() {
        tokio::time::sleep(options.grace).await;
        findings = finder.conclude(reach, &first, &BTreeSet::new(), options, SECOND_CHECK_TIMEOUT).await?;
    }
    Ok(first.report(&finder, reach, options, findings))
}

/// Taken only if Calico's IPAM plugin is installed: the directory belongs to Calico.
fn calico_lock(root: &Path) -> Result<Option<FileLock>, LockError> {
    let path = root.join(CALICO_LOCK);
    let there = path.parent().is_some_and(Path::exists);
    there.then(|| FileLock::exclusive(path, Instant::now() + REQUESTS_TIMEOUT)).transpose()
}

/// Containers that got one of these addresses since the first check from a plugin without an agent.
fn requested_since(history: &Path, first: &Check) -> std::io::Result<BTreeSet<String>> {
    // The history's clock has a resolution of one second.
    let since = time::parse_rfc3339(&time::rfc3339(first.began));
    let mut requested = BTreeSet::new();
    for address in first.addresses() {
        let tenures = History::tenures(history, address)?.into_iter();
        let recent = tenures.filter(|tenure| time::parse_rfc3339(&tenure.from) >= since);
        requested.extend(recent.map(|tenure| tenure.container));
    }
    Ok(requested)
}
