//! The interface over HTTP: requests with a deadline; reads are repeated, patches never once they
//! may have arrived.

use std::fs::Metadata;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response};
use russet_http::client::{Broken, Connection, Pool};
use russet_model::time;
use russet_sync::Backoff;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::answer::{Again, Failure};
use crate::config::{Config, ConfigError, Credential, Material, Server, Source, read_file};
use crate::connection;
use crate::path::Path;
use crate::rest::Answer;
use crate::{BoxFuture, KubeError, Kubernetes, Namespace, Node, NodeWatch, Pod, StatusPatch};

/// Limit of a call, including reconnects and retries. A CNI ADD makes a few of them within
/// kubelet's 2 minutes.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// A read gives up a silent connection after this part of its deadline, so that another can still
/// answer in time.
const READ_TIMEOUT_PARTS: u32 = 3;
/// Limit of a single object: etcd stores at most 1.5 MiB of it, and its JSON is larger.
pub(crate) const MAX_OBJECT_BYTES: usize = 8 << 20;
/// Limit of the pool. A plugin needs one connection; an agent that adds several pods at once needs
/// a few.
const MAX_IDLE: usize = 8;
/// Age at which an idle connection is not used again: load balancers forget connections after a
/// minute or so, some of them silently.
const MAX_IDLE_AGE: Duration = Duration::from_secs(30);
/// The content type of a strategic merge patch, which merges lists with a merge key, such as
/// conditions (flannel.md section 5.2).
pub(crate) const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
const USER_AGENT: &str = concat!("russet/", env!("CARGO_PKG_VERSION"));

/// First pause between attempts: a server that was just restarted needs longer, one that dropped a
/// connection does not. After five failures the pause is [`PAUSE_MAX`], so that a server that fails
/// gets at most one request a second from a call.
const PAUSE_MIN: Duration = Duration::from_millis(125);
/// What a server may ask for as a pause.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Longest pause; it bounds how late a pod's sandbox notices that the server is back.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What each node adds to the time over which lists of all agents are spread: 28 of them begin in a second
/// (kubernetes.md K76).
const SPREAD_PER_NODE: Duration = Duration::from_millis(36);

/// A client of one API server. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    deadline: Duration,
    loaded: Mutex<Loaded>,
    /// Whether the last call found the server unavailable.
    is_away: AtomicBool,
    /// How many nodes the cluster had when they were last counted; 0 before.
    nodes: AtomicU32,
    /// Incremented when the server answers again after it was away.
    contacts: watch::Sender<u64>,
}

/// A loaded configuration, with its connections.
#[derive(Clone)]
struct Loaded {
    stamp: Option<Stamp>,
    session: Arc<Session>,
}

struct Session {
    config: Config,
    pool: Pool,
}

/// Distinguishes a rewritten file from the old one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    seconds: i64,
    nanoseconds: i64,
}

/// A request that may be sent several times.
pub(crate) struct Ask {
    /// The operation with its subject, for messages: `get pod shop/web-0`.
    pub(crate) operation: String,
    pub(crate) method: Method,
    pub(crate) path: Path,
    /// Content type and content.
    pub(crate) body: Option<(&'static str, Bytes)>,
    /// Limit of the answer's body.
    pub(crate) limit_bytes: usize,
    /// Limit of the whole call; none: that of the client.
    pub(crate) deadline: Option<Duration>,
    /// Whether it is sent again after a failure, as far as that is permitted.
    pub(crate) is_repeated: bool,
}

// === impl Client ===

impl Client {
    /// Reads and checks the configuration; connects to nothing yet.
    pub fn new(source: Source) -> Result<Self, ConfigError> {
        Self::with_deadline(source, CALL_DEADLINE)
    }

    /// Sets another deadline for each call.
    pub fn with_deadline(source: Source, deadline: Duration) -> Result<Self, ConfigError> {
        let stamp = Stamp::of(&source);
        let loaded = Loaded { stamp, session: Session::new(source.load()?)? };
        let (is_away, contacts) = (AtomicBool::new(false), watch::Sender::new(0));
        let loaded = Mutex::new(loaded);
        let nodes = AtomicU32::new(0);
        Ok(Self { shared: Arc::new(Shared { source, deadline, loaded, is_away, nodes, contacts }) })
    }

    /// Changes when the server answers again after it was unavailable.
    pub fn contacts(&self) -> watch::Receiver<u64> {
        self.shared.contacts.subscribe()
    }

    /// Notes how many nodes the cluster has, each of which may have an agent.
    pub fn note_nodes(&self, nodes: usize) {
        self.shared.nodes.store(u32::try_from(nodes).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Over how long a list is spread that all agents of the cluster need at the same moment: less than `longest` in a cluster that is known to
    /// have few nodes.
    pub fn spread(&self, longest: Duration) -> Duration {
        spread(self.shared.nodes.load(Ordering::Relaxed), longest)
    }

    /// The namespace that the kubeconfig's context or the service account names.
    pub fn own_namespace(&self) -> Option<String> {
        self.session().config.namespace.clone()
    }

    /// A kubeconfig for the same server with another token, as Calico's installer writes it. It names no
    /// other file.
    pub fn kubeconfig(&self, token: &str) -> Result<String, ConfigError> {
        let session = self.session();
        let Config { server, authorities, skip_verify, .. } = &session.config;
        let trust = match authorities.as_ref().map(Material::read).transpose()? {
            Some(pem) => format!("    certificate-authority-data: {}\n", STANDARD.encode(pem)),
            None if *skip_verify => "    insecure-skip-tls-verify: true\n".to_owned(),
            None => String::new(),
        };
        Ok(format!(
            "# Kubeconfig of Calico's CNI plugins. Written by `russet agent`, which renews the token.\n\
             apiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n    server: {server}\n{trust}\
             users:\n- name: calico\n  user:\n    token: {token}\ncontexts:\n- name: calico-context\n  context:\n    \
             cluster: local\n    user: calico\ncurrent-context: calico-context\n"
        ))
    }

    /// The address of the API server, for messages.
    pub fn server(&self) -> String {
        self.session().config.server.to_string()
    }

    /// Whether a token or password goes to another machine in clear text.
    pub fn plaintext_credentials(&self) -> bool {
        let session = self.session();
        let Server { tls, host, .. } = &session.config.server;
        let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        !(*tls || here || matches!(session.config.credential, Credential::None))
    }

    /// Reloads the configuration if its file has changed. A file that became unreadable is reported
    /// once, and the old configuration stays in use.
    fn session(&self) -> Arc<Session> {
        let Shared { source, loaded, .. } = &*self.shared;
        let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(source);
        if stamp.is_some() && stamp != loaded.stamp {
            loaded.stamp = stamp;
            match source.load().and_then(Session::new) {
                Ok(session) => loaded.session = session,
                Err(error) => tracing::warn!(%error, "kubernetes configuration kept as it was"),
            }
        }
        loaded.session.clone()
    }

    /// Reads the configuration again at the next request, even if its file seems unchanged.
    fn reload(&self) {
        self.shared.loaded.lock().unwrap_or_else(PoisonError::into_inner).stamp = None;
    }

    async fn get<T: DeserializeOwned>(&self, operation: String, path: Path) -> Result<T, KubeError> {
        let ask = Ask::read(operation, path, MAX_OBJECT_BYTES);
        self.call(&ask).await.map_err(|failure| failure.error)
    }

    async fn patch<T: DeserializeOwned>(
        &self,
        operation: String,
        path: Path,
        patch: &StatusPatch,
    ) -> Result<T, KubeError> {
        let body = Some((STRATEGIC_MERGE, Bytes::from(patch.to_json())));
        let limit_bytes = MAX_OBJECT_BYTES;
        let (deadline, is_repeated) = (None, true);
        let ask = Ask { operation, method: Method::PATCH, path, body, limit_bytes, deadline, is_repeated };
        self.call(&ask).await.map_err(|failure| failure.error)
    }

    /// Repeats the request until there is an answer, the deadline passes, or a repetition is not
    /// permitted.
    pub(crate) async fn call<T: DeserializeOwned>(&self, ask: &Ask) -> Result<T, Failure> {
        let answer = self.answer(ask).await?;
        serde_json::from_slice(&answer.body)
            .map_err(|error| Failure::nonsense(&ask.operation, format!("the answer makes no sense: {error}")))
    }

    /// The same for an answer whose body the caller decodes.
    pub(crate) async fn answer(&self, ask: &Ask) -> Result<Answer, Failure> {
        self.repeated(ask, |session, until| async move {
            let attempt = session.exchange(ask);
            timely(&ask.operation, until, attempt).await
        })
        .await
    }

    /// The same for an answer whose body is read piece by piece.
    pub(crate) async fn stream(&self, ask: &Ask) -> Result<Incoming, Failure> {
        self.repeated(ask, |session, until| async move {
            let attempt = session.open(ask);
            timely(&ask.operation, until, attempt).await.map(|(response, _)| response.into_body())
        })
        .await
    }

    async fn repeated<T, F>(
        &self,
        ask: &Ask,
        attempt: impl Fn(Arc<Session>, Instant) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let whole = ask.deadline.unwrap_or(self.shared.deadline);
        let deadline = Instant::now() + whole;
        let is_read = ask.method == Method::GET;
        let mut backoff = backoff();
        let mut has_reloaded = false;
        loop {
            // For a request that cannot be repeated, giving up early would only lose its result.
            let timeout = whole / READ_TIMEOUT_PARTS;
            let until = if is_read { deadline.min(Instant::now() + timeout) } else { deadline };
            let answer = attempt(self.session(), until).await;
            self.shared.note(answer.as_ref().err());
            let failure = match answer {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            // Nothing was executed; the token may have been replaced since it was read.
            if failure.code == Some(401) && !std::mem::replace(&mut has_reloaded, true) {
                self.reload();
                continue;
            }
            let again = failure.again == Again::Always || failure.again == Again::IfRead && is_read;
            let pause = backoff.pause().max(failure.after.unwrap_or_default());
            if !again || !ask.is_repeated || Instant::now() + pause >= deadline {
                return Err(failure);
            }
            tracing::debug!(error = %failure.error, "kubernetes request repeated");
            tokio::time::sleep(pause).await;
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Notes whether the server answered. An answer that refuses is one, too.
    fn note(&self, failure: Option<&Failure>) {
        let is_away = failure.is_some_and(|failure| failure.error.retryable() && failure.code != Some(429));
        if self.is_away.swap(is_away, Ordering::Relaxed) && !is_away {
            self.contacts.send_modify(|count| *count += 1);
        }
    }
}

// === impl Ask ===

impl Ask {
    /// A request that changes nothing.
    pub(crate) fn read(operation: String, path: Path, limit_bytes: usize) -> Self {
        let (method, body, deadline) = (Method::GET, None, None);
        Self { operation, method, path, body, limit_bytes, deadline, is_repeated: true }
    }
}

fn spread(nodes: u32, longest: Duration) -> Duration {
    match nodes {
        0 => longest,
        nodes => SPREAD_PER_NODE.saturating_mul(nodes).min(longest),
    }
}

/// The pauses of one call or one watch.
pub(crate) fn backoff() -> Backoff {
    Backoff::new(PAUSE_MIN, PAUSE_MAX)
}

async fn timely<T>(
    operation: &str,
    until: Instant,
    attempt: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout_at(until, attempt).await {
        Ok(done) => done,
        Err(_) => Err(Failure::broken(operation, "no answer in time".into(), Again::IfRead)),
    }
}

impl Kubernetes for Client {
    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Node, KubeError>> {
        Box::pin(async move {
            let operation = format!("get node {name}");
            self.get(operation.clone(), Path::node(name).checked(&operation)?).await
        })
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Namespace, KubeError>> {
        Box::pin(async move {
            let operation = format!("get namespace {name}");
            self.get(operation.clone(), Path::namespace(name).checked(&operation)?).await
        })
    }

    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Pod, KubeError>> {
        Box::pin(async move {
            let operation = format!("get pod {namespace}/{name}");
            self.get(operation.clone(), Path::pod(namespace, name).checked(&operation)?).await
        })
    }

    fn patch_pod_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: &'a StatusPatch,
    ) -> BoxFuture<'a, Result<Pod, KubeError>> {
        Box::pin(async move {
            let operation = format!("patch status of pod {namespace}/{name}");
            let path = Path::pod(namespace, name).checked(&operation)?.status();
            self.patch(operation, path, patch).await
        })
    }

    fn patch_node_status<'a>(
        &'a self,
        name: &'a str,
        patch: &'a StatusPatch,
    ) -> BoxFuture<'a, Result<Node, KubeError>> {
        Box::pin(async move {
            let operation = format!("patch status of node {name}");
            let path = Path::node(name).checked(&operation)?.status();
            self.patch(operation, path, patch).await
        })
    }

    fn watch_nodes(&self) -> BoxFuture<'_, Result<Box<dyn NodeWatch>, KubeError>> {
        let watch: Box<dyn NodeWatch> = Box::new(self.all_nodes());
        Box::pin(async move { Ok(watch) })
    }
}

// === impl Session ===

impl Session {
    /// Refuses unusable certificates before anything connects.
    fn new(config: Config) -> Result<Arc<Self>, ConfigError> {
        if config.server.tls {
            connection::tls(&config)?;
        }
        Ok(Arc::new(Self { config, pool: Pool::new(MAX_IDLE, MAX_IDLE_AGE) }))
    }

    /// Sends a request and reads its whole answer; the connection is kept for the next one.
    async fn exchange(&self, ask: &Ask) -> Result<Answer, Failure> {
        let (response, connection) = self.open(ask).await?;
        let warnings = response.headers().get_all(header::WARNING).iter();
        let warnings = warnings.filter_map(|value| Some(value.to_str().ok()?.to_owned())).collect();
        let date = response.headers().get(header::DATE);
        let date = date.and_then(|value| time::parse_http_date(value.to_str().ok()?));
        let body = collect(ask, response.into_body(), ask.limit_bytes).await?;
        self.pool.keep(connection);
        Ok(Answer { body, warnings, date })
    }

    /// Sends a request and reads the head of its answer, which must be a success.
    async fn open(&self, ask: &Ask) -> Result<(Response<Incoming>, Connection), Failure> {
        let (response, connection) = self.send(ask).await?;
        let code = response.status();
        if code.is_success() {
            return Ok((response, connection));
        }
        let after = response.headers().get(header::RETRY_AFTER);
        let after = after.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let body = collect(ask, response.into_body(), MAX_OBJECT_BYTES).await.unwrap_or_default();
        self.pool.keep(connection);
        Err(Failure::of_answer(
            &ask.operation,
            code,
            after.map(|after| Duration::from_secs(after).min(RETRY_AFTER_MAX)),
            &body,
        ))
    }

    /// Sends on a kept connection, or on a new one if that was closed meanwhile.
    async fn send(&self, ask: &Ask) -> Result<(Response<Incoming>, Connection), Failure> {
        let failed = |cause, again| Failure::broken(&ask.operation, cause, again);
        while let Some(mut connection) = self.pool.take().await {
            match connection.send(self.request(ask)?).await {
                Ok(response) => return Ok((response, connection)),
                Err(Broken::NotSent(_)) => {}
                Err(Broken::Unknown(cause)) => return Err(failed(cause.into(), Again::IfRead)),
            }
        }
        let opened = connection::open(&self.config).await;
        let mut connection = opened.map_err(|cause| failed(cause, Again::Always))?;
        match connection.send(self.request(ask)?).await {
            Ok(response) => Ok((response, connection)),
            Err(Broken::NotSent(cause)) => Err(failed(cause.into(), Again::Always)),
            Err(Broken::Unknown(cause)) => Err(failed(cause.into(), Again::IfRead)),
        }
    }

    fn request(&self, ask: &Ask) -> Result<Request<Full<Bytes>>, Failure> {
        let uri = format!("{}{}", self.config.server.base, ask.path);
        let mut request = Request::builder()
            .method(&ask.method)
            .uri(uri)
            .header(header::HOST, self.config.server.authority())
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, USER_AGENT);
        if let Some((content_type, _)) = ask.body {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        if let Some(value) = self.authorization().map_err(|error| Failure::nonsense(&ask.operation, error))? {
            request = request.header(header::AUTHORIZATION, value);
        }
        let body = ask.body.as_ref().map(|(_, content)| content.clone());
        let body = Full::new(body.unwrap_or_default());
        request.body(body).map_err(|error| Failure::nonsense(&ask.operation, error.to_string()))
    }

    /// Reloads the token if its file has changed: kubelet and Calico replace it long before it
    /// expires.
    fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        let text = match &self.config.credential {
            Credential::None => return Ok(None),
            Credential::Token(token) => format!("Bearer {}", token.reveal().trim()),
            Credential::TokenFile(path, fallback) => match (read_file(path), fallback) {
                (Ok(bytes), _) => format!("Bearer {}", String::from_utf8_lossy(&bytes).trim()),
                (Err(_), Some(token)) => format!("Bearer {}", token.reveal().trim()),
                (Err(error), None) => return Err(error.to_string()),
            },
            Credential::Basic(user, password) => {
                format!("Basic {}", STANDARD.encode(format!("{user}:{}", password.reveal())))
            }
        };
        let mut value =
            HeaderValue::try_from(text).map_err(|_| "the token holds control characters".to_owned())?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// The whole body, unless it is too long.
async fn collect(ask: &Ask, body: Incoming, limit_bytes: usize) -> Result<Bytes, Failure> {
    match Limited::new(body, limit_bytes).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the answer is longer than {limit_bytes} bytes");
            // Only a read is certain to have changed nothing.
            Err(match ask.method == Method::GET {
                true => Failure::nonsense(&ask.operation, message),
                false => Failure::broken(&ask.operation, message.into(), Again::IfRead),
            })
        }
        Err(error) => Err(Failure::broken(&ask.operation, error, Again::IfRead)),
    }
}

// === impl Stamp ===

impl Stamp {
    fn of(source: &Source) -> Option<Self> {
        let metadata: Metadata = std::fs::metadata(source.file()?).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            seconds: metadata.mtime(),
            nanoseconds: metadata.mtime_nsec(),
        })
    }
}
