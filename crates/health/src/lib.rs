//! `/healthz`, `/readyz` and `/metrics` over HTTP, as every daemon of ours serves them: the agent, and `russet cri`.

mod process;

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use process::Process;

/// Whether a daemon can do its work now.
pub trait Ready: Clone + Send + Sync + 'static {
    /// Why not; none when it can.
    fn reason(&self) -> impl Future<Output = Option<String>> + Send;
    /// Every condition and what it waits for, a line each, for `/readyz?verbose`.
    fn verbose(&self) -> impl Future<Output = String> + Send;
}

/// Connections at a time: anybody on the machine may open some, and each takes one of the descriptors that requests need.
const CONNECTIONS_MAX: usize = 32;
/// How long a connection may last, so that idle ones do not keep others out. Scrapers connect again.
const CONNECTION_MAX_AGE: Duration = Duration::from_secs(30);

/// Accepts a few connections at a time.
struct Limited {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

/// A connection that ends after a while.
struct Connection {
    stream: TcpStream,
    end: Pin<Box<tokio::time::Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

// === impl Limited ===

impl Limited {
    fn new(listener: TcpListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl axum::serve::Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed.
        let _place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
        (Connection { stream, end: Box::pin(tokio::time::sleep(CONNECTION_MAX_AGE)), _place }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

// === impl Connection ===

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Serves at `address` until `stop` resolves. An address that is taken is an error, not a reason to go on unseen.
pub async fn serve(
    address: SocketAddr,
    ready: impl Ready,
    registry: Registry,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_on(TcpListener::bind(address).await?, ready, registry, stop).await
}

/// The same for who has an address already.
pub async fn serve_on<R: Ready>(
    listener: TcpListener,
    ready: R,
    registry: Registry,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let listener = Limited::new(listener);
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz::<R>).with_state(ready))
        .route("/metrics", get(metrics).with_state(Arc::new(registry)));
    axum::serve(listener, router).with_graceful_shutdown(stop).await
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

/// What Prometheus has to know: as plain text it would refuse the type `info`.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            let mut reason = String::new();
            // Writing to a string cannot fail.
            let _ = writeln!(reason, "encode metrics: {error}");
            (StatusCode::INTERNAL_SERVER_ERROR, reason).into_response()
        }
    }
}
