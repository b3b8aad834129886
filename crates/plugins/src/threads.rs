//! Bounds the blocking work that may hang for other reasons than the kernel: processes of other
//! plugins, and the lock of `host-local`. All blocking work of the process shares one set of
//! threads, so each kind has a limit of its own, of which a part is reserved for DELs. The kernel
//! work in `wiring` uses the same permits.

use std::sync::{Arc, LazyLock};

use russet_cni_spec::CniError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Threads that one kind of work may use at once. Two kinds together with the kernel work use a bit
/// more than half of the agent's threads.
const CONCURRENT_MAX: usize = 16;
/// Threads of these that are reserved for DELs, so that a hundred ADDs whose plugin hangs do not
/// keep pods from being deleted.
const RESERVED_FOR_DELS: usize = 4;

/// Limits how much work of one kind runs at once. Clones share the limit.
#[derive(Debug, Clone)]
pub(crate) struct Permits {
    all: Arc<Semaphore>,
    /// Acquired by ADDs before `all`, so that ADDs never use the reserve of DELs.
    add_permits: Arc<Semaphore>,
}

/// Permission to do blocking work, until it is dropped.
pub(crate) struct Permit {
    _add_permit: Option<OwnedSemaphorePermit>,
    _permit: OwnedSemaphorePermit,
}

/// Runs one kind of blocking work on a bounded number of threads.
pub(crate) struct BlockingPool(LazyLock<Permits>);

// === impl Permits ===

impl Permits {
    /// Allows `concurrent_max` at once, of which ADDs never take the last `reserved_for_dels`.
    pub fn new(concurrent_max: usize, reserved_for_dels: usize) -> Self {
        let add_permits = Arc::new(Semaphore::new(concurrent_max - reserved_for_dels));
        Self { all: Arc::new(Semaphore::new(concurrent_max)), add_permits }
    }

    /// Waits for a permit, first come first served.
    pub async fn acquire(&self, adds: bool) -> Result<Permit, CniError> {
        let _add_permit = if adds { Some(acquire(&self.add_permits).await?) } else { None };
        Ok(Permit { _add_permit, _permit: acquire(&self.all).await? })
    }

    /// Takes a permit for an ADD if it is available without waiting.
    pub fn try_acquire(&self) -> Option<Permit> {
        let acquire = |permits: &Arc<Semaphore>| Arc::clone(permits).try_acquire_owned().ok();
        Some(Permit { _add_permit: Some(acquire(&self.add_permits)?), _permit: acquire(&self.all)? })
    }

    #[cfg(test)]
    pub fn are_exhausted(&self) -> bool {
        self.all.available_permits() == 0
    }
}

async fn acquire(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, CniError> {
    let permit = Arc::clone(permits).acquire_owned().await;
    permit.map_err(|error| CniError::internal("the process is ending, no more work is started", error))
}

// === impl BlockingPool ===

impl BlockingPool {
    pub const fn new() -> Self {
        Self(LazyLock::new(|| Permits::new(CONCURRENT_MAX, RESERVED_FOR_DELS)))
    }

    /// Runs `work` on a thread as soon as there is a permit; `adds` says that it is part of an ADD.
    pub async fn run<T: Send + 'static>(
        &'static self,
        adds: bool,
        work: impl FnOnce() -> Result<T, CniError> + Send + 'static,
    ) -> Result<T, CniError> {
        let permit = self.0.acquire(adds).await?;
        let done = tokio::task::spawn_blocking(move || {
            // Held until the work ends, even if its request no longer waits for it.
            let _permit = permit;
            work()
        });
        done.await.unwrap_or_else(|error| Err(CniError::internal("a plugin's work was interrupted", error)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError, mpsc};
    use std::time::Duration;

    use super::*;

    #[test]
    fn hundred_hanging_adds_leave_threads_to_dels_and_other_work() {
        static BLOCKING_POOL: BlockingPool = BlockingPool::new();
        const TEST_TIMEOUT: Duration = Duration::from_secs(10);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().max_blocking_threads(CONCURRENT_MAX + 1).build().unwrap();
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let hanging = |adds| {
            let hang = Arc::clone(&hang);
            // Blocks until the sender is dropped.
            let work = move || Ok(_ = hang.lock().unwrap_or_else(PoisonError::into_inner).recv());
            tokio::task::spawn_local(BLOCKING_POOL.run(adds, work))
        };
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let mut all: Vec<_> = (0..100).map(|_| hanging(true)).collect();
            tokio::task::yield_now().await;
            let del = tokio::time::timeout(TEST_TIMEOUT, BLOCKING_POOL.run(false, || Ok(()))).await;
            all.extend((0..100).map(|_| hanging(false)));
            tokio::task::yield_now().await;
            let other = tokio::time::timeout(TEST_TIMEOUT, tokio::task::spawn_blocking(|| ())).await;
            drop(release);
            for one in all {
                one.await.unwrap().unwrap();
            }
            assert!(del.is_ok(), "a DEL waits behind ADDs");
            assert!(other.is_ok(), "no thread is left for others");
        });
    }
}
