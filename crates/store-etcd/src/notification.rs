//! The receiving end of a watch, for both engines: yields the events of the task that follows the
//! store. Dropping it ends the task.

use std::collections::VecDeque;

use russet_store::{BoxFuture, Cause, Event, StoreError, Watch};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// A batch from the task.
pub(crate) type Notification = Result<VecDeque<Event>, StoreError>;

/// The receiving end.
pub(crate) struct Watcher {
    ready: VecDeque<Event>,
    notifications: mpsc::Receiver<Notification>,
    task: AbortHandle,
}

/// Batches that may be queued. The task stops following the store while the queue is full. An etcd
/// v3 member splits batches at its request limit, 2 MiB by default.
const NOTIFICATIONS_MAX: usize = 16;

// === impl Watcher ===

impl Watcher {
    /// Starts the task that `follower` creates; the events in `ready` are yielded first.
    pub(crate) fn start<F>(
        ready: VecDeque<Event>,
        follower: impl FnOnce(mpsc::Sender<Notification>) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, notifications) = mpsc::channel(NOTIFICATIONS_MAX);
        let task = tokio::spawn(follower(sender)).abort_handle();
        Self { ready, notifications, task }
    }

    async fn advance(&mut self) -> Result<Event, StoreError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            match self.notifications.recv().await {
                Some(events) => self.ready = events?,
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
