//! The writer thread: puts the requests that wait together into one transaction with one disk sync,
//! and answers each. It also ends leases that expire, and opens the file again after a disk error.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use redb::Database;
use russet_model::Prefix;
use tokio::sync::oneshot;

use super::tables::{self, Failure};
use super::{Shared, classify, open_database};
use crate::{Cause, CommitError, LeaseId, Revision, Step, StoreError};

/// Limit of requests in one transaction: bounds how long the first one waits for the others
/// (ARCHITECTURE.md, "The store").
const GROUP_MAX: usize = 32;
/// The longest interval between two checks of the leases.
const IDLE: Duration = Duration::from_secs(3600);
/// Pause before a lease is ended again after a disk error.
const EXPIRY_RETRY: Duration = Duration::from_secs(1);
/// The shortest TTL: below this a busy disk alone would end the lease.
const LEASE_MIN: Duration = Duration::from_millis(100);

/// The writer's jobs.
pub(super) enum Job {
    Commit { steps: Vec<Step>, reply: oneshot::Sender<Result<Revision, CommitError>> },
    Grant { ttl: Duration, reply: oneshot::Sender<Result<LeaseId, StoreError>> },
    KeepAlive { lease: LeaseId, reply: oneshot::Sender<Result<Duration, StoreError>> },
    Revoke { lease: LeaseId, reply: oneshot::Sender<Result<(), StoreError>> },
    Fence { reply: oneshot::Sender<()> },
    Reopen { reply: oneshot::Sender<Result<(), StoreError>> },
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    queue: Receiver<Job>,
    /// Deadlines are in memory only: after a restart each lease has its full TTL again, so a
    /// keep-alive costs no disk write.
    leases: BTreeMap<LeaseId, Lease>,
    last: Revision,
    /// The revision of which watches were notified.
    notified: Revision,
}

struct Lease {
    ttl: Duration,
    deadline: Instant,
}

/// The result of the work inside a transaction.
struct Done<T> {
    value: T,
    /// The store's revision from now on.
    last: Revision,
    /// Whether anything has to be made durable.
    changed: bool,
}

/// How far a transaction came before it failed.
enum Trouble<T> {
    /// Before the commit: certainly not on disk.
    Before(redb::Error),
    /// During the commit: unknown.
    During(Done<T>, redb::Error),
    /// The file is not open.
    Closed,
}

// === impl Writer ===

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, queue: Receiver<Job>, leases: Vec<(LeaseId, u64)>) -> Self {
        let now = Instant::now();
        let leases = leases
            .into_iter()
            .map(|(id, ttl_ms)| (id, Lease::new(Duration::from_millis(ttl_ms), now)))
            .collect();
        let last = shared.revision();
        Self { shared, queue, leases, last, notified: last }
    }

    /// Runs until every handle of the store is dropped.
    pub(super) fn run(mut self) {
        let mut held_over = None;
        loop {
            let job = match held_over.take() {
                Some(job) => job,
                None => match self.queue.recv_timeout(self.idle_time(Instant::now())) {
                    Ok(job) => job,
                    Err(RecvTimeoutError::Timeout) => {
                        self.expire(Instant::now());
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                },
            };
            match job {
                Job::Commit { steps, reply } => held_over = self.commit_group(steps, reply),
                other => self.single(other),
            }
            self.expire(Instant::now());
        }
    }

    /// Commits the request together with those that wait behind it. Returns a job of another kind
    /// if it finds one.
    fn commit_group(
        &mut self,
        steps: Vec<Step>,
        reply: oneshot::Sender<Result<Revision, CommitError>>,
    ) -> Option<Job> {
        let mut requests = vec![(steps, reply)];
        let mut other = None;
        while requests.len() < GROUP_MAX && other.is_none() {
            match self.queue.try_recv() {
                Ok(Job::Commit { steps, reply }) => requests.push((steps, reply)),
                Ok(job) => other = Some(job),
                Err(_) => break,
            }
        }
        let (steps, replies): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        let outcomes = self.commit_together(&steps);
        for (reply, outcome) in replies.into_iter().zip(outcomes) {
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
            if reply.send(outcome).is_err() {
                self.shared.abandoned.fetch_sub(1, Ordering::AcqRel);
            }
        }
        // After the answers, for which requests wait.
        let keys = || steps.iter().flatten().map(Step::key);
        self.notify(|prefix| keys().any(|key| prefix.covers(key)));
        other
    }

    fn commit_together(&mut self, requests: &[Vec<Step>]) -> Vec<Result<Revision, CommitError>> {
        let operation = || match requests {
            [steps] => describe(steps),
            _ => format!("commit {} requests together", requests.len()),
        };
        let written = self.transact(operation, |transaction, mut last| {
            let before = last;
            let mut value = Vec::with_capacity(requests.len());
            for steps in requests {
                let next = Revision(last.0 + 1);
                value.push(match tables::apply(transaction, steps, next) {
                    Ok(()) => Ok(next),
                    Err(Failure::Refused(refusal)) => Err(refusal),
                    Err(Failure::Disk(error)) => return Err(error),
                });
                last = if value.last().is_some_and(Result::is_ok) { next } else { last };
            }
            Ok(Done { value, last, changed: last != before })
        });
        let outcomes = written.unwrap_or_else(|error| vec![Err(error.into()); requests.len()]);
        let succeeded = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        self.shared.commits.fetch_add(succeeded as u64, Ordering::Relaxed);
        outcomes
    }

    fn single(&mut self, job: Job) {
        match job {
            Job::Commit { .. } => {}
            Job::Grant { ttl, reply } => {
                let _ = reply.send(self.grant(ttl));
            }
            Job::KeepAlive { lease, reply } => {
                let _ = reply.send(self.keep_alive(lease));
            }
            Job::Revoke { lease, reply } => {
                let _ = reply.send(self.revoke(lease));
            }
            Job::Fence { reply } => {
                let _ = reply.send(());
            }
            Job::Reopen { reply } => {
                let _ = reply.send(self.reopen());
            }
        }
    }

    /// Runs `work` in one transaction and makes it durable. After a disk error the file is opened
    /// again, and its content decides the answer.
    fn transact<T>(
        &mut self,
        operation: impl Fn() -> String,
        work: impl FnOnce(&redb::WriteTransaction, Revision) -> Result<Done<T>, redb::Error>,
    ) -> Result<T, StoreError> {
        let (done, trouble) = match self.shared.write(self.last, work) {
            Ok(done) => {
                self.advance_to(done.last);
                return Ok(done.value);
            }
            Err(Trouble::Before(error)) => (None, error),
            Err(Trouble::During(done, error)) => (Some(done), error),
            Err(Trouble::Closed) => {
                let opened = self.reopen();
                let source = Cause::text("the disk had failed; the store was being opened again");
                return Err(opened
                    .err()
                    .unwrap_or(StoreError::Unavailable { operation: operation(), source }));
            }
        };
        let reopened = self.reopen();
        let sync_failed = self.shared.counters.sync_failed.swap(false, Ordering::Relaxed);
        match done {
            None => Err(classify(trouble, &operation())),
            Some(_) if reopened.is_err() || sync_failed => {
                Err(StoreError::Unknown { operation: operation(), source: Cause::new(trouble) })
            }
            Some(done) if done.last == self.last => Ok(done.value),
            Some(_) => Err(classify(trouble, &operation())),
        }
    }

    fn advance_to(&mut self, last: Revision) {
        self.last = last;
        self.shared.revision.store(last.0, Ordering::Release);
    }

    /// Notifies watches of what was committed since they were notified last.
    fn notify(&mut self, is_concerned: impl Fn(&Prefix) -> bool) {
        if self.notified != self.last {
            self.notified = self.last;
            self.shared.notify(is_concerned);
        }
    }

    /// Opens the file again, because redb refuses everything after the first error, and reads its
    /// revision.
    fn reopen(&mut self) -> Result<(), StoreError> {
        tracing::warn!(path = %self.shared.path.display(), "opening the store again after a disk error");
        {
            let mut slot = self.shared.database.write().unwrap_or_else(PoisonError::into_inner);
            *slot = None;
            *slot =
                Some(open_database(&self.shared.path, &self.shared.options, &self.shared.counters, false)?);
        }
        let last =
            self.shared.read(tables::revision).map_err(|error| classify(error, "open the store again"))?;
        self.advance_to(last);
        self.notify(|_| true);
        Ok(())
    }

    // === leases ===

    fn grant(&mut self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let ttl = ttl.max(LEASE_MIN);
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let id = self.transact(
            || "grant lease".into(),
            |transaction, last| {
                let value = disk_only(tables::grant(transaction, ttl_ms))?;
                Ok(Done { value, last, changed: true })
            },
        )?;
        self.leases.insert(id, Lease::new(ttl, Instant::now()));
        Ok(id)
    }

    fn keep_alive(&mut self, id: LeaseId) -> Result<Duration, StoreError> {
        let lease = self.leases.get_mut(&id).ok_or(StoreError::NoLease { lease: id })?;
        *lease = Lease::new(lease.ttl, Instant::now());
        Ok(lease.ttl)
    }

    fn revoke(&mut self, id: LeaseId) -> Result<(), StoreError> {
        if !self.leases.contains_key(&id) {
            return Err(StoreError::NoLease { lease: id });
        }
        self.transact(
            || format!("revoke lease {}", id.0),
            |transaction, last| {
                let next = Revision(last.0 + 1);
                let any = disk_only(tables::revoke(transaction, id, next))?;
                Ok(Done { value: (), last: if any { next } else { last }, changed: true })
            },
        )?;
        // Which records had the lease is not known here.
        self.notify(|_| true);
        self.leases.remove(&id);
        Ok(())
    }

    fn idle_time(&self, now: Instant) -> Duration {
        self.leases
            .values()
            .map(|lease| lease.deadline.saturating_duration_since(now))
            .min()
            .unwrap_or(IDLE)
            .min(IDLE)
    }

    fn expire(&mut self, now: Instant) {
        let over: Vec<LeaseId> =
            self.leases.iter().filter(|(_, lease)| lease.deadline <= now).map(|(id, _)| *id).collect();
        for id in over {
            match self.revoke(id) {
                Ok(()) => tracing::info!(lease = id.0, "lease ran out"),
                Err(error) => {
                    tracing::warn!(lease = id.0, %error, "cannot end a lease yet");
                    if let Some(lease) = self.leases.get_mut(&id) {
                        lease.deadline = now + EXPIRY_RETRY;
                    }
                }
            }
        }
    }
}

// === impl Lease ===

impl Lease {
    fn new(ttl: Duration, now: Instant) -> Self {
        Self { ttl, deadline: now + ttl.min(IDLE * 24 * 365) }
    }
}

// === impl Shared ===

impl Shared {
    /// One transaction, made durable unless it changed nothing.
    fn write<T>(
        &self,
        last: Revision,
        work: impl FnOnce(&redb::WriteTransaction, Revision) -> Result<Done<T>, redb::Error>,
    ) -> Result<Done<T>, Trouble<T>> {
        let slot = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = slot.as_ref().ok_or(Trouble::Closed)?;
        let transaction = begin(database).map_err(Trouble::Before)?;
        let done = work(&transaction, last).map_err(Trouble::Before)?;
        if !done.changed {
            transaction.abort().map_err(|error| Trouble::Before(error.into()))?;
            return Ok(done);
        }
        disk_only(tables::trim_log(&transaction, done.last, self.options.log_commits))
            .map_err(Trouble::Before)?;
        self.transactions.fetch_add(1, Ordering::Relaxed);
        match transaction.commit() {
            Ok(()) => Ok(done),
            Err(error) => Err(Trouble::During(done, error.into())),
        }
    }
}

fn begin(database: &Database) -> Result<redb::WriteTransaction, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(redb::Durability::Immediate).map_err(redb::Error::from)?;
    Ok(transaction)
}

/// For work without guards: every failure is one of the disk.
fn disk_only<T>(result: Result<T, Failure>) -> Result<T, redb::Error> {
    result.map_err(|failure| match failure {
        Failure::Disk(error) => error,
        Failure::Refused(refusal) => redb::Error::Corrupted(refusal.to_string()),
    })
}

fn describe(steps: &[Step]) -> String {
    let keys: Vec<&str> = steps.iter().take(3).map(|step| step.key().as_str()).collect();
    let more = if steps.len() > keys.len() { ", ..." } else { "" };
    format!("commit {}{more}", keys.join(", "))
}
