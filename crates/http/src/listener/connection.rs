//! A connection with a slot: it ends when it is displaced, when its greeting does not arrive in
//! time, when it is idle for too long, or when its peer does not read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use crate::listener::admission::{Activity, Admission, Busy, Limits, Reason};
use crate::listener::peer::Peer;

/// A connection slot of a listener, released when this is dropped.
#[derive(Debug)]
pub struct Slot {
    id: u64,
    peer: Peer,
    activity: Arc<Activity>,
    /// None once it was displaced.
    displaced: Option<oneshot::Receiver<()>>,
    admission: Arc<Admission>,
}

/// A stream with a slot.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    slot: Slot,
    since: Instant,
    read_bytes: usize,
    /// When the peer must have sent something.
    due: Pin<Box<Sleep>>,
    /// The peer does not read; the limit of that.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// How long a peer may leave sent bytes unread.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

// === impl Slot ===

impl Slot {
    pub(crate) fn new(
        id: u64,
        peer: Peer,
        activity: Arc<Activity>,
        displaced: oneshot::Receiver<()>,
        admission: Arc<Admission>,
    ) -> Self {
        Self { id, peer, activity, displaced: Some(displaced), admission }
    }

    /// A request is in progress until the returned value is dropped.
    pub fn busy(&self) -> Busy {
        Busy::begin(&self.activity, &self.admission)
    }

    fn poll_displaced(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(displaced) = &mut self.displaced {
            // The other end exists as long as the slot, so an error means the same.
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

impl Drop for Slot {
    fn drop(&mut self) {
        self.admission.leave(self.id);
    }
}

// === impl Connection ===

impl<S> Connection<S> {
    pub(crate) fn new(stream: S, slot: Slot) -> Self {
        let since = Instant::now();
        let due = Box::pin(tokio::time::sleep_until(since + slot.admission.limits().greeting_timeout));
        Self { stream, slot, since, read_bytes: 0, due, stalled: None }
    }

    /// The peer of the connection.
    pub fn peer(&self) -> Peer {
        self.slot.peer
    }

    /// Marks requests of this connection as in progress, for the server.
    pub fn requests(&self) -> impl Fn() -> Busy + Clone + Send + Sync + 'static + use<S> {
        let (activity, admission) = (Arc::clone(&self.slot.activity), Arc::clone(&self.slot.admission));
        move || Busy::begin(&activity, &admission)
    }

    /// The stream and its slot, which has to be held as long as the stream. The caller is
    /// responsible for time limits then.
    pub fn into_parts(self) -> (S, Slot) {
        (self.stream, self.slot)
    }

    /// Counts that the head of a request did not arrive in time. A connection that sends nothing
    /// after an answer has not failed.
    pub(crate) fn late_head(&self) -> impl FnOnce() + use<S> {
        let (peer, admission) = (self.slot.peer, Arc::clone(&self.slot.admission));
        let activity = Arc::clone(&self.slot.activity);
        move || {
            if !activity.now().rests() {
                admission.count(peer, Reason::Greeting);
            }
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.slot.admission.limits()
    }

    /// Ready when the peer has exceeded its time limit.
    fn poll_overdue(&mut self, context: &mut Context<'_>) -> Poll<Reason> {
        loop {
            let state = self.slot.activity.now();
            let limits = self.slot.admission.limits();
            let (end, reason) = match (state.greeted, limits.idle_timeout) {
                (false, _) => (self.since + limits.greeting_timeout, Reason::Greeting),
                (true, Some(idle)) if state.requests == 0 => (state.since + idle, Reason::Idle),
                // The end of a request does not wake this future: it checks again after the idle
                // timeout.
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
        self.slot.admission.count(self.slot.peer, reason);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// The result of a write; one that has to wait may do so for a limited time.
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

impl<S: AsFd> AsFd for Connection<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.slot.poll_displaced(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buffer.filled().len();
        if Pin::new(&mut self.stream).poll_read(context, buffer)?.is_ready() {
            let read = buffer.filled().len() - before;
            self.read_bytes = self.read_bytes.saturating_add(read);
            if read > 0 {
                let greeted = self.read_bytes >= self.slot.admission.limits().greeting_bytes;
                self.slot.activity.heard(greeted);
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::listener::Allowed;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_loses_its_connection_and_one_that_reads_slowly_does_not() {
        let admission = Admission::new(Limits {
            name: "test",
            connections: 2,
            per_peer: 2,
            allowed: Allowed::Anyone,
            greeting_bytes: 0,
            greeting_timeout: Duration::from_secs(5),
            idle_timeout: None,
        });
        let connect = || {
            let (near, far) = tokio::io::duplex(16);
            let slot = admission.admit(Peer::Process { pid: 1, uid: 0 }).unwrap();
            (Connection::new(near, slot), far)
        };
        let (mut connection, mut slow) = connect();
        let reading = async {
            for _ in 0..4 {
                tokio::time::sleep(STALL_TIMEOUT - Duration::from_secs(1)).await;
                slow.read_exact(&mut [0; 16]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(connection.write_all(&[0; 64]), reading);
        written.unwrap();
        assert_eq!(admission.closed(Reason::Stalled), 0);

        let (mut connection, _deaf) = connect();
        let began = Instant::now();
        let error = connection.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, STALL_TIMEOUT));
        assert_eq!(admission.closed(Reason::Stalled), 1);
    }
}
