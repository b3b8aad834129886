//! Bounded thread pools for blocking work: one pool per kind of work, so that one kind that hangs
//! does not use up the others' threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::Status;

/// A pool that runs a limited number of jobs concurrently.
#[derive(Debug, Clone)]
pub struct WorkerPool {
    permits: Arc<Semaphore>,
    closed: Arc<AtomicBool>,
    size: u32,
}

/// The permit for one job, until it is dropped.
pub type Permit = OwnedSemaphorePermit;

// === impl WorkerPool ===

impl WorkerPool {
    /// A pool of `size` threads.
    pub fn of(size: u32) -> Self {
        Self { permits: Arc::new(Semaphore::new(size as usize)), closed: Arc::default(), size }
    }

    /// Runs `work` when a permit is free. A caller that gives up earlier has started nothing; work
    /// that has started is completed, whether the caller still waits or not.
    pub async fn execute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let permit = self.acquire().await?;
        self.execute_at(permit, work).await
    }

    /// Waits for a permit, first come, first served.
    pub async fn acquire(&self) -> Result<Permit, Status> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.map_err(|_| stopping())
    }

    /// A permit, if one is free now.
    pub fn try_acquire(&self) -> Option<Permit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Runs `work` now.
    pub async fn execute_at<T: Send + 'static>(
        &self,
        permit: Permit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        // Also refuses callers that have waited since before.
        if self.closed.load(Ordering::SeqCst) {
            return Err(stopping());
        }
        let worker = tokio::task::spawn_blocking(move || {
            let _place = permit;
            work()
        });
        worker.await.map_err(|error| Status::internal(format!("the work ended half-way: {error}")))
    }

    /// Lets no further job start.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Waits for the running jobs of a closed pool. Returns false if some still run at `deadline`.
    pub async fn rest(&self, deadline: Instant) -> bool {
        tokio::time::timeout_at(deadline, self.permits.acquire_many(self.size)).await.is_ok()
    }
}

fn stopping() -> Status {
    Status::unavailable("the server is stopping")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A job that runs until the sender is used.
    async fn busy(pool: &WorkerPool) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<(), Status>>) {
        let (go, wait) = mpsc::channel::<()>();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let pool = pool.clone();
        let work = move || {
            started.send(()).unwrap();
            wait.recv().unwrap();
        };
        let task = tokio::spawn(async move { pool.execute(work).await });
        has_started.await.unwrap();
        (go, task)
    }

    #[tokio::test]
    async fn a_caller_that_gives_up_before_a_permit_starts_nothing() {
        let pool = WorkerPool::of(1);
        let (go, first) = busy(&pool).await;
        let (sender, receiver) = mpsc::channel::<()>();
        let second = pool.execute(move || sender.send(()));
        assert!(tokio::time::timeout(Duration::from_millis(20), second).await.is_err());
        go.send(()).unwrap();
        first.await.unwrap().unwrap();
        assert!(receiver.recv().is_err(), "it ran although its caller had left");
    }

    #[tokio::test]
    async fn waiting_jobs_do_not_start_once_the_pool_is_closed() {
        let pool = WorkerPool::of(1);
        let (go, first) = busy(&pool).await;
        let second = pool.execute(|| panic!("it must not start"));
        tokio::pin!(second);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut second).await.is_err());
        pool.close();
        go.send(()).unwrap();
        assert_eq!(second.await.unwrap_err().code(), tonic::Code::Unavailable);
        first.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn started_jobs_are_completed_and_waited_for() {
        let pool = WorkerPool::of(2);
        let (go, wait) = mpsc::channel::<()>();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let (sender, receiver) = mpsc::channel::<()>();
        let work = pool.execute(move || {
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
        assert!(!pool.rest(Instant::now() + Duration::from_millis(20)).await);
        go.send(()).unwrap();
        receiver.recv().unwrap();
        let refused = pool.execute(|| ()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
    }
}
