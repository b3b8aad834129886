//! HTTP/1.1 connections to members, with and without TLS: opened when needed, and reused. The v2
//! API supports no newer version.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::backoff::random;
use crate::failure::{Class, Failure, chain};
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
    idle: Mutex<Vec<Line>>,
}

type Line = SendRequest<Full<Bytes>>;

/// An answer whose body has not been read.
pub(crate) struct Opened {
    pub(crate) status: u16,
    pub(crate) index: u64,
    body: Incoming,
    line: Line,
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
        let slot = |endpoint: &String| Slot { endpoint: endpoint.clone(), idle: Mutex::default() };
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
        self.idle(turn).clear();
        let _ =
            self.current.compare_exchange(turn, turn.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    fn idle(&self, turn: usize) -> std::sync::MutexGuard<'_, Vec<Line>> {
        // No code panics while it holds the lock, and the list is consistent in any case.
        self.slot(turn).idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn ask(
        &self,
        settings: &Settings,
        turn: usize,
        question: &Question,
    ) -> Result<Opened, Failure> {
        let endpoint = self.endpoint(turn);
        let mut line = match self.kept(turn).await {
            Some(line) => line,
            None => open(settings, endpoint).await?,
        };
        let request = self.request(endpoint, question)?;
        match line.try_send_request(request).await {
            Ok(answer) => Ok(Opened::new(answer, line)),
            Err(mut unsent) => {
                let surely_not = unsent.take_message().is_some();
                let class = if surely_not { Class::NotDone } else { Class::Ambiguous };
                let failure = Failure::new(class, endpoint, with_causes(unsent.error()), true);
                Err(failure.shown(settings.cert.as_deref()))
            }
        }
    }

    /// An idle connection that is not known to be closed.
    async fn kept(&self, turn: usize) -> Option<Line> {
        loop {
            let mut line = self.idle(turn).pop()?;
            // Lets the connection's task notice that the connection was closed meanwhile.
            if line.ready().await.is_ok() && !line.is_closed() {
                return Some(line);
            }
        }
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
        let mut idle = self.idle(turn);
        if idle.len() < IDLE_MAX {
            idle.push(opened.line);
        }
        Ok(all.into())
    }
}

// === impl Opened ===

impl Opened {
    fn new(answer: Response<Incoming>, line: Line) -> Self {
        let index = answer.headers().get(INDEX).and_then(|value| value.to_str().ok()?.parse().ok());
        Self { status: answer.status().as_u16(), index: index.unwrap_or(0), body: answer.into_body(), line }
    }
}

async fn open(settings: &Settings, endpoint: &str) -> Result<Line, Failure> {
    match tokio::time::timeout(CONNECT_TIMEOUT, connect(settings, endpoint)).await {
        Ok(line) => line,
        Err(_) => Err(Failure::unreachable(endpoint, format!("no connection within {CONNECT_TIMEOUT:?}"))),
    }
}

async fn connect(settings: &Settings, endpoint: &str) -> Result<Line, Failure> {
    let unreachable = |reason: String| Failure::unreachable(endpoint, reason);
    let (host, port) = address(endpoint).ok_or_else(|| unreachable("no host and port".to_owned()))?;
    // The files are read for each connection, because certificates get renewed.
    let secured = Tls::new(settings, endpoint, PROTOCOL).map_err(|error| unreachable(error.to_string()))?;
    let tcp = TcpStream::connect((host.as_str(), port)).await.map_err(|e| unreachable(e.to_string()))?;
    // Small requests and answers: waiting to fill a segment would only delay them. A failure does
    // no harm.
    let _ = tcp.set_nodelay(true);
    let Some(tls) = secured else { return handshake(endpoint, tcp).await };
    handshake(endpoint, tls.connect(tcp).await.map_err(unreachable)?).await
}

async fn handshake<S>(endpoint: &str, stream: S) -> Result<Line, Failure>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (line, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| Failure::unreachable(endpoint, with_causes(&error)))?;
    // Ends with the connection, or when its last handle is dropped.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::trace!(%error, "etcd v2 connection");
        }
    });
    tracing::debug!(endpoint, "etcd v2 connected");
    Ok(line)
}

/// An error and its sources in one line.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut parts: Vec<String> = chain(Some(error)).map(ToString::to_string).collect();
    parts.dedup();
    parts.join(": ")
}
