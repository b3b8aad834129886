//! A connection with a seat: it ends when it is displaced, when its greeting does not come, when it is idle for too long, and when its peer takes nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use crate::admission::{Activity, Admission, Busy, Limits, Reason};
use crate::peer::Peer;

/// A place among a listener's connections, free again when this is dropped.
#[derive(Debug)]
pub struct Seat {
    id: u64,
    peer: Peer,
    activity: Arc<Activity>,
    /// None once it has said so.
    displaced: Option<oneshot::Receiver<()>>,
    admission: Arc<Admission>,
}

/// A stream with a seat.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    seat: Seat,
    since: Instant,
    read_bytes: usize,
    /// When the peer is next to have said something.
    due: Pin<Box<Sleep>>,
    /// The peer takes nothing since a while; until when it may do so.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// How long a peer may take nothing of what is sent to it.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

// === impl Seat ===

impl Seat {
    pub(crate) fn new(
        id: u64,
        peer: Peer,
        activity: Arc<Activity>,
        displaced: oneshot::Receiver<()>,
        admission: Arc<Admission>,
    ) -> Self {
        Self { id, peer, activity, displaced: Some(displaced), admission }
    }

    /// A request is in progress until the answer of this is dropped.
    pub fn busy(&self) -> Busy {
        Busy::begin(&self.activity, &self.admission)
    }

    fn poll_displaced(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(displaced) = &mut self.displaced {
            // The other end is kept as long as the seat, so that an error says the same.
            let _ = ready!(Pin::new(displaced).poll(context));
            self.displaced = None;
        }
        Poll::Ready(())
    }

    #[cfg(test)]
    pub(crate) fn is_displaced(&mut self) -> bool {
        self.displaced.as_mut().is_none_or(|it| it.try_recv() != Err(oneshot::error::TryRecvError::Empty))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.admission.leave(self.id);
    }
}

// === impl Connection ===

impl<S> Connection<S> {
    pub(crate) fn new(stream: S, seat: Seat) -> Self {
        let since = Instant::now();
        let due = Box::pin(tokio::time::sleep_until(since + seat.admission.limits().greeting_timeout));
        Self { stream, seat, since, read_bytes: 0, due, stalled: None }
    }

    /// Who it is.
    pub fn peer(&self) -> Peer {
        self.seat.peer
    }

    /// What marks requests of this connection as being in progress, for whoever serves them.
    pub fn requests(&self) -> impl Fn() -> Busy + Clone + Send + Sync + 'static + use<S> {
        let (activity, admission) = (Arc::clone(&self.seat.activity), Arc::clone(&self.seat.admission));
        move || Busy::begin(&activity, &admission)
    }

    /// The stream itself and its seat, which is to be kept as long as the stream; its limits of time are then up to the caller.
    pub fn into_parts(self) -> (S, Seat) {
        (self.stream, self.seat)
    }

    /// What counts that the head of a request did not come in time. A connection that says nothing after it was answered has not failed at anything.
    pub(crate) fn late_head(&self) -> impl FnOnce() + use<S> {
        let (peer, admission) = (self.seat.peer, Arc::clone(&self.seat.admission));
        let activity = Arc::clone(&self.seat.activity);
        move || {
            if !activity.now().rests() {
                admission.count(peer, Reason::Greeting);
            }
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.seat.admission.limits()
    }

    /// Ready when the peer has been waited for long enough.
    fn poll_overdue(&mut self, context: &mut Context<'_>) -> Poll<Reason> {
        loop {
            let doing = self.seat.activity.now();
            let limits = self.seat.admission.limits();
            let (end, reason) = match (doing.greeted, limits.idle_timeout) {
                (false, _) => (self.since + limits.greeting_timeout, Reason::Greeting),
                (true, Some(idle)) if doing.requests == 0 => (doing.since + idle, Reason::Idle),
                // A request that ends does not wake us: it is looked at again after the time that it may be idle then.
                (true, Some(idle)) => (Instant::now() + idle, Reason::Idle),
                (true, None) => return Poll::Pending,
            };
            if end <= Instant::now() {
                return Poll::Ready(reason);
            }
            if self.due.deadline() != end {
                self.due.as_mut().reset(end);
            }
            ready!(self.due.as_mut().poll(context));
        }
    }

    fn close<T>(&self, reason: Reason) -> Poll<io::Result<T>> {
        self.seat.admission.count(self.seat.peer, reason);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// What a write came to; one that has to wait may do so for a while.
    fn poll_stalled<T>(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.stalled = None;
            return done;
        }
        let end = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(STALL_TIMEOUT)));
        ready!(end.as_mut().poll(context));
        self.close(Reason::Stalled)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.seat.poll_displaced(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buffer.filled().len();
        if Pin::new(&mut self.stream).poll_read(context, buffer)?.is_ready() {
            let read = buffer.filled().len() - before;
            self.read_bytes = self.read_bytes.saturating_add(read);
            if read > 0 {
                let greeted = self.read_bytes >= self.seat.admission.limits().greeting_bytes;
                self.seat.activity.heard(greeted);
            }
            return Poll::Ready(Ok(()));
        }
        let reason = ready!(self.poll_overdue(context));
        self.close(reason)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.poll_stalled(context, done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.poll_stalled(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
