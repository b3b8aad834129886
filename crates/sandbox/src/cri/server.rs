//! The server: from the socket to the calls, and its shutdown.

use std::sync::Arc;
use std::time::Duration;

use crate::{Collect, Sandboxes};
use russet_cri_api::CgroupDriver;
use russet_cri_api::runtime_service_server::RuntimeServiceServer;
use russet_http::health::Address;
use russet_http::listener::Admission;
use serde_json::Value;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::Server;

use crate::cri::connection::{Arrivals, LISTENER, PING_INTERVAL, PING_TIMEOUT};
use crate::cri::health::{Calls, Network, PREFIX};
use crate::cri::named::Named;
use crate::cri::service::{Runtime, WorkerPools};
use crate::cri::socket::{Listener, SocketError};

/// The server's settings.
#[derive(Debug, Clone)]
pub struct Options {
    /// The cgroup driver that kubelet must use.
    pub cgroup_driver: CgroupDriver,
    /// A description of the server's start for a verbose Status.
    pub about: Value,
    /// Where `/healthz`, `/readyz` and `/metrics` are served, if at all.
    pub health: Option<Address>,
}

/// The server failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket is unusable.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The thread of health and metrics cannot be started.
    #[error("start the thread of health and metrics: {0}")]
    Health(#[source] std::io::Error),
    /// The transport failed.
    #[error("serve the container runtime interface: {0}")]
    Transport(#[source] tonic::transport::Error),
}

/// A pod's labels and annotations are 1 MiB at most (`crate::Config`); the rest is small.
const REQUEST_MAX_BYTES: usize = 2 * 1024 * 1024;
/// The limit of kubelet and crictl.
const ANSWER_MAX_BYTES: usize = 16 * 1024 * 1024;
/// Concurrent requests per connection. Those of one kubelet share one.
const STREAMS_MAX: u32 = 256;
/// Per request.
const HEADERS_MAX_BYTES: u32 = 16 * 1024;
/// Longer than the longest deadline of a client: kubelet's for RunPodSandbox is 4 minutes. A
/// request without a deadline ends after this.
const REQUEST_LIMIT: Duration = Duration::from_secs(600);
/// A missing plugin is usually back within minutes.
const RETRY_EVERY: Duration = Duration::from_secs(60);
/// How long all requests in progress may take together when the server stops. The next server
/// recovers interrupted ones.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves until `stop` resolves, and then until requests in progress have ended.
pub async fn serve(
    listener: Listener,
    sandboxes: Arc<Sandboxes>,
    options: Options,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let (stopping, stopped) = watch::channel(false);
    let pools = WorkerPools::new();
    let (admission, health_admission) =
        (Admission::new(LISTENER), Admission::new(russet_http::health::LIMITS));
    let (calls, health) = (Calls::new(), options.health.clone());
    let mut registry = calls.registry(&sandboxes);
    let listeners =
        russet_http::health::Listeners(vec![Arc::clone(&admission), Arc::clone(&health_admission)]);
    registry.sub_registry_with_prefix(PREFIX).register_collector(Box::new(listeners));
    let retries = tokio::spawn(retry(Arc::clone(&sandboxes), pools.clone()));
    let deaths = tokio::spawn(notice_deaths(Arc::clone(&sandboxes), pools.clone()));
    let runtime = Arc::new(Runtime::new(sandboxes, options, pools.clone(), stopped.clone()));
    if let Some(address) = health {
        let (network, stop) = (Network::of(Arc::clone(&runtime)), stop_requested(stopped.clone()));
        russet_http::health::start(vec![address], network, registry, health_admission, stop)
            .map_err(ServeError::Health)?;
    }
    let service = RuntimeServiceServer::from_arc(runtime)
        .max_decoding_message_size(REQUEST_MAX_BYTES)
        .max_encoding_message_size(ANSWER_MAX_BYTES);
    let arrivals = Arrivals::at(listener.listener()?, admission);
    let serving = Server::builder()
        .timeout(REQUEST_LIMIT)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADERS_MAX_BYTES)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .serve_with_incoming_shutdown(Named { inner: service, calls }, arrivals, stop_requested(stopped));
    let serving = tokio::spawn(serving);
    tracing::info!(socket = %listener.path().display(), "the container runtime interface is served");
    let abort = serving.abort_handle();
    tokio::pin!(serving);
    let ended = tokio::select! {
        () = stop => None,
        ended = &mut serving => Some(ended),
    };
    if let Some(ended) = ended {
        return ended.unwrap_or(Ok(())).map_err(ServeError::Transport);
    }
    let deadline = Instant::now() + STOP_TIMEOUT;
    retries.abort();
    deaths.abort();
    pools.close();
    // All receivers may be gone already, which is fine.
    let _ = stopping.send(true);
    if tokio::time::timeout_at(deadline, &mut serving).await.is_err() {
        abort.abort();
        tracing::warn!("requests in progress were cut off");
    }
    // Work whose client has left is completed, too.
    if !pools.rest(deadline).await {
        tracing::warn!("sandboxes are being made or taken down; the next server takes that up");
    }
    Ok(())
}

/// Retries failed removals: kubelet does so only for sandboxes that it can list.
async fn retry(sandboxes: Arc<Sandboxes>, pools: WorkerPools) {
    loop {
        tokio::time::sleep(RETRY_EVERY).await;
        let sandboxes = Arc::clone(&sandboxes);
        let Ok(collected) = pools.end(move || sandboxes.gc(Collect::default())).await else { return };
        for error in &collected.errors {
            tracing::warn!(%error, "something is left of sandboxes that are gone");
        }
    }
}

/// Notifies watchers at once when a sandbox's process has died; without this they would learn of it
/// when a client lists.
async fn notice_deaths(sandboxes: Arc<Sandboxes>, pools: WorkerPools) {
    #[expect(deprecated, reason = "an OwnedFd is what its successor, which is unsafe to call, asks for")]
    let registered = |deaths| AsyncFd::with_interest(deaths, Interest::READABLE);
    let deaths = sandboxes.deaths().and_then(registered);
    let deaths = match deaths {
        Ok(deaths) => deaths,
        Err(error) => return tracing::warn!(%error, "the deaths of sandboxes are noticed by lists only"),
    };
    loop {
        let Ok(mut ready) = deaths.readable().await else { return };
        // Before the check: a death during the check makes it ready again.
        ready.clear_ready();
        let sandboxes = Arc::clone(&sandboxes);
        if pools.look(move || sandboxes.notice_deaths()).await.is_err() {
            return;
        }
    }
}

/// Resolves when the server must stop.
async fn stop_requested(mut stopped: watch::Receiver<bool>) {
    // An error means that the server has ended already.
    let _ = stopped.wait_for(|stop| *stop).await;
}
