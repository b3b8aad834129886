//! Turns connections of a listening socket into connections with a slot.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::Instant;

use crate::listener::admission::{Admission, Reason};
use crate::listener::connection::Connection;
use crate::listener::peer::Peer;

/// A listening socket.
pub trait Listen: Send + Sync + 'static {
    /// Its connections.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection and its peer.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

/// Accepts within the limits of an [`Admission`].
#[derive(Debug)]
pub struct Acceptor<L> {
    listener: L,
    admission: Arc<Admission>,
}

/// How long a connection waits for a slot while every slot has a request in progress.
const SLOT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after an error of the kernel, which has no descriptors or memory and will not have them at
/// once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

// === impl Listen ===

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        let (stream, address) = TcpListener::accept(self).await?;
        Ok((stream, Peer::at(address.ip())))
    }
}

impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().map_or(0, i32::unsigned_abs);
        Ok((stream, Peer::Process { pid, uid: credentials.uid() }))
    }
}

// === impl Acceptor ===

impl<L: Listen> Acceptor<L> {
    /// Accepts connections of `listener`.
    pub fn new(listener: L, admission: Arc<Admission>) -> Self {
        Self { listener, admission }
    }

    /// The next connection that gets a slot. Errors of the kernel are logged and waited out.
    pub async fn accept(&self) -> Connection<L::Stream> {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => match self.slot(peer).await {
                    Ok(slot) => return Connection::new(stream, slot),
                    Err(reason) => self.admission.count(peer, reason),
                },
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    let listener = self.admission.limits().name;
                    tracing::warn!(listener, %error, "no connection can be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Gets a slot for a connection, and waits while all are needed. Later connections would have
    /// to wait in any case.
    async fn slot(&self, peer: Peer) -> Result<crate::listener::Slot, Reason> {
        let end = Instant::now() + SLOT_TIMEOUT;
        loop {
            let freed = self.admission.freed().notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            match self.admission.admit(peer) {
                Err(Reason::Full) if tokio::time::timeout_at(end, freed).await.is_ok() => {}
                done => return done,
            }
        }
    }
}

/// The peer disconnected before it was accepted, which does not affect the next connection.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
