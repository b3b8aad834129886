//! Locks by key, for requests that exclude each other, and one that excludes all of them.
//!
//! The locks of one key are given in the order of arrival. A caller that stops waiting holds
//! nothing afterwards. The order in which keys are taken is the caller's: two keys of one set are
//! taken in the order that ARCHITECTURE.md ("Lock order") gives.

use std::collections::HashMap;
use std::hash::Hash;
use std::pin::pin;
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// A set of locks. Clones share them.
#[derive(Debug)]
pub struct KeyedLock<K = String>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K> {
    /// Held for reading with every key, for writing by the holder of all.
    all: Arc<RwLock<()>>,
    /// A key's lock exists while it is held or waited for.
    keys: StdMutex<HashMap<K, Weak<Mutex<()>>>>,
    /// A guard was dropped.
    released: Arc<Notify>,
}

/// Some keys, or all, are locked until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct LockGuard {
    keys: Vec<OwnedMutexGuard<()>>,
    shared: Option<OwnedRwLockReadGuard<()>>,
    exclusive: Option<OwnedRwLockWriteGuard<()>>,
    released: Arc<Notify>,
}

// === impl KeyedLock ===

impl<K: Eq + Hash> KeyedLock<K> {
    /// Locks every key, in this order, after the callers that came earlier.
    pub async fn lock(&self, keys: impl IntoIterator<Item = K>) -> LockGuard {
        let mut guard = self.guard();
        guard.shared = Some(Arc::clone(&self.0.all).read_owned().await);
        for key in keys {
            let key = self.key(key);
            guard.keys.push(key.lock_owned().await);
        }
        guard
    }

    /// Locks `key` if it is free now.
    pub fn try_lock(&self, key: K) -> Option<LockGuard> {
        let mut guard = self.guard();
        guard.shared = Some(Arc::clone(&self.0.all).try_read_owned().ok()?);
        guard.keys.push(self.key(key).try_lock_owned().ok()?);
        Some(guard)
    }

    /// [`lock`](Self::lock) on a thread that may block. Not for threads that run async tasks.
    pub fn lock_blocking(&self, keys: impl IntoIterator<Item = K>) -> LockGuard {
        block_on(self.lock(keys))
    }

    /// Waits until no key is locked. Meanwhile later callers get their keys: if they queued behind
    /// this one, they would all wait for the slowest of the current holders.
    pub async fn exclusive(&self) -> LockGuard {
        loop {
            let mut released = pin!(self.0.released.notified());
            released.as_mut().enable();
            if let Some(guard) = self.try_exclusive() {
                return guard;
            }
            released.await;
        }
    }

    /// [`exclusive`](Self::exclusive) on a thread that may block; `None` after `timeout`.
    pub fn exclusive_blocking(&self, timeout: Duration) -> Option<LockGuard> {
        block_on_until(self.exclusive(), Instant::now().checked_add(timeout))
    }

    /// Locks all keys if none is locked now.
    pub fn try_exclusive(&self) -> Option<LockGuard> {
        // Before there is a guard, whose end would wake the caller that waits in `exclusive`.
        let exclusive = Arc::clone(&self.0.all).try_write_owned().ok()?;
        let mut guard = self.guard();
        guard.exclusive = Some(exclusive);
        Some(guard)
    }

    fn guard(&self) -> LockGuard {
        LockGuard { keys: Vec::new(), shared: None, exclusive: None, released: Arc::clone(&self.0.released) }
    }

    fn key(&self, key: K) -> Arc<Mutex<()>> {
        let mut keys = self.0.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = keys.get(&key).and_then(Weak::upgrade) {
            return lock;
        }
        keys.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        keys.insert(key, Arc::downgrade(&lock));
        lock
    }
}

impl<K> Clone for KeyedLock<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        Self(Arc::new(Shared { all: Arc::default(), keys: StdMutex::default(), released: Arc::default() }))
    }
}

// === impl LockGuard ===

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.keys.clear();
        (self.shared, self.exclusive) = (None, None);
        self.released.notify_waiters();
    }
}

/// Wakes a thread that waits in [`block_on_until`].
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Some(done) = block_on_until(future.as_mut(), None) {
            return done;
        }
    }
}

/// Runs `future` on this thread; `None` if it is not ready at `deadline`.
fn block_on_until<T>(future: impl Future<Output = T>, deadline: Option<Instant>) -> Option<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(done);
        }
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            None => std::thread::park(),
            Some(Duration::ZERO) => return None,
            Some(left) => std::thread::park_timeout(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_key_is_served_in_order_and_different_keys_concurrently() {
        // cni-runtime.md section 6.2 item 53
        let locks = KeyedLock::default();
        let log: Rc<RefCell<Vec<String>>> = Rc::default();
        let work = |name: &'static str, key: &'static str, ms: u64| {
            let (locks, log) = (locks.clone(), Rc::clone(&log));
            async move {
                let _guard = locks.lock([key]).await;
                log.borrow_mut().push(format!("+{name}"));
                tokio::time::sleep(Duration::from_millis(ms)).await;
                log.borrow_mut().push(format!("-{name}"));
            }
        };
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let mut tasks: Vec<_> = [("a1", "a", 30), ("a2", "a", 10), ("b", "b", 20)]
                    .map(|(name, key, ms)| tokio::task::spawn_local(work(name, key, ms)))
                    .into();
                tokio::task::yield_now().await;
                let (locks, log) = (locks.clone(), Rc::clone(&log));
                tasks.push(tokio::task::spawn_local(async move {
                    let _exclusive = locks.exclusive().await;
                    log.borrow_mut().push("exclusive".to_owned());
                }));
                for task in tasks {
                    task.await.unwrap();
                }
            })
            .await;
        assert_eq!(*log.borrow(), ["+a1", "+b", "-b", "-a1", "+a2", "-a2", "exclusive"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_gives_up_holds_nothing_and_is_skipped() {
        let locks = KeyedLock::default();
        let first = locks.lock(["a", "b"]).await;
        let short = Duration::from_millis(20);
        assert!(tokio::time::timeout(short, locks.lock(["c", "a"])).await.is_err());
        assert!(locks.try_lock("a").is_none() && locks.try_lock("c").is_some());
        drop(first);
        drop(locks.lock(["a", "c"]).await);
        assert!(locks.try_exclusive().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_exclusive_access_does_not_delay_later_requests() {
        // cni-runtime.md section 6.2 item 53: the waiter is a GC
        let locks = KeyedLock::default();
        let first = locks.lock(["a"]).await;
        let exclusive = locks.exclusive();
        tokio::pin!(exclusive);
        let short = Duration::from_millis(20);
        assert!(tokio::time::timeout(short, &mut exclusive).await.is_err());
        let second = locks.lock(["b"]).await;
        drop(first);
        assert!(tokio::time::timeout(short, &mut exclusive).await.is_err());
        drop(second);
        let exclusive = exclusive.await;
        assert!(locks.try_lock("a").is_none() && locks.try_exclusive().is_none());
        drop(exclusive);
        assert!(locks.try_lock("a").is_some());
    }

    #[test]
    fn threads_that_block_exclude_each_other_by_key() {
        // cni-runtime.md section 6.2 item 53
        let locks = KeyedLock::default();
        let inside = [AtomicUsize::new(0), AtomicUsize::new(0)];
        std::thread::scope(|scope| {
            for worker in 0..8 {
                let (locks, inside) = (&locks, &inside);
                scope.spawn(move || {
                    for round in 0..200 {
                        let key = (worker + round) % 2;
                        let _guard = locks.lock_blocking([key]);
                        assert_eq!(inside[key].fetch_add(1, Ordering::SeqCst), 0);
                        inside[key].fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        drop(locks.lock_blocking([7]));
        assert_eq!(locks.0.keys.lock().unwrap().len(), 1, "locks without a holder are removed");
    }

    #[test]
    fn a_blocked_thread_gets_exclusive_access_or_its_timeout() {
        let locks = KeyedLock::default();
        let (one, two) = (locks.lock_blocking(["a"]), locks.lock_blocking(["b"]));
        assert!(locks.exclusive_blocking(Duration::ZERO).is_none());
        assert!(locks.exclusive_blocking(Duration::from_millis(5)).is_none());
        std::thread::scope(|scope| {
            let exclusive = scope.spawn(|| locks.exclusive_blocking(Duration::from_secs(60)));
            drop((one, two));
            let exclusive = exclusive.join().unwrap().unwrap();
            assert!(locks.exclusive_blocking(Duration::ZERO).is_none());
            let entered = scope.spawn(|| drop(locks.lock_blocking(["a"])));
            drop(exclusive);
            entered.join().unwrap();
        });
    }
}
