//! A watch: a snapshot, then the log from there. A task follows the log. After the loss of a
//! connection, a member or the leader it continues from its position; if the log was compacted, it
//! lists and sends only the differences; and if its queue is full it closes the stream, so that a
//! slow watcher neither fills memory nor blocks the connection that others share.

use std::collections::VecDeque;
use std::sync::Arc;

use russet_model::Prefix;
use russet_store::{Event, Known, Record, Revision, StoreError};
use russet_sync::Backoff;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};

use crate::client::{Client, Line, backoff};
use crate::failure::{Class, Effect, Failure, printable};
use crate::notification::{Notification, Watcher};
use crate::proto::mvccpb::event::EventType;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{WatchCreateRequest, WatchRequest, WatchResponse, mvccpb};
use crate::range;

/// Refusals for lack of permission before the watcher gets an error: 3.4 answers so for an expired
/// token, too.
const MAX_REFUSALS: u32 = 2;

/// The sending end of a watch, run by a task.
struct Follower {
    client: Arc<Client>,
    prefix: Prefix,
    known: Known,
    /// The revision up to which everything was processed.
    at: i64,
    notifications: mpsc::Sender<Notification>,
    backoff: Backoff,
    refusals: u32,
}

/// Why a stream ended.
enum Ended {
    /// The watcher was dropped.
    Unwatched,
    /// The watcher did not keep up; this batch could not be sent.
    Slow(VecDeque<Event>),
    /// The log does not reach back to our position.
    Compacted,
    Failed(Failure),
}

/// Lists, and follows from there.
pub(crate) async fn begin(client: Arc<Client>, prefix: Prefix) -> Result<Watcher, StoreError> {
    let snapshot = range::list(&client, &prefix).await?;
    let at = position(snapshot.revision);
    let mut known = Known::new();
    let ready = known.absorb(snapshot);
    Ok(start(client, prefix, known, at, ready))
}

/// The same, with the existing records passed to `take` one by one.
pub(crate) async fn begin_with(
    client: Arc<Client>,
    prefix: Prefix,
    take: &mut dyn FnMut(Record),
) -> Result<Watcher, StoreError> {
    let mut known = Known::nothing();
    let mut learn = |record: Record| {
        known.learn(&record);
        take(record);
    };
    let at = position(range::scan(&client, &prefix, &mut learn).await?);
    Ok(start(client, prefix, known, at, VecDeque::new()))
}

fn start(client: Arc<Client>, prefix: Prefix, known: Known, at: i64, ready: VecDeque<Event>) -> Watcher {
    Watcher::start(ready, |notifications| {
        Follower { client, prefix, known, at, notifications, backoff: backoff(), refusals: 0 }.run()
    })
}

// === impl Follower ===

impl Follower {
    async fn run(mut self) {
        while !self.notifications.is_closed() {
            let notification = match self.follow().await {
                Ended::Unwatched => return,
                Ended::Slow(batch) => Ok(batch),
                Ended::Compacted => match self.relist().await {
                    Some(notification) => notification,
                    None => continue,
                },
                Ended::Failed(failure) => match self.after(failure).await {
                    Some(error) => Err(error),
                    None => continue,
                },
            };
            if self.notifications.send(notification).await.is_err() {
                return;
            }
        }
    }

    /// Pauses after a broken stream; returns an error only if later attempts cannot succeed.
    async fn after(&mut self, failure: Failure) -> Option<StoreError> {
        tracing::debug!(prefix = %self.prefix, at = self.at, error = %failure.error, "etcd watch");
        tokio::time::sleep(self.backoff.pause()).await;
        self.refusals += u32::from(matches!(failure.class, Class::Token | Class::Refused));
        if self.refusals > MAX_REFUSALS || failure.class == Class::Corrupt {
            self.refusals = 0;
            return Some(failure.into_store_error(format!("watch {}", self.prefix), Effect::Read));
        }
        None
    }

    /// Lists after the log was compacted; returns the differences to what was sent, or `None` if
    /// that must be repeated.
    async fn relist(&mut self) -> Option<Notification> {
        match range::list(&self.client, &self.prefix).await {
            Ok(snapshot) => {
                self.at = position(snapshot.revision);
                Some(Ok(self.known.absorb(snapshot)))
            }
            Err(error @ StoreError::Unavailable { .. }) => {
                tracing::debug!(prefix = %self.prefix, error = %error, "etcd watch: list again");
                tokio::time::sleep(self.backoff.pause()).await;
                None
            }
            Err(error) => {
                tokio::time::sleep(self.backoff.pause()).await;
                Some(Err(error))
            }
        }
    }

    /// Uses one stream until it ends.
    async fn follow(&mut self) -> Ended {
        let line = match self.client.line().await {
            Ok(line) => line,
            Err(failure) => return Ended::Failed(failure),
        };
        let ended = match self.subscribe(&line).await {
            Ok(stream) => self.take(&line, stream).await,
            Err(failure) => Ended::Failed(failure),
        };
        if let Ended::Failed(failure) = &ended {
            self.client.learn(&line, failure).await;
        }
        ended
    }

    async fn subscribe(&self, line: &Line) -> Result<Streaming<WatchResponse>, Failure> {
        let (key, range_end) = range::range_of(&self.prefix);
        let create = WatchCreateRequest {
            key,
            range_end,
            // Not the revision after, although that is the next to report: if the log is compacted
            // exactly there, servers without the fix of etcd #18089 continue without the deletion
            // at that revision. One revision earlier, such a gap is reported as compacted.
            start_revision: self.at,
            progress_notify: true,
            fragment: true,
        };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The stream stays open on our side: its end would end the watch.
        let requests = tokio_stream::once(create).chain(tokio_stream::pending());
        let mut client = line.watch();
        let timeout = self.client.member_timeout();
        match tokio::time::timeout(timeout, client.watch(line.request(requests))).await {
            Ok(Ok(stream)) => {
                self.client.reach.answered();
                Ok(stream.into_inner())
            }
            Ok(Err(status)) => Err(self.client.failure(&line.connection, &status)),
            Err(_) => Err(Failure::silence(self.client.members.endpoint(&line.connection), timeout)),
        }
    }

    async fn take(&mut self, line: &Line, mut stream: Streaming<WatchResponse>) -> Ended {
        loop {
            let message = tokio::select! {
                message = stream.message() => message,
                () = self.notifications.closed() => return Ended::Unwatched,
            };
            let response = match message {
                Ok(Some(response)) => response,
                Ok(None) => {
                    let status = Status::unavailable("the member ended the watch");
                    return Ended::Failed(self.client.failure(&line.connection, &status));
                }
                Err(status) => return Ended::Failed(self.client.failure(&line.connection, &status)),
            };
            if response.compact_revision > 0 {
                return Ended::Compacted;
            }
            if response.canceled {
                return Ended::Failed(self.canceled(line, &response));
            }
            self.backoff.reset();
            self.refusals = 0;
            let batch = self.admit(response);
            if batch.is_empty() {
                continue;
            }
            match self.notifications.try_send(Ok(batch)) {
                Ok(()) => {}
                Err(TrySendError::Full(Ok(batch))) => return Ended::Slow(batch),
                Err(_) => return Ended::Unwatched,
            }
        }
    }

    /// Classifies why a member ended a watch. With credentials, missing permission may mean an
    /// expired token.
    fn canceled(&self, line: &Line, response: &WatchResponse) -> Failure {
        let reason = printable(&response.cancel_reason);
        let says = |text: &str| reason.contains(text);
        let denied = says("permission denied") || says("auth") || says("user name is empty");
        let class = match denied {
            true if self.client.auth.can_renew() => Class::Token,
            true => Class::Refused,
            false => Class::NotDone,
        };
        Failure::new(class, self.client.members.endpoint(&line.connection), reason, false)
    }

    /// Processes a response; returns its new events in order. The position advances only past whole
    /// revisions.
    fn admit(&mut self, response: WatchResponse) -> VecDeque<Event> {
        let reached = match response.events.last().and_then(|event| event.kv.as_ref()) {
            Some(last) => last.mod_revision,
            // A progress notification: all earlier events have been sent. The answer to the
            // creation does not mean that.
            None if !response.created => response.header.map_or(0, |header| header.revision),
            None => 0,
        };
        let at = self.at;
        let events = response.events.into_iter().filter_map(|event| translate(event, at));
        let batch = events.filter_map(|event| self.known.admit(event)).collect();
        if !response.fragment {
            self.at = self.at.max(reached);
        }
        batch
    }
}

fn position(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// An event, unless it is before `at`: a member that was behind may send old ones.
fn translate(event: mvccpb::Event, at: i64) -> Option<Event> {
    let kind = event.r#type();
    let kv = event.kv.filter(|kv| kv.mod_revision > at)?;
    match kind {
        EventType::Put => range::record(kv).map(Event::Put),
        EventType::Delete => {
            let revision = range::revision(kv.mod_revision);
            range::key(kv.key).map(|key| Event::Deleted { key, revision })
        }
    }
}
