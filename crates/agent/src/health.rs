//! `/healthz`, `/readyz` and `/metrics` over HTTP.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::get;
use prometheus_client::registry::Registry;
use russet_plugins::NotReady;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What has to be true before pods can be attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// The datastore answered.
    Store,
    /// This node is registered with its addresses.
    Node,
    /// Routes and tunnels were programmed completely at least once.
    Programmed,
}

/// The state of every condition; clones share it.
#[derive(Debug, Clone)]
pub struct Readiness {
    reasons: Arc<Mutex<BTreeMap<Condition, Option<String>>>>,
    was_ready: Arc<AtomicBool>,
}

// === impl Condition ===

impl Condition {
    const ALL: [Condition; 3] = [Condition::Store, Condition::Node, Condition::Programmed];

    fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Node => "node",
            Self::Programmed => "programmed",
        }
    }
}

// === impl Readiness ===

impl Readiness {
    /// Nothing is ready yet.
    pub fn pending() -> Self {
        let pending = |condition| (condition, Some("not yet".to_owned()));
        let reasons = Arc::new(Mutex::new(Condition::ALL.map(pending).into()));
        Self { reasons, was_ready: Arc::default() }
    }

    /// Marks a condition as met. True if it was not before.
    pub fn met(&self, condition: Condition) -> bool {
        let mut reasons = self.lock();
        let news = reasons.insert(condition, None).flatten().is_some();
        if reasons.values().all(Option::is_none) {
            self.was_ready.store(true, Ordering::Relaxed);
        }
        news
    }

    /// Marks a condition as not met. True if that, or the reason, is news.
    pub fn unmet(&self, condition: Condition, reason: impl ToString) -> bool {
        let reason = Some(reason.to_string());
        self.lock().insert(condition, reason.clone()).flatten() != reason
    }

    /// Why pods cannot be attached now; none: they can.
    pub fn reason(&self) -> Option<String> {
        let unmet = |(condition, reason): (&Condition, &Option<String>)| {
            reason.as_ref().map(|reason| format!("{}: {reason}", condition.name()))
        };
        self.lock().iter().find_map(unmet)
    }

    /// The same, as plugins tell it.
    pub fn not_ready(&self) -> Option<NotReady> {
        let reason = self.reason()?;
        let store_is_away = self.lock().get(&Condition::Store).is_some_and(Option::is_some);
        Some(NotReady { reason, lost_store: store_is_away && self.was_ready.load(Ordering::Relaxed) })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Condition, Option<String>>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn verbose(&self) -> String {
        let mut text = String::new();
        for (condition, reason) in self.lock().iter() {
            let line = match reason {
                None => format!("[+] {}\n", condition.name()),
                Some(reason) => format!("[-] {}: {reason}\n", condition.name()),
            };
            text.push_str(&line);
        }
        text
    }
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

/// Serves until `stop` resolves. An address that is taken is an error, not a reason to go on unseen.
pub async fn serve(
    address: SocketAddr,
    readiness: Readiness,
    registry: Registry,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let listener = Limited::new(TcpListener::bind(address).await?);
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz).with_state(readiness))
        .route("/metrics", get(metrics).with_state(Arc::new(registry)));
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}

async fn readyz(State(readiness): State<Readiness>, RawQuery(query): RawQuery) -> (StatusCode, String) {
    let reason = readiness.reason();
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let verbose = query
        .is_some_and(|query| query.split('&').any(|part| part == "verbose" || part.starts_with("verbose=")));
    let text = match reason {
        _ if verbose => readiness.verbose(),
        None => "ok\n".to_owned(),
        Some(reason) => format!("{reason}\n"),
    };
    (status, text)
}

async fn metrics(State(registry): State<Arc<Registry>>) -> (StatusCode, String) {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => (StatusCode::OK, text),
        Err(error) => {
            let mut reason = String::new();
            // Writing to a string cannot fail.
            let _ = writeln!(reason, "encode metrics: {error}");
            (StatusCode::INTERNAL_SERVER_ERROR, reason)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_when_every_condition_is_met() {
        let readiness = Readiness::pending();
        assert_eq!(readiness.reason().unwrap(), "store: not yet");
        assert!(!readiness.not_ready().unwrap().lost_store);
        for condition in Condition::ALL {
            assert!(readiness.met(condition));
        }
        assert_eq!(readiness.reason(), None);
        assert_eq!(readiness.not_ready(), None);
        assert!(readiness.unmet(Condition::Store, "no answer"));
        assert!(!readiness.unmet(Condition::Store, "no answer"));
        assert!(readiness.not_ready().unwrap().lost_store);
        assert_eq!(readiness.verbose(), "[-] store: no answer\n[+] node\n[+] programmed\n");
    }
}
