//! The test server's watches: events, bookmarks, initial events, and their ends (kubernetes.md section 4.1).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Either;
use http_body_util::channel::{Channel, Sender};
use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::answers::Answer;
use super::http::{Body, Route, selection};
use super::kinds::Kind;
use super::query::Query;
use super::select::Selection;
use super::{Shared, State};

/// How long before the end that its client asked for a watch gets a bookmark (kubernetes.md section 4.1).
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// An open watch.
struct Follower {
    selection: Selection,
    kind: Kind,
    /// The revision up to which events have been sent.
    known: u64,
    /// The revision at which the client knew all earlier events.
    began: Option<u64>,
    /// What is sent first: every object, and after them a bookmark that says so.
    initial: Initial,
    generation: u64,
    /// Number of bookmarks requested so far, and whether another is to be sent.
    marked: u64,
    mark: bool,
    /// Whether the client wants bookmarks.
    bookmarks: bool,
    /// Number of the test's own lines that were sent, or came before the watch.
    sent: usize,
}

/// What a watch begins with.
#[derive(Clone, Copy, PartialEq)]
enum Initial {
    /// Nothing but events.
    Events,
    /// All objects.
    Objects,
    /// All objects, and a bookmark at their end.
    MarkedObjects,
}

/// Opens a watch.
pub(super) fn open(shared: &Arc<Shared>, route: &Route, query: &Query) -> Result<Response<Body>, Answer> {
    let known = query.check_watch()?;
    let (selection, kind) = (selection(route, query)?, route.kind);
    let (sender, channel) = Channel::new(16);
    let (generation, marked, sent) = {
        let state = shared.lock();
        (state.generation, state.bookmarks, state.lines.len())
    };
    let bookmarks = query.is("allowWatchBookmarks");
    let initial = match (query.is("sendInitialEvents"), known) {
        (true, _) if bookmarks => Initial::MarkedObjects,
        (true, _) => Initial::Objects,
        (false, 0) if query.get("sendInitialEvents").is_none() => Initial::Objects,
        _ => Initial::Events,
    };
    let timeout =
        query.get("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    let end = timeout.map(|timeout| Instant::now() + timeout);
    let (began, mark) = (None, false);
    let follower =
        Follower { selection, kind, known, began, initial, generation, marked, mark, bookmarks, sent };
    tokio::spawn(follow(shared.clone(), sender, follower, end));
    let mut response = Response::new(Either::Right(channel));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Sends events after a revision until the client or the test ends the watch, or until the end that the client asked for.
async fn follow(
    shared: Arc<Shared>,
    mut sender: Sender<Bytes, Infallible>,
    mut follower: Follower,
    end: Option<Instant>,
) {
    let mut changed = shared.changed.subscribe();
    let mut last_bookmark =
        end.and_then(|end| end.checked_sub(BOOKMARK_BEFORE_END)).filter(|at| *at > Instant::now());
    loop {
        let (lines, goes_on) = follower.news(&shared.lock());
        for line in lines {
            if sender.send_data(line).await.is_err() {
                return;
            }
        }
        if !goes_on {
            return;
        }
        follower.began.get_or_insert(follower.known);
        tokio::select! {
            changed = changed.changed() => if changed.is_err() { return },
            () = reached(last_bookmark) => {
                last_bookmark = None;
                follower.mark = follower.began.is_some_and(|began| follower.known > began);
            }
            () = reached(end) => return,
        }
    }
}

/// Waits for a moment, for ever without one.
async fn reached(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({ "type": kind, "object": object })).into()
}

// === impl Follower ===

impl Follower {
    /// The lines to send now, and whether more may follow.
    fn news(&mut self, state: &State) -> (Vec<Bytes>, bool) {
        let newest = state.cluster.revision();
        if self.initial == Initial::MarkedObjects && !state.watch_lists {
            return (vec![line("ERROR", &Answer::no_watch_list())], false);
        }
        let mut lines = self.initial_lines(state);
        let Some(events) = state.cluster.events_after(&self.selection, self.known) else {
            let message = format!("too old resource version: {} ({newest})", self.known);
            let status: Value = serde_json::from_slice(&Answer::expired(&message).body).unwrap_or_default();
            return (vec![line("ERROR", &status)], false);
        };
        lines.extend(state.lines.iter().skip(self.sent).map(|line| line.clone().into()));
        self.sent = state.lines.len();
        lines.extend(events.iter().map(|(kind, object)| line(kind, object)));
        // A client that knows a revision of the future hears nothing until it is reached.
        self.known = self.known.max(newest);
        let due = self.mark || state.bookmarks != self.marked;
        if self.bookmarks && due && self.known <= newest {
            (self.mark, self.marked) = (false, state.bookmarks);
            lines.push(self.bookmark(json!({})));
        }
        (lines, state.generation == self.generation)
    }

    fn initial_lines(&mut self, state: &State) -> Vec<Bytes> {
        let initial = std::mem::replace(&mut self.initial, Initial::Events);
        if initial == Initial::Events {
            return Vec::new();
        }
        self.known = state.cluster.revision();
        let existing = state.cluster.list(&self.selection, self.known).unwrap_or_default();
        let mut lines: Vec<Bytes> = existing.iter().map(|object| line("ADDED", object)).collect();
        if initial == Initial::MarkedObjects {
            lines.push(self.bookmark(json!({ "k8s.io/initial-events-end": "true" })));
        }
        lines
    }

    fn bookmark(&self, annotations: Value) -> Bytes {
        let mut metadata = json!({ "resourceVersion": self.known.to_string(), "creationTimestamp": null });
        if annotations != json!({}) {
            metadata["annotations"] = annotations;
        }
        line(
            "BOOKMARK",
            &json!({ "kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata }),
        )
    }
}
