//! A watch through the owner's socket. It remembers what it has reported, so that it can subscribe
//! again after any interruption and report only differences.

use std::collections::VecDeque;

use russet_model::Prefix;
use tokio::sync::mpsc;

use super::{Command, Remote, WatchMessage};
use crate::follow::Known;
use crate::{BoxFuture, Cause, Event, Revision, StoreError, Watch};

/// Messages that may wait for a slow watcher before it is cut off; each has at most 256 KiB of
/// records, or one larger record.
const MESSAGES_MAX: usize = 16;

pub(super) struct RemoteWatch {
    remote: Remote,
    prefix: Prefix,
    /// The current subscription, if any.
    subscription: Option<(u64, mpsc::Receiver<WatchMessage>)>,
    at: Option<Revision>,
    known: Known,
    ready: VecDeque<Event>,
}

// === impl RemoteWatch ===

impl RemoteWatch {
    pub(super) fn new(remote: Remote, prefix: Prefix) -> Self {
        Self { remote, prefix, subscription: None, at: None, known: Known::new(), ready: VecDeque::new() }
    }

    /// Waits until there is an event.
    pub(super) async fn fill(&mut self) -> Result<(), StoreError> {
        while self.ready.is_empty() {
            let Some((_, messages)) = &mut self.subscription else {
                self.subscribe().await?;
                continue;
            };
            match messages.recv().await {
                Some(WatchMessage::Snapshot(snapshot)) => {
                    self.at = Some(snapshot.revision);
                    self.ready = self.known.absorb(snapshot);
                }
                Some(WatchMessage::Events { events, at }) => {
                    self.at = Some(at);
                    self.ready.extend(events.into_iter().filter_map(|event| self.known.admit(event)));
                }
                Some(WatchMessage::Failed(error)) => {
                    self.subscription = None;
                    return Err(error);
                }
                // The connection broke, or this watch was too slow.
                None => self.subscription = None,
            }
        }
        Ok(())
    }

    async fn subscribe(&mut self) -> Result<(), StoreError> {
        let connection = self.remote.commands.reserve().await.map_err(|_| StoreError::Unavailable {
            operation: format!("watch {}", self.prefix),
            source: Cause::text("the runtime is shutting down"),
        })?;
        let id = self.remote.next_id();
        let (messages, receiver) = mpsc::channel(MESSAGES_MAX);
        connection.send(Command::Watch { id, prefix: self.prefix.clone(), since: self.at, messages });
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
        // If the queue is full, the session notices it at the next event.
        if let Some((id, _)) = self.subscription.take() {
            let _ = self.remote.commands.try_send(Command::Unwatch { id });
        }
    }
}
