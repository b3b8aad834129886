//! One lock for each pod that is being changed (cni-runtime.md section 3.1, `podLock`).

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Locks by pod; one exists while it is held or waited for.
#[derive(Debug, Default, Clone)]
pub(crate) struct PodLocks(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The holders and waiters of each pod.
    pods: Mutex<BTreeMap<String, Entry>>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Entry {
    interested: usize,
    held: bool,
}

/// The pod is locked until this is dropped.
#[must_use]
pub(crate) struct PodGuard {
    locks: PodLocks,
    key: String,
}

// === impl PodLocks ===

impl PodLocks {
    /// Waits until the pod is unlocked.
    pub(crate) fn lock(&self, key: String) -> PodGuard {
        let mut pods = self.pods();
        pods.entry(key.clone()).or_default().interested += 1;
        let busy = |pods: &mut BTreeMap<String, Entry>| pods.get(&key).is_some_and(|entry| entry.held);
        let mut pods = self.0.released.wait_while(pods, busy).unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = pods.get_mut(&key) {
            entry.held = true;
        }
        drop(pods);
        PodGuard { locks: self.clone(), key }
    }

    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl PodGuard ===

impl Drop for PodGuard {
    fn drop(&mut self) {
        let mut pods = self.locks.pods();
        if let Some(entry) = pods.get_mut(&self.key) {
            entry.held = false;
            entry.interested -= 1;
            if entry.interested == 0 {
                pods.remove(&self.key);
            }
        }
        drop(pods);
        self.locks.0.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn one_pod_is_exclusive_and_two_pods_are_concurrent() {
        // cni-runtime.md section 6.2 item 53
        let locks = PodLocks::default();
        let inside = [AtomicUsize::new(0), AtomicUsize::new(0)];
        std::thread::scope(|scope| {
            for worker in 0..8 {
                let (locks, inside) = (&locks, &inside);
                scope.spawn(move || {
                    for round in 0..200 {
                        let pod = (worker + round) % 2;
                        let _guard = locks.lock(format!("pod{pod}"));
                        assert_eq!(inside[pod].fetch_add(1, Ordering::SeqCst), 0);
                        inside[pod].fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        let _one = locks.lock("a".into());
        let _two = locks.lock("b".into());
    }

    #[test]
    fn an_unused_lock_is_removed() {
        let locks = PodLocks::default();
        let guard = locks.lock("a".into());
        assert_eq!(locks.pods().len(), 1);
        drop(guard);
        assert!(locks.pods().is_empty());
    }
}
