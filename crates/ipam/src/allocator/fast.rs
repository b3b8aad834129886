//! The fast path: requests that wait together share one commit, built from cached blocks and
//! handles, without a read. Engines that apply steps one by one get it in [`waves`].
//!
//! The commit creates the handles of ADDs and lowers those of DELs at the revision that was read,
//! so it fails for a container that has different state; and it is guarded by the blocks'
//! revisions. If one request is the reason of a failure, it takes the slow path and the others try
//! again without it; a block that another process changed is read again; and if the outcome is
//! unknown, all requests take the slow path, which first checks what was written.

mod batch;
mod queue;
mod waves;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;

use russet_addr::{BlockCidr, IfName, IpNet};
use russet_model::{Block, HandleId, Key};
use russet_sync::LockGuard;

use super::cache::Source;
use super::take::Owner;
use super::{Allocator, Failure, Stored};
use crate::{IpamError, Request};
use batch::{CommitBatch, Target};
use queue::{Answer, InFlightCommit, Job, QueuedRequest, Raised, StoreAnswer};

pub(super) use queue::Shared;
use waves::Wave;

/// The result of the fast path.
pub(super) enum FastPath<T, Rest = Vec<IpAddr>> {
    Done(T),
    /// The request has to take the slow path, with what is known so far.
    SlowPath(Rest),
}

/// What the slow path of an ADD has to know.
#[derive(Default)]
pub(super) struct SlowAdd {
    /// The lock of the request's source.
    pub(super) turn: Option<LockGuard>,
    /// The blocks for which the handle was raised, and which may have the addresses already.
    pub(super) raised: BTreeSet<BlockCidr>,
    /// Whether this request created the handle, so that no earlier one has addresses in them.
    pub(super) is_new: bool,
}

/// Attempts of a request in commits that fail because of other requests. Each costs all of them a
/// round trip; on its own, a request can only fail itself.
const TRIES_MAX: u32 = 4;
/// How often a request waits for another one's slow path in the hope that its own becomes
/// unnecessary.
const WAITS_MAX: u32 = 32;

// === impl Allocator ===

impl Allocator {
    /// The request's addresses, if the cache has them and the store agrees. On the slow path, one
    /// request of a source holds the lock; the others wait, and then find the cache up to date or a
    /// reason for failure.
    pub(super) async fn assign_fast(
        &self,
        request: &Request,
        owner: &Owner,
    ) -> FastPath<Vec<IpNet>, SlowAdd> {
        if !self.cache.is_on() {
            return FastPath::SlowPath(SlowAdd::default());
        }
        let mut slow = SlowAdd::default();
        for hopes in 1.. {
            let learned = self.cache.learned();
            let job = Job::Add { request: Box::new(request.clone()), owner: owner.clone() };
            match self.share(job).await {
                (Answer::Added(addresses), _) => return FastPath::Done(addresses),
                (Answer::Cold, None) => {}
                (_, None) => break,
                (_, Some(raised)) => {
                    slow.is_new = raised.stored.is_some();
                    slow.raised = raised.bases.into_keys().collect();
                    break;
                }
            }
            let turn = self.cache.slow_path.lock([Source::of(request)]).await;
            if self.cache.learned() == learned || hopes >= WAITS_MAX {
                return FastPath::SlowPath(SlowAdd { turn: Some(turn), ..slow });
            }
        }
        // It is about to change, or has changed already.
        self.cache.drop_handle(&owner.handle);
        // Requests whose blocks another program keeps changing come in dozens: one after the other,
        // or each would also make the others fail.
        slow.turn = Some(self.cache.slow_path.lock([Source::of(request)]).await);
        FastPath::SlowPath(slow)
    }

    /// Releases the addresses of a handle, or of one interface of it: all its blocks and the handle
    /// in one commit. For the slow path, returns the addresses that may have been released.
    pub(super) async fn release_fast(
        &self,
        handle: &HandleId,
        interface: Option<&IfName>,
    ) -> Result<FastPath<Vec<IpAddr>>, IpamError> {
        if !self.store.claims().atomic && !self.cache.is_on() {
            return Ok(FastPath::SlowPath(Vec::new()));
        }
        let mut stored = None;
        let blocks: Vec<BlockCidr> = match self.cache.handle(handle) {
            Some(known) => known.value.blocks().collect(),
            None => {
                // An ADD that was abandoned may still be about to write the handle.
                if self.cache.shared.writes(handle) {
                    self.share(Job::Look(handle.clone())).await;
                }
                let read = match self.handle(handle).await {
                    Ok(Some(read)) => read,
                    Ok(None) => return Ok(FastPath::Done(Vec::new())),
                    // The slow path copes without it.
                    Err(IpamError::Corrupt { .. }) => return Ok(FastPath::SlowPath(Vec::new())),
                    Err(error) => return Err(error),
                };
                stored.insert(read).value.blocks().collect()
            }
        };
        let mut read = Vec::new();
        for cidr in blocks {
            if self.cache.look(cidr, |_| ()).is_none() {
                match self.block(cidr).await {
                    Ok(Some(block)) => read.push(block),
                    // The slow path continues with the other blocks, and reports this one.
                    _ => return Ok(FastPath::SlowPath(Vec::new())),
                }
            }
        }
        let job = Job::Del { handle: handle.clone(), interface: interface.cloned(), stored, blocks: read };
        Ok(match self.share(job).await.0 {
            Answer::Freed { addresses, emptied } => {
                for cidr in emptied {
                    self.tidy_affinity(cidr).await;
                }
                FastPath::Done(addresses)
            }
            Answer::SlowPath(addresses) => FastPath::SlowPath(addresses),
            _ => FastPath::SlowPath(Vec::new()),
        })
    }

    /// Waits in the queue, and for the commit, until there is an answer. Also returns the handle that
    /// was raised for an ADD that is not done.
    async fn share(&self, job: Job) -> (Answer, Option<Raised>) {
        let ticket = self.cache.shared.enqueue(job);
        let next_commit = || self.next_commit();
        let distribute = |in_flight, answer| self.distribute(in_flight, answer);
        let answer = poll_fn(|context| ticket.poll(context, next_commit, distribute)).await;
        (answer, ticket.raised())
    }

    /// Starts one commit for the waiting requests. None if all of them have their answers.
    fn next_commit(&self) -> Option<InFlightCommit> {
        let shared = &self.cache.shared;
        let now = self.clock.now();
        let mut batch = CommitBatch::default();
        let mut later: Vec<Rc<QueuedRequest>> = Vec::new();
        for queued in shared.take_waiting() {
            // Requests of one handle stay in order.
            let is_behind = later.iter().any(|other| other.job.handle() == queued.job.handle());
            later.extend(if is_behind { Some(queued) } else { batch.admit(queued, &self.cache, now) });
        }
        shared.put_back(later);
        if batch.is_empty() {
            return None;
        }
        if !self.store.claims().atomic {
            return self.next_wave(batch, Wave::Raise);
        }
        let (store, steps) = (self.store.clone(), batch.steps());
        let work = Box::pin(async move { StoreAnswer::Commit(store.commit(steps).await) });
        Some(InFlightCommit { work, batch: Some(batch) })
    }

    /// Distributes the answers.
    fn distribute(&self, in_flight: InFlightCommit, answer: StoreAnswer) {
        match (answer, in_flight.batch) {
            (StoreAnswer::Wave(wave, results, blocks), Some(batch)) => {
                self.wave_ended(batch, wave, results, blocks);
            }
            (StoreAnswer::Commit(Ok(revisions)), Some(batch)) => batch.succeed(&revisions, &self.cache),
            (StoreAnswer::Commit(Err(error)), Some(batch)) => {
                let target = batch.target(error.failed);
                match (Failure::from(error.error), target) {
                    (Failure::Lost, Some(target)) => self.try_without(batch, target),
                    (Failure::Unknown(_), _) => batch.unknown_outcome(&self.cache),
                    _ => drop(batch), // it did not happen, and each finds out why
                }
            }
            (StoreAnswer::Block(cidr, Ok(Some(record))), _) => match Block::decode(&record.value) {
                Ok(value) if value.cidr == cidr => {
                    self.cache.keep_block(Stored { value, revision: record.revision });
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// A commit failed because of one record: its request takes the slow path, or its block is read
    /// again, and the others are the first in the next commit.
    fn try_without(&self, batch: CommitBatch, target: Target) {
        let shared = &self.cache.shared;
        let culprit = match target {
            Target::Handle(number) => Some(number),
            Target::Block(cidr) => {
                self.cache.drop_block(cidr);
                None
            }
        };
        let (mut again, mut retried_too_often) = (Vec::new(), Vec::new());
        for queued in batch.without(culprit, &self.cache) {
            queued.tries.set(queued.tries.get() + 1);
            let may = self.cache.is_on() && queued.tries.get() < TRIES_MAX;
            if may { again.push(queued) } else { retried_too_often.push(queued) }
        }
        for queued in retried_too_often {
            queued.answer(Answer::slow_path());
        }
        if let (Target::Block(cidr), false) = (target, again.is_empty()) {
            let store = self.store.clone();
            let work = Box::pin(async move {
                let key = Key::block(cidr);
                StoreAnswer::Block(cidr, store.get(&key).await)
            });
            shared.put_in_flight(InFlightCommit { work, batch: None });
        }
        shared.put_back(again);
    }
}
