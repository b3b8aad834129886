//! Connections to the socket for the gRPC server: those with a connection slot, and the connection
//! of each request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use russet_http::listener::{Acceptor, Admission, Allowed, Busy, Connection, Limits};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// One client connection.
pub struct Caller(Connection<UnixStream>);

/// The accepted connections, as a stream for the server.
pub struct Arrivals(mpsc::Receiver<io::Result<Caller>>);

/// An extension of each request: keeps the connection's slot while the request is in progress.
#[derive(Clone)]
pub struct Requests(Arc<dyn Fn() -> Busy + Send + Sync>);

/// kubelet has one or two connections, crictl one for each call; 16 watches of one process, each on
/// a connection of its own, leave room for its calls. The socket's mode restricts who may connect.
pub const LISTENER: Limits = Limits {
    name: "cri",
    connections: 64,
    per_peer: 32,
    allowed: Allowed::Anyone,
    greeting_bytes: PREFACE_BYTES,
    greeting_timeout: Duration::from_secs(10),
    idle_timeout: Some(Duration::from_secs(90)),
};
/// The length of HTTP/2's connection preface (RFC 9113 section 3.4).
const PREFACE_BYTES: usize = 24;
/// How often an idle client gets a PING, whose answer resets the idle time; a third of a
/// connection's idle limit.
pub const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long the answer to a PING may take.
pub const PING_TIMEOUT: Duration = Duration::from_secs(20);

// === impl Arrivals ===

impl Arrivals {
    /// Accepts until it is dropped.
    pub fn at(listener: UnixListener, admission: Arc<Admission>) -> Self {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(accept(Acceptor::new(listener, admission), sender));
        Self(receiver)
    }
}

async fn accept(acceptor: Acceptor<UnixListener>, arrivals: mpsc::Sender<io::Result<Caller>>) {
    loop {
        let accepted = tokio::select! {
            () = arrivals.closed() => return,
            accepted = acceptor.accept() => accepted,
        };
        if arrivals.send(Ok(Caller(accepted))).await.is_err() {
            return;
        }
    }
}

impl Stream for Arrivals {
    type Item = io::Result<Caller>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

// === impl Requests ===

impl Requests {
    /// A request is in progress until the returned guard is dropped.
    pub fn start(&self) -> Busy {
        (self.0)()
    }
}

// === impl Caller ===

impl Connected for Caller {
    type ConnectInfo = Requests;

    fn connect_info(&self) -> Requests {
        Requests(Arc::new(self.0.requests()))
    }
}

impl AsyncRead for Caller {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Caller {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
