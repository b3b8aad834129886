//! A watch of nodes: lists, then follows from the list's revision; resumes at the last bookmark
//! when a connection ends, and with a new list when the server has forgotten that revision
//! (flannel.md section 5.2, step 3; Kubernetes API concepts, "efficient detection of changes").

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::answer::{Again, Failure, Status};
use crate::backoff::{Backoff, random_below};
use crate::client::{Ask, Client, MAX_OBJECT_BYTES};
use crate::path::Path;
use crate::{BoxFuture, KubeError, Node, NodeEvent, NodeWatch};

/// Nodes per page, as in client-go.
const PAGE: &str = "500";
/// Limit of a page. A node with its images has 10 to 50 kB; a server may answer a list at revision
/// 0 in one piece, whatever the limit.
const MAX_PAGE_BYTES: usize = 512 << 20;
/// The lifetime of a watch that we request (5 to 10 minutes, so that not all nodes return at once),
/// as client-go does.
const WATCH_MIN_SECONDS: u64 = 300;
/// A server that neither sends nor ends a watch this long after its lifetime is gone.
const WATCH_GRACE: Duration = Duration::from_secs(30);
const OPERATION_LIST: &str = "list nodes";
const OPERATION_WATCH: &str = "watch nodes";

/// The watch. Its state changes only when something has arrived, so that a dropped `next` loses
/// nothing.
pub(crate) struct Nodes {
    client: Client,
    backoff: Backoff,
    state: WatchState,
    /// The first list may come from the server's cache; later ones must not be older than what we
    /// know.
    listed_before: bool,
}

enum WatchState {
    /// Nothing is known, or the known revision is too old.
    List,
    /// Everything up to this revision is known.
    Known(String),
    /// The stream of later events.
    Following(String, Stream),
}

struct Stream {
    body: Incoming,
    /// The beginning of an incomplete line.
    buffer: Vec<u8>,
    /// Number of bytes of `buffer` that were searched for a line's end.
    searched: usize,
    until: Instant,
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<Node>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The meaning of a line of a watch.
enum WatchLine {
    Event(Box<NodeEvent>, String),
    Bookmark(String),
    Failed(Failure),
}

// === impl Nodes ===

impl Nodes {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, backoff: Backoff::new(), state: WatchState::List, listed_before: false }
    }

    async fn advance(&mut self) -> Result<NodeEvent, KubeError> {
        loop {
            match &mut self.state {
                WatchState::List => {
                    let (nodes, revision) = self.list().await.map_err(|failure| failure.error)?;
                    self.state = WatchState::Known(revision);
                    self.listed_before = true;
                    return Ok(NodeEvent::Snapshot(nodes));
                }
                WatchState::Known(revision) => {
                    let revision = revision.clone();
                    match self.follow(&revision).await {
                        Ok(stream) => self.state = WatchState::Following(revision, stream),
                        Err(failure) if failure.expired => self.state = WatchState::List,
                        Err(failure) => return Err(failure.error),
                    }
                }
                WatchState::Following(revision, stream) => match stream.next().await {
                    Ok(WatchLine::Event(event, newer)) => {
                        self.backoff.reset();
                        *revision = newer;
                        return Ok(*event);
                    }
                    Ok(WatchLine::Bookmark(newer)) => {
                        self.backoff.reset();
                        *revision = newer;
                    }
                    Ok(WatchLine::Failed(failure)) | Err(failure) => self.interrupted(failure).await?,
                },
            }
        }
    }

    /// Handles the end of a watch. A server that ends watches at once is not requested again
    /// without a pause. Only invalid answers are reported to the caller, because a new request
    /// would return the same.
    async fn interrupted(&mut self, failure: Failure) -> Result<(), KubeError> {
        tracing::debug!(error = %failure.error, expired = failure.expired, "watch of nodes interrupted");
        let pause = self.backoff.pause().max(failure.after.unwrap_or_default());
        self.state = match std::mem::replace(&mut self.state, WatchState::List) {
            WatchState::Following(revision, _) if !failure.expired => WatchState::Known(revision),
            _ => WatchState::List,
        };
        if !failure.expired && matches!(failure.error, KubeError::Invalid(_)) {
            return Err(failure.error);
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    async fn list(&self) -> Result<(Vec<Node>, String), Failure> {
        match self.pages(Some(PAGE)).await {
            // The remaining pages expired because listing took too long: request everything in one
            // page.
            Err(failure) if failure.expired => self.pages(None).await,
            done => done,
        }
    }

    async fn pages(&self, limit: Option<&str>) -> Result<(Vec<Node>, String), Failure> {
        let mut nodes = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let mut query: Vec<(&str, &str)> = limit.map(|limit| ("limit", limit)).into_iter().collect();
            match &next {
                Some(next) => query.push(("continue", next)),
                None if !self.listed_before => query.push(("resourceVersion", "0")),
                None => {}
            }
            let page = self.page(Path::nodes(&query)).await?;
            nodes.extend(page.items.unwrap_or_default());
            match page.metadata.next.filter(|next| !next.is_empty()) {
                None => return Ok((nodes, page.metadata.resource_version)),
                more => next = more,
            }
        }
    }

    async fn page(&self, path: Path) -> Result<List, Failure> {
        let operation = OPERATION_LIST.to_owned();
        let ask = Ask { operation, method: Method::GET, path, patch: None, limit_bytes: MAX_PAGE_BYTES };
        let page: List = self.client.call(&ask).await?;
        if page.metadata.resource_version.is_empty() {
            return Err(Failure::nonsense(OPERATION_LIST, "the list has no resourceVersion".to_owned()));
        }
        Ok(page)
    }

    async fn follow(&self, revision: &str) -> Result<Stream, Failure> {
        let seconds = WATCH_MIN_SECONDS + random_below(WATCH_MIN_SECONDS);
        let timeout = seconds.to_string();
        let path = Path::nodes(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", revision),
            ("timeoutSeconds", &timeout),
        ]);
        let operation = OPERATION_WATCH.to_owned();
        let ask = Ask { operation, method: Method::GET, path, patch: None, limit_bytes: MAX_OBJECT_BYTES };
        let body = self.client.stream(&ask).await?;
        let until = Instant::now() + Duration::from_secs(seconds) + WATCH_GRACE;
        Ok(Stream { body, buffer: Vec::new(), searched: 0, until })
    }
}

impl NodeWatch for Nodes {
    fn next(&mut self) -> BoxFuture<'_, Result<NodeEvent, KubeError>> {
        Box::pin(self.advance())
    }
}

// === impl Stream ===

impl Stream {
    /// The result of the next line; waits until there is one.
    async fn next(&mut self) -> Result<WatchLine, Failure> {
        loop {
            if let Some(parsed) = self.line() {
                return parsed;
            }
            if self.buffer.len() > MAX_OBJECT_BYTES {
                let message = format!("an event is longer than {MAX_OBJECT_BYTES} bytes");
                return Err(Failure::nonsense(OPERATION_WATCH, message));
            }
            let broken = |cause| Err(Failure::broken(OPERATION_WATCH, cause, Again::IfRead));
            match tokio::time::timeout_at(self.until, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data))
                }
                Ok(Some(Err(error))) => return broken(error.into()),
                Ok(None) => return broken("the server ended it".into()),
                Err(_) => return broken("the server is silent".into()),
            }
        }
    }

    /// The result of the first complete line in the buffer.
    fn line(&mut self) -> Option<Result<WatchLine, Failure>> {
        let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
        let Some(end) = unsearched.iter().position(|byte| *byte == b'\n').map(|at| self.searched + at) else {
            self.searched = self.buffer.len();
            return None;
        };
        let parsed = read(self.buffer.get(..end).unwrap_or_default());
        self.buffer.drain(..=end);
        self.searched = 0;
        Some(parsed)
    }
}

fn read(line: &[u8]) -> Result<WatchLine, Failure> {
    let nonsense = |error: serde_json::Error| {
        Failure::nonsense(OPERATION_WATCH, format!("an event that makes no sense: {error}"))
    };
    let line: Line<'_> = serde_json::from_slice(line).map_err(nonsense)?;
    if line.kind == "ERROR" {
        let status: Status = serde_json::from_str(line.object.get()).map_err(nonsense)?;
        let code = status.code.unwrap_or(500);
        return Ok(WatchLine::Failed(Failure::of_status(OPERATION_WATCH, code, None, &status)));
    }
    let node: Node = serde_json::from_str(line.object.get()).map_err(nonsense)?;
    let revision = node.metadata.resource_version.clone();
    if revision.is_empty() {
        return Err(Failure::nonsense(OPERATION_WATCH, "an event without resourceVersion".to_owned()));
    }
    match line.kind {
        "ADDED" | "MODIFIED" => Ok(WatchLine::Event(Box::new(NodeEvent::Changed(node)), revision)),
        "DELETED" => Ok(WatchLine::Event(Box::new(NodeEvent::Deleted(node)), revision)),
        "BOOKMARK" => Ok(WatchLine::Bookmark(revision)),
        other => Err(Failure::nonsense(OPERATION_WATCH, format!("an event of type {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_watch_are_events_bookmarks_and_errors() {
        let node = r#"{"kind":"Node","metadata":{"name":"n1","resourceVersion":"7"}}"#;
        let parsed =
            |kind: &str, object: &str| read(format!(r#"{{"type":"{kind}","object":{object}}}"#).as_bytes());
        let event = |kind| match parsed(kind, node) {
            Ok(WatchLine::Event(event, revision)) => (*event, revision),
            _ => panic!("{kind} is no event"),
        };
        assert!(matches!(event("ADDED"), (NodeEvent::Changed(_), revision) if revision == "7"));
        assert!(matches!(event("MODIFIED"), (NodeEvent::Changed(_), _)));
        assert!(matches!(event("DELETED"), (NodeEvent::Deleted(_), _)));
        assert!(matches!(parsed("BOOKMARK", node), Ok(WatchLine::Bookmark(revision)) if revision == "7"));
        let gone = r#"{"kind":"Status","status":"Failure","reason":"Expired","code":410,"message":"too old resource version: 1 (5)"}"#;
        assert!(matches!(parsed("ERROR", gone), Ok(WatchLine::Failed(failure)) if failure.expired));
        assert!(parsed("RUMOUR", node).is_err() && parsed("ADDED", "{}").is_err() && read(b"").is_err());
    }
}
