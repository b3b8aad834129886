//! The queue of requests, and the commit in progress. Decisions are in `fast` and `batch`.
//!
//! The commit belongs to no single request: any request that is polled drives it, and the leader
//! hands over when it is dropped. So an abandoned request delays no other, and its commit is never
//! abandoned with it: the next request drives it to its end first, and learns the result.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use russet_addr::{BlockCidr, IfName, IpNet};
use russet_model::{Block, Handle, HandleId};
use russet_store::{BoxFuture, CommitError, Record, Revision, StoreError};

use super::super::take::Owner;
use super::super::{Failure, Stored};
use super::batch::CommitBatch;
use super::waves::Wave;
use crate::Request;

/// The queue that all requests share.
#[derive(Default)]
pub(in super::super) struct Shared(RefCell<QueueState>);

#[derive(Default)]
struct QueueState {
    /// In the order of arrival.
    waiting: VecDeque<Rc<QueuedRequest>>,
    in_flight: Option<InFlightCommit>,
    /// The request that polled the commit last, and is therefore woken by the store.
    leader: Option<Rc<QueuedRequest>>,
}

/// One request in the queue, and then in a commit.
pub(super) struct QueuedRequest {
    pub(super) job: Job,
    /// Commits with this request that failed because of another one.
    pub(super) tries: Cell<u32>,
    /// The handle of an ADD whose block is not written yet, on an engine that applies steps one by
    /// one.
    pub(super) raised: RefCell<Option<Raised>>,
    answer: RefCell<Option<Answer>>,
    waker: RefCell<Waker>,
    /// The request was dropped.
    gone: Cell<bool>,
}

/// A handle that was raised for blocks.
pub(super) struct Raised {
    /// As it is stored; none if the answer was lost.
    pub(super) stored: Option<Stored<Handle>>,
    /// The blocks' revisions before. At a later revision of a block the handle has to be raised
    /// again, since a DEL that found no address may have lowered it.
    pub(super) bases: BTreeMap<BlockCidr, Revision>,
}

/// The request's operation.
pub(super) enum Job {
    Add {
        request: Box<Request>,
        owner: Owner,
    },
    Del {
        handle: HandleId,
        interface: Option<IfName>,
        /// The handle if it had to be read, and those of its blocks.
        stored: Option<Stored<Handle>>,
        blocks: Vec<Stored<Block>>,
    },
    /// Waits until no commit in progress writes the handle, so that it can be read.
    Look(HandleId),
}

/// The result of a request.
pub(super) enum Answer {
    Added(Vec<IpNet>),
    Freed {
        addresses: Vec<IpAddr>,
        /// Blocks without an allocated address.
        emptied: Vec<BlockCidr>,
    },
    /// No commit is in progress.
    Clear,
    /// The cache does not have enough; nothing was written.
    Cold,
    /// The slow path, which first reads: the commit may have been applied. These addresses were to
    /// be released.
    SlowPath(Vec<IpAddr>),
}

/// One request to the store on behalf of many.
pub(super) struct InFlightCommit {
    pub(super) work: BoxFuture<'static, StoreAnswer>,
    /// None while a block is read again.
    pub(super) batch: Option<CommitBatch>,
}

/// The store's answer.
pub(super) enum StoreAnswer {
    Commit(Result<Vec<Revision>, CommitError>),
    /// The result of each step, and blocks that were read again.
    Wave(Wave, Vec<Result<Revision, Failure>>, Vec<Record>),
    Block(BlockCidr, Result<Option<Record>, StoreError>),
}

/// Keeps a request in the queue until it is dropped.
pub(super) struct Ticket<'a> {
    shared: &'a Shared,
    queued: Rc<QueuedRequest>,
}

// === impl Shared ===

impl Shared {
    /// Adds a request at the end.
    pub(super) fn enqueue(&self, job: Job) -> Ticket<'_> {
        let queued = Rc::new(QueuedRequest {
            job,
            tries: Cell::new(0),
            raised: RefCell::new(None),
            answer: RefCell::new(None),
            waker: RefCell::new(Waker::noop().clone()),
            gone: Cell::new(false),
        });
        self.0.borrow_mut().waiting.push_back(queued.clone());
        Ticket { shared: self, queued }
    }

    /// Whether the commit in progress writes this handle.
    pub(super) fn writes(&self, handle: &HandleId) -> bool {
        let state = self.0.borrow();
        state
            .in_flight
            .as_ref()
            .and_then(|in_flight| in_flight.batch.as_ref())
            .is_some_and(|batch| batch.names(handle))
    }

    /// All waiting requests, in order; those that have to wait further are [`put
    /// back`](Self::put_back).
    pub(super) fn take_waiting(&self) -> VecDeque<Rc<QueuedRequest>> {
        std::mem::take(&mut self.0.borrow_mut().waiting)
    }

    /// Puts requests back to the head of the queue, in this order.
    pub(super) fn put_back(&self, requests: impl IntoIterator<Item = Rc<QueuedRequest>>) {
        let mut state = self.0.borrow_mut();
        let mut queue: VecDeque<Rc<QueuedRequest>> =
            requests.into_iter().filter(|queued| !queued.gone.get()).collect();
        queue.append(&mut state.waiting);
        state.waiting = queue;
    }

    pub(super) fn take_in_flight(&self) -> Option<InFlightCommit> {
        self.0.borrow_mut().in_flight.take()
    }

    /// The next request that is polled drives it.
    pub(super) fn put_in_flight(&self, in_flight: InFlightCommit) {
        let mut state = self.0.borrow_mut();
        state.in_flight = Some(in_flight);
        state.leader = None;
    }

    /// Wakes a request that will drive the commit, or start the next one.
    fn wake_next(&self) {
        let state = self.0.borrow();
        let members = state
            .in_flight
            .iter()
            .filter_map(|in_flight| in_flight.batch.as_ref())
            .flat_map(CommitBatch::requests);
        if let Some(queued) = members.chain(&state.waiting).find(|queued| !queued.gone.get()) {
            queued.wake();
        }
    }
}

// === impl QueuedRequest ===

impl QueuedRequest {
    pub(super) fn answer(&self, answer: Answer) {
        self.answer.replace(Some(answer));
        self.wake();
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answer.borrow().is_some()
    }

    fn wake(&self) {
        self.waker.borrow().wake_by_ref();
    }
}

// === impl Job ===

impl Job {
    pub(super) fn handle(&self) -> &HandleId {
        match self {
            Self::Add { owner, .. } => &owner.handle,
            Self::Del { handle, .. } | Self::Look(handle) => handle,
        }
    }
}

// === impl Ticket ===

impl Ticket<'_> {
    /// The handle that was raised for the request, if its block is not known to be written.
    pub(super) fn raised(&self) -> Option<Raised> {
        self.queued.raised.take()
    }

    /// Returns the answer, and drives the commit in progress until it is there. `next_commit` starts the
    /// next commit with the waiting requests, as far as they need one; `distribute` distributes the
    /// answers.
    pub(super) fn poll(
        &self,
        context: &mut Context<'_>,
        next_commit: impl Fn() -> Option<InFlightCommit>,
        distribute: impl Fn(InFlightCommit, StoreAnswer),
    ) -> Poll<Answer> {
        self.queued.waker.borrow_mut().clone_from(context.waker());
        loop {
            if let Some(answer) = self.queued.answer.take() {
                return Poll::Ready(answer);
            }
            let Some(mut in_flight) = self.shared.take_in_flight().or_else(&next_commit) else {
                if self.queued.is_answered() {
                    continue;
                }
                // This is not expected: without a commit in progress all requests were answered.
                // The slow path works in any case.
                return Poll::Ready(Answer::slow_path());
            };
            match in_flight.work.as_mut().poll(context) {
                Poll::Ready(answer) => distribute(in_flight, answer),
                Poll::Pending => {
                    self.shared.put_in_flight(in_flight);
                    self.shared.0.borrow_mut().leader = Some(self.queued.clone());
                    if !self.queued.is_answered() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.queued.gone.set(true);
        let mut state = self.shared.0.borrow_mut();
        state.waiting.retain(|queued| !Rc::ptr_eq(queued, &self.queued));
        state.leader.take_if(|leader| Rc::ptr_eq(leader, &self.queued));
        let is_driven = state.in_flight.is_some() && state.leader.is_some();
        drop(state);
        if !is_driven {
            self.shared.wake_next();
        }
    }
}
