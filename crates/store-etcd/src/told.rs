//! The receiving end of a watch, for both engines: yields the events of the task that follows the
//! store. Dropping it ends the task.

use std::collections::VecDeque;

use russet_store::{BoxFuture, Cause, Event, StoreError, Watch};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// A batch from the task.
pub(crate) type Told = Result<VecDeque<Event>, StoreError>;

/// The receiving end.
pub(crate) struct Watcher {
    ready: VecDeque<Event>,
    told: mpsc::Receiver<Told>,
    task: AbortHandle,
}

/// Batches that may be queued. The task stops following the store while the queue is full. An etcd
/// v3 member splits batches at its request limit, 2 MiB by default.
const TOLD_MAX: usize = 16;

// === impl Watcher ===

impl Watcher {
    /// Starts the task that `follower` creates; the events in `ready` are yielded first.
    pub(crate) fn start<F>(ready: VecDeque<Event>, follower: impl FnOnce(mpsc::Sender<Told>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (teller, told) = mpsc::channel(TOLD_MAX);
        let task = tokio::spawn(follower(teller)).abort_handle();
        Self { ready, told, task }
    }

    async fn advance(&mut self) -> Result<Event, StoreError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            match self.told.recv().await {
                Some(told) => self.ready = told?,
                None => {
                    let source = Cause::text("the runtime is shutting down");
                    return Err(StoreError::Unavailable { operation: "watch".to_owned(), source });
                }
            }
        }
    }
}

impl Watch for Watcher {
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>> {
        Box::pin(self.advance())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}
