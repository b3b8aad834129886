//! Bounded pools for blocking work. All blocking work of a process shares tokio's threads; with a
//! pool for each kind of work, one kind that hangs does not use up the threads of the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

/// Limits how much work of one kind runs at once. Clones share the limit.
#[derive(Debug, Clone)]
pub struct BlockingPool {
    all: Arc<Semaphore>,
    /// Acquired before `all` by work that must not use the reserve.
    unreserved: Arc<Semaphore>,
    closed: Arc<AtomicBool>,
    size: u32,
}

/// Permission to do blocking work, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Permit {
    _unreserved: Option<OwnedSemaphorePermit>,
    _permit: OwnedSemaphorePermit,
}

/// Why work has no result.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// It was not started.
    #[error("no more work is started")]
    Closed,
    /// It panicked.
    #[error(transparent)]
    Interrupted(JoinError),
}

// === impl BlockingPool ===

impl BlockingPool {
    /// Runs at most `size` jobs at once; the last `reserved` permits are for urgent work.
    pub fn new(size: u32, reserved: u32) -> Self {
        let permits = |count: u32| Arc::new(Semaphore::new(count as usize));
        let unreserved = permits(size.saturating_sub(reserved));
        Self { all: permits(size), unreserved, closed: Arc::default(), size }
    }

    /// Waits for a permit, first come, first served.
    pub async fn acquire(&self) -> Result<Permit, PoolError> {
        Ok(Permit { _unreserved: None, _permit: acquire(&self.all).await? })
    }

    /// Waits for a permit that is not of the reserve.
    pub async fn acquire_unreserved(&self) -> Result<Permit, PoolError> {
        let _unreserved = Some(acquire(&self.unreserved).await?);
        Ok(Permit { _unreserved, _permit: acquire(&self.all).await? })
    }

    /// A permit that is not of the reserve, if one is free now.
    pub fn try_acquire_unreserved(&self) -> Option<Permit> {
        let acquire = |permits: &Arc<Semaphore>| Arc::clone(permits).try_acquire_owned().ok();
        Some(Permit { _unreserved: Some(acquire(&self.unreserved)?), _permit: acquire(&self.all)? })
    }

    /// Runs `work` when a permit is free. A caller that gives up earlier has started nothing; work
    /// that has started is completed, whether the caller still waits or not.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        let permit = self.acquire().await?;
        self.run_with(permit, work).await
    }

    /// Runs `work` now, unless the pool was closed since the permit was asked for.
    pub async fn run_with<T: Send + 'static>(
        &self,
        permit: Permit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(PoolError::Closed);
        }
        permit.spawn(work).await.map_err(PoolError::Interrupted)
    }

    /// Lets no further job start.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Waits for the running jobs of a closed pool. Returns false if some still run at `deadline`.
    pub async fn drained(&self, deadline: Instant) -> bool {
        tokio::time::timeout_at(deadline, self.all.acquire_many(self.size)).await.is_ok()
    }
}

async fn acquire(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, PoolError> {
    Arc::clone(permits).acquire_owned().await.map_err(|_| PoolError::Closed)
}

// === impl Permit ===

impl Permit {
    /// Runs `work` on a thread and holds the permit until it ends, even if its caller no longer
    /// waits for it.
    pub fn spawn<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        tokio::task::spawn_blocking(move || {
            let _permit = self;
            work()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError, mpsc};
    use std::time::Duration;

    use super::*;

    /// A job that runs until the sender is used.
    async fn busy(pool: &BlockingPool) -> (mpsc::Sender<()>, JoinHandle<Result<(), PoolError>>) {
        let (go, wait) = mpsc::channel::<()>();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let pool = pool.clone();
        let work = move || {
            started.send(()).unwrap();
            wait.recv().unwrap();
        };
        let task = tokio::spawn(async move { pool.run(work).await });
        has_started.await.unwrap();
        (go, task)
    }

    #[tokio::test]
    async fn a_caller_that_gives_up_before_a_permit_starts_nothing() {
        let pool = BlockingPool::new(1, 0);
        let (go, first) = busy(&pool).await;
        let (sender, receiver) = mpsc::channel::<()>();
        let second = pool.run(move || sender.send(()));
        assert!(tokio::time::timeout(Duration::from_millis(20), second).await.is_err());
        go.send(()).unwrap();
        first.await.unwrap().unwrap();
        assert!(receiver.recv().is_err(), "it ran although its caller had left");
    }

    #[tokio::test]
    async fn waiting_jobs_do_not_start_once_the_pool_is_closed() {
        let pool = BlockingPool::new(1, 0);
        let (go, first) = busy(&pool).await;
        let second = pool.run(|| panic!("it must not start"));
        tokio::pin!(second);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut second).await.is_err());
        pool.close();
        go.send(()).unwrap();
        assert!(matches!(second.await, Err(PoolError::Closed)));
        first.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn started_jobs_are_completed_and_waited_for() {
        let pool = BlockingPool::new(2, 0);
        let (go, wait) = mpsc::channel::<()>();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let (sender, receiver) = mpsc::channel::<()>();
        let work = pool.run(move || {
            started.send(()).unwrap();
            wait.recv().unwrap();
            sender.send(()).unwrap();
        });
        tokio::select! {
            biased;
            _ = work => panic!("it cannot be done"),
            started = has_started => started.unwrap(),
        }
        pool.close();
        assert!(!pool.drained(Instant::now() + Duration::from_millis(20)).await);
        go.send(()).unwrap();
        receiver.recv().unwrap();
        assert!(matches!(pool.run(|| ()).await, Err(PoolError::Closed)));
    }

    #[test]
    fn hanging_work_leaves_the_reserve_and_other_threads_free() {
        const SIZE: u32 = 16;
        const TEST_TIMEOUT: Duration = Duration::from_secs(10);
        let pool = BlockingPool::new(SIZE, 4);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().max_blocking_threads(SIZE as usize + 1).build().unwrap();
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let hanging = |is_urgent: bool| {
            let (pool, hang) = (pool.clone(), Arc::clone(&hang));
            // Blocks until the sender is dropped.
            let work = move || _ = hang.lock().unwrap_or_else(PoisonError::into_inner).recv();
            tokio::task::spawn(async move {
                let permit = if is_urgent { pool.acquire().await } else { pool.acquire_unreserved().await };
                pool.run_with(permit?, work).await
            })
        };
        runtime.block_on(async {
            let mut all: Vec<_> = (0..100).map(|_| hanging(false)).collect();
            tokio::task::yield_now().await;
            let urgent = tokio::time::timeout(TEST_TIMEOUT, pool.run(|| ())).await;
            all.extend((0..100).map(|_| hanging(true)));
            tokio::task::yield_now().await;
            let other = tokio::time::timeout(TEST_TIMEOUT, tokio::task::spawn_blocking(|| ())).await;
            drop(release);
            for one in all {
                one.await.unwrap().unwrap();
            }
            assert!(urgent.is_ok(), "urgent work waits behind other work");
            assert!(other.is_ok(), "no thread is left for others");
        });
    }
}
