//! Turns: one at a time of those that would only get into each other's way. Nothing depends on them but speed; guards decide.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Something that is done by one request of each kind at a time.
pub(in super::super) struct Turns<K = ()> {
    busy: RefCell<Vec<K>>,
    waiting: RefCell<Vec<Waker>>,
}

/// Somebody's turn, until it is dropped.
pub(in super::super) struct Turn<'a, K: PartialEq = ()> {
    turns: &'a Turns<K>,
    kind: K,
}

// === impl Turns ===

impl<K: PartialEq + Clone> Turns<K> {
    /// Waits for the turn of a kind.
    pub(in super::super) async fn turn(&self, kind: K) -> Turn<'_, K> {
        poll_fn(|context| {
            let mut busy = self.busy.borrow_mut();
            if busy.contains(&kind) {
                self.waiting.borrow_mut().push(context.waker().clone());
                return Poll::Pending;
            }
            busy.push(kind.clone());
            Poll::Ready(())
        })
        .await;
        Turn { turns: self, kind }
    }
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { busy: RefCell::default(), waiting: RefCell::default() }
    }
}

// === impl Turn ===

impl<K: PartialEq> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        self.turns.busy.borrow_mut().retain(|kind| *kind != self.kind);
        // All are woken: one that was dropped in the meantime must not keep the others waiting.
        for waker in self.turns.waiting.take() {
            waker.wake();
        }
    }
}
