//! Locks of requests that exclude each other. They are fair: the first request for a container is
//! served first.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use russet_cni_spec::{Request, Target};
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::ALONE_PAUSE;

/// The locks of plugins that exclude each other.
#[derive(Default)]
pub struct Lane {
    /// Held for reading by requests for one container, for writing by GC, which covers all
    /// containers.
    pub(super) everyone: Arc<RwLock<()>>,
    /// By container ID, and by `namespace/name` for pods, which cannot be a container ID.
    locks: RefCell<HashMap<String, Weak<Mutex<()>>>>,
}

/// The locks of one request, held as long as this value exists.
pub struct Turn {
    _pod: Option<OwnedMutexGuard<()>>,
    _container: Option<OwnedMutexGuard<()>>,
    _shared: Option<OwnedRwLockReadGuard<()>>,
    _alone: Option<OwnedRwLockWriteGuard<()>>,
}

/// No request for any container is in progress as long as this value exists.
pub struct Alone {
    _turns: [Turn; 2],
}

// === impl Alone ===

impl Alone {
    pub(super) fn both(main: Turn, ipam: Turn) -> Self {
        Self { _turns: [main, ipam] }
    }
}

// === impl Lane ===

impl Lane {
    /// Waits until no request holds a lock. It polls instead of waiting in the queue of the lock,
    /// which is fair: a waiting writer would block every later request behind the slowest of the
    /// current ones.
    pub async fn alone(&self) -> Turn {
        loop {
            match self.try_alone() {
                Some(alone) => return alone,
                None => tokio::time::sleep(ALONE_PAUSE).await,
            }
        }
    }

    /// Exclusive access, if no request holds a lock now.
    pub fn try_alone(&self) -> Option<Turn> {
        let alone = Arc::clone(&self.everyone).try_write_owned().ok()?;
        Some(Turn { _pod: None, _container: None, _shared: None, _alone: Some(alone) })
    }

    /// Waits for earlier requests for the container, then for the pod: an old and a new sandbox of
    /// one pod use the same host end.
    pub async fn turn(&self, request: &Request, target: &Target) -> Turn {
        let shared = Arc::clone(&self.everyone).read_owned().await;
        let container = self.lock_of(target.container_id.as_str()).lock_owned().await;
        let pod = match request.env.args.pod() {
            Some(pod) => Some(self.lock_of(&format!("{}/{}", pod.namespace, pod.name)).lock_owned().await),
            None => None,
        };
        Turn { _pod: pod, _container: Some(container), _shared: Some(shared), _alone: None }
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
