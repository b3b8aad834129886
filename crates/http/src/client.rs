//! HTTP/1.1 connections of clients, and pools of idle ones. Who opens a connection - with or without
//! TLS, within which time - is the caller's.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

/// An open connection that carries one request at a time.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// Why a request has no response.
#[derive(Debug)]
pub enum Broken {
    /// Nothing of it was sent.
    NotSent(hyper::Error),
    /// It may have been executed.
    Unknown(hyper::Error),
}

/// Idle connections to one server.
#[derive(Debug)]
pub struct Pool {
    idle: Mutex<Vec<Connection>>,
    max: usize,
    max_age: Duration,
}

// === impl Connection ===

impl Connection {
    /// Begins HTTP on a stream.
    pub async fn handshake<S>(stream: S) -> hyper::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the connection, or when the sender is dropped.
        tokio::spawn(async move {
            // Its errors also reach the task that waits for a response.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP connection ended");
            }
        });
        Ok(Self { sender, since: Instant::now() })
    }

    /// Sends a request and returns the response's head and the pending body.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Broken> {
        self.sender.ready().await.map_err(Broken::NotSent)?;
        self.sender.try_send_request(request).await.map_err(|mut error| match error.take_message() {
            Some(_) => Broken::NotSent(error.into_error()),
            None => Broken::Unknown(error.into_error()),
        })
    }
}

// === impl Pool ===

impl Pool {
    /// Keeps at most `max` connections, and none longer than `max_age`: load balancers forget idle
    /// connections, some of them silently.
    pub fn new(max: usize, max_age: Duration) -> Self {
        Self { idle: Mutex::default(), max, max_age }
    }

    /// The connection that was used last, unless it is known to be closed.
    pub async fn take(&self) -> Option<Connection> {
        loop {
            let mut connection = self.idle().pop()?;
            // Waiting lets the connection's task notice that the server has closed it.
            let is_fresh = connection.since.elapsed() < self.max_age;
            if is_fresh && connection.sender.ready().await.is_ok() && !connection.sender.is_closed() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose response was read to its end.
    pub fn keep(&self, mut connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < self.max && !connection.sender.is_closed() {
            connection.since = Instant::now();
            idle.push(connection);
        }
    }

    /// Closes the idle connections.
    pub fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        // No code panics while it holds the lock, and the list is consistent in any case.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
