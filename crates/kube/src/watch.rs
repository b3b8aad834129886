//! A watch of the objects of a kind: lists, then follows from the list's revision; resumes at the last
//! bookmark when a connection ends, and with a new list when the server has forgotten that revision
//! (flannel.md section 5.2, step 3; Kubernetes API concepts, "efficient detection of changes").

mod pieces;

use std::marker::PhantomData;
use std::time::Duration;

use russet_sync::{Backoff, random};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::answer::Failure;
use crate::client::{Ask, Client, MAX_OBJECT_BYTES, backoff};
use crate::lines::{Lines, SILENCE};
use crate::path::Path;
use crate::{BoxFuture, KubeError, Namespace, Node, NodeWatch, ObjectEvent, Said};

pub use pieces::{Piece, Pieces};

/// Objects per page, as in client-go.
const PAGE: &str = "500";
/// Limit of a page. A node with its images has 10 to 50 kB; a server may answer a list at revision
/// 0 in one piece, whatever the limit.
const MAX_PAGE_BYTES: usize = 512 << 20;
/// The lifetime of a watch that we request (5 to 10 minutes, so that not all nodes return at once),
/// as client-go does.
const WATCH_MIN_SECONDS: u64 = 300;
/// A server that neither sends nor ends a watch this long after its lifetime is gone.
const WATCH_GRACE: Duration = Duration::from_secs(30);

/// An object as a watch needs it: everything, or some of its members.
pub trait Watched: DeserializeOwned {
    /// Its `resourceVersion`; empty if it has none.
    fn revision(&self) -> &str;
}

/// The watch. Its state changes only when something has arrived, so that a dropped `next` loses
/// nothing.
pub struct Objects<T> {
    client: Client,
    kind: Kind,
    backoff: Backoff,
    state: WatchState,
    objects: PhantomData<T>,
    /// The first list may come from the server's cache; later ones must not be older than what we
    /// know.
    listed_before: bool,
    /// Upper bound of the random pause before a list after the server has forgotten our revision.
    spread: Duration,
}

/// What is watched.
struct Kind {
    /// The plural, for messages.
    plural: &'static str,
    segments: Vec<String>,
    /// `fieldSelector` of the query.
    fields: Option<String>,
}

enum WatchState {
    /// Nothing is known, or the known revision is too old.
    List,
    /// Everything up to this revision is known.
    Known(String),
    /// The stream of later events.
    Following(String, Lines),
}

#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct List<T> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<T>>,
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
enum WatchLine<T> {
    Event(Box<ObjectEvent<T>>, String),
    Bookmark(String),
    Failed(Failure),
}

// === impl Client ===

impl Client {
    /// Watches all nodes.
    pub(crate) fn all_nodes(&self) -> Objects<Node> {
        Objects::new(self, Kind::of("nodes"))
    }

    /// Watches the pods of a node, as they are in JSON.
    pub fn watch_pods(&self, node: &str) -> Objects<Value> {
        let fields = Some(format!("spec.nodeName={node}"));
        Objects::new(self, Kind { fields, ..Kind::of("pods") })
    }

    /// Watches all objects of a resource, by the group and version of its API (`v1` is the core's) and
    /// its plural.
    pub fn watch_objects<T: Watched>(&self, version: &str, plural: &'static str) -> Objects<T> {
        let root = if version.contains('/') { "apis" } else { "api" };
        let segments = [root].into_iter().chain(version.split('/')).chain([plural]);
        Objects::new(self, Kind { plural, segments: segments.map(str::to_owned).collect(), fields: None })
    }

    /// Watches one node.
    pub fn watch_node(&self, name: &str) -> Objects<Node> {
        let fields = Some(format!("metadata.name={name}"));
        Objects::new(self, Kind { fields, ..Kind::of("nodes") })
    }

    /// Watches all namespaces.
    pub fn watch_namespaces(&self) -> Objects<Namespace> {
        Objects::new(self, Kind::of("namespaces"))
    }
}

// === impl Kind ===

impl Kind {
    /// A kind of Kubernetes' core.
    fn of(plural: &'static str) -> Self {
        let segments = ["api", "v1", plural].map(str::to_owned).to_vec();
        Self { plural, segments, fields: None }
    }

    fn path(&self, query: &[(&str, &str)]) -> Path {
        let fields = self.fields.as_deref().map(|fields| ("fieldSelector", fields));
        let query: Vec<_> = query.iter().copied().chain(fields).collect();
        Path::of_segments(&self.segments).with_query(&query)
    }
}

// === impl Watched ===

impl Watched for Node {
    fn revision(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Watched for Namespace {
    fn revision(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Watched for Value {
    fn revision(&self) -> &str {
        self.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default()
    }
}

// === impl Objects ===

impl<T: Watched> Objects<T> {
    fn new(client: &Client, kind: Kind) -> Self {
        Self {
            client: client.clone(),
            kind,
            backoff: backoff(),
            state: WatchState::List,
            objects: PhantomData,
            listed_before: false,
            spread: Duration::ZERO,
        }
    }

    /// Spreads new lists over this time, or over less in a cluster of few nodes ([`Client::spread`]): when an API server restarts, all agents of the cluster learn
    /// at the same moment that it has forgotten their revisions (kubernetes.md section 4.2 item 3).
    #[must_use]
    pub fn spread(self, spread: Duration) -> Self {
        Self { spread, ..self }
    }

    /// The next event; see [`NodeWatch::next`].
    pub async fn advance(&mut self) -> Result<ObjectEvent<T>, KubeError> {
        if let Some(event) = self.next_change().await? {
            return Ok(event);
        }
        let (objects, revision) = self.list().await.map_err(|failure| self.list_error(failure))?;
        self.state = WatchState::Known(revision);
        self.listed_before = true;
        Ok(ObjectEvent::Snapshot(objects))
    }

    /// The next change; none if a list is needed first.
    async fn next_change(&mut self) -> Result<Option<ObjectEvent<T>>, KubeError> {
        loop {
            match &mut self.state {
                WatchState::List => return Ok(None),
                WatchState::Known(revision) => {
                    let revision = revision.clone();
                    match self.follow(&revision).await {
                        Ok(stream) => self.state = WatchState::Following(revision, stream),
                        Err(failure) if failure.expired => {
                            tokio::time::sleep(part_of(self.client.spread(self.spread))).await;
                            self.state = WatchState::List;
                        }
                        Err(failure) => return Err(failure.error),
                    }
                }
                WatchState::Following(revision, lines) => {
                    match lines.next().await.and_then(|line| read(self.kind.plural, &line)) {
                        Ok(WatchLine::Event(event, newer)) => {
                            self.backoff.reset();
                            *revision = newer;
                            return Ok(Some(*event));
                        }
                        Ok(WatchLine::Bookmark(newer)) => {
                            self.backoff.reset();
                            *revision = newer;
                        }
                        Ok(WatchLine::Failed(failure)) | Err(failure) => self.interrupted(failure).await?,
                    }
                }
            }
        }
    }

    /// Handles the end of a watch. A server that ends watches at once is not requested again
    /// without a pause. Only invalid answers are reported to the caller, because a new request
    /// would return the same.
    async fn interrupted(&mut self, failure: Failure) -> Result<(), KubeError> {
        let kind = self.kind.plural;
        tracing::debug!(kind, error = %failure.error, expired = failure.expired, "watch interrupted");
        let mut pause = self.backoff.pause().max(failure.after.unwrap_or_default());
        if failure.expired {
            pause += part_of(self.client.spread(self.spread));
        }
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

    /// A server without the resource's group answers with a page of text instead of a status.
    fn list_error(&self, failure: Failure) -> KubeError {
        match failure.code {
            Some(404) => KubeError::NotFound(Said {
                operation: format!("list {}", self.kind.plural),
                message: "the server has no such resource".to_owned(),
            }),
            _ => failure.error,
        }
    }

    async fn list(&self) -> Result<(Vec<T>, String), Failure> {
        match self.pages(Some(PAGE)).await {
            // The remaining pages expired because listing took too long: request everything in one
            // page.
            Err(failure) if failure.expired => self.pages(None).await,
            done => done,
        }
    }

    async fn pages(&self, limit: Option<&str>) -> Result<(Vec<T>, String), Failure> {
        let mut objects = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let mut query: Vec<(&str, &str)> = limit.map(|limit| ("limit", limit)).into_iter().collect();
            match &next {
                Some(next) => query.push(("continue", next)),
                None if !self.listed_before => query.push(("resourceVersion", "0")),
                None => {}
            }
            let page = self.page(self.kind.path(&query)).await?;
            objects.extend(page.items.unwrap_or_default());
            match page.metadata.next.filter(|next| !next.is_empty()) {
                None => return Ok((objects, page.metadata.resource_version)),
                more => next = more,
            }
        }
    }

    async fn page(&self, path: Path) -> Result<List<T>, Failure> {
        let operation = format!("list {}", self.kind.plural);
        let page: List<T> = self.client.call(&Ask::read(operation.clone(), path, MAX_PAGE_BYTES)).await?;
        if page.metadata.resource_version.is_empty() {
            return Err(Failure::nonsense(&operation, "the list has no resourceVersion".to_owned()));
        }
        Ok(page)
    }

    async fn follow(&self, revision: &str) -> Result<Lines, Failure> {
        self.watch(&[("resourceVersion", revision)]).await
    }

    async fn watch(&self, from: &[(&str, &str)]) -> Result<Lines, Failure> {
        let seconds = WATCH_MIN_SECONDS + random() % WATCH_MIN_SECONDS;
        let timeout = seconds.to_string();
        let mut query = vec![("watch", "true"), ("allowWatchBookmarks", "true")];
        query.extend_from_slice(from);
        query.push(("timeoutSeconds", &timeout));
        let path = self.kind.path(&query);
        let operation = format!("watch {}", self.kind.plural);
        let body = self.client.stream(&Ask::read(operation.clone(), path, MAX_OBJECT_BYTES)).await?;
        let lifetime = Duration::from_secs(seconds) + WATCH_GRACE;
        Ok(Lines::new(operation, body, lifetime, SILENCE))
    }
}

impl NodeWatch for Objects<Node> {
    fn next(&mut self) -> BoxFuture<'_, Result<ObjectEvent<Node>, KubeError>> {
        Box::pin(self.advance())
    }
}

/// A random part of a time.
fn part_of(most: Duration) -> Duration {
    let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(random().checked_rem(micros).unwrap_or(0))
}

fn read<T: Watched>(plural: &str, line: &[u8]) -> Result<WatchLine<T>, Failure> {
    let operation = &format!("watch {plural}");
    let nonsense = |error: serde_json::Error| {
        Failure::nonsense(operation, format!("an event that makes no sense: {error}"))
    };
    let line: Line<'_> = serde_json::from_slice(line).map_err(nonsense)?;
    if line.kind == "ERROR" {
        return Ok(WatchLine::Failed(Failure::of_event(operation, line.object.get())));
    }
    let object: T = serde_json::from_str(line.object.get()).map_err(nonsense)?;
    let revision = object.revision().to_owned();
    if revision.is_empty() {
        return Err(Failure::nonsense(operation, "an event without resourceVersion".to_owned()));
    }
    match line.kind {
        "ADDED" | "MODIFIED" => Ok(WatchLine::Event(Box::new(ObjectEvent::Changed(object)), revision)),
        "DELETED" => Ok(WatchLine::Event(Box::new(ObjectEvent::Deleted(object)), revision)),
        "BOOKMARK" => Ok(WatchLine::Bookmark(revision)),
        other => Err(Failure::nonsense(operation, format!("an event of type {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeEvent;

    #[test]
    fn lines_of_a_watch_are_events_bookmarks_and_errors() {
        let node = r#"{"kind":"Node","metadata":{"name":"n1","resourceVersion":"7"}}"#;
        let parsed = |kind: &str, object: &str| {
            read::<Node>("nodes", format!(r#"{{"type":"{kind}","object":{object}}}"#).as_bytes())
        };
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
        assert!(parsed("RUMOUR", node).is_err() && parsed("ADDED", "{}").is_err());
        assert!(read::<Node>("nodes", b"").is_err());
    }
}
