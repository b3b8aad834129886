//! The server: from the socket to the calls, and its end.

use std::sync::Arc;
use std::time::Duration;

use russet_cri_api::CgroupDriver;
use russet_cri_api::runtime_service_server::RuntimeServiceServer;
use russet_health::Address;
use russet_listener::Admission;
use russet_sandbox::{Collect, Sandboxes};
use serde_json::Value;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::Server;

use crate::connection::{Arrivals, LISTENER, PING_INTERVAL, PING_TIMEOUT};
use crate::health::{Calls, Network, PREFIX};
use crate::named::Named;
use crate::service::{Crews, Runtime};
use crate::socket::{Door, SocketError};

/// What a server is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// What kubelet shall make control groups with.
    pub cgroup_driver: CgroupDriver,
    /// What a verbose Status shows of how the server was started.
    pub about: Value,
    /// Where `/healthz`, `/readyz` and `/metrics` are served; none: nowhere.
    pub health: Option<Address>,
}

/// The server could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The thread of health and metrics cannot be started.
    #[error("start the thread of health and metrics: {0}")]
    Health(#[source] std::io::Error),
    /// The transport failed.
    #[error("serve the container runtime interface: {0}")]
    Transport(#[source] tonic::transport::Error),
}

/// A pod's labels and annotations are 1 MiB at most (`russet_sandbox::Config`); the rest is small.
const REQUEST_MAX_BYTES: usize = 2 * 1024 * 1024;
/// What kubelet and crictl take.
const ANSWER_MAX_BYTES: usize = 16 * 1024 * 1024;
/// Requests of one connection at once. Those of one kubelet share one.
const STREAMS_MAX: u32 = 256;
/// Of one request.
const HEADERS_MAX_BYTES: u32 = 16 * 1024;
/// Longer than the longest deadline of a caller: kubelet's for RunPodSandbox is 4 minutes. Who sends none and does not end its request is let go.
const REQUEST_LIMIT: Duration = Duration::from_secs(600);
/// A plugin that was away is back in minutes.
const RETRY_EVERY: Duration = Duration::from_secs(60);
/// How long everything that is under way may take together when the server is told to stop. What is cut off is taken up by the next server.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Serves until `stop` resolves, and then until what is under way has ended.
pub async fn serve(
    door: Door,
    sandboxes: Arc<Sandboxes>,
    options: Options,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let (stopping, stopped) = watch::channel(false);
    let crews = Crews::new();
    let (admission, health_admission) = (Admission::new(LISTENER), Admission::new(russet_health::LIMITS));
    let (calls, health) = (Calls::new(), options.health.clone());
    let mut registry = calls.registry(&sandboxes);
    let listeners = russet_health::Listeners(vec![Arc::clone(&admission), Arc::clone(&health_admission)]);
    registry.sub_registry_with_prefix(PREFIX).register_collector(Box::new(listeners));
    let retries = tokio::spawn(retry(Arc::clone(&sandboxes), crews.clone()));
    let deaths = tokio::spawn(notice_deaths(Arc::clone(&sandboxes), crews.clone()));
    let runtime = Arc::new(Runtime::new(sandboxes, options, crews.clone(), stopped.clone()));
    if let Some(address) = health {
        let (network, stop) = (Network::of(Arc::clone(&runtime)), told(stopped.clone()));
        russet_health::start(vec![address], network, registry, health_admission, stop)
            .map_err(ServeError::Health)?;
    }
    let service = RuntimeServiceServer::from_arc(runtime)
        .max_decoding_message_size(REQUEST_MAX_BYTES)
        .max_encoding_message_size(ANSWER_MAX_BYTES);
    let arrivals = Arrivals::at(door.listener()?, admission);
    let serving = Server::builder()
        .timeout(REQUEST_LIMIT)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADERS_MAX_BYTES)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .serve_with_incoming_shutdown(Named { inner: service, calls }, arrivals, told(stopped));
    let serving = tokio::spawn(serving);
    tracing::info!(socket = %door.path().display(), "the container runtime interface is served");
    let abort = serving.abort_handle();
    tokio::pin!(serving);
    let ended = tokio::select! {
        () = stop => None,
        ended = &mut serving => Some(ended),
    };
    if let Some(ended) = ended {
        return ended.unwrap_or(Ok(())).map_err(ServeError::Transport);
    }
    let deadline = Instant::now() + STOP_PATIENCE;
    retries.abort();
    deaths.abort();
    crews.close();
    // Nobody may be listening any more; that is the aim.
    let _ = stopping.send(true);
    if tokio::time::timeout_at(deadline, &mut serving).await.is_err() {
        abort.abort();
        tracing::warn!("requests in progress were cut off");
    }
    // Callers that left do not end what they have begun.
    if !crews.rest(deadline).await {
        tracing::warn!("sandboxes are being made or taken down; the next server takes that up");
    }
    Ok(())
}

/// Tries again what could not be taken down: kubelet does so only for sandboxes that it can list.
async fn retry(sandboxes: Arc<Sandboxes>, crews: Crews) {
    loop {
        tokio::time::sleep(RETRY_EVERY).await;
        let sandboxes = Arc::clone(&sandboxes);
        let Ok(collected) = crews.end(move || sandboxes.gc(Collect::default())).await else { return };
        for error in &collected.errors {
            tracing::warn!(%error, "something is left of sandboxes that are gone");
        }
    }
}

/// A sandbox whose process has died is told at once to those who watch; without this it would be when somebody lists.
async fn notice_deaths(sandboxes: Arc<Sandboxes>, crews: Crews) {
    #[expect(deprecated, reason = "an OwnedFd is what its successor, which is unsafe to call, asks for")]
    let registered = |deaths| AsyncFd::with_interest(deaths, Interest::READABLE);
    let deaths = sandboxes.deaths().and_then(registered);
    let deaths = match deaths {
        Ok(deaths) => deaths,
        Err(error) => return tracing::warn!(%error, "the deaths of sandboxes are noticed by lists only"),
    };
    loop {
        let Ok(mut ready) = deaths.readable().await else { return };
        // First: what comes while they are noticed makes it ready again.
        ready.clear_ready();
        let sandboxes = Arc::clone(&sandboxes);
        if crews.look(move || sandboxes.notice_deaths()).await.is_err() {
            return;
        }
    }
}

/// Resolves when the server is told to stop.
async fn told(mut stopped: watch::Receiver<bool>) {
    // An error means that the server is gone already.
    let _ = stopped.wait_for(|stop| *stop).await;
}
