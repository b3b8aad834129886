//! One lock per pod. A request that changes a pod waits here, where waiting needs no thread and can
//! be cancelled, and holds no pool permit meanwhile: requests for one hanging pod must not use up
//! the permits of all others. A request that waits for a permit holds no lock either.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Lock, PoisonError};

use tokio::sync::{Mutex, OwnedMutexGuard};

/// One queue for each pod that is locked or waited for.
#[derive(Debug, Clone, Default)]
pub struct KeyedLock(Arc<Lock<HashMap<String, Arc<Mutex<()>>>>>);

/// The pod is locked until this is dropped.
#[must_use]
pub struct LockGuard(OwnedMutexGuard<()>);

// === impl KeyedLock ===

impl KeyedLock {
    /// Locks `pod`, first come, first served.
    pub async fn at(&self, pod: String) -> LockGuard {
        LockGuard(self.queue(pod).lock_owned().await)
    }

    /// Locks `pod` if it is free now.
    pub fn try_at(&self, pod: String) -> Option<LockGuard> {
        self.queue(pod).try_lock_owned().ok().map(LockGuard)
    }

    fn queue(&self, pod: String) -> Arc<Mutex<()>> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes queues without holder and waiters.
        queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        Arc::clone(queues.entry(pod).or_default())
    }
}

// === impl LockGuard ===

impl LockGuard {
    /// Unlocks the pod.
    pub fn unlock(self) {
        drop(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_pod_has_one_holder_and_cancelled_waiters_are_skipped() {
        let locks = KeyedLock::default();
        let first = locks.at("a".to_owned()).await;
        let _other = locks.at("b".to_owned()).await;
        let short = Duration::from_millis(20);
        assert!(tokio::time::timeout(short, locks.at("a".to_owned())).await.is_err());
        first.unlock();
        locks.at("a".to_owned()).await.unlock();
        locks.at("c".to_owned()).await.unlock();
        // Unused queues are removed when the next request comes.
        let _last = locks.at("d".to_owned()).await;
        assert_eq!(locks.0.lock().unwrap().len(), 2, "b and d");
    }
}
