//! A watch through the owner's socket. It remembers what it has told, so that it can subscribe again after any interruption and tell only differences.

use std::collections::VecDeque;

use russet_model::Prefix;
use tokio::sync::mpsc;

use super::{Command, Remote, Told};
use crate::follow::Known;
use crate::{BoxFuture, Cause, Event, Revision, StoreError, Watch};

/// Messages that may wait for a slow watcher before it is cut off; each holds at most 256 KiB of records, or one larger record.
const TOLD_MAX: usize = 16;

pub(super) struct RemoteWatch {
    remote: Remote,
    prefix: Prefix,
    /// The present subscription, if any.
    subscription: Option<(u64, mpsc::Receiver<Told>)>,
    at: Option<Revision>,
    known: Known,
    ready: VecDeque<Event>,
}

// === impl RemoteWatch ===

impl RemoteWatch {
    pub(super) fn new(remote: Remote, prefix: Prefix) -> Self {
        Self { remote, prefix, subscription: None, at: None, known: Known::new(), ready: VecDeque::new() }
    }

    /// Waits until there is something to tell.
    pub(super) async fn fill(&mut self) -> Result<(), StoreError> {
        while self.ready.is_empty() {
            let Some((_, told)) = &mut self.subscription else {
                self.subscribe().await?;
                continue;
            };
            match told.recv().await {
                Some(Told::Snapshot(snapshot)) => {
                    self.at = Some(snapshot.revision);
                    self.ready = self.known.absorb(snapshot);
                }
                Some(Told::Events { events, at }) => {
                    self.at = Some(at);
                    self.ready.extend(events.into_iter().filter_map(|event| self.known.admit(event)));
                }
                Some(Told::Failed(error)) => {
                    self.subscription = None;
                    return Err(error);
                }
                // The connection broke, or we were too slow.
                None => self.subscription = None,
            }
        }
        Ok(())
    }

    async fn subscribe(&mut self) -> Result<(), StoreError> {
        let place = self.remote.commands.reserve().await.map_err(|_| StoreError::Unavailable {
            operation: format!("watch {}", self.prefix),
            source: Cause::text("the runtime is shutting down"),
        })?;
        let id = self.remote.next_id();
        let (told, receiver) = mpsc::channel(TOLD_MAX);
        place.send(Command::Watch { id, prefix: self.prefix.clone(), since: self.at, told });
        self.subscription = Some((id, receiver));
        Ok(())
    }

    async fn advance(&mut self) -> Result<Event, StoreError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            self.fill().await?;
        }
    }
}

impl Watch for RemoteWatch {
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>> {
        Box::pin(self.advance())
    }
}

impl Drop for RemoteWatch {
    fn drop(&mut self) {
        // When the queue is full the session finds out at the next event.
        if let Some((id, _)) = self.subscription.take() {
            let _ = self.remote.commands.try_send(Command::Unwatch { id });
        }
    }
}
