//! The engine: one client of one API server, and what its calls share.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use russet_kube::{Again, Answer, Client, ConfigError, Failure, KubeError, Request, Verb};
use russet_model::{Key, Prefix, ResourceKind};
use russet_store::{
    BoxFuture, Claims, CommitError, Record, Revision, Snapshot, Step, Store, StoreError, Watch, check_steps,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::companion::{Memory, revision_of};
use crate::convert::{Converted, Form, to_record};
use crate::failure::{Effect, Verdict, error, verdict};
use crate::list::unreadable_value;
use crate::place::{Collection, ObjectPlace, Place};
use crate::throttle::Throttle;
use crate::{Group, Settings, group};

/// Limits of calls (kubernetes.md section 1.15).
pub(crate) const READ_DEADLINE: Duration = Duration::from_secs(5);
pub(crate) const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// The server gives up before we do, so that its answer says so.
const SERVER_TIMEOUT: &str = "9s";
/// Warnings that are logged and kept; a server that sends more of them repeats itself.
const WARNINGS_MAX: usize = 64;
/// Limit of one object: etcd stores at most 1.5 MiB, and the server adds its own metadata.
const MAX_OBJECT_BYTES: usize = 8 << 20;

/// A store in the Kubernetes API. Cloning is cheap; clones share connections and what they know.
#[derive(Clone)]
pub struct KubeStore {
    pub(crate) inner: Arc<Inner>,
    /// How reads are sent: watches have pauses of their own.
    pub(crate) reads: Verb,
}

pub(crate) struct Inner {
    client: Client,
    pub(crate) settings: Settings,
    /// The group in use, once it is known.
    pub(crate) group: Mutex<Option<group::Known>>,
    /// Changes when all watches have to begin with a new list.
    pub(crate) restarts: watch::Sender<u64>,
    pub(crate) memory: Memory,
    pub(crate) throttle: Throttle,
    /// Whether the server can stream lists; until it has refused.
    pub(crate) streams_lists: AtomicBool,
    /// The UID of namespace `kube-system`, which no two clusters share; once it was read.
    cluster: Mutex<Option<String>>,
    /// When the last look at it began: all watches of a process continue at the same moment.
    looked: Mutex<Option<Instant>>,
    /// The warnings that were logged.
    warnings: Mutex<BTreeSet<String>>,
}

// === impl KubeStore ===

impl KubeStore {
    /// Creates a client. Fails on settings that cannot work; connects when first used, inside a
    /// tokio runtime.
    pub fn connect(settings: Settings) -> Result<Self, ConfigError> {
        let client = Client::with_deadline(settings.source.clone(), WRITE_DEADLINE)?;
        let inner = Inner {
            client,
            group: Mutex::default(),
            restarts: watch::Sender::new(0),
            memory: Memory::default(),
            throttle: Throttle::new(settings.writes),
            streams_lists: AtomicBool::new(true),
            cluster: Mutex::default(),
            looked: Mutex::default(),
            warnings: Mutex::default(),
            settings,
        };
        Ok(Self { inner: Arc::new(inner), reads: Verb::Read })
    }

    /// The address of the API server, for messages.
    pub fn server(&self) -> String {
        self.inner.client.server()
    }

    /// The client, for objects that are no records.
    pub fn client(&self) -> Client {
        self.inner.client.clone()
    }

    /// Whether a token or password goes to another machine in clear text.
    pub fn plaintext_credentials(&self) -> bool {
        self.inner.client.plaintext_credentials()
    }

    /// What the server has warned about, such as members that its resource definitions lack and that
    /// it therefore does not store. Each was logged once.
    pub fn warnings(&self) -> Vec<String> {
        lock(&self.inner.warnings).iter().cloned().collect()
    }

    pub(crate) async fn form(&self) -> Result<Form, StoreError> {
        let interface_prefix = self.inner.settings.interface_prefix.clone();
        Ok(Form { group: self.group().await?, interface_prefix })
    }

    /// Reads one path.
    pub(crate) async fn read(
        &self,
        operation: String,
        segments: &[&str],
        query: &[(&'static str, String)],
    ) -> Result<Value, Failure> {
        let segments = segments.iter().map(|segment| (*segment).to_owned()).collect();
        let request = Request {
            operation,
            verb: self.reads,
            segments,
            query: query.to_vec(),
            body: Vec::new(),
            deadline: READ_DEADLINE,
            limit_bytes: MAX_OBJECT_BYTES,
        };
        let answer = self.inner.client.request(&request).await?;
        self.decoded(&request.operation, &answer)
    }

    /// Sends any request.
    pub(crate) async fn send(&self, request: &Request) -> Result<Answer, Failure> {
        self.inner.client.request(request).await
    }

    pub(crate) async fn open(
        &self,
        request: &Request,
        lifetime: Duration,
    ) -> Result<russet_kube::Lines, Failure> {
        self.inner.client.follow(request, lifetime, self.inner.settings.pauses.silence).await
    }

    /// Sends a write, as soon as the limits of writes permit.
    pub(crate) async fn write(
        &self,
        operation: String,
        verb: Verb,
        segments: Vec<String>,
        body: &Value,
    ) -> Result<Value, Failure> {
        let until = Instant::now() + WRITE_DEADLINE;
        let Some(_permit) = self.inner.throttle.permit(until).await else {
            return Err(unavailable(operation, "too many writes wait for the API server", Again::Always));
        };
        let request = Request {
            operation,
            verb,
            segments,
            query: vec![("timeout", SERVER_TIMEOUT.to_owned())],
            body: body.to_string().into_bytes(),
            deadline: until.saturating_duration_since(Instant::now()),
            limit_bytes: MAX_OBJECT_BYTES,
        };
        let answer = self.inner.client.request(&request).await?;
        self.log_warnings(&answer);
        // The server says that it was done, and cannot say what.
        let unknown = |error| unavailable(request.operation.clone(), error, Again::Never);
        serde_json::from_slice(&answer.body).map_err(unknown)
    }

    pub(crate) fn decoded<T: DeserializeOwned>(
        &self,
        operation: &str,
        answer: &Answer,
    ) -> Result<T, Failure> {
        serde_json::from_slice(&answer.body)
            .map_err(|error| Failure::nonsense(operation, format!("the answer makes no sense: {error}")))
    }

    /// Logs each warning of the server once.
    fn log_warnings(&self, answer: &Answer) {
        let mut known = lock(&self.inner.warnings);
        for warning in &answer.warnings {
            if known.len() < WARNINGS_MAX && known.insert(warning.clone()) {
                tracing::warn!(%warning, "the API server warns; a member that it does not know is not stored until its resource definitions are updated");
            }
        }
    }

    /// The object at a place, and its record if it has one.
    pub(crate) async fn object(&self, place: &ObjectPlace, key: &Key) -> Result<Option<Value>, StoreError> {
        let operation = format!("get {key}");
        let path = self.path(place).await?;
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match self.read(operation, &path, &[]).await {
            Ok(object) => Ok(Some(object)),
            Err(failure) if verdict(&failure) == Verdict::NotFound => Ok(None),
            Err(failure) => Err(self.failed(failure, key, Effect::Read)),
        }
    }

    /// The path of an object.
    pub(crate) async fn path(&self, place: &ObjectPlace) -> Result<Vec<String>, StoreError> {
        // Other kinds have the same path in every cluster.
        let group = if place.collection.is_calicos() { self.group().await? } else { Group::V1 };
        let mut path = place.collection.path(group, place.namespace.as_deref());
        path.push(place.name.clone());
        Ok(path)
    }

    /// The error for a failed request about an object.
    pub(crate) fn failed(&self, failure: Failure, key: &Key, effect: Effect) -> StoreError {
        if verdict(&failure) == Verdict::NoResource {
            self.doubt_group();
        }
        error(failure, key, effect)
    }

    /// The record that an object holds for a key. Keeps what the object has besides.
    pub(crate) async fn record(
        &self,
        collection: Collection,
        key: &Key,
        object: &Value,
    ) -> Result<Option<Record>, StoreError> {
        let corrupt = |reason: String| StoreError::Corrupt {
            operation: format!("read {key}"),
            source: russet_store::Cause::text(reason),
        };
        let form = self.form_of(collection).await?;
        // As in other stores, an invalid record is there, and who decodes it says what is wrong: an
        // error of the store would fail every DEL of a pod with such a handle or block.
        let converted = to_record(collection, &form, object).unwrap_or_else(|error| {
            Some(Converted { key: key.clone(), value: Some(unreadable_value(&error)) })
        });
        let Some(Converted { key: found, value: Some(value) }) = converted else { return Ok(None) };
        // Handles of any spelling share one object; other names lead to one key only.
        let is_same = found == *key
            || collection == Collection::Handles && found.as_str().eq_ignore_ascii_case(key.as_str());
        if !is_same {
            return Ok(None);
        }
        let revision = revision_of(object).ok_or_else(|| {
            corrupt("its resourceVersion is no number, so revisions cannot be compared".to_owned())
        })?;
        self.inner.memory.keep(key, object);
        self.heed(collection, object);
        Ok(Some(Record { key: key.clone(), value, revision }))
    }

    /// Looks whether this is still the same cluster (kubernetes.md section 4.2 item 5). Behind the
    /// same address, another one may have any revisions; all watches then begin with a new list.
    /// Without the right to see the namespace nothing is known.
    pub(crate) async fn check_cluster(&self) {
        let now = Instant::now();
        let before = lock(&self.inner.looked).replace(now);
        if before.is_some_and(|before| now.duration_since(before) < self.inner.settings.pauses.resume) {
            return;
        }
        let path = ["api", "v1", "namespaces", "kube-system"];
        let Ok(object) = self.read("get namespace kube-system".to_owned(), &path, &[]).await else { return };
        let Some(uid) = object.pointer("/metadata/uid").and_then(Value::as_str) else { return };
        let before = lock(&self.inner.cluster).replace(uid.to_owned());
        if before.is_some_and(|before| before != uid) {
            tracing::warn!(
                server = self.server(),
                "the API server is another cluster's than before: listing again"
            );
            self.inner.memory.clear();
            self.inner.restarts.send_modify(|count| *count += 1);
        }
    }

    /// Whether the cluster was looked at.
    pub(crate) fn knows_cluster(&self) -> bool {
        lock(&self.inner.cluster).is_some()
    }

    /// Takes notice of objects that say something about the store itself.
    pub(crate) fn heed(&self, collection: Collection, object: &Value) {
        if collection == Collection::Custom(ResourceKind::ClusterInformation) {
            self.heed_lock(object);
        }
    }

    pub(crate) async fn form_of(&self, collection: Collection) -> Result<Form, StoreError> {
        if collection.is_calicos() {
            return self.form().await;
        }
        Ok(Form { group: Group::V1, interface_prefix: self.inner.settings.interface_prefix.clone() })
    }

    async fn get_record(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        let Place::Object(place) = Place::of(key, "get")? else { return Ok(None) };
        match self.object(&place, key).await? {
            Some(object) => self.record(place.collection, key, &object).await,
            None => Ok(None),
        }
    }

    async fn commit_steps(&self, steps: Vec<Step>) -> Result<Vec<Revision>, CommitError> {
        check_steps(&steps)?;
        for (failed, step) in steps.iter().enumerate() {
            self.check(step).map_err(|error| CommitError { done: 0, failed, error })?;
        }
        let mut revisions = Vec::with_capacity(steps.len());
        for (done, step) in steps.into_iter().enumerate() {
            let revision = self.step(step).await;
            revisions.push(revision.map_err(|error| CommitError { done, failed: done, error })?);
        }
        Ok(revisions)
    }
}

/// A write without an answer; `again` says whether it was certainly not executed.
fn unavailable(
    operation: String,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    again: Again,
) -> Failure {
    let error = KubeError::Unavailable { operation, source: source.into() };
    Failure { error, again, after: None, expired: false, code: None, reason: None, fields: Box::default() }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for KubeStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeStore").field("server", &self.server()).finish()
    }
}

impl Store for KubeStore {
    fn claims(&self) -> Claims {
        Claims { atomic: false, ttl: false }
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.get_record(key))
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(self.list_records(prefix))
    }

    fn holds<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.holds_any(prefix))
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(self.commit_steps(steps))
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(self.watch_records(prefix))
    }

    fn follow<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(self.follow_records(prefix, take))
    }
}
