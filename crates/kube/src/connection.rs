//! One HTTP/1.1 connection to an API server: how it is opened, and the pool of connections for
//! later requests.

use std::error::Error;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::Config;
use crate::tls;

/// Limit for opening a connection, TLS included. Within a site it takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Limit of the pool. A plugin needs one connection; an agent that adds several pods at once needs
/// a few.
const MAX_IDLE: usize = 8;
/// Age at which an idle connection is not used again: load balancers forget connections after a
/// minute or so, some of them silently.
const MAX_IDLE_AGE: Duration = Duration::from_secs(30);
/// A silent peer is probed after this time, and given up after the probes below; nothing else tells
/// a watch that its server was switched off.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 4;

/// Any error, on its way into [`KubeError::Unavailable`](crate::KubeError::Unavailable).
pub(crate) type Cause = Box<dyn Error + Send + Sync>;

/// An open connection that carries one request at a time.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// Why a request has no response.
pub(crate) enum Broken {
    /// Nothing of it was sent.
    NotSent(Cause),
    /// It may have been executed.
    Unknown(Cause),
}

/// Connections for later requests.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Connection>>,
}

// === impl Connection ===

impl Connection {
    /// Opens a connection. The certificates are read at this moment.
    pub(crate) async fn open(config: &Config) -> Result<Self, Cause> {
        match tokio::time::timeout(CONNECT_TIMEOUT, Self::connect(config)).await {
            Ok(connection) => connection,
            Err(_) => Err(format!("no connection to {} within {CONNECT_TIMEOUT:?}", config.server).into()),
        }
    }

    async fn connect(config: &Config) -> Result<Self, Cause> {
        let server = &config.server;
        let failed = |error: io::Error| -> Cause { format!("{server}: {error}").into() };
        let secured =
            server.tls.then(|| Ok::<_, Cause>((tls::connector(config)?, tls::server_name(config)?)));
        let secured = secured.transpose()?;
        let stream = TcpStream::connect((server.host.as_str(), server.port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        keep_alive(&stream).map_err(failed)?;
        match secured {
            None => Self::shake_hands(stream).await,
            Some((connector, name)) => {
                Self::shake_hands(connector.connect(name, stream).await.map_err(failed)?).await
            }
        }
    }

    async fn shake_hands<S>(stream: S) -> Result<Self, Cause>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // Its errors also reach the task that waits for a response.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "kubernetes connection ended");
            }
        });
        Ok(Self { sender, since: Instant::now() })
    }

    /// Sends a request and returns the response's head and the pending body.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<hyper::Response<Incoming>, Broken> {
        if let Err(error) = self.sender.ready().await {
            return Err(Broken::NotSent(error.into()));
        }
        self.sender.try_send_request(request).await.map_err(|mut error| match error.take_message() {
            Some(_) => Broken::NotSent(error.into_error().into()),
            None => Broken::Unknown(error.into_error().into()),
        })
    }
}

// === impl Pool ===

impl Pool {
    /// A connection that seems to be open.
    pub(crate) fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| !connection.sender.is_closed() && connection.since.elapsed() < MAX_IDLE_AGE);
        idle.pop()
    }

    /// Keeps a connection whose response was read to its end.
    pub(crate) fn keep(&self, mut connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE && !connection.sender.is_closed() {
            connection.since = Instant::now();
            idle.push(connection);
        }
    }
}

/// Enables TCP keepalive, so that the kernel probes a silent peer.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}
