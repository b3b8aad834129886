//! Watches: a list, streamed where the server can, and then its changes; continued after the end of a
//! connection at the last revision, and with a new list when the server has forgotten that
//! (kubernetes.md section 4.2).
//!
//! Each collection is followed by a task of its own, so that a caller that drops `next` loses
//! nothing, and so that a slow caller slows the connection instead of filling memory.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use russet_kube::{Failure, KubeError, Lines, Verb};
use russet_model::{Key, Prefix};
use russet_store::{BoxFuture, Event, Known, Record, Revision, Snapshot, StoreError, Watch, refused};
use russet_sync::{Backoff, Rng, random};
use serde::Deserialize;
use serde::de::DeserializeSeed;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::companion::revision_of;
use crate::convert::{Form, other_name};
use crate::engine::KubeStore;
use crate::failure::{Verdict, verdict};
use crate::list::{Read, is_readable};
use crate::place::{Collection, Scope};

/// Events that wait for the caller.
const WAITING: usize = 256;
/// The lifetime of a watch that we request, in seconds: random, so that not all nodes return at
/// once. Each return also compares the server's revision with ours, which finds a server that was
/// restored from a backup within 5 minutes.
const LIFETIME_MIN_SECONDS: u64 = 200;
const LIFETIME_SPREAD_SECONDS: u64 = 90;
/// Interval of looking for a resource definition that is missing, less up to a half. Every node asks.
const LOOK_FOR_DEFINITION: Duration = Duration::from_secs(300);
/// The annotation of the bookmark that ends a streamed list.
const INITIAL_EVENTS_END: &str = "/metadata/annotations/k8s.io~1initial-events-end";

/// A watch of one prefix.
struct Events {
    events: mpsc::Receiver<Result<Event, StoreError>>,
    /// The snapshot, until it was reported.
    first: Option<Snapshot>,
    tasks: Vec<JoinHandle<()>>,
}

/// Follows one collection.
struct Reflector {
    store: KubeStore,
    scope: Scope,
    prefix: Prefix,
    form: Form,
    known: Known,
    /// Everything up to this revision is known; none: list again.
    at: Option<Revision>,
    lines: Option<Lines>,
    /// Whether the last list has found that the cluster lacks the resource.
    is_undefined: bool,
    /// When the server's revision is compared with ours.
    compare_at: Option<Instant>,
    backoff: Backoff,
    rng: Rng,
    /// Changes when the watch has to begin with a new list.
    restarts: watch::Receiver<u64>,
}

/// Why a watch has to begin again.
enum Interruption {
    Request(Failure),
    List(StoreError),
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The meaning of a line.
enum Parsed {
    Changed(Value),
    Deleted(Value),
    Bookmark(Value),
    /// A line that is no event. To continue at its revision would bring it again, so it is dropped
    /// alone, and the next list has the object if that can be read.
    Unreadable,
}

// === impl KubeStore ===

impl KubeStore {
    pub(crate) async fn watch_records(&self, prefix: &Prefix) -> Result<Box<dyn Watch>, StoreError> {
        let mut records = Vec::new();
        let (revision, mut events) = self.begin(prefix, &mut |record| records.push(record)).await?;
        records.sort_by(|one: &Record, other| one.key.cmp(&other.key));
        events.first = Some(Snapshot { records, revision });
        Ok(Box::new(events))
    }

    pub(crate) async fn follow_records(
        &self,
        prefix: &Prefix,
        take: &mut dyn FnMut(Record),
    ) -> Result<Box<dyn Watch>, StoreError> {
        let (_, events) = self.begin(prefix, take).await?;
        Ok(Box::new(events))
    }

    async fn begin(
        &self,
        prefix: &Prefix,
        take: &mut dyn FnMut(Record),
    ) -> Result<(Revision, Events), StoreError> {
        let mut reflectors = Vec::new();
        let mut revision = Revision::default();
        for scope in Scope::of(prefix)? {
            let mut reflector = Reflector::new(self, scope, prefix).await?;
            let (records, at) = reflector.start().await?;
            records.into_iter().for_each(&mut *take);
            revision = revision.max(at);
            reflectors.push(reflector);
        }
        let (sender, events) = mpsc::channel(WAITING);
        let tasks =
            reflectors.into_iter().map(|reflector| tokio::spawn(reflector.run(sender.clone()))).collect();
        Ok((revision, Events { events, first: None, tasks }))
    }
}

// === impl Events ===

impl Watch for Events {
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>> {
        Box::pin(async move {
            if let Some(snapshot) = self.first.take() {
                return Ok(Event::Snapshot(snapshot));
            }
            match self.events.recv().await {
                Some(event) => event,
                // The tasks end with this value only.
                None => std::future::pending().await,
            }
        })
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

// === impl Interruption ===

impl From<Failure> for Interruption {
    fn from(failure: Failure) -> Self {
        Self::Request(failure)
    }
}

impl From<StoreError> for Interruption {
    fn from(error: StoreError) -> Self {
        Self::List(error)
    }
}

// === impl Reflector ===

impl Reflector {
    async fn new(store: &KubeStore, scope: Scope, prefix: &Prefix) -> Result<Self, StoreError> {
        let pauses = store.inner.settings.pauses;
        Ok(Self {
            store: store.clone(),
            form: store.form_of(scope.collection).await?,
            scope,
            prefix: prefix.clone(),
            known: Known::nothing(),
            at: None,
            lines: None,
            is_undefined: false,
            compare_at: None,
            backoff: Backoff::new(pauses.failure_min, pauses.failure_max),
            rng: Rng::new(random()),
            restarts: store.inner.restarts.subscribe(),
        })
    }

    /// Reads the first list.
    async fn start(&mut self) -> Result<(Vec<Record>, Revision), StoreError> {
        let listed = match self.streamed().await {
            Some(done) => Some(done),
            None => self.store.list_scope(&self.scope, &self.prefix).await?,
        };
        self.know(listed.as_ref().map(|(_, revision)| *revision));
        let (mut records, revision) = listed.unwrap_or_default();
        records.retain(is_readable);
        records.iter().for_each(|record| self.known.learn(record));
        Ok((records, revision))
    }

    /// The list as the beginning of a watch, which stays open; none if the server does not do that.
    async fn streamed(&mut self) -> Option<(Vec<Record>, Revision)> {
        if !self.store.inner.streams_lists.load(Ordering::Relaxed) {
            return None;
        }
        let query = [("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")];
        match self.read_streamed(&query).await {
            Ok(done) => Some(done),
            Err(failure) => {
                // A connection that breaks says nothing about the server.
                if failure.code.is_some()
                    && !failure.expired
                    && !matches!(failure.code, Some(401 | 403 | 404 | 429))
                {
                    tracing::debug!(error = %failure.error, "this API server does not stream lists");
                    self.store.inner.streams_lists.store(false, Ordering::Relaxed);
                }
                self.lines = None;
                None
            }
        }
    }

    async fn read_streamed(
        &mut self,
        query: &[(&'static str, &str)],
    ) -> Result<(Vec<Record>, Revision), Failure> {
        let mut lines = self.open(query).await?;
        // Changes may come before the end of the list: a removed object must not stay in it.
        let mut records: BTreeMap<Key, Record> = BTreeMap::new();
        loop {
            match self.parse(&lines.next().await?)? {
                Parsed::Changed(object) => match self.read(&object) {
                    Read::Record(record) => _ = records.insert(record.key.clone(), record),
                    Read::Gone(key) => _ = records.remove(&key),
                    Read::Unreadable(_) | Read::Nothing => {}
                },
                Parsed::Deleted(object) => match self.read(&object) {
                    Read::Record(Record { key, .. })
                    | Read::Unreadable(Record { key, .. })
                    | Read::Gone(key) => _ = records.remove(&key),
                    Read::Nothing => {}
                },
                Parsed::Bookmark(object) if object.pointer(INITIAL_EVENTS_END).is_some() => {
                    let revision = revision_of(&object).ok_or_else(|| {
                        Failure::nonsense("watch", "a list without a numeric resourceVersion".to_owned())
                    })?;
                    self.lines = Some(lines);
                    return Ok((records.into_values().collect(), revision));
                }
                Parsed::Bookmark(_) | Parsed::Unreadable => {}
            }
        }
    }

    async fn run(mut self, sender: mpsc::Sender<Result<Event, StoreError>>) {
        // After the first list, for which the caller waits.
        self.store.reads = Verb::ReadOnce;
        if !self.store.knows_cluster() {
            self.store.check_cluster().await;
        }
        loop {
            self.note_nodes();
            match self.advance().await {
                Ok(events) => {
                    for event in events {
                        if sender.send(Ok(event)).await.is_err() {
                            return;
                        }
                    }
                }
                Err(failure) => {
                    if let Some(error) = self.interrupted(failure).await
                        && sender.send(Err(error)).await.is_err()
                    {
                        return;
                    }
                }
            }
        }
    }

    /// The number of nodes says over how long the lists of all agents are spread.
    fn note_nodes(&self) {
        if self.prefix.as_str() == Prefix::nodes().as_str() {
            self.store.client().note_nodes(self.known.count());
        }
    }

    /// Does one thing: lists, opens a watch, or takes a line.
    async fn advance(&mut self) -> Result<Vec<Event>, Interruption> {
        let Some(at) = self.at else {
            if std::mem::take(&mut self.is_undefined) {
                let pause = LOOK_FOR_DEFINITION / 2 + self.part_of(LOOK_FOR_DEFINITION / 2);
                // The definition may be in the group that all watches move to.
                let _ = tokio::time::timeout(pause, self.restarts.changed()).await;
            }
            return self.relist().await;
        };
        let Some(lines) = &mut self.lines else {
            let group = self.store.form_of(self.scope.collection).await?.group;
            if self.restarts.has_changed().unwrap_or(false) || group != self.form.group {
                self.at = None;
                return Ok(Vec::new());
            }
            let text = at.0.to_string();
            self.lines = Some(self.open(&[("resourceVersion", &text)]).await?);
            self.compare_at = Some(Instant::now() + self.part_of(self.store.inner.settings.pauses.compare));
            return Ok(Vec::new());
        };
        let line = tokio::select! {
            line = lines.next() => line?,
            () = reached(self.compare_at) => {
                self.compare(at).await;
                return Ok(Vec::new());
            }
            // The sender lives as long as the store.
            _ = self.restarts.changed() => {
                (self.at, self.lines) = (None, None);
                return Ok(Vec::new());
            }
        };
        let parsed = self.parse(&line)?;
        self.backoff.reset();
        let (object, is_deletion) = match parsed {
            Parsed::Changed(object) => (object, false),
            Parsed::Deleted(object) => (object, true),
            Parsed::Bookmark(object) => {
                self.at = revision_of(&object).or(self.at);
                return Ok(Vec::new());
            }
            Parsed::Unreadable => return Ok(Vec::new()),
        };
        let Some(revision) = revision_of(&object) else {
            refused("event of a watch not used", self.plural(), "its resourceVersion is no number");
            return Ok(Vec::new());
        };
        let event = match self.read(&object) {
            Read::Record(record) | Read::Unreadable(record) if is_deletion => {
                Some(Event::Deleted { key: record.key, revision })
            }
            Read::Record(record) => Some(Event::Put(record)),
            Read::Gone(key) => Some(Event::Deleted { key, revision }),
            // The last valid form stays.
            Read::Unreadable(_) | Read::Nothing => None,
        };
        if is_deletion && self.has_other_object(&object).await? {
            // It has the record now, in whatever version.
            (self.at, self.lines) = (None, None);
            return Ok(Vec::new());
        }
        self.at = Some(revision);
        Ok(event.and_then(|event| self.known.admit(event)).into_iter().collect())
    }

    /// Looks whether this is still the server that we knew. One with an older state, such as a restored
    /// backup, is silent until it reaches our revision. Not before a watch is continued: when a server
    /// restarts, all agents continue theirs at once, and a list costs more than a watch does.
    async fn compare(&mut self, at: Revision) {
        self.compare_at = None;
        self.store.check_cluster().await;
        match self.store.current(&self.scope).await {
            Ok(current) if current < at => {
                tracing::warn!(
                    collection = self.plural(),
                    "the API server is at an older revision than before: listing again"
                );
                (self.at, self.lines) = (None, None);
            }
            Ok(_) => {}
            Err(failure) => {
                tracing::debug!(error = %failure.error, "the server's revision is compared later");
                self.compare_at = Some(Instant::now() + self.backoff.pause());
            }
        }
    }

    /// Notes that everything up to a revision is known; none if the cluster lacks the resource.
    fn know(&mut self, revision: Option<Revision>) {
        self.is_undefined = revision.is_none();
        self.at = revision;
    }

    /// Whether another object has the same record as a deleted one.
    async fn has_other_object(&self, deleted: &Value) -> Result<bool, Interruption> {
        let Collection::Custom(kind) = self.scope.collection else { return Ok(false) };
        let Some(name) = other_name(kind, self.form.group, deleted) else { return Ok(false) };
        let namespace = deleted.pointer("/metadata/namespace").and_then(Value::as_str);
        let mut path = self.scope.collection.path(self.form.group, namespace);
        path.push(name);
        let segments: Vec<&str> = path.iter().map(String::as_str).collect();
        match self.store.read(format!("get {}", path.join("/")), &segments, &[]).await {
            Ok(_) => Ok(true),
            Err(failure) if verdict(&failure) == Verdict::NotFound => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Reads everything, and reports the differences.
    async fn relist(&mut self) -> Result<Vec<Event>, Interruption> {
        self.restarts.mark_unchanged();
        self.form = self.store.form_of(self.scope.collection).await?;
        let listed = self.store.list_scope(&self.scope, &self.prefix).await;
        let listed = listed.map_err(Interruption::from)?;
        self.know(listed.as_ref().map(|(_, revision)| *revision));
        let (mut records, revision) = listed.unwrap_or_default();
        records.sort_by(|one, other| one.key.cmp(&other.key));
        let mut events = self.known.absorb(Snapshot { records, revision });
        // It is still there, and its last valid form stays.
        events.retain(|event| !matches!(event, Event::Put(record) if !is_readable(record)));
        Ok(events.into())
    }

    /// Handles the end of a connection, and pauses. Returns the error if the caller has to know.
    async fn interrupted(&mut self, interruption: Interruption) -> Option<StoreError> {
        let pauses = self.store.inner.settings.pauses;
        let was_open = self.lines.take().is_some();
        let (error, after) = match interruption {
            // To continue after an event that is too large would bring it again.
            Interruption::Request(failure)
                if failure.expired || was_open && matches!(failure.error, KubeError::Invalid(_)) =>
            {
                self.at = None;
                let spread = self.store.client().spread(pauses.relist);
                tokio::time::sleep(self.part_of(spread)).await;
                return None;
            }
            Interruption::Request(failure) if was_open && failure.code.is_none() => {
                tracing::debug!(error = %failure.error, "watch ended");
                // A server that ends watches at once is not asked again at once.
                let pause = self.part_of(pauses.resume).max(self.backoff.pause().min(pauses.resume));
                tokio::time::sleep(pause).await;
                return None;
            }
            Interruption::Request(failure) => {
                let after = failure.after.unwrap_or_default();
                (self.store.list_failed(failure), after)
            }
            Interruption::List(error) => (error, Duration::ZERO),
        };
        tracing::debug!(%error, "watch interrupted");
        tokio::time::sleep(self.backoff.pause().max(after)).await;
        (!error.retryable()).then_some(error)
    }

    fn part_of(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.rng.below(u64::try_from(most.as_micros()).unwrap_or(u64::MAX)))
    }

    async fn open(&mut self, query: &[(&'static str, &str)]) -> Result<Lines, Failure> {
        let seconds = LIFETIME_MIN_SECONDS + self.rng.below(LIFETIME_SPREAD_SECONDS);
        let mut request = self.store.list_request(&self.scope).await?;
        request.operation = request.operation.replacen("list", "watch", 1);
        let always = [("watch", "true"), ("allowWatchBookmarks", "true")];
        request.query.extend(always.iter().chain(query).map(|(name, value)| (*name, (*value).to_owned())));
        request.query.push(("timeoutSeconds", seconds.to_string()));
        self.store.open(&request, Duration::from_secs(seconds)).await
    }

    fn read(&self, object: &Value) -> Read {
        self.store.read_object(&self.scope, &self.prefix, &self.form, object)
    }

    fn parse(&self, line: &[u8]) -> Result<Parsed, Failure> {
        let unreadable = |reason: &dyn std::fmt::Display| {
            refused("event of a watch not used", self.plural(), reason);
            Parsed::Unreadable
        };
        let line: Line<'_> = match serde_json::from_slice(line) {
            Ok(line) => line,
            Err(error) => return Ok(unreadable(&error)),
        };
        let meaning = match line.kind {
            "ADDED" | "MODIFIED" => Parsed::Changed,
            "DELETED" => Parsed::Deleted,
            "BOOKMARK" => Parsed::Bookmark,
            "ERROR" => return Err(Failure::of_event("watch", line.object.get())),
            other => return Ok(unreadable(&format_args!("its type is {other:?}"))),
        };
        let mut object = serde_json::Deserializer::from_str(line.object.get());
        let object = self.scope.collection.read_members().deserialize(&mut object);
        Ok(object.map_or_else(|error| unreadable(&error), meaning))
    }

    fn plural(&self) -> &'static str {
        self.scope.collection.names(self.form.group).1
    }
}

/// Waits for a moment; for ever without one.
async fn reached(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
