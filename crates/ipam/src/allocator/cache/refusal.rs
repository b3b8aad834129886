//! Why there was no address, told also to those who waited for their turn meanwhile: in a full cluster each would look through all blocks for nothing, one after
//! another, and the last would run out of time instead of learning the reason.
//!
//! Nobody gets a reason that was found before it came, nor one that was found while a release of ours made room, the rules changed or somebody else found room.
//! What other processes free in the meantime is found by the next to come; a refusal gives nothing away.

use super::Cache;
use crate::{IpamError, Request};

/// How a long way failed.
pub(super) struct Refusal {
    number: u64,
    attempt: Attempt,
    asked: Request,
    error: IpamError,
}

/// Since when a request waits.
#[derive(Clone, Copy)]
pub(in super::super) struct Waiting(u64);

/// A long way, and what was known when it began.
#[derive(Clone, Copy, PartialEq)]
pub(in super::super) struct Attempt {
    generation: u64,
    learned: u64,
    room: u64,
}

// === impl Cache ===

impl Cache {
    /// A request begins to wait for its turn.
    pub(in super::super) fn wait(&self) -> Waiting {
        Waiting(self.refusals.get())
    }

    /// A long way begins.
    pub(in super::super) fn attempt(&self) -> Attempt {
        Attempt { generation: self.generation(), learned: self.learned(), room: self.room.get() }
    }

    /// Addresses were given back, or a block: what was found full before may not be so.
    pub(in super::super) fn make_room(&self) {
        self.room.set(self.room.get() + 1);
    }

    /// The reason for those who waited meanwhile and want the same.
    pub(in super::super) fn refuse(&self, request: &Request, attempt: Attempt, error: &IpamError) {
        let lasts = error.exhausted() || matches!(error, IpamError::NoPool { .. });
        if !self.is_on() || !lasts {
            return;
        }
        let number = self.refusals.get() + 1;
        self.refusals.set(number);
        let refusal = Refusal { number, attempt, asked: request.clone(), error: error.clone() };
        self.refusal.replace(Some(refusal));
    }

    /// Why another request that wanted the same was refused after this one began to wait.
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
    /// Whether a request wants the same, whoever it is for.
    fn fits(&self, request: &Request) -> bool {
        let Request { handle, attributes, .. } = self.asked.clone();
        self.asked == Request { handle, attributes, ..request.clone() }
    }
}
