//! Locks of requests: those for one sandbox in the order of arrival, those for different sandboxes
//! concurrently, a GC without any other.

use std::cell::RefCell;
use std::collections::HashMap;
#[cfg(test)]
use std::rc::Rc;
use std::sync::Arc;

use russet_addr::ContainerId;
use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The locks.
#[derive(Debug, Default)]
pub struct SandboxLocks {
    all: RwLock<()>,
    sandboxes: RefCell<HashMap<String, std::sync::Weak<Mutex<()>>>>,
    kernel: Mutex<()>,
}

/// The right to work on one sandbox.
#[derive(Debug)]
pub struct SandboxGuard<'t> {
    _all: RwLockReadGuard<'t, ()>,
    _sandbox: OwnedMutexGuard<()>,
}

// === impl SandboxLocks ===

impl SandboxLocks {
    /// Waits for all earlier requests for the same sandbox.
    pub async fn lock(&self, sandbox: &ContainerId) -> SandboxGuard<'_> {
        // The sandbox's lock comes first, because its queue has the order of arrival.
        let sandbox = self.lock_of(sandbox.as_str());
        let _all = self.all.read().await;
        let _sandbox = sandbox.lock_owned().await;
        SandboxGuard { _all, _sandbox }
    }

    /// Waits until no request works on any sandbox.
    pub async fn exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.all.write().await
    }

    /// There is one data path. Requests wait for it here, not on a blocked thread.
    pub async fn data_path(&self) -> MutexGuard<'_, ()> {
        self.kernel.lock().await
    }

    /// Also removes locks that no request holds.
    fn lock_of(&self, sandbox: &str) -> Arc<Mutex<()>> {
        let mut locks = self.sandboxes.borrow_mut();
        if let Some(lock) = locks.get(sandbox).and_then(std::sync::Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(Mutex::new(()));
        locks.insert(sandbox.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(text: &str) -> ContainerId {
        ContainerId::new(text).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_for_one_sandbox_are_ordered_and_others_concurrent() {
        // cni-runtime.md section 6.2 item 53
        let locks = Rc::new(SandboxLocks::default());
        let log: Rc<RefCell<Vec<String>>> = Rc::default();
        let local = tokio::task::LocalSet::new();
        let work = |name: &'static str, sandbox: &'static str, ms: u64| {
            let (locks, log) = (Rc::clone(&locks), Rc::clone(&log));
            async move {
                let _guard = locks.lock(&id(sandbox)).await;
                log.borrow_mut().push(format!("+{name}"));
                tokio::time::sleep(Duration::from_millis(ms)).await;
                log.borrow_mut().push(format!("-{name}"));
            }
        };
        local
            .run_until(async {
                let mut tasks: Vec<_> = [("a1", "a", 30), ("a2", "a", 10), ("b", "b", 20)]
                    .map(|(name, sandbox, ms)| tokio::task::spawn_local(work(name, sandbox, ms)))
                    .into();
                tokio::task::yield_now().await;
                let (locks, log) = (Rc::clone(&locks), Rc::clone(&log));
                tasks.push(tokio::task::spawn_local(async move {
                    let _exclusive = locks.exclusive().await;
                    log.borrow_mut().push("gc".to_owned());
                }));
                for task in tasks {
                    task.await.unwrap();
                }
            })
            .await;
        assert_eq!(*log.borrow(), ["+a1", "+b", "-b", "-a1", "+a2", "-a2", "gc"]);
        drop(locks.lock(&id("c")).await);
        assert_eq!(locks.sandboxes.borrow().len(), 1, "locks without a holder are removed");
    }
}
