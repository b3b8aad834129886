//! The client's side of the unix socket: a store that another process owns. Used by plugins and
//! commands while the agent runs.
//!
//! It connects at first use and again whenever the connection breaks, each call within its
//! deadline. A read is sent again automatically; a commit without an answer is `Unknown`, one that
//! was certainly not sent is `Unavailable`. The owner does not start a commit after its caller's
//! deadline, and reads come after the commits in progress, so a read after an `Unknown` shows the
//! final result.

#[cfg(test)]
pub(crate) mod owner;
mod session;
#[cfg(test)]
mod tests;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use russet_model::{Key, Prefix};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::wire::{self, Reply, Request};
use crate::{
    BoxFuture, Cause, Claims, CommitError, LeaseId, Record, Revision, Snapshot, Step, Store, StoreError,
    Tenure, Watch, check_steps,
};
use session::Session;
use watch::RemoteWatch;

/// Limit of a call, including the time to connect.
pub const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Calls that may wait for the connection.
const QUEUE_MAX: usize = 1024;

/// A client of the process that owns the store. Clones share it.
#[derive(Clone)]
pub struct Remote {
    commands: mpsc::Sender<Command>,
    ids: Arc<AtomicU64>,
    path: Arc<PathBuf>,
    deadline: Duration,
}

/// The session's commands.
enum Command {
    Call(PendingCall),
    Watch { id: u64, prefix: Prefix, since: Option<Revision>, messages: mpsc::Sender<WatchMessage> },
    Unwatch { id: u64 },
}

/// A call that waits for its answer.
struct PendingCall {
    id: u64,
    request: Request,
    ticket: Arc<Ticket>,
    reply: oneshot::Sender<Completed>,
}

/// A complete answer: the session assembles lists.
enum Completed {
    Reply(Reply),
    Listing(Snapshot),
}

/// A message to a watch.
enum WatchMessage {
    Snapshot(Snapshot),
    Events { events: Vec<crate::Event>, at: Revision },
    Failed(StoreError),
}

/// Whether a call was sent: decided once, either by the session that sends it or by the caller that
/// gives up.
#[derive(Default)]
struct Ticket(AtomicU8);

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const CANCELLED: u8 = 2;

// === impl Ticket ===

impl Ticket {
    /// Called before the session sends it; false if the caller has given up.
    fn send(&self) -> bool {
        self.0.compare_exchange(QUEUED, SENT, Ordering::AcqRel, Ordering::Acquire).is_ok()
            || self.0.load(Ordering::Acquire) == SENT
    }

    /// The connection broke before a byte of it was sent.
    fn unsend(&self) {
        let _ = self.0.compare_exchange(SENT, QUEUED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The caller gives up; true if the call is certainly not sent.
    fn cancel(&self) -> bool {
        self.0.compare_exchange(QUEUED, CANCELLED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

// === impl Remote ===

impl Remote {
    /// A client of the owner with the socket `path`. Connects at first use. Must be called inside a
    /// tokio runtime.
    pub fn connect(path: impl AsRef<Path>) -> Self {
        Self::connect_with(path, CALL_DEADLINE)
    }

    /// The same, with a deadline for each call.
    pub fn connect_with(path: impl AsRef<Path>, deadline: Duration) -> Self {
        let (commands, queue) = mpsc::channel(QUEUE_MAX);
        let path = Arc::new(path.as_ref().to_owned());
        tokio::spawn(Session::new(path.clone(), queue).run());
        Self { commands, ids: Arc::new(AtomicU64::new(1)), path, deadline }
    }

    /// A client by a connection to an owner that may leave at any time: then calls fail at once, as unavailable unless their outcome is unknown.
    pub(crate) fn guest(stream: UnixStream, path: PathBuf) -> Self {
        let (commands, queue) = mpsc::channel(QUEUE_MAX);
        let path = Arc::new(path);
        tokio::spawn(Session::of_guest(path.clone(), queue, stream).run());
        Self { commands, ids: Arc::new(AtomicU64::new(1)), path, deadline: CALL_DEADLINE }
    }

    /// Whether this is a guest whose owner listens no more: each further call fails.
    pub fn is_left(&self) -> bool {
        self.commands.is_closed()
    }

    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    async fn call(
        &self,
        operation: impl Fn() -> String,
        request: Request,
        changes: bool,
    ) -> Result<Completed, StoreError> {
        let ticket = Arc::new(Ticket::default());
        let (reply, answer) = oneshot::channel();
        let call = PendingCall { id: self.next_id(), request, ticket: ticket.clone(), reply };
        let exchange = async {
            self.commands.send(Command::Call(call)).await.ok()?;
            answer.await.ok()
        };
        let reason = match tokio::time::timeout(self.deadline, exchange).await {
            Ok(Some(completed)) => return Ok(completed),
            Ok(None) => "the connection broke before the answer came".to_owned(),
            Err(_) => format!("no answer within {:?}", self.deadline),
        };
        let source = Cause::text(format!("owner at {}: {reason}", self.path.display()));
        let surely_not_done = ticket.cancel() || !changes;
        let operation = operation();
        Err(if surely_not_done {
            StoreError::Unavailable { operation, source }
        } else {
            StoreError::Unknown { operation, source }
        })
    }

    async fn commit_steps(&self, steps: Vec<Step>) -> Result<Vec<Revision>, CommitError> {
        check_steps(&steps)?;
        let Some(first) = steps.first().map(|step| step.key().clone()) else { return Ok(Vec::new()) };
        let count = steps.len();
        let expires_ms = wire::monotonic_ms() + u64::try_from(self.deadline.as_millis()).unwrap_or(0);
        let request = Request::Commit { steps: steps.into_iter().map(Into::into).collect(), expires_ms };
        match self.call(|| format!("commit {count} steps from {first}"), request, true).await? {
            Completed::Reply(Reply::Committed(revision)) => Ok(vec![Revision(revision); count]),
            Completed::Reply(Reply::Failed(error)) => Err(error.into()),
            _ => Err(unexpected("commit").into()),
        }
    }
}

impl Store for Remote {
    fn claims(&self) -> Claims {
        Claims { atomic: true, ttl: true }
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            match self.call(|| format!("get {key}"), Request::Get(key.clone()), false).await? {
                Completed::Reply(Reply::Record(record)) => Ok(record.map(Into::into)),
                other => Err(failed("get", other)),
            }
        })
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            match self.call(|| format!("list {prefix}"), Request::List(prefix.clone()), false).await? {
                Completed::Listing(snapshot) => Ok(snapshot),
                other => Err(failed("list", other)),
            }
        })
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(self.commit_steps(steps))
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let mut watch = RemoteWatch::new(self.clone(), prefix.clone());
            match tokio::time::timeout(self.deadline, watch.fill()).await {
                Ok(result) => result.map(|()| Box::new(watch) as Box<dyn Watch>),
                Err(_) => Err(StoreError::Unavailable {
                    operation: format!("watch {prefix}"),
                    source: Cause::text(format!(
                        "owner at {}: no answer within {:?}",
                        self.path.display(),
                        self.deadline
                    )),
                }),
            }
        })
    }

    fn tenure<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<(Record, Tenure)>, StoreError>> {
        Box::pin(async move {
            match self.call(|| format!("get {key}"), Request::Tenure(key.clone()), false).await? {
                Completed::Reply(Reply::Tenure(found)) => Ok(found.map(|(record, lease)| {
                    let lease = lease.map(LeaseId);
                    (record.into(), lease.map_or(Tenure::Forever, |lease| Tenure::Leased(Some(lease))))
                })),
                other => Err(failed("get", other)),
            }
        })
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        Box::pin(async move {
            match self.call(|| "grant lease".into(), Request::Grant { ttl_ms }, true).await? {
                Completed::Reply(Reply::Lease(lease)) => Ok(LeaseId(lease)),
                other => Err(failed("grant lease", other)),
            }
        })
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(async move {
            match self
                .call(|| format!("keep lease {} alive", lease.0), Request::KeepAlive(lease.0), false)
                .await?
            {
                Completed::Reply(Reply::TtlMs(ttl_ms)) => Ok(Duration::from_millis(ttl_ms)),
                other => Err(failed("keep lease alive", other)),
            }
        })
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            match self.call(|| format!("revoke lease {}", lease.0), Request::Revoke(lease.0), true).await? {
                Completed::Reply(Reply::Done) => Ok(()),
                other => Err(failed("revoke lease", other)),
            }
        })
    }
}

fn failed(operation: &str, completed: Completed) -> StoreError {
    match completed {
        Completed::Reply(Reply::Failed(error)) => CommitError::from(error).error,
        _ => unexpected(operation),
    }
}

/// An answer that does not match its request: what the owner did is unknown.
fn unexpected(operation: &str) -> StoreError {
    StoreError::Unknown {
        operation: operation.to_owned(),
        source: Cause::text("the owner answered something else"),
    }
}
