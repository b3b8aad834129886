//! Who waits for a commit, and the commit under way. Only the waiting: what is decided is in `fast` and `draft`.
//!
//! The commit belongs to nobody who waits for it: whoever is polled drives it, and the last to do so hands over when it is dropped. So a request that is given
//! up holds up nobody, and its commit is never given up with it: the next request to come drives it to its end first, and knows how it ended.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use russet_addr::{BlockCidr, IfName, IpNet};
use russet_model::{Block, Handle, HandleId};
use russet_store::{BoxFuture, CommitError, Record, Revision, StoreError};

use super::super::Stored;
use super::super::take::Owner;
use super::draft::Draft;
use crate::Request;

/// Everybody who waits.
#[derive(Default)]
pub(in super::super) struct Shared(RefCell<State>);

#[derive(Default)]
struct State {
    /// First come, first served.
    waiting: VecDeque<Rc<Place>>,
    flight: Option<Flight>,
    /// Who polled the flight last, and so is woken by the store.
    pilot: Option<Rc<Place>>,
}

/// One request's place in the queue, and then in a commit.
pub(super) struct Place {
    pub(super) job: Job,
    /// Commits that this request was part of and that failed for another's sake.
    pub(super) tries: Cell<u32>,
    answer: RefCell<Option<Answer>>,
    waker: RefCell<Waker>,
    /// The request was dropped.
    gone: Cell<bool>,
}

/// What a request wants.
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
    /// To read the handle when nothing is under way that writes it.
    Look(HandleId),
}

/// What a request gets.
pub(super) enum Answer {
    Added(Vec<IpNet>),
    Freed {
        addresses: Vec<IpAddr>,
        /// Blocks of which nobody holds an address any more.
        emptied: Vec<BlockCidr>,
    },
    /// Nothing is under way.
    Clear,
    /// Memory does not have enough; nothing was written.
    Cold,
    /// The long way, which looks first: what was to be written may or may not have been. These addresses were to be freed.
    LongWay(Vec<IpAddr>),
}

/// What the store is asked for on behalf of many.
pub(super) struct Flight {
    pub(super) work: BoxFuture<'static, Landed>,
    /// None while a block is read again.
    pub(super) draft: Option<Draft>,
}

/// What the store said.
pub(super) enum Landed {
    Commit(Result<Vec<Revision>, CommitError>),
    Block(BlockCidr, Result<Option<Record>, StoreError>),
}

/// Holds a place until it is dropped.
pub(super) struct Ticket<'a> {
    shared: &'a Shared,
    place: Rc<Place>,
}

// === impl Shared ===

impl Shared {
    /// Takes the last place.
    pub(super) fn line_up(&self, job: Job) -> Ticket<'_> {
        let place = Rc::new(Place {
            job,
            tries: Cell::new(0),
            answer: RefCell::new(None),
            waker: RefCell::new(Waker::noop().clone()),
            gone: Cell::new(false),
        });
        self.0.borrow_mut().waiting.push_back(place.clone());
        Ticket { shared: self, place }
    }

    /// Whether the commit under way writes this handle.
    pub(super) fn writes(&self, handle: &HandleId) -> bool {
        let state = self.0.borrow();
        state
            .flight
            .as_ref()
            .and_then(|flight| flight.draft.as_ref())
            .is_some_and(|draft| draft.names(handle))
    }

    /// Everybody who waits, in order; whoever still has to wait is [`put back`](Self::put_back).
    pub(super) fn take_waiting(&self) -> VecDeque<Rc<Place>> {
        std::mem::take(&mut self.0.borrow_mut().waiting)
    }

    /// Back to the head of the queue, in the order given.
    pub(super) fn put_back(&self, places: impl IntoIterator<Item = Rc<Place>>) {
        let mut state = self.0.borrow_mut();
        let mut queue: VecDeque<Rc<Place>> = places.into_iter().filter(|place| !place.gone.get()).collect();
        queue.append(&mut state.waiting);
        state.waiting = queue;
    }

    pub(super) fn take_flight(&self) -> Option<Flight> {
        self.0.borrow_mut().flight.take()
    }

    /// Whoever is polled next drives it.
    pub(super) fn put_flight(&self, flight: Flight) {
        let mut state = self.0.borrow_mut();
        state.flight = Some(flight);
        state.pilot = None;
    }

    /// Wakes somebody who will drive the flight, or begin the next.
    fn hand_over(&self) {
        let state = self.0.borrow();
        let aboard = state.flight.iter().filter_map(|flight| flight.draft.as_ref()).flat_map(Draft::places);
        if let Some(place) = aboard.chain(&state.waiting).find(|place| !place.gone.get()) {
            place.wake();
        }
    }
}

// === impl Place ===

impl Place {
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
    /// The answer, driving what is under way until it is there. `depart` begins the next flight with those who wait, as far as they need one; `land` hands out the answers.
    pub(super) fn poll(
        &self,
        context: &mut Context<'_>,
        depart: impl Fn() -> Option<Flight>,
        land: impl Fn(Flight, Landed),
    ) -> Poll<Answer> {
        self.place.waker.borrow_mut().clone_from(context.waker());
        loop {
            if let Some(answer) = self.place.answer.take() {
                return Poll::Ready(answer);
            }
            let Some(mut flight) = self.shared.take_flight().or_else(&depart) else {
                if self.place.is_answered() {
                    continue;
                }
                // Nobody can be waiting here: without a flight all were answered. Should it happen, look for yourself.
                return Poll::Ready(Answer::nothing_known());
            };
            match flight.work.as_mut().poll(context) {
                Poll::Ready(landed) => land(flight, landed),
                Poll::Pending => {
                    self.shared.put_flight(flight);
                    self.shared.0.borrow_mut().pilot = Some(self.place.clone());
                    if !self.place.is_answered() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.place.gone.set(true);
        let mut state = self.shared.0.borrow_mut();
        state.waiting.retain(|place| !Rc::ptr_eq(place, &self.place));
        state.pilot.take_if(|pilot| Rc::ptr_eq(pilot, &self.place));
        let is_driven = state.flight.is_some() && state.pilot.is_some();
        drop(state);
        if !is_driven {
            self.shared.hand_over();
        }
    }
}
