//! Whose turn it is among requests that wait for each other. Fair: whoever came first for a container is served first.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use russet_cni_spec::{Request, Target};
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::ALONE_PAUSE;

/// Plugins that wait for each other.
#[derive(Default)]
pub struct Lane {
    /// Held for reading by work on one container, for writing by GC, which looks at all of them.
    pub(super) everyone: Arc<RwLock<()>>,
    /// By container ID, and by `namespace/name` for pods, which no container ID can be.
    locks: RefCell<HashMap<String, Weak<Mutex<()>>>>,
}

/// The right to work, for as long as it is kept.
pub struct Turn {
    _pod: Option<OwnedMutexGuard<()>>,
    _container: Option<OwnedMutexGuard<()>>,
    _shared: Option<OwnedRwLockReadGuard<()>>,
    _alone: Option<OwnedRwLockWriteGuard<()>>,
}

/// No request for any container is under way as long as this is kept.
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
    /// Waits for a moment in which nobody works. Without a place in the lock's queue: it is a fair one, and whoever waits there holds up every request
    /// that comes after him, behind the slowest of those before him.
    pub async fn alone(&self) -> Turn {
        loop {
            match self.try_alone() {
                Some(alone) => return alone,
                None => tokio::time::sleep(ALONE_PAUSE).await,
            }
        }
    }

    /// The same if the moment is now.
    pub fn try_alone(&self) -> Option<Turn> {
        let alone = Arc::clone(&self.everyone).try_write_owned().ok()?;
        Some(Turn { _pod: None, _container: None, _shared: None, _alone: Some(alone) })
    }

    /// Waits for whatever else works on the container, then on the pod: an old sandbox and a new one of the same pod want the same host end.
    pub async fn turn(&self, request: &Request, target: &Target) -> Turn {
        let shared = Arc::clone(&self.everyone).read_owned().await;
        let container = self.lock_of(target.container_id.as_str()).lock_owned().await;
        let pod = match request.env.args.pod() {
            Some(pod) => Some(self.lock_of(&format!("{}/{}", pod.namespace, pod.name)).lock_owned().await),
            None => None,
        };
        Turn { _pod: pod, _container: Some(container), _shared: Some(shared), _alone: None }
    }

    /// The lock of one container or pod. Locks that nobody holds are forgotten on the way.
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
