//! The socket (cni-runtime.md section 4.1): `POST /` with the stock request, answered with 200 and
//! a result, or 400 and a text; and another path for our plugin's requests that the stock protocol
//! does not have. For root only.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use russet_cni_spec::CniError;
use russet_cni_spec::plugin::Outcome;
use russet_cni_spec::relay::{HTTP_PATH, RelayRequest, RelayResponse};
use russet_http::listener::{Admission, Allowed, Limits};
use russet_http::server::{self, Requests};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::request::Request;

/// Limit of requests that wait or are in progress. The stock server has 20 connections and an
/// unbounded queue; a kubelet starts at most a few hundred pods.
const WAITING_MAX: usize = 512;
/// The socket is for root only. A stock plugin is one process for each request.
pub const LISTENER: Limits = Limits {
    name: "openshift",
    connections: WAITING_MAX + 64,
    per_peer: WAITING_MAX / 2,
    allowed: Allowed::RootAndOwnUser,
    greeting_bytes: 0,
    greeting_timeout: Duration::from_secs(10),
    idle_timeout: None,
};
/// Plugins send a whole request at once.
const REQUESTS: Requests =
    Requests { body_max_bytes: RelayRequest::MAX_BYTES, body_timeout: Duration::from_secs(10) };

/// A request in the queue.
pub struct Job {
    /// The request, with the channel for its answer.
    pub ask: Ask,
    /// Permit that limits concurrent requests.
    pub permit: OwnedSemaphorePermit,
}

/// A request, and the channel for its answer. The receiver may be gone.
pub enum Ask {
    /// The stock format.
    Pod(Request, oneshot::Sender<Result<Vec<u8>, Refusal>>),
    /// Our format, for CHECK, GC and STATUS.
    Other(RelayRequest, oneshot::Sender<Outcome>),
}

/// Why a stock request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The message.
    pub text: String,
    /// The same request may succeed later: status 503. Our plugin retries then; a stock plugin
    /// treats it like any failure.
    pub later: bool,
}

#[derive(Clone)]
struct ServerState {
    jobs: mpsc::Sender<Job>,
    permits: Arc<Semaphore>,
}

/// The queue between the socket and the task that carries out requests.
pub fn queue() -> (mpsc::Sender<Job>, mpsc::Receiver<Job>) {
    mpsc::channel(WAITING_MAX)
}

/// Serves until `stop` resolves and the requests in progress are answered.
pub async fn serve(
    listener: UnixListener,
    admission: Arc<Admission>,
    jobs: mpsc::Sender<Job>,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let server = ServerState { jobs, permits: Arc::new(Semaphore::new(WAITING_MAX)) };
    let router = Router::new()
        .route("/", post(stock))
        .route(HTTP_PATH, post(other))
        .fallback(|| async { text(StatusCode::NOT_FOUND, "404 page not found") })
        .layer(map_response(close))
        .layer(DefaultBodyLimit::max(RelayRequest::MAX_BYTES))
        .with_state(server);
    server::serve(listener, admission, REQUESTS, router, stop).await;
}

/// When the plugin disconnects, this future and its channel are dropped. A request that has not
/// begun is then not started.
async fn stock(State(server): State<ServerState>, body: Bytes) -> Response {
    let answer = async {
        let request = Request::parse(&body).map_err(Refusal::now)?;
        let (answer, answered) = oneshot::channel();
        server.enqueue(Ask::Pod(request, answer)).await?;
        answered.await.unwrap_or_else(|_| Err(Refusal::later("the server is stopping")))
    };
    match answer.await {
        Ok(body) => (StatusCode::OK, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(Refusal { text: what, later: false }) => text(StatusCode::BAD_REQUEST, &what),
        Err(Refusal { text: what, later: true }) => text(StatusCode::SERVICE_UNAVAILABLE, &what),
    }
}

async fn other(State(server): State<ServerState>, body: Bytes) -> Response {
    let answer = async {
        let request = RelayRequest::decode(&body)?;
        let (answer, answered) = oneshot::channel();
        server
            .enqueue(Ask::Other(request, answer))
            .await
            .map_err(|it| CniError::try_again_later(it.text, ""))?;
        answered.await.map_err(|_| CniError::try_again_later("the server is stopping", "it will be back"))
    };
    let outcome = answer.await.unwrap_or_else(|error| Outcome::failure(&error));
    let response = RelayResponse::from(&outcome);
    let status = StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(CONTENT_TYPE, "application/json")], response.body).into_response()
}

/// The stock server closes every connection, too.
async fn close(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The format of Go's `http.Error`.
fn text(status: StatusCode, what: &str) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, format!("{what}\n")).into_response()
}

// === impl ServerState ===

impl ServerState {
    async fn enqueue(&self, ask: Ask) -> Result<(), Refusal> {
        let busy = || Refusal::later(format!("{WAITING_MAX} requests are waiting"));
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| busy())?;
        self.jobs.send(Job { ask, permit }).await.map_err(|_| Refusal::later("the server is stopping"))
    }
}

// === impl Refusal ===

impl Refusal {
    /// The request cannot succeed, as far as is known.
    pub fn now(text: impl Into<String>) -> Self {
        Self { text: text.into(), later: false }
    }

    /// The request may succeed later.
    pub fn later(text: impl Into<String>) -> Self {
        Self { text: text.into(), later: true }
    }
}

impl From<CniError> for Refusal {
    fn from(error: CniError) -> Self {
        Self { later: error.is_transient(), text: error.to_string() }
    }
}
