//! GC of a network is alone; ADD and DEL go together (cni-runtime.md section 1.13).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Many may be inside, or one alone.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<Inside>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inside {
    many: usize,
    alone: bool,
}

/// One of many, until this is dropped.
#[must_use]
pub(crate) struct Shared<'a>(&'a Gate);

/// Alone, until this is dropped.
#[must_use]
pub(crate) struct Alone<'a>(&'a Gate);

// === impl Gate ===

impl Gate {
    /// Waits while somebody is alone.
    pub(crate) fn enter(&self) -> Shared<'_> {
        let state = self.changed.wait_while(self.lock(), |inside| inside.alone);
        state.unwrap_or_else(PoisonError::into_inner).many += 1;
        Shared(self)
    }

    /// Waits until nobody is inside, and nobody waits for that in the meantime: a plugin that hangs must not make every pod wait for GC.
    pub(crate) fn alone(&self, patience: Duration) -> Option<Alone<'_>> {
        let busy = |inside: &mut Inside| inside.alone || inside.many > 0;
        let waited = self.changed.wait_timeout_while(self.lock(), patience, busy);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        state.alone = true;
        Some(Alone(self))
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
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

// === impl Alone ===

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.lock().alone = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gc_is_alone_and_others_are_together() {
        // cni-runtime.md section 6.2 item 53
        let gate = Gate::default();
        let (one, two) = (gate.enter(), gate.enter());
        assert!(gate.alone(Duration::ZERO).is_none());
        drop((one, two));
        let alone = gate.alone(Duration::ZERO).unwrap();
        assert!(gate.alone(Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let entered = scope.spawn(|| drop(gate.enter()));
            drop(alone);
            entered.join().unwrap();
        });
    }
}
