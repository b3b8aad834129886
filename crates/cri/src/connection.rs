//! Connections to the socket: at most so many at once, and a kernel that is short of something is waited for.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// One caller; its place is free when it is dropped.
pub struct Connection {
    stream: UnixStream,
    _place: OwnedSemaphorePermit,
}

/// Those who come, as the server wants them.
pub struct Arrivals(mpsc::Receiver<io::Result<Connection>>);

/// kubelet has one or two, crictl one for each call. Those who come when all places are taken wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;
/// Between tries when the kernel lets nobody in: it has no descriptors or memory, and will not have them at once.
const PAUSE: Duration = Duration::from_millis(100);

// === impl Arrivals ===

impl Arrivals {
    /// Accepts until it is dropped.
    pub fn at(listener: UnixListener) -> Self {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(accept(listener, sender));
        Self(receiver)
    }
}

async fn accept(listener: UnixListener, arrivals: mpsc::Sender<io::Result<Connection>>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = arrivals.closed() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                if arrivals.send(Ok(Connection { stream, _place: place })).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl Stream for Arrivals {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

// === impl Connection ===

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
