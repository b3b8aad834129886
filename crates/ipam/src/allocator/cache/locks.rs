//! Locks that serialize requests which would only conflict with each other. They affect speed only;
//! guards decide.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A lock for each kind of request.
pub(in super::super) struct KeyedLock<K = ()> {
    busy: RefCell<Vec<K>>,
    waiting: RefCell<Vec<Waker>>,
}

/// A held lock.
pub(in super::super) struct LockGuard<'a, K: PartialEq = ()> {
    lock: &'a KeyedLock<K>,
    kind: K,
}

// === impl KeyedLock ===

impl<K: PartialEq + Clone> KeyedLock<K> {
    /// Waits for the lock of a kind.
    pub(in super::super) async fn lock(&self, kind: K) -> LockGuard<'_, K> {
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
        LockGuard { lock: self, kind }
    }
}

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        Self { busy: RefCell::default(), waiting: RefCell::default() }
    }
}

// === impl LockGuard ===

impl<K: PartialEq> Drop for LockGuard<'_, K> {
    fn drop(&mut self) {
        self.lock.busy.borrow_mut().retain(|kind| *kind != self.kind);
        // All are woken, because one that was dropped meanwhile would not wake the others.
        for waker in self.lock.waiting.take() {
            waker.wake();
        }
    }
}
