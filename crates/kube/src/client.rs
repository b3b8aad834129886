//! The interface over HTTP: requests with a deadline; reads are repeated, patches never once they
//! may have arrived.

use std::fs::Metadata;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::answer::{Again, Failure};
use crate::backoff::Backoff;
use crate::config::{Config, ConfigError, Credential, Server, Source, read_file};
use crate::connection::{Broken, Connection, Pool};
use crate::path::Path;
use crate::watch::Nodes;
use crate::{BoxFuture, KubeError, Kubernetes, Namespace, Node, NodeWatch, Pod, StatusPatch};

/// Limit of a call, including reconnects and retries. A CNI ADD makes a few of them within
/// kubelet's 2 minutes.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// A read gives up a silent connection after this part of its deadline, so that another can still
/// answer in time.
const READ_TIMEOUT_PARTS: u32 = 3;
/// Limit of a single object: etcd stores at most 1.5 MiB of it, and its JSON is larger.
pub(crate) const MAX_OBJECT_BYTES: usize = 8 << 20;
/// The content type of a strategic merge patch, which merges lists with a merge key, such as
/// conditions (flannel.md section 5.2).
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
const USER_AGENT: &str = concat!("russet/", env!("CARGO_PKG_VERSION"));

/// A client of one API server. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    deadline: Duration,
    loaded: Mutex<Loaded>,
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
    pub(crate) patch: Option<Bytes>,
    /// Limit of the answer's body.
    pub(crate) limit_bytes: usize,
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
        Ok(Self { shared: Arc::new(Shared { source, deadline, loaded: Mutex::new(loaded) }) })
    }

    /// The namespace that the kubeconfig's context or the service account names.
    pub fn own_namespace(&self) -> Option<String> {
        self.session().config.namespace.clone()
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

    async fn get<T: DeserializeOwned>(&self, operation: String, path: Path) -> Result<T, KubeError> {
        let ask = Ask { operation, method: Method::GET, path, patch: None, limit_bytes: MAX_OBJECT_BYTES };
        self.call(&ask).await.map_err(|failure| failure.error)
    }

    async fn patch<T: DeserializeOwned>(
        &self,
        operation: String,
        path: Path,
        patch: &StatusPatch,
    ) -> Result<T, KubeError> {
        let patch = Some(Bytes::from(patch.to_json()));
        let ask = Ask { operation, method: Method::PATCH, path, patch, limit_bytes: MAX_OBJECT_BYTES };
        self.call(&ask).await.map_err(|failure| failure.error)
    }

    /// Repeats the request until there is an answer, the deadline passes, or a repetition is not
    /// permitted.
    pub(crate) async fn call<T: DeserializeOwned>(&self, ask: &Ask) -> Result<T, Failure> {
        let body = self.repeated(ask, |session, until| async move {
            let attempt = session.exchange(ask);
            timely(&ask.operation, until, attempt).await
        });
        let body = body.await?;
        serde_json::from_slice(&body)
            .map_err(|error| Failure::nonsense(&ask.operation, format!("the answer makes no sense: {error}")))
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
        let deadline = Instant::now() + self.shared.deadline;
        let is_read = ask.method == Method::GET;
        let mut backoff = Backoff::new();
        loop {
            // For a request that cannot be repeated, giving up early would only lose its result.
            let timeout = self.shared.deadline / READ_TIMEOUT_PARTS;
            let until = if is_read { deadline.min(Instant::now() + timeout) } else { deadline };
            let failure = match attempt(self.session(), until).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let again = failure.again == Again::Always || failure.again == Again::IfRead && is_read;
            let pause = backoff.pause().max(failure.after.unwrap_or_default());
            if !again || Instant::now() + pause >= deadline {
                return Err(failure);
            }
            tracing::debug!(error = %failure.error, "kubernetes request repeated");
            tokio::time::sleep(pause).await;
        }
    }
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
        let watch: Box<dyn NodeWatch> = Box::new(Nodes::new(self.clone()));
        Box::pin(async move { Ok(watch) })
    }
}

// === impl Session ===

impl Session {
    /// Refuses unusable certificates before anything connects.
    fn new(config: Config) -> Result<Arc<Self>, ConfigError> {
        if config.server.tls {
            crate::tls::connector(&config)?;
            crate::tls::server_name(&config)?;
        }
        Ok(Arc::new(Self { config, pool: Pool::default() }))
    }

    /// Sends a request and reads its whole answer; the connection is kept for the next one.
    async fn exchange(&self, ask: &Ask) -> Result<Bytes, Failure> {
        let (response, connection) = self.open(ask).await?;
        let body = collect(ask, response.into_body(), ask.limit_bytes).await?;
        self.pool.keep(connection);
        Ok(body)
    }

    /// Sends a request and reads the head of its answer, which must be a success.
    async fn open(&self, ask: &Ask) -> Result<(Response<Incoming>, Connection), Failure> {
        let (response, connection) = self.send(ask).await?;
        let code = response.status();
        if code == StatusCode::OK {
            return Ok((response, connection));
        }
        let after =
            response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = collect(ask, response.into_body(), MAX_OBJECT_BYTES).await.unwrap_or_default();
        self.pool.keep(connection);
        Err(Failure::of_answer(&ask.operation, code, after.map(Duration::from_secs), &body))
    }

    /// Sends on a kept connection, or on a new one if that was closed meanwhile.
    async fn send(&self, ask: &Ask) -> Result<(Response<Incoming>, Connection), Failure> {
        let failed = |cause, again| Failure::broken(&ask.operation, cause, again);
        while let Some(mut connection) = self.pool.take() {
            match connection.send(self.request(ask)?).await {
                Ok(response) => return Ok((response, connection)),
                Err(Broken::NotSent(_)) => {}
                Err(Broken::Unknown(cause)) => return Err(failed(cause, Again::IfRead)),
            }
        }
        let opened = Connection::open(&self.config).await;
        let mut connection = opened.map_err(|cause| failed(cause, Again::Always))?;
        match connection.send(self.request(ask)?).await {
            Ok(response) => Ok((response, connection)),
            Err(Broken::NotSent(cause)) => Err(failed(cause, Again::Always)),
            Err(Broken::Unknown(cause)) => Err(failed(cause, Again::IfRead)),
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
        if ask.patch.is_some() {
            request = request.header(header::CONTENT_TYPE, STRATEGIC_MERGE);
        }
        if let Some(value) = self.authorization().map_err(|error| Failure::nonsense(&ask.operation, error))? {
            request = request.header(header::AUTHORIZATION, value);
        }
        let body = Full::new(ask.patch.clone().unwrap_or_default());
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
            Err(Failure::nonsense(&ask.operation, format!("the answer is longer than {limit_bytes} bytes")))
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
