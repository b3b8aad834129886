//! GC of a network is exclusive; ADD and DEL are concurrent (cni-runtime.md section 1.13).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A readers-writer lock with a timeout for the writer.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<Holders>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Holders {
    many: usize,
    enter_exclusively: bool,
}

/// Shared access, until this is dropped.
#[must_use]
pub(crate) struct Shared<'a>(&'a Gate);

/// Exclusive access, until this is dropped.
#[must_use]
pub(crate) struct Exclusive<'a>(&'a Gate);

// === impl Gate ===

impl Gate {
    /// Waits while another caller has exclusive access.
    pub(crate) fn enter(&self) -> Shared<'_> {
        let state = self.changed.wait_while(self.lock(), |inside| inside.enter_exclusively);
        state.unwrap_or_else(PoisonError::into_inner).many += 1;
        Shared(self)
    }

    /// Waits until there are no other holders. New shared holders may enter meanwhile: a hanging
    /// plugin must not make every pod wait for GC.
    pub(crate) fn enter_exclusively(&self, timeout_after: Duration) -> Option<Exclusive<'_>> {
        let busy = |inside: &mut Holders| inside.enter_exclusively || inside.many > 0;
        let waited = self.changed.wait_timeout_while(self.lock(), timeout_after, busy);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        state.enter_exclusively = true;
        Some(Exclusive(self))
    }

    fn lock(&self) -> MutexGuard<'_, Holders> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Shared ===

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.0.lock().many -= 1;
        self.0.changed.notify_all();
    }
}

// === impl Exclusive ===

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.lock().enter_exclusively = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gc_is_exclusive_and_others_are_concurrent() {
        // cni-runtime.md section 6.2 item 53
        let gate = Gate::default();
        let (one, two) = (gate.enter(), gate.enter());
        assert!(gate.enter_exclusively(Duration::ZERO).is_none());
        drop((one, two));
        let enter_exclusively = gate.enter_exclusively(Duration::ZERO).unwrap();
        assert!(gate.enter_exclusively(Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let entered = scope.spawn(|| drop(gate.enter()));
            drop(enter_exclusively);
            entered.join().unwrap();
        });
    }
}
