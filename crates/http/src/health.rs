//! `/healthz`, `/readyz` and `/metrics` over HTTP, as the agent and `russet cri` serve them: on a
//! thread of their own, so that frequent or slow clients take no time from the daemon's work, and
//! at addresses that may still be in use when the daemon starts.

mod address;
mod listeners;
mod metrics;
mod process;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{Response, StatusCode};
use axum::routing::get;
use prometheus_client::registry::Registry;
use russet_sync::Backoff;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_service::Service;

use crate::listener::{Admission, Allowed, Limits};
use crate::local::Gate;
use crate::server::{Requests, Whole, serve};

pub use address::{Address, AddressError};
pub use listeners::Listeners;
pub use process::Process;

use metrics::Metrics;

/// Whether a daemon can do its work now.
pub trait Ready: Clone + Send + Sync + 'static {
    /// Why it is not ready; none if it is.
    fn reason(&self) -> impl Future<Output = Option<String>> + Send;
    /// Every condition and what it waits for, one per line, for `/readyz?verbose`.
    fn verbose(&self) -> impl Future<Output = String> + Send;
    /// Called when an address cannot be bound, which is retried; none: all addresses are served.
    fn served(&self, problem: Option<&str>);
}

/// Probes, one or two Prometheus servers and an operator need five. Any process on the machine may
/// connect, and each connection takes one of the descriptors that the daemon's requests need.
pub const LIMITS: Limits = Limits {
    name: "health",
    connections: 32,
    per_peer: 16,
    allowed: Allowed::Anyone,
    greeting_bytes: 0,
    greeting_timeout: Duration::from_secs(5),
    idle_timeout: None,
};
/// Requests to these paths have no body.
const REQUESTS: Requests = Requests { body_max_bytes: 4096, body_timeout: Duration::from_secs(5) };
/// Mode of a unix socket: as with TCP, every process that can reach it may connect. Its directory
/// restricts access.
const SOCKET_MODE: u32 = 0o666;
/// The first pause after an address that cannot be bound, and the longest.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// The thread's name in `ps -L`.
const THREAD: &str = "health";

/// An address and what is served there.
pub struct Site {
    pub address: Address,
    pub admission: Arc<Admission>,
    pub content: Content,
}

/// What is served at an address.
pub enum Content {
    Health,
    /// Pages besides, for everyone who reaches the address.
    HealthAndPages(Router),
    /// Pages only, for a browser that knows the token.
    Guarded(Gate<Router>),
}

/// The addresses that cannot be bound, reported to the daemon whenever that changes.
struct Problems<R> {
    ready: R,
    now: Mutex<BTreeMap<Address, String>>,
}

/// Signals the first attempt to bind an address, and the stop.
struct Time {
    /// Dropped after the first attempt.
    tried: Option<SyncSender<()>>,
    stopped: watch::Receiver<bool>,
}

/// Serves every address until `stop` resolves, on a thread of its own. An address that cannot be
/// bound is retried for as long as it takes; when this returns, each has been tried once.
pub fn start(
    addresses: Vec<Address>,
    ready: impl Ready,
    registry: Registry,
    admission: Arc<Admission>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let site = |address| Site { address, admission: Arc::clone(&admission), content: Content::Health };
    start_sites(addresses.into_iter().map(site).collect(), ready, registry, stop)
}

/// The same for addresses with different content.
pub fn start_sites(
    sites: Vec<Site>,
    ready: impl Ready,
    registry: Registry,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (tried, is_tried) = std::sync::mpsc::sync_channel(0);
    let run = move || runtime.block_on(serve_all(sites, ready, registry, tried, stop));
    // The thread is not joined: it ends with `stop`, or with the process.
    std::thread::Builder::new().name(THREAD.to_owned()).spawn(run)?;
    // Each address has a sender, dropped after its first attempt: after the last one, receiving
    // fails.
    while is_tried.recv().is_ok() {}
    Ok(())
}

async fn serve_all<R: Ready>(
    sites: Vec<Site>,
    ready: R,
    registry: Registry,
    tried: SyncSender<()>,
    stop: impl Future<Output = ()>,
) {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz::<R>).with_state(ready.clone()))
        .route("/metrics", get(metrics::answer).with_state(Arc::new(Metrics::new(registry))));
    let problems = Arc::new(Problems { ready, now: Mutex::default() });
    let (stopping, stopped) = watch::channel(false);
    let mut servers = JoinSet::new();
    for Site { address, admission, content } in sites {
        let problems = Arc::clone(&problems);
        let time = Time { tried: Some(tried.clone()), stopped: stopped.clone() };
        match content {
            Content::Health => servers.spawn(serve_at(address, router.clone(), admission, problems, time)),
            Content::HealthAndPages(pages) => {
                servers.spawn(serve_at(address, router.clone().merge(pages), admission, problems, time))
            }
            Content::Guarded(gate) => servers.spawn(serve_at(address, gate, admission, problems, time)),
        };
    }
    drop(tried);
    stop.await;
    let _ = stopping.send(true);
    while servers.join_next().await.is_some() {}
}

async fn serve_at<R, S>(
    address: Address,
    service: S,
    admission: Arc<Admission>,
    problems: Arc<Problems<R>>,
    time: Time,
) where
    R: Ready,
    S: Service<Whole, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let stop = stop_requested(time.stopped.clone());
    match &address {
        Address::Tcp(at) => {
            let listener = retry_bind(&address, &problems, time, || bind(*at)).await;
            let Some(listener) = listener else { return };
            serve(listener, admission, REQUESTS, service, stop).await;
        }
        Address::Unix(path) => {
            let bind = || crate::listener::unix::replace_at(path, SOCKET_MODE);
            let listener = retry_bind(&address, &problems, time, bind).await;
            let Some(listener) = listener else { return };
            serve(listener, admission, REQUESTS, service, stop).await;
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener =
        std::net::TcpListener::bind(address).map_err(|error| address::explained(address, error))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Retries `bind` until it succeeds; none after the stop.
async fn retry_bind<R: Ready, L>(
    address: &Address,
    problems: &Problems<R>,
    mut time: Time,
    bind: impl Fn() -> io::Result<L>,
) -> Option<L> {
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
    loop {
        match bind() {
            Ok(listener) => {
                problems.settled(address);
                return Some(listener);
            }
            Err(error) => problems.found(address, &error),
        }
        time.tried = None;
        let stop = time.stopped.wait_for(|stop| *stop);
        if tokio::time::timeout(backoff.pause(), stop).await.is_ok() {
            return None;
        }
    }
}

/// Resolves at the stop.
async fn stop_requested(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, which counts as the stop.
    let _ = stopped.wait_for(|stop| *stop).await;
}

// === impl Problems ===

impl<R: Ready> Problems<R> {
    fn found(&self, address: &Address, error: &io::Error) {
        let problem = format!("{address}: {error}");
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.insert(address.clone(), problem.clone()).as_ref() != Some(&problem) {
            tracing::warn!(%address, %error, "health and metrics are not served there; it is tried again until they are");
        }
        self.ready.served(Some(&problem));
    }

    fn settled(&self, address: &Address) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.remove(address).is_some() {
            tracing::info!(%address, "health and metrics are served there now");
        }
        self.ready.served(now.values().next().map(String::as_str));
    }
}

async fn readyz<R: Ready>(State(ready): State<R>, RawQuery(query): RawQuery) -> (StatusCode, String) {
    let reason = ready.reason().await;
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let verbose = query
        .is_some_and(|query| query.split('&').any(|part| part == "verbose" || part.starts_with("verbose=")));
    let text = match reason {
        _ if verbose => ready.verbose().await,
        None => "ok\n".to_owned(),
        Some(reason) => format!("{reason}\n"),
    };
    (status, text)
}

#[cfg(test)]
mod tests;
