//! A watch over the v2 API: a snapshot, then one long poll after another, each from the index after
//! the last event. A member remembers the last 1,000 changes of the whole store and answers 401 for
//! older ones; then, and whenever an event is not enough to know what the prefix contains,
//! everything is listed again, and only the differences are sent to the watcher.

use std::sync::Arc;
use std::time::Duration;

use russet_model::Prefix;
use russet_store::{Event, Known, Revision, StoreError};
use russet_sync::Backoff;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::backoff;
use crate::failure::{Class, Effect, Failure};
use crate::notification::{Notification, Watcher};
use crate::v2::answer::{Done, Reply, Why};
use crate::v2::client::Client;
use crate::v2::http::Question;
use crate::v2::{list, path};

/// The longest poll. HTTP/1.1 has no pings: a member that stalled or disappeared is detected only
/// by a new request.
const POLL_MAX: Duration = Duration::from_secs(60);
/// Refusals before the watcher gets an error.
const MAX_REFUSALS: u32 = 2;
/// Consecutive polls at members whose index is behind the last event, before the store counts as
/// restored from a backup.
const MAX_BEHIND: u32 = 2;

/// The sending end of a watch, run by a task.
struct Follower {
    client: Arc<Client>,
    prefix: Prefix,
    known: Known,
    /// The index up to which all changes were processed.
    at: u64,
    notifications: mpsc::Sender<Notification>,
    backoff: Backoff,
    refusals: u32,
    behind: u32,
}

/// How a poll ended.
enum Polled {
    Changed(Done),
    /// Nothing changed as far as this member knows, which was at that index.
    Quiet(u64),
    /// The member's history does not reach back so far.
    Cleared,
}

/// Lists, and follows from there. While the watcher's queue is full no poll is open; changes that
/// members forget meanwhile are found by listing.
pub(crate) async fn begin(client: Arc<Client>, prefix: Prefix) -> Result<Watcher, StoreError> {
    let snapshot = list(&client, &prefix).await?;
    let at = snapshot.revision.0;
    let mut known = Known::new();
    let ready = known.absorb(snapshot);
    Ok(Watcher::start(ready, |notifications| {
        Follower { client, prefix, known, at, notifications, backoff: backoff(), refusals: 0, behind: 0 }
            .run()
    }))
}

// === impl Follower ===

impl Follower {
    async fn run(mut self) {
        while !self.notifications.is_closed() {
            let notification = match self.poll().await {
                Ok(Polled::Changed(done)) => self.admit(done).await,
                Ok(Polled::Quiet(index)) => self.quiet(index).await,
                Ok(Polled::Cleared) => self.relist("its member no longer remembers the changes").await,
                Err(failure) => self.after(failure).await.map(Err),
            };
            let Some(notification) =
                notification.filter(|found| !matches!(found, Ok(events) if events.is_empty()))
            else {
                continue;
            };
            if self.notifications.send(notification).await.is_err() {
                return;
            }
        }
    }

    /// Waits for the next change.
    async fn poll(&mut self) -> Result<Polled, Failure> {
        let members = &self.client.members;
        let turn = members.turn();
        let directory = path::of_directory(&self.prefix);
        let target = format!("{directory}?wait=true&recursive=true&waitIndex={}", self.at.saturating_add(1));
        let polled = async {
            let deadline = Instant::now() + self.client.member_timeout();
            let opened = self.client.ask(turn, deadline, &Question::get(target)).await?;
            // The head comes at once; the body comes with the next change.
            self.client.reach.answered();
            let (status, index) = (opened.status, opened.index);
            let body = tokio::time::timeout(POLL_MAX, members.finish(turn, opened, POLL_MAX));
            let Ok(body) = body.await else { return Ok(Polled::Quiet(index)) };
            let body = body?;
            // A member that shuts down ends the poll regularly, without an event.
            if status == 200 && body.is_empty() {
                return Err(Failure::unreachable(members.endpoint(turn), "it ended the watch"));
            }
            match Reply::read(members.endpoint(turn), status, index, &body)? {
                Reply::Done(done) => Ok(Polled::Changed(done)),
                Reply::Refused(refusal) if refusal.why() == Some(Why::Cleared) => Ok(Polled::Cleared),
                Reply::Refused(refusal) => {
                    let said = refusal.to_string();
                    Err(Failure::new(Class::Refused, members.endpoint(turn), said, false))
                }
            }
        };
        let polled = polled.await;
        match &polled {
            Ok(_) => {
                self.refusals = 0;
                self.client.reach.answered();
            }
            Err(failure) => {
                self.client.reach.failed(failure);
                members.leave(turn);
            }
        }
        polled
    }

    /// Processes a change; returns the events that are new.
    async fn admit(&mut self, done: Done) -> Option<Notification> {
        let Done { action, node, .. } = done;
        let index = node.modified_index;
        if index <= self.at {
            tokio::time::sleep(self.backoff.pause()).await;
            return self.relist("an event from before the place that was asked for").await;
        }
        self.backoff.reset();
        self.behind = 0;
        // There are no events for the contents of a removed directory.
        if node.dir {
            return self.relist("a directory changed").await;
        }
        self.at = index;
        let gone = matches!(action.as_str(), "delete" | "compareAndDelete" | "expire");
        let record = node.record().filter(|record| self.prefix.covers(&record.key))?;
        let event = match gone {
            true => Event::Deleted { key: record.key, revision: Revision(index) },
            false => Event::Put(record),
        };
        Some(Ok(self.known.admit(event).into_iter().collect()))
    }

    /// A whole poll without a change. A store that stays behind the last event was restored from a
    /// backup: its new changes would never be reported.
    async fn quiet(&mut self, index: u64) -> Option<Notification> {
        self.behind = if index < self.at { self.behind + 1 } else { 0 };
        if self.behind < MAX_BEHIND {
            return None;
        }
        self.behind = 0;
        self.relist("the store is behind what was reported").await
    }

    /// Lists again; returns the differences to what was sent, or `None` if that must be repeated.
    async fn relist(&mut self, reason: &str) -> Option<Notification> {
        tracing::debug!(prefix = %self.prefix, at = self.at, reason, "etcd v2 watch: list again");
        match list(&self.client, &self.prefix).await {
            Ok(snapshot) => {
                self.at = snapshot.revision.0;
                Some(Ok(self.known.absorb(snapshot)))
            }
            Err(error) => {
                tracing::debug!(prefix = %self.prefix, %error, "etcd v2 watch");
                tokio::time::sleep(self.backoff.pause()).await;
                (!matches!(error, StoreError::Unavailable { .. })).then_some(Err(error))
            }
        }
    }

    /// Pauses after a broken poll; returns an error only if later attempts cannot succeed.
    async fn after(&mut self, failure: Failure) -> Option<StoreError> {
        tracing::debug!(prefix = %self.prefix, at = self.at, error = %failure.error, "etcd v2 watch");
        tokio::time::sleep(self.backoff.pause()).await;
        self.refusals += u32::from(failure.class == Class::Refused);
        if self.refusals > MAX_REFUSALS || failure.class == Class::Corrupt {
            self.refusals = 0;
            return Some(failure.into_store_error(format!("watch {}", self.prefix), Effect::Read));
        }
        None
    }
}
