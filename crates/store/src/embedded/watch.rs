//! A watch inside the owning process. It has no queue: it reads the change log after a commit that
//! concerns its prefix, so a slow watcher costs nothing.

use std::collections::VecDeque;

use russet_model::Prefix;
use tokio::sync::watch as signal;

use super::Embedded;
use crate::follow::{Followed, Known};
use crate::{BoxFuture, Cause, Event, Revision, StoreError, Watch};

pub(super) struct EmbeddedWatch {
    store: Embedded,
    prefix: Prefix,
    changes: signal::Receiver<()>,
    at: Option<Revision>,
    known: Known,
    ready: VecDeque<Event>,
}

// === impl EmbeddedWatch ===

impl EmbeddedWatch {
    pub(super) fn new(store: Embedded, prefix: Prefix) -> Self {
        let changes = store.changes(&prefix);
        Self { store, prefix, changes, at: None, known: Known::new(), ready: VecDeque::new() }
    }

    async fn advance(&mut self) -> Result<Event, StoreError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let last = self.store.revision();
            if self.at.is_none_or(|at| at < last) {
                let (followed, at) = self.store.follow(&self.prefix, self.at).await?;
                self.at = Some(at);
                self.ready = match followed {
                    Followed::Snapshot(snapshot) => self.known.absorb(snapshot),
                    Followed::Events(events) => {
                        events.into_iter().filter_map(|event| self.known.admit(event)).collect()
                    }
                };
                continue;
            }
            self.changes.changed().await.map_err(|_| StoreError::Unavailable {
                operation: format!("watch {}", self.prefix),
                source: Cause::text("the store is closed"),
            })?;
        }
    }
}

impl Watch for EmbeddedWatch {
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>> {
        Box::pin(self.advance())
    }
}
