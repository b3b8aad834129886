//! Locks of requests that exclude each other. They are fair: the first request for a container is
//! served first.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use russet_cni_spec::{Request, Target};
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::EXCLUSIVE_POLL_INTERVAL;

/// The locks of plugins that exclude each other.
#[derive(Default)]
pub struct RequestLocks {
    /// Held for reading by requests for one container, for writing by GC, which covers all
    /// containers.
    pub(super) all: Arc<RwLock<()>>,
    /// By container ID, and by `namespace/name` for pods, which cannot be a container ID.
    locks: RefCell<HashMap<String, Weak<Mutex<()>>>>,
}

/// The locks of one request, held as long as this value exists.
pub struct RequestGuard {
    _pod: Option<OwnedMutexGuard<()>>,
    _container: Option<OwnedMutexGuard<()>>,
    _shared: Option<OwnedRwLockReadGuard<()>>,
    _exclusive: Option<OwnedRwLockWriteGuard<()>>,
}

/// No request for any container is in progress as long as this value exists.
pub struct ExclusiveGuard {
    _turns: [RequestGuard; 2],
}

// === impl ExclusiveGuard ===

impl ExclusiveGuard {
    pub(super) fn both(main: RequestGuard, ipam: RequestGuard) -> Self {
        Self { _turns: [main, ipam] }
    }
}

// === impl RequestLocks ===

impl RequestLocks {
    /// Waits until no request holds a lock. It polls instead of waiting in the queue of the lock,
    /// which is fair: a waiting writer would block every later request behind the slowest of the
    /// current ones.
    pub async fn exclusive(&self) -> RequestGuard {
        loop {
            match self.try_exclusive() {
                Some(guard) => return guard,
                None => tokio::time::sleep(EXCLUSIVE_POLL_INTERVAL).await,
            }
        }
    }

    /// Exclusive access, if no request holds a lock now.
    pub fn try_exclusive(&self) -> Option<RequestGuard> {
        let guard = Arc::clone(&self.all).try_write_owned().ok()?;
        Some(RequestGuard { _pod: None, _container: None, _shared: None, _exclusive: Some(guard) })
    }

    /// Waits for earlier requests for the container, then for the pod: an old and a new sandbox of
    /// one pod use the same host end.
    pub async fn lock(&self, request: &Request, target: &Target) -> RequestGuard {
        let shared = Arc::clone(&self.all).read_owned().await;
        let container = self.lock_of(target.container_id.as_str()).lock_owned().await;
        let pod = match request.env.args.pod() {
            Some(pod) => Some(self.lock_of(&format!("{}/{}", pod.namespace, pod.name)).lock_owned().await),
            None => None,
        };
        RequestGuard { _pod: pod, _container: Some(container), _shared: Some(shared), _exclusive: None }
    }

    /// The lock of one container or pod. Also removes locks that no request holds.
    pub(super) fn lock_of(&self, subject: &str) -> Arc<Mutex<()>> {
        let mut locks = self.locks.borrow_mut();
        if let Some(lock) = locks.get(subject).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(Mutex::new(()));
        locks.insert(subject.to_owned(), Arc::downgrade(&lock));
        lock
    }
}
