//! The members of the cluster: one connection each, opened when needed, and which of them is asked
//! first.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use russet_sync::random;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::failure::{Failure, chain, with_causes};
use crate::tls::{Tls, address};
use crate::{Settings, SettingsError};

/// The longest wait for a connection, including TLS, before another member is tried. Within a site
/// a connection takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pings detect a stalled member while a watch waits. etcd closes connections that ping more often
/// than every 5 s, or while idle.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The ALPN protocol of gRPC.
const PROTOCOL: &[u8] = b"h2";

/// All endpoints, and which one is in use.
pub(crate) struct Members {
    slots: Vec<Slot>,
    /// Incremented without limit; modulo the number of slots it is the slot in use.
    current: AtomicUsize,
    /// Numbers connections, so that a late failure does not close a newer one.
    opened: AtomicU64,
    /// Whether a member has ever answered: its absence may then be a restart, which is waited for.
    answered: AtomicBool,
}

struct Slot {
    endpoint: String,
    channel: Mutex<Option<(u64, Channel)>>,
}

/// An open connection to one member.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) channel: Channel,
    turn: usize,
    number: u64,
}

// === impl Members ===

impl Members {
    /// Refuses settings whose certificates cannot be used. Does not connect.
    pub(crate) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        for endpoint in &settings.endpoints {
            prepare(settings, endpoint)?;
        }
        let slots = settings.endpoints.iter().cloned();
        let slots: Vec<Slot> = slots.map(|endpoint| Slot { endpoint, channel: Mutex::new(None) }).collect();
        // A thousand nodes with the same list must not all ask its first member.
        let first = random() % slots.len().max(1) as u64;
        let current = AtomicUsize::new(usize::try_from(first).unwrap_or(0));
        Ok(Self { slots, current, opened: AtomicU64::new(0), answered: AtomicBool::new(false) })
    }

    /// The number of endpoints.
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Records that a member has answered.
    pub(crate) fn set_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Whether any member has ever answered.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "Settings::check has refused an empty list of endpoints, and a remainder is below its divisor"
    )]
    fn slot(&self, turn: usize) -> &Slot {
        &self.slots[turn % self.slots.len()]
    }

    pub(crate) fn endpoint(&self, connection: &Connection) -> &str {
        &self.slot(connection.turn).endpoint
    }

    /// The connection in use. If it cannot be opened, the next caller or the next attempt gets that
    /// of another member.
    pub(crate) async fn connection(&self, settings: &Settings) -> Result<Connection, Failure> {
        let (turn, slot, mut held) = loop {
            let turn = self.current.load(Ordering::Relaxed);
            let slot = self.slot(turn);
            let held = slot.channel.lock().await;
            if let Some((number, channel)) = &*held {
                return Ok(Connection { channel: channel.clone(), turn, number: *number });
            }
            // A caller that waited here while another one found the member dead does not try it
            // again.
            if self.current.load(Ordering::Relaxed) == turn {
                break (turn, slot, held);
            }
        };
        let channel = open(settings, &slot.endpoint).await.inspect_err(|_| self.leave_turn(turn))?;
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        *held = Some((number, channel.clone()));
        tracing::debug!(endpoint = slot.endpoint, "etcd connected");
        Ok(Connection { channel, turn, number })
    }

    /// Moves on to another member after a failure, and drops a suspect connection.
    pub(crate) async fn leave(&self, connection: &Connection, failure: &Failure) {
        tracing::debug!(error = %failure.error, "etcd member left");
        if failure.transport {
            let mut held = self.slot(connection.turn).channel.lock().await;
            if held.as_ref().is_some_and(|(number, _)| *number == connection.number) {
                *held = None;
            }
        }
        self.leave_turn(connection.turn);
    }

    fn leave_turn(&self, turn: usize) {
        // Several failures of the same member move on only once.
        let next = turn.wrapping_add(1);
        let _ = self.current.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Connects to a member. A host name is resolved separately first, so that the error names a failed
/// resolution.
async fn open(settings: &Settings, endpoint: &str) -> Result<Channel, Failure> {
    // The files are read for each connection, because certificates get renewed.
    let (prepared, tls) =
        prepare(settings, endpoint).map_err(|error| Failure::no_way(endpoint, error.to_string()))?;
    if let Some(host) = name_of(&prepared) {
        match tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((host, 0))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                return Err(Failure::no_way(
                    endpoint,
                    format!("the name {host} cannot be resolved: {error}"),
                ));
            }
            Err(_) => {
                let reason = format!("the name {host} was not resolved within {CONNECT_TIMEOUT:?}");
                return Err(Failure::unreachable(endpoint, reason));
            }
        }
    }
    let connect = async {
        match tls {
            Some(tls) => prepared.connect_with_connector(tls).await,
            None => prepared.connect().await,
        }
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) if is_slow(&error) => Err(Failure::unreachable(endpoint, with_causes(&error))),
        Ok(Err(error)) => Err(Failure::no_way(endpoint, with_causes(&error))),
        Err(_) => Err(Failure::unreachable(endpoint, format!("no connection within {CONNECT_TIMEOUT:?}"))),
    }
}

/// The host of an endpoint if it is a name and not an address.
fn name_of(endpoint: &Endpoint) -> Option<&str> {
    let host = endpoint.uri().host()?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_err().then_some(host)
}

/// Whether the member, or the network, was only too slow.
fn is_slow(error: &tonic::transport::Error) -> bool {
    let timed_out = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut)
    };
    chain(Some(error)).any(timed_out)
}

/// An endpoint that is ready to connect, with the current contents of the certificate files.
fn prepare(settings: &Settings, endpoint: &str) -> Result<(Endpoint, Option<Secured>), SettingsError> {
    let refused = |reason: String| SettingsError::Tls { endpoint: endpoint.to_owned(), reason };
    let tls = Tls::new(settings, endpoint, PROTOCOL)?;
    // With the scheme https tonic would use TLS by itself; the origin carries the true scheme.
    let plain = endpoint.replacen("https:", "http:", 1);
    let origin: Uri = endpoint.parse().map_err(|_| refused("not a URL".to_owned()))?;
    let prepared = Endpoint::from_shared(plain)
        .map_err(|error| refused(with_causes(&error)))?
        .origin(origin)
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(false);
    Ok((prepared, tls.map(Secured)))
}

/// Opens connections with TLS.
#[derive(Clone)]
struct Secured(Tls);

// === impl Secured ===

impl Service<Uri> for Secured {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.0.clone();
        Box::pin(async move {
            let (host, port) =
                address(&uri.to_string()).ok_or_else(|| io::Error::other("no host and port"))?;
            let tcp = TcpStream::connect((host.as_str(), port)).await?;
            // Small requests and answers: waiting to fill a segment would only delay them. A
            // failure does no harm.
            let _ = tcp.set_nodelay(true);
            let stream = tls.connect(tcp).await.map_err(io::Error::other)?;
            match stream.get_ref().1.alpn_protocol() {
                Some(PROTOCOL) => Ok(TokioIo::new(stream)),
                _ => Err(io::Error::other("the server does not speak HTTP/2, which etcd's v3 API needs")),
            }
        })
    }
}
