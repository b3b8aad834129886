//! Repair of leaks: allocated addresses without a pod, and handles with counts of addresses that
//! are not allocated. Run by the agent every ten minutes and by `russet ipam repair`.
//!
//! It must never affect a running pod, so:
//! * an address is checked only by the agent of the node that allocated it, against everything that
//!   may prove that it is in use ([`liveness`]); what is unknown counts as in use, and if evidence
//!   cannot be read, the round has no result;
//! * two checks with a grace period between them must agree on the same entry: handle, sequence
//!   number and every attribute;
//! * the second check and the release happen while no request for any container is in progress, and
//!   addresses of containers with a request since the first check are skipped: a repeated ADD uses
//!   its old address again without writing anything;
//! * the release is guarded by what was read, so an address that was reassigned is kept;
//! * the node's record has to name this machine's addresses and stay unchanged in between: two
//!   machines with one name write it alternately, and either would take the other's pods for leaks.

mod allocations;
mod liveness;
mod machine;
mod report;
mod rounds;
mod sweep;
mod unheld;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use russet_addr::{BlockCidr, NodeName};
use russet_ipam::{Allocator, Held, IpamError, ReleaseOptions};
use russet_model::HandleId;
use russet_plugins::Clock;
use russet_store::{BoxFuture, Revision, Store};

pub use allocations::AllocationsError;
pub use machine::MachineError;
pub use report::{Finding, Outcome, Report, Seen, Subject};
pub use rounds::{REPAIR_PATH, RepairRequest, gone_nodes, run_without_agent};
pub(crate) use rounds::{RepairJob, RepairQueue, Repairs};
pub use unheld::{Unheld, unheld_here, user_of};
pub(crate) use unheld::{UnheldQueue, answer as answer_unheld_queries};

use allocations::{Allocations, NodeRecord, Residue, Wanted};
use liveness::{Alive, Endpoint, Evidence, Machine, check_leaked};

/// The time between the two checks of the agent, and between rounds: longer than any runtime needs
/// for one pod. A leaked address does no harm meanwhile.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(600);
/// The default of libcni's cache directory (cni-runtime.md section 2.4); containerd and CRI-O use
/// it.
pub const DEFAULT_CACHE: &str = "var/lib/cni";
/// Limit of leaks in one round; the rest is for the next. A node has a few hundred pods, and a
/// round delays their requests while it releases.
const LEAKS_MAX: usize = 500;
/// How long a round may start further releases. A started release is always awaited: it could take
/// effect after an ADD has reused its old address.
const RELEASES_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a round has no result.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The store failed, or a record cannot be read.
    #[error(transparent)]
    Allocations(#[from] AllocationsError),
    /// The kernel or a runtime's cache cannot be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The record belongs to another machine, or this is not the node's network namespace.
    #[error(
        "the record of node {node} names {address}, which this machine does not have; is it another machine's?"
    )]
    Elsewhere { node: NodeName, address: std::net::IpAddr },
    /// Another machine may have the same name.
    #[error(
        "the record of node {0} was written between the two checks; if that happens again, two machines have this name"
    )]
    Rewritten(NodeName),
    /// Requests in progress did not end.
    #[error("requests for pods are in progress and did not end within {0:?}")]
    Busy(Duration),
    /// The second check took too long, while requests for pods were waiting.
    #[error("the second check did not end within {0:?}")]
    Slow(Duration),
    /// The kernel state of plugins cannot be read.
    #[error("look for stale attachments: {0}")]
    Kernel(#[from] russet_cni_spec::CniError),
    #[error("reading the machine's state was interrupted: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// An error of a repair without an agent: the lock, the store, the socket.
    #[error("{what}: {reason}")]
    WithoutAgent {
        /// The operation.
        what: &'static str,
        reason: String,
    },
}

/// The options of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The time between the two checks, and the age below which an entry is skipped.
    pub grace: Duration,
    /// Release nothing.
    pub dry_run: bool,
}

/// What a round covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The entries in the node's own blocks.
    OwnBlocks,
    /// The node's entries in all blocks, and all handles.
    Everything,
    /// The entries of nodes without a record, checked against endpoints only.
    GoneNodes,
}

/// Reads the state of the machine.
pub type MachineReader = Rc<dyn Fn() -> BoxFuture<'static, Result<Machine, RepairError>>>;

/// Finds and releases leaks.
#[derive(Clone)]
pub struct LeakFinder {
    pub node: NodeName,
    pub store: Rc<dyn Store>,
    /// The node's allocator, which every other user shares, so that its cache stays correct.
    pub allocator: Rc<Allocator>,
    /// The clock that dated the entries.
    pub clock: Rc<dyn Clock>,
    pub read_machine: MachineReader,
}

/// One check.
#[derive(Debug)]
pub struct Check {
    /// When it began.
    pub began: SystemTime,
    record: Option<NodeRecord>,
    leaks: Vec<Held>,
    alive: Vec<(Held, Alive)>,
    residues: Vec<Residue>,
    seen: Seen,
}

/// Reads the real machine, with the caches of its runtimes.
pub fn machine_reader(caches: Vec<PathBuf>) -> MachineReader {
    Rc::new(move || {
        let caches = caches.clone();
        Box::pin(async move { Ok(tokio::task::spawn_blocking(move || machine::look(&caches)).await??) })
    })
}

// === impl LeakFinder ===

impl LeakFinder {
    /// The first check.
    pub async fn check(&self, reach: Reach, grace: Duration) -> Result<Check, RepairError> {
        let began = self.clock.now();
        let known = self.known(reach).await?;
        let allocations = match reach {
            Reach::OwnBlocks => allocations::own(&*self.store, &self.node).await?,
            Reach::Everything | Reach::GoneNodes => {
                allocations::all(&*self.store, known.wanted(&self.node)).await?
            }
        };
        self.evaluate(reach, known, allocations, &BTreeSet::new(), began, grace).await
    }

    /// The second check, of the entries that the first one found. `requested` are the containers with a
    /// request since then.
    async fn check_again(
        &self,
        reach: Reach,
        first: &Check,
        requested: &BTreeSet<String>,
        grace: Duration,
    ) -> Result<Check, RepairError> {
        let began = self.clock.now();
        let known = self.known(reach).await?;
        // In the Kubernetes API kubelet writes the node's object every few minutes.
        let has_only_this_writer = self.store.claims().atomic;
        let identity = |record: &Option<NodeRecord>| {
            let mut record = record.clone();
            if let Some(record) = record.as_mut().filter(|_| !has_only_this_writer) {
                record.revision = Revision::default();
            }
            record
        };
        if identity(&known.record) != identity(&first.record) {
            return Err(RepairError::Rewritten(self.node.clone()));
        }
        let blocks: BTreeSet<BlockCidr> = first.leaks.iter().map(|leak| leak.block).collect();
        let allocations = allocations::some(&*self.store, &blocks, known.wanted(&self.node)).await?;
        self.evaluate(reach, known, allocations, requested, began, grace).await
    }

    async fn known(&self, reach: Reach) -> Result<NodeFacts, RepairError> {
        if reach == Reach::GoneNodes {
            let (names, tunnels) = allocations::nodes(&*self.store).await?;
            return Ok(NodeFacts { record: None, names: Some(names), tunnels });
        }
        let record = allocations::node(&*self.store, &self.node).await?;
        Ok(NodeFacts { tunnels: record.tunnels.clone(), record: Some(record), names: None })
    }

    async fn evaluate(
        &self,
        reach: Reach,
        known: NodeFacts,
        allocations: Allocations,
        requested: &BTreeSet<String>,
        began: SystemTime,
        grace: Duration,
    ) -> Result<Check, RepairError> {
        // After the allocations: a container that is added meanwhile is seen here, and is not among
        // the entries.
        let machine = match reach {
            Reach::GoneNodes => Machine::default(),
            Reach::OwnBlocks | Reach::Everything => self.machine(&known).await?,
        };
        let check = |entry: &Held, endpoints: &[Endpoint]| {
            let (machine, tunnels) = (&machine, &known.tunnels);
            check_leaked(entry, &Evidence { machine, endpoints, tunnels, requested, now: began, grace })
        };
        let endpoints = match allocations.entries.iter().any(|entry| check(entry, &[]).is_ok()) {
            true => Some(allocations::endpoints(&*self.store).await?),
            false => None,
        };
        let (mut leaks, mut alive) = (Vec::new(), Vec::new());
        let seen = Seen::new(reach, &allocations, &machine, endpoints.as_deref());
        for entry in allocations.entries {
            match check(&entry, endpoints.as_deref().unwrap_or_default()) {
                Ok(()) if leaks.len() < LEAKS_MAX => leaks.push(entry),
                Ok(()) => {}
                Err(reason) => alive.push((entry, reason)),
            }
        }
        Ok(Check { began, record: known.record, leaks, alive, residues: allocations.residues, seen })
    }

    async fn machine(&self, known: &NodeFacts) -> Result<Machine, RepairError> {
        let machine = (self.read_machine)().await?;
        let named = known.record.iter().flat_map(|record| &record.addresses);
        match named.copied().find(|address| !machine.own.contains(address)) {
            Some(address) => Err(RepairError::Elsewhere { node: self.node.clone(), address }),
            None => Ok(machine),
        }
    }

    /// The residues of the first check that still exist. No lock is needed, because each is guarded
    /// by its revision, and its block is written with it.
    async fn residues_again(&self, first: &Check) -> Result<Vec<Residue>, RepairError> {
        if first.residues.is_empty() {
            return Ok(Vec::new());
        }
        let now = allocations::all(&*self.store, Wanted::Of(&self.node)).await?.residues;
        let now: BTreeMap<&HandleId, &Residue> = now.iter().map(|it| (&it.handle, it)).collect();
        let agreed = first.residues.iter().filter(|residue| now.get(&residue.handle) == Some(residue));
        Ok(agreed.take(LEAKS_MAX).cloned().collect())
    }

    /// Releases an address, if its entry is unchanged.
    async fn release(&self, leak: &Held) -> Outcome {
        let handle = leak.attribute.handle_id.as_deref().map(HandleId::sanitized);
        let Some(Ok(handle)) = handle.map(HandleId::new) else {
            return Outcome::Kept { reason: "its handle is invalid".to_owned() };
        };
        let (address, sequence_number) = (leak.address, Some(leak.sequence_number));
        let options = ReleaseOptions { address, handle: Some(handle), sequence_number };
        match self.allocator.release_ips(&[options]).await {
            Ok(released) if released.addresses.contains(&address) => Outcome::Released,
            Ok(_) => Outcome::Kept { reason: "another process released it".to_owned() },
            Err(IpamError::BadSequence { .. } | IpamError::BadHandle { .. }) => {
                Outcome::Kept { reason: "it was reassigned".to_owned() }
            }
            Err(error) => Outcome::Failed { reason: error.to_string() },
        }
    }

    async fn settle(&self, residue: &Residue) -> Outcome {
        match self.allocator.settle_handle(&residue.handle, residue.revision).await {
            Ok(true) => Outcome::Released,
            Ok(false) => Outcome::Kept { reason: "it was written meanwhile".to_owned() },
            Err(error) => Outcome::Failed { reason: error.to_string() },
        }
    }

    /// The second check, and the releases that follow from both. No request for a container of this
    /// node may be in progress meanwhile. Errors come before the first release. What cannot be
    /// released in time is left to another round.
    pub async fn conclude(
        &self,
        reach: Reach,
        first: &Check,
        requested: &BTreeSet<String>,
        options: Options,
        limit: Duration,
    ) -> Result<Vec<Finding>, RepairError> {
        if first.leaks.is_empty() {
            return Ok(Vec::new());
        }
        let again = self.check_again(reach, first, requested, options.grace);
        let second = tokio::time::timeout(limit, again).await.map_err(|_| RepairError::Slow(limit))??;
        let mut findings = Vec::new();
        let end = Instant::now() + RELEASES_TIMEOUT;
        let mut store_failed = false;
        for leak in &first.leaks {
            let outcome = match second.verdict(leak) {
                Err(outcome) => outcome,
                // After one failure of the store, waiting for the other releases would delay
                // requests.
                Ok(()) if options.dry_run || store_failed || Instant::now() >= end => Outcome::Leaked,
                Ok(()) => self.release(leak).await,
            };
            store_failed |= matches!(outcome, Outcome::Failed { .. });
            findings.push(Finding::address(leak, &second.seen, outcome));
        }
        Ok(findings)
    }

    /// The same for residues of handles.
    async fn conclude_handles(
        &self,
        first: &Check,
        residues: Vec<Residue>,
        options: Options,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        for residue in residues {
            let outcome = if options.dry_run { Outcome::Leaked } else { self.settle(&residue).await };
            findings.push(Finding::handle(&residue, &first.seen, outcome));
        }
        findings
    }
}

/// What the records say about nodes.
struct NodeFacts {
    record: Option<NodeRecord>,
    /// All nodes that have a record; none if only this node matters.
    names: Option<BTreeSet<String>>,
    tunnels: BTreeSet<std::net::IpAddr>,
}

// === impl NodeFacts ===

impl NodeFacts {
    fn wanted<'a>(&'a self, node: &'a NodeName) -> Wanted<'a> {
        self.names.as_ref().map_or(Wanted::Of(node), Wanted::NotOf)
    }
}

// === impl Check ===

impl Check {
    /// Whether the check found nothing.
    pub fn is_clean(&self) -> bool {
        self.leaks.is_empty() && self.residues.is_empty()
    }

    /// Whether this check, too, finds that an entry of the first one is leaked; otherwise why not.
    fn verdict(&self, leak: &Held) -> Result<(), Outcome> {
        if self.leaks.contains(leak) {
            return Ok(());
        }
        let reason = match self.alive.iter().find(|(entry, _)| entry == leak) {
            Some((_, reason)) => reason.to_string(),
            None => "it was reassigned, or is free".to_owned(),
        };
        Err(Outcome::Alive { reason })
    }
}

#[cfg(test)]
mod tests;
