//! Takes the controller's lease, renews it, and gives it back. What an operator has confirmed, and
//! what the leader waits for, are annotations of the lease, so that they outlive a leader.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use russet_kube::{Client, KubeError, Lease};
use russet_sync::random;

use crate::election::{Election, Turn};
use crate::fence::Fence;
use crate::gone::Stop;
use crate::metrics::Metrics;

/// The lease.
pub const LEASE: &str = "russet-controller";
/// Annotation: why nothing is freed, and which nodes an operator has to confirm. JSON.
pub const STOPPED: &str = "russet.dev/gc-stopped";
/// Annotation: the nodes that an operator has confirmed as gone. A JSON list of names.
pub const ACCEPTED: &str = "russet.dev/gc-accepted";
/// Limit of a request that takes or renews the lease, and of its repetitions.
const DEADLINE: Duration = Duration::from_secs(5);

/// What the leader's work and its lease tell each other.
#[derive(Debug, Default)]
pub struct Notes {
    /// Nodes that an operator has confirmed as gone.
    pub accepted: BTreeSet<String>,
    /// Confirmed nodes that are back, or need no confirmation any more.
    pub settled: BTreeSet<String>,
    /// Why nothing is freed.
    pub stop: Option<Stop>,
}

/// One replica in the election.
pub struct Candidate {
    client: Client,
    namespace: String,
    election: Election,
    fence: Fence,
    notes: Rc<RefCell<Notes>>,
    metrics: Metrics,
    /// The origin of the election's times.
    start: Instant,
    /// The lease as it was last read or written.
    known: Option<Lease>,
}

// === impl Candidate ===

impl Candidate {
    pub fn new(
        client: Client,
        namespace: String,
        election: Election,
        fence: Fence,
        notes: Rc<RefCell<Notes>>,
        metrics: Metrics,
    ) -> Self {
        let start = Instant::now();
        Self { client, namespace, election, fence, notes, metrics, start, known: None }
    }

    /// Waits until this replica leads.
    pub async fn acquire(&mut self) {
        let mut waits_for = String::new();
        loop {
            match self.try_acquire().await {
                Ok(true) => break,
                Ok(false) => {
                    let holder = self.known.as_ref().map(Lease::holder).unwrap_or_default();
                    if waits_for != holder {
                        tracing::info!(holder, "another replica leads; this one waits");
                        waits_for = holder.to_owned();
                    }
                    self.metrics.reachable(None);
                }
                Err(error) => self.failed(&error, "the lease was not taken; it is tried again"),
            }
            tokio::time::sleep(self.retry_pause()).await;
        }
        tracing::info!(identity = self.election.identity(), "this replica leads");
        self.metrics.leader.set(1);
    }

    /// Renews the lease. Returns when this replica does not lead any more, and the fence is closed.
    pub async fn keep(&mut self) {
        while self.election.left(self.now()).is_some() {
            tokio::time::sleep(self.election.timing().retry).await;
            // After a pause of the process another replica may lead.
            let Some(left) = self.election.left(self.now()) else { break };
            match self.write(left.min(DEADLINE)).await {
                Ok(()) => {}
                Err(KubeError::Conflict(_) | KubeError::NotFound(_)) => {
                    if self.is_anothers(left.min(DEADLINE)).await {
                        break;
                    }
                }
                Err(error) => self.failed(&error, "the lease was not renewed; it is tried again"),
            }
        }
        self.stop_leading();
        tracing::warn!(
            identity = self.election.identity(),
            "this replica leads no more; its work was stopped"
        );
    }

    /// Gives the lease back after the work has stopped, so that another replica need not wait.
    pub async fn release(&mut self) {
        let leads = self.election.left(self.now()).is_some();
        self.stop_leading();
        let Some(mut lease) = self.known.take().filter(|_| leads) else { return };
        lease.renew("", Duration::from_secs(1), SystemTime::now());
        if let Err(error) = self.client.write_lease(&lease, DEADLINE).await {
            tracing::info!(%error, "the lease was not given back; it ends by itself");
        }
    }

    fn stop_leading(&mut self) {
        self.election.lost();
        self.fence.close();
        self.metrics.leader.set(0);
    }

    async fn try_acquire(&mut self) -> Result<bool, KubeError> {
        let read = self.client.lease(&self.namespace, LEASE, DEADLINE).await?;
        let turn = self.election.observe(read.as_ref(), self.now());
        self.known = read;
        if turn == Turn::Wait {
            return Ok(false);
        }
        self.read_notes();
        match self.write(DEADLINE).await {
            Ok(()) => Ok(true),
            // Another replica was faster.
            Err(KubeError::Conflict(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes the lease with this replica as its holder, and opens the fence.
    async fn write(&mut self, deadline: Duration) -> Result<(), KubeError> {
        let began = self.now();
        let mut lease = self.known.clone().unwrap_or_else(|| Lease::new(&self.namespace, LEASE));
        lease.renew(self.election.identity(), self.election.timing().lease, SystemTime::now());
        self.write_notes(&mut lease);
        let written = self.client.write_lease(&lease, deadline).await?;
        self.election.written(&written, began);
        self.known = Some(written);
        self.fence.open(self.election.writes_until().map(|until| self.start + until));
        self.metrics.reachable(None);
        Ok(())
    }

    /// After a write that was refused: whether another replica has the lease. If an operator wrote
    /// it, or an answer was lost, it is still this one's.
    async fn is_anothers(&mut self, deadline: Duration) -> bool {
        match self.client.lease(&self.namespace, LEASE, deadline).await {
            Ok(Some(lease)) if lease.holder() == self.election.identity() => {
                self.known = Some(lease);
                self.read_notes();
                false
            }
            Ok(_) => true,
            Err(error) => {
                self.failed(&error, "the lease was not read; it is tried again");
                false
            }
        }
    }

    fn read_notes(&self) {
        let accepted = self.known.as_ref().and_then(|lease| lease.annotation(ACCEPTED));
        let mut notes = self.notes.borrow_mut();
        notes.accepted = accepted.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    }

    fn write_notes(&self, lease: &mut Lease) {
        let mut notes = self.notes.borrow_mut();
        let settled = std::mem::take(&mut notes.settled);
        notes.accepted.retain(|name| !settled.contains(name));
        let accepted = (!notes.accepted.is_empty()).then(|| serde_json::json!(notes.accepted).to_string());
        lease.annotate(ACCEPTED, accepted);
        lease.annotate(STOPPED, notes.stop.as_ref().map(|stop| serde_json::json!(stop).to_string()));
    }

    fn failed(&self, error: &KubeError, what: &str) {
        if self.metrics.reachable(Some(error.to_string())) {
            tracing::warn!(%error, "{what}");
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// As client-go waits: up to 2.2 times the period.
    fn retry_pause(&self) -> Duration {
        let retry = self.election.timing().retry;
        let jitter = u64::try_from(retry.as_millis()).unwrap_or(0) * 12 / 10;
        retry + Duration::from_millis(random().checked_rem(jitter).unwrap_or(0))
    }
}

/// Confirms the nodes for which the leader waits; returns them.
pub async fn resume(client: &Client, namespace: &str) -> Result<BTreeSet<String>, ResumeError> {
    for _ in 0..RESUME_TRIES {
        let lease = client.lease(namespace, LEASE, DEADLINE).await?;
        let mut lease = lease.ok_or_else(|| ResumeError::NoLease(namespace.to_owned()))?;
        let stop: Stop = match lease.annotation(STOPPED) {
            None => return Ok(BTreeSet::new()),
            Some(text) => serde_json::from_str(text).map_err(ResumeError::Unreadable)?,
        };
        let known = lease.annotation(ACCEPTED).and_then(|text| serde_json::from_str(text).ok());
        let mut accepted: BTreeSet<String> = known.unwrap_or_default();
        accepted.extend(stop.nodes.iter().cloned());
        lease.annotate(ACCEPTED, Some(serde_json::json!(accepted).to_string()));
        match client.write_lease(&lease, DEADLINE).await {
            Ok(_) => return Ok(stop.nodes),
            // The leader renewed it meanwhile.
            Err(KubeError::Conflict(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ResumeError::Contended)
}

/// The leader renews every two seconds.
const RESUME_TRIES: usize = 20;

/// Why the collection of garbage was not resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    #[error(transparent)]
    Kube(#[from] KubeError),
    #[error(
        "there is no lease {LEASE} in namespace {0}: does `russet controller` run there? See --namespace"
    )]
    NoLease(String),
    #[error("annotation {STOPPED} of lease {LEASE}: {0}")]
    Unreadable(serde_json::Error),
    #[error("lease {LEASE} was written by others at each attempt; try again")]
    Contended,
}
