//! The reason of a failed slow path, shared with the requests that waited for it: in a full cluster
//! each would read all blocks in vain, one after another, and the last ones would reach their
//! deadlines instead of getting the reason.
//!
//! A request never gets a reason that was found before it arrived, nor one that was found while a
//! release of ours freed addresses, the rules changed or another request found a free address.
//! Addresses that other processes release meanwhile are found by the next request; a shared failure
//! allocates nothing.

use super::Cache;
use crate::{IpamError, Request};

/// A failure of the slow path.
pub(super) struct Refusal {
    number: u64,
    attempt: Attempt,
    request: Request,
    error: IpamError,
}

/// When a request began to wait.
#[derive(Clone, Copy)]
pub(in super::super) struct Waiting(u64);

/// The start of a slow path, and the state at that time.
#[derive(Clone, Copy, PartialEq)]
pub(in super::super) struct Attempt {
    generation: u64,
    learned: u64,
    room: u64,
}

// === impl Cache ===

impl Cache {
    /// A request begins to wait for the lock.
    pub(in super::super) fn wait(&self) -> Waiting {
        Waiting(self.refusals.get())
    }

    /// A slow path begins.
    pub(in super::super) fn attempt(&self) -> Attempt {
        Attempt { generation: self.generation(), learned: self.learned(), room: self.room.get() }
    }

    /// Addresses or a block were released: an earlier failure may not apply any more.
    pub(in super::super) fn make_room(&self) {
        self.room.set(self.room.get() + 1);
    }

    /// Stores the reason for the requests that waited meanwhile and are equal.
    pub(in super::super) fn refuse(&self, request: &Request, attempt: Attempt, error: &IpamError) {
        let lasts = error.exhausted() || matches!(error, IpamError::NoPool { .. });
        if !self.is_on() || !lasts {
            return;
        }
        let number = self.refusals.get() + 1;
        self.refusals.set(number);
        let refusal = Refusal { number, attempt, request: request.clone(), error: error.clone() };
        self.refusal.replace(Some(refusal));
    }

    /// Why an equal request failed after this one began to wait.
    pub(in super::super) fn refusal(&self, request: &Request, since: Waiting) -> Option<IpamError> {
        let known = self.refusal.borrow();
        let known = known.as_ref()?;
        let is_new = known.number > since.0;
        let holds = known.attempt == self.attempt();
        (is_new && holds && known.fits(request)).then(|| known.error.clone())
    }
}

// === impl Refusal ===

impl Refusal {
    /// Whether a request is equal except for its owner.
    fn fits(&self, request: &Request) -> bool {
        let Request { handle, attributes, .. } = self.request.clone();
        self.request == Request { handle, attributes, ..request.clone() }
    }
}
