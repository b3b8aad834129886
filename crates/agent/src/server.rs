//! The CNI socket: `POST /v1/cni`, and `POST /v1/repair` for operators. For root only.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::routing::post;
use russet_cni_spec::plugin::Outcome;
use russet_cni_spec::relay::{HTTP_PATH, RelayRequest, RelayResponse, STDERR_HEADER, STDERR_MAX_BYTES};
use russet_cni_spec::{CniError, base64};
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use crate::repair::{Door, REPAIR_PATH};

/// Requests that may wait for the agent's loop; more are told to try again. A kubelet starts at most a few hundred pods.
const QUEUE_MAX: usize = 1024;
/// How long the agent pauses when the kernel has no file descriptors left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A request on its way to the loop, with the way back.
pub struct Job {
    /// What is asked.
    pub request: RelayRequest,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Outcome>,
}

/// The listener lets root in, and the user that the agent runs as.
struct RootOnly {
    listener: UnixListener,
    own_uid: u32,
}

/// Makes the socket in a directory that only root may enter, replacing what a dead agent left. The caller holds the node lock.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// The queue between connections and the loop.
pub fn queue() -> (mpsc::Sender<Job>, mpsc::Receiver<Job>) {
    mpsc::channel(QUEUE_MAX)
}

/// Serves until `stop` resolves and the requests under way are answered.
pub async fn serve(
    listener: UnixListener,
    jobs: mpsc::Sender<Job>,
    repairs: Door,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let router = Router::new()
        .route(HTTP_PATH, post(answer))
        .with_state(jobs)
        .merge(Router::new().route(REPAIR_PATH, post(repair)).with_state(repairs))
        .layer(DefaultBodyLimit::max(RelayRequest::MAX_BYTES));
    let own_uid = rustix::process::geteuid().as_raw();
    axum::serve(RootOnly { listener, own_uid }, router).with_graceful_shutdown(stop).await
}

async fn answer(State(jobs): State<mpsc::Sender<Job>>, body: Bytes) -> (StatusCode, HeaderMap, Vec<u8>) {
    let outcome = outcome(&jobs, &body).await.unwrap_or_else(|error| Outcome::failure(&error));
    let response = RelayResponse::from(&outcome);
    let status = StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, said(&response.stderr), response.body)
}

/// What belongs on the plugin's standard error.
fn said(stderr: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let end = stderr.len().min(STDERR_MAX_BYTES);
    if end > 0
        && let Ok(value) = HeaderValue::try_from(base64::encode(&stderr.as_bytes()[..end]))
    {
        headers.insert(HeaderName::from_static(STDERR_HEADER), value);
    }
    headers
}

/// A report, or an object with the reason why there is none.
async fn repair(State(door): State<Door>, body: Bytes) -> (StatusCode, Vec<u8>) {
    let done = match serde_json::from_slice(&body) {
        Ok(request) => door.ask(request).await.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error)),
        Err(error) => Err((StatusCode::BAD_REQUEST, error.to_string())),
    };
    match done.and_then(|report| {
        serde_json::to_vec(&report).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    }) {
        Ok(report) => (StatusCode::OK, report),
        Err((status, error)) => (status, json!({ "error": error }).to_string().into_bytes()),
    }
}

async fn outcome(jobs: &mpsc::Sender<Job>, body: &[u8]) -> Result<Outcome, CniError> {
    let request = RelayRequest::decode(body)?;
    let (answer, answered) = oneshot::channel();
    let busy =
        |_| CniError::try_again_later("the agent is busy", format!("{QUEUE_MAX} requests are waiting"));
    jobs.try_send(Job { request, answer }).map_err(busy)?;
    answered.await.map_err(|_| CniError::try_again_later("the agent is stopping", "it will be back"))
}

// === impl RootOnly ===

impl axum::serve::Listener for RootOnly {
    type Io = UnixStream;
    type Addr = ();

    async fn accept(&mut self) -> (UnixStream, ()) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(peer) if peer.uid() == 0 || peer.uid() == self.own_uid => return (stream, ()),
                    Ok(peer) => {
                        tracing::warn!(uid = peer.uid(), pid = peer.pid(), "connection refused: not root")
                    }
                    Err(error) => tracing::warn!(%error, "connection refused: who it is cannot be seen"),
                },
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}
