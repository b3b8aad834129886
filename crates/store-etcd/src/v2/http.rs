//! HTTP/1.1 connections to members, with and without TLS: opened when needed, and reused. The v2
//! API supports no newer version.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use russet_http::client::{Broken, Connection, Pool};
use russet_sync::random;
use tokio::net::TcpStream;

use crate::failure::{Class, Failure, with_causes};
use crate::tls::{Tls, address};
use crate::{Settings, SettingsError};

/// The longest wait for a connection, including TLS, before another member is tried. Within a site
/// a connection takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Idle connections per member that are kept: enough for a few concurrent requests besides the
/// watches.
const IDLE_MAX: usize = 4;
/// The largest answer: a listing of ten thousand full blocks (200 MB, a third more as a JSON
/// string), twice.
const ANSWER_MAX_BYTES: usize = 512 << 20;
/// All releases with the v2 handlers serve them over HTTP/1.1.
const PROTOCOL: &[u8] = b"http/1.1";
/// The header with the store's index.
const INDEX: &str = "x-etcd-index";

/// One request, which any member can answer.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    /// The form in the body, if any.
    pub(crate) form: Option<Bytes>,
    /// Whether the member needs long to prepare the answer.
    pub(crate) large: bool,
}

/// The members, and which one is asked first.
pub(crate) struct Members {
    slots: Vec<Slot>,
    /// Incremented without limit; modulo the number of slots it is the slot in use.
    current: AtomicUsize,
    authorization: Option<String>,
}

struct Slot {
    endpoint: String,
    idle: Pool,
}

/// An answer whose body has not been read.
pub(crate) struct Opened {
    pub(crate) status: u16,
    pub(crate) index: u64,
    body: Incoming,
    connection: Connection,
}

// === impl Question ===

impl Question {
    pub(crate) fn get(target: String) -> Self {
        Self { method: Method::GET, target, form: None, large: false }
    }
}

// === impl Members ===

impl Members {
    /// Refuses settings whose certificates cannot be used. Does not connect.
    pub(crate) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        for endpoint in &settings.endpoints {
            Tls::new(settings, endpoint, PROTOCOL)?;
        }
        // A connection that the member has closed is not used again; one that is open, at any age.
        let idle = || Pool::new(IDLE_MAX, Duration::MAX);
        let slot = |endpoint: &String| Slot { endpoint: endpoint.clone(), idle: idle() };
        let slots: Vec<Slot> = settings.endpoints.iter().map(slot).collect();
        // A thousand nodes with the same list must not all ask its first member.
        let first = random() % slots.len().max(1) as u64;
        let credentials = settings.username.as_ref().zip(settings.password.as_ref());
        let authorization = credentials.map(|(name, password)| {
            let pair = format!("{name}:{}", password.reveal());
            format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
        });
        Ok(Self { slots, current: AtomicUsize::new(usize::try_from(first).unwrap_or(0)), authorization })
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// The number of the member in use.
    pub(crate) fn turn(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    pub(crate) fn endpoint(&self, turn: usize) -> &str {
        &self.slot(turn).endpoint
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "Settings::check has refused an empty list of endpoints, and a remainder is below its divisor"
    )]
    fn slot(&self, turn: usize) -> &Slot {
        &self.slots[turn % self.slots.len()]
    }

    /// Moves on to another member after a failure. Several failures of the same member move on only
    /// once.
    pub(crate) fn leave(&self, turn: usize) {
        // Idle connections to it are as suspect as the one that failed.
        self.slot(turn).idle.clear();
        let _ =
            self.current.compare_exchange(turn, turn.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn ask(
        &self,
        settings: &Settings,
        turn: usize,
        question: &Question,
    ) -> Result<Opened, Failure> {
        let endpoint = self.endpoint(turn);
        let mut connection = match self.slot(turn).idle.take().await {
            Some(connection) => connection,
            None => open(settings, endpoint).await?,
        };
        let request = self.request(endpoint, question)?;
        let (class, error) = match connection.send(request).await {
            Ok(answer) => return Ok(Opened::new(answer, connection)),
            Err(Broken::NotSent(error)) => (Class::NotDone, error),
            Err(Broken::Unknown(error)) => (Class::Ambiguous, error),
        };
        let failure = Failure::new(class, endpoint, with_causes(&error), true);
        Err(failure.shown(settings.cert.as_deref()))
    }

    fn request(&self, endpoint: &str, question: &Question) -> Result<Request<Full<Bytes>>, Failure> {
        let host = endpoint.split_once("://").map_or(endpoint, |(_, host)| host);
        let mut request =
            Request::builder().method(&question.method).uri(&question.target).header(HOST, host);
        if question.form.is_some() {
            request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let body = Full::new(question.form.clone().unwrap_or_default());
        request.body(body).map_err(|error| Failure::new(Class::Refused, endpoint, error.to_string(), false))
    }

    /// Reads the body, with `timeout` as the time limit for each piece, and keeps the connection
    /// for the next request.
    pub(crate) async fn finish(
        &self,
        turn: usize,
        mut opened: Opened,
        timeout: Duration,
    ) -> Result<Bytes, Failure> {
        let endpoint = self.endpoint(turn);
        let broken = |said: String| Failure::new(Class::Ambiguous, endpoint, said, true);
        let mut all: Vec<u8> = Vec::new();
        loop {
            let frame = match tokio::time::timeout(timeout, opened.body.frame()).await {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Err(broken(with_causes(&error))),
                Err(_) => return Err(Failure::silence(endpoint, timeout)),
            };
            let Ok(data) = frame.into_data() else { continue };
            if all.len() + data.len() > ANSWER_MAX_BYTES {
                return Err(Failure::nonsense(endpoint, "an answer above 512 MiB"));
            }
            all.extend_from_slice(&data);
        }
        self.slot(turn).idle.keep(opened.connection);
        Ok(all.into())
    }
}

// === impl Opened ===

impl Opened {
    fn new(answer: Response<Incoming>, connection: Connection) -> Self {
        let index = answer.headers().get(INDEX).and_then(|value| value.to_str().ok()?.parse().ok());
        let (status, index) = (answer.status().as_u16(), index.unwrap_or(0));
        Self { status, index, body: answer.into_body(), connection }
    }
}

async fn open(settings: &Settings, endpoint: &str) -> Result<Connection, Failure> {
    match tokio::time::timeout(CONNECT_TIMEOUT, connect(settings, endpoint)).await {
        Ok(connection) => connection,
        Err(_) => Err(Failure::unreachable(endpoint, format!("no connection within {CONNECT_TIMEOUT:?}"))),
    }
}

async fn connect(settings: &Settings, endpoint: &str) -> Result<Connection, Failure> {
    let unreachable = |reason: String| Failure::unreachable(endpoint, reason);
    let (host, port) = address(endpoint).ok_or_else(|| unreachable("no host and port".to_owned()))?;
    // The files are read for each connection, because certificates get renewed.
    let secured = Tls::new(settings, endpoint, PROTOCOL).map_err(|error| unreachable(error.to_string()))?;
    let tcp = TcpStream::connect((host.as_str(), port)).await.map_err(|e| unreachable(e.to_string()))?;
    // Small requests and answers: waiting to fill a segment would only delay them. A failure does
    // no harm.
    let _ = tcp.set_nodelay(true);
    let opened = match secured {
        None => Connection::handshake(tcp).await,
        Some(tls) => Connection::handshake(tls.connect(tcp).await.map_err(unreachable)?).await,
    };
    let opened = opened.map_err(|error| unreachable(with_causes(&error)))?;
    tracing::debug!(endpoint, "etcd v2 connected");
    Ok(opened)
}
