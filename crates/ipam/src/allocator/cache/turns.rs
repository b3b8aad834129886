//! Turns: one at a time of those that would only get into each other's way. Nothing depends on them but speed; guards decide.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Something that is done by one request at a time.
#[derive(Default)]
pub(in super::super) struct Turns {
    busy: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

/// Somebody's turn, until it is dropped.
pub(in super::super) struct Turn<'a>(&'a Turns);

// === impl Turns ===

impl Turns {
    /// Waits for the turn.
    pub(in super::super) async fn turn(&self) -> Turn<'_> {
        poll_fn(|context| {
            if self.busy.replace(true) {
                self.waiting.borrow_mut().push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        Turn(self)
    }
}

// === impl Turn ===

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.set(false);
        // All are woken: one that was dropped in the meantime must not keep the others waiting.
        for waker in self.0.waiting.take() {
            waker.wake();
        }
    }
}
