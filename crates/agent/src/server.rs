//! The CNI socket: `POST /v1/cni`, and `POST /v1/repair`, `/v1/drift`, `/v1/flows` and `/v1/fast-path` for operators. For root only.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::routing::post;
use russet_cni_spec::plugin::Outcome;
use russet_cni_spec::relay::{
    HTTP_PATH, RelayRequest, RelayResponse, STDERR_HEADER, STDERR_MAX_BYTES, TIMING_HEADER,
};
use russet_cni_spec::{CniError, base64};
use russet_http::listener::{Admission, Allowed, Limits};
use russet_http::server::{self, Requests};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::controllers::Controllers;
use crate::drift::DRIFT_PATH;
use crate::fast_path::{FAST_PATH_PATH, PAUSE_PATH, Signal};
use crate::flows::{self, FLOWS_PATH, FlowLog};
use crate::health::{Condition, Readiness};
use crate::repair::{REPAIR_PATH, RepairQueue, UnheldQueue};
use crate::status::{STATUS_PATH, StatusSource};

/// Limit of requests in progress or waiting; further ones get "try again later". A kubelet starts
/// at most a few hundred pods.
const QUEUE_MAX: usize = 1024;
/// The CNI socket is for root only. Requests above [`QUEUE_MAX`] are answered, too, with "try again
/// later". A plugin is one process for each request, so half of the connection slots are more than
/// any other program needs.
pub const LISTENER: Limits = Limits {
    name: "cni",
    connections: QUEUE_MAX + 64,
    per_peer: QUEUE_MAX / 2,
    allowed: Allowed::RootAndOwnUser,
    greeting_bytes: 0,
    greeting_timeout: Duration::from_secs(10),
    idle_timeout: None,
};
/// Plugins send a whole request at once.
const REQUESTS: Requests =
    Requests { body_max_bytes: RelayRequest::MAX_BYTES, body_timeout: Duration::from_secs(10) };

/// A request in the queue, with the channel for its answer.
pub struct Job {
    pub request: RelayRequest,
    /// The channel for its answer.
    pub answer: oneshot::Sender<Outcome>,
    /// Permit that limits requests in progress; released when the request is answered.
    pub permit: OwnedSemaphorePermit,
}

/// The connections' end of the queue.
#[derive(Clone)]
pub struct Jobs {
    sender: mpsc::Sender<Job>,
    permits: Arc<Semaphore>,
}

/// What the commands of the node ask an agent for.
pub struct Shown {
    pub repairs: RepairQueue,
    pub drift: (Controllers, UnheldQueue, Readiness),
    /// None where the agent enforces no policies.
    pub flow_log: Option<FlowLog>,
    pub fast_path: Signal,
    pub status: StatusSource,
}

/// Creates the socket and replaces that of a dead agent. The caller holds the node lock.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    russet_http::listener::unix::replace_at(path, russet_http::listener::unix::PRIVATE)
}

/// The queue between connections and the loop.
pub fn queue() -> (Jobs, mpsc::Receiver<Job>) {
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    (Jobs { sender, permits: Arc::new(Semaphore::new(QUEUE_MAX)) }, receiver)
}

/// Serves until `stop` resolves and the requests in progress are answered.
pub async fn serve(
    listener: UnixListener,
    admission: Arc<Admission>,
    jobs: Jobs,
    shown: Shown,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let router = Router::new()
        .route(HTTP_PATH, post(answer))
        .with_state(jobs)
        .merge(Router::new().route(REPAIR_PATH, post(repair)).with_state(shown.repairs))
        .merge(Router::new().route(DRIFT_PATH, post(differ)).with_state(shown.drift))
        .merge(Router::new().route(FLOWS_PATH, post(flows::serve)).with_state(shown.flow_log))
        .merge(fast_path(shown.fast_path))
        .merge(Router::new().route(STATUS_PATH, post(show)).with_state(shown.status))
        .layer(DefaultBodyLimit::max(RelayRequest::MAX_BYTES));
    server::serve(listener, admission, REQUESTS, router, stop).await;
}

async fn answer(State(jobs): State<Jobs>, body: Bytes) -> (StatusCode, HeaderMap, Vec<u8>) {
    let outcome = outcome(&jobs, &body).await.unwrap_or_else(|error| Outcome::failure(&error));
    let response = RelayResponse::from(&outcome);
    let status = StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut headers = said(&response.stderr);
    if let Some(value) = response.timing.and_then(|timing| HeaderValue::try_from(timing.encode()).ok()) {
        headers.insert(HeaderName::from_static(TIMING_HEADER), value);
    }
    (status, headers, response.body)
}

/// The header with the text for the plugin's standard error.
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

/// The report, or an object with the error.
async fn repair(State(queue): State<RepairQueue>, body: Bytes) -> (StatusCode, Vec<u8>) {
    let done = match serde_json::from_slice(&body) {
        Ok(request) => queue.ask(request).await.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error)),
        Err(error) => Err((StatusCode::BAD_REQUEST, error.to_string())),
    };
    written(done)
}

fn fast_path(signal: Signal) -> Router {
    Router::new().route(FAST_PATH_PATH, post(carried)).route(PAUSE_PATH, post(pause)).with_state(signal)
}

/// What the fast path does with flows, or an object with the error.
async fn carried(State(signal): State<Signal>, body: Bytes) -> (StatusCode, Vec<u8>) {
    written(asked(&body, move |request| signal.report(&request)).await)
}

/// Whether the fast path is paused, or an object with the error.
async fn pause(State(signal): State<Signal>, body: Bytes) -> (StatusCode, Vec<u8>) {
    written(asked(&body, move |request| signal.pause(&request)).await)
}

/// Answers a question by a call that blocks.
async fn asked<Q: DeserializeOwned + Send + 'static, A: Send + 'static>(
    body: &[u8],
    answer: impl FnOnce(Q) -> Result<A, (StatusCode, String)> + Send + 'static,
) -> Result<A, (StatusCode, String)> {
    let request =
        serde_json::from_slice(body).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    let answered = tokio::task::spawn_blocking(move || answer(request)).await;
    answered.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?
}

/// The agent's state.
async fn show(State(source): State<StatusSource>) -> (StatusCode, Vec<u8>) {
    let status = tokio::task::spawn_blocking(move || source.status()).await;
    written(status.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())))
}

/// The differences and repairs, or an object with the error.
async fn differ(
    State((controllers, addresses, readiness)): State<(Controllers, UnheldQueue, Readiness)>,
) -> (StatusCode, Vec<u8>) {
    let report = async {
        let report = tokio::task::spawn_blocking(move || controllers.report()).await;
        report.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    };
    let (report, unheld) = tokio::join!(report, addresses.ask());
    let done = report.map(|mut report| {
        match unheld {
            Ok(unheld) => report.differences.extend(unheld.iter().map(ToString::to_string)),
            Err(reason) => report.unknown.push(reason),
        }
        // A closed tunnel port is among the differences already.
        let underlay = readiness.failure(Condition::Underlay);
        report.differences.extend(underlay.filter(|reason| !report.differences.contains(reason)));
        report
    });
    written(done)
}

/// The answer as JSON, or an object with the error.
fn written(answer: Result<impl Serialize, (StatusCode, String)>) -> (StatusCode, Vec<u8>) {
    let bytes = answer.and_then(|answer| {
        serde_json::to_vec(&answer).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    });
    match bytes {
        Ok(bytes) => (StatusCode::OK, bytes),
        Err((status, error)) => (status, json!({ "error": error }).to_string().into_bytes()),
    }
}

/// Dropped with the connection: then no caller waits for the answer, and a request that has not
/// begun is dropped.
async fn outcome(jobs: &Jobs, body: &[u8]) -> Result<Outcome, CniError> {
    let request = RelayRequest::decode(body)?;
    let (answer, answered) = oneshot::channel();
    let busy = || CniError::try_again_later("the agent is busy", format!("{QUEUE_MAX} requests are waiting"));
    let permit = Arc::clone(&jobs.permits).try_acquire_owned().map_err(|_| busy())?;
    jobs.sender.try_send(Job { request, answer, permit }).map_err(|_| busy())?;
    answered.await.map_err(|_| CniError::try_again_later("the agent is stopping", "it will be back"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;

    use super::*;

    fn body() -> Vec<u8> {
        let env = vec![("CNI_COMMAND".to_owned(), "STATUS".to_owned())];
        let request = RelayRequest {
            plugin: "russet".to_owned(),
            env,
            config: b"{}".to_vec(),
            deadline: Duration::from_secs(60),
            timing: false,
        };
        request.encode()
    }

    #[tokio::test]
    async fn a_client_that_disconnects_is_noticed_while_its_request_waits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cni.sock");
        let (jobs, mut requests) = queue();
        let permits = Arc::clone(&jobs.permits);
        let (stop, stopped) = oneshot::channel::<()>();
        let router = Router::new().route(HTTP_PATH, post(answer)).with_state(jobs);
        let (listener, admission) = (bind(&path).unwrap(), Admission::new(LISTENER));
        let serving = server::serve(listener, admission, REQUESTS, router, async { _ = stopped.await });
        let serving = tokio::spawn(serving);
        let mut client = tokio::net::UnixStream::connect(&path).await.unwrap();
        let body = body();
        let head = format!("POST {HTTP_PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
        client.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
        let mut job = requests.recv().await.unwrap();
        assert!(!job.answer.is_closed());
        drop(client);
        tokio::time::timeout(Duration::from_secs(20), job.answer.closed()).await.unwrap();
        assert_eq!(
            permits.available_permits(),
            QUEUE_MAX - 1,
            "it has its permit until it is taken from the queue"
        );
        drop(job);
        assert_eq!(permits.available_permits(), QUEUE_MAX);
        stop.send(()).unwrap();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn requests_above_the_limit_fail_with_try_again_later() {
        let (jobs, mut requests) = queue();
        let body = body();
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..QUEUE_MAX {
            let (jobs, body) = (jobs.clone(), body.clone());
            waiting.spawn(async move { outcome(&jobs, &body).await });
        }
        let mut begun = Vec::new();
        while begun.len() < QUEUE_MAX {
            begun.push(requests.recv().await.unwrap());
        }
        let error = outcome(&jobs, &body).await.unwrap_err();
        assert_eq!((error.code, error.details.as_str()), (11, "1024 requests are waiting"));
        let Job { answer, permit, .. } = begun.pop().unwrap();
        answer.send(Outcome::default()).unwrap();
        drop(permit);
        let next = tokio::spawn(async move { outcome(&jobs, &body).await });
        assert!(requests.recv().await.is_some(), "there is room again");
        drop((begun, requests));
        assert_eq!(next.await.unwrap().unwrap_err().code, 11, "the agent has gone");
        waiting.shutdown().await;
    }
}
