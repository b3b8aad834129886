//! The owner's side of the unix socket, through which other processes on the same machine use the
//! embedded store. Run by the agent.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use russet_http::listener::{Acceptor, Admission, Allowed, Busy, Connection, Limits};
use russet_model::Prefix;
use rustix::io::Errno;
use rustix::net::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet, LocalSet};
use tokio::time::Instant;

use crate::embedded::Waiting;
use crate::follow::Followed;
use crate::wire::{
    self, Answer, Call, FrameError, PART_BYTES, Reply, Request, WireEvent, WireRecord, WireStep,
};
use crate::{
    Cause, CommitError, Embedded, Event, LeaseId, Record, Revision, Snapshot, Step, Store, StoreError, Tenure,
};

/// Limit of clients: the agent's helpers and as many plugins as a node starts at once. A client
/// whose idle connection was closed connects again at its next request.
pub const LISTENER: Limits = Limits {
    name: "store",
    connections: 64,
    per_peer: 32,
    allowed: Allowed::RootAndOwnUser,
    greeting_bytes: GREETING_MIN_BYTES,
    greeting_timeout: Duration::from_secs(10),
    idle_timeout: None,
};
/// The same where the owner is itself a process of one request: a burst of them is larger than what an agent lets work at once.
/// All guests have the rights of this user, and those in other PID namespaces look like one process.
const GUESTS: Limits = Limits { connections: 256, per_peer: 256, ..LISTENER };
/// How long a guest has the store to itself.
const TURN_MAX: Duration = Duration::from_millis(25);
/// How long an owner whose own request is done stays for others that come one after the other.
const STAY_MAX: Duration = Duration::from_millis(100);
/// How long an owner that leaves waits for guests that have connected: they are about to do one commit.
const GUESTS_TIMEOUT: Duration = Duration::from_millis(250);
/// How long it then still works on calls that it has received: an answer that is lost leaves a guest with a commit of unknown outcome.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long it takes at most until a connection that the kernel has made is seen here.
const LAST_GUESTS_TIMEOUT: Duration = Duration::from_millis(1);
/// Of a greeting: its length, and one byte each for number, kind and version.
const GREETING_MIN_BYTES: usize = 7;
/// Requests of one connection in progress; the next one is read when one is answered.
const IN_FLIGHT_MAX: usize = 64;
/// Limit of watches of one connection.
const WATCHES_MAX: usize = 64;
/// Frames that wait to be written to one client. Watches have no further queue: they read the
/// change log when there is space again.
const OUTGOING_MAX: usize = 8;
/// One read from a socket.
const READ_BYTES: usize = 16 << 10;
/// A client that reads nothing for this long is cut off; it resumes by itself.
const STALL: Duration = Duration::from_secs(30);

/// Serves `store` until `shutdown`. Only root and the same user are answered. Needs a tokio
/// runtime; runs its tasks on the calling thread.
pub async fn serve(store: Embedded, listener: UnixListener, shutdown: impl Future<Output = ()>) {
    serve_within(store, listener, Admission::new(LISTENER), shutdown).await;
}

/// The same with connection metrics.
pub async fn serve_within(
    store: Embedded,
    listener: UnixListener,
    admission: Arc<Admission>,
    shutdown: impl Future<Output = ()>,
) {
    let tasks = LocalSet::new();
    let accepting = tasks.run_until(accept(store, Acceptor::new(listener, admission)));
    tokio::select! {
        () = accepting => {}
        () = shutdown => {}
    }
}

/// Serves `store` at the socket `path` to other short-lived processes until `leaving` ends; then to those that have connected by then, until they are done,
/// but not for longer than [`GUESTS_TIMEOUT`]. After that the kernel refuses their calls, and those that it has accepted are answered.
pub async fn serve_guests(
    store: Embedded,
    listener: UnixListener,
    path: &Path,
    leaving: impl Future<Output = ()>,
) {
    let tasks = LocalSet::new();
    tasks.run_until(serve_until(store, listener, path, leaving)).await;
}

async fn serve_until(
    store: Embedded,
    listener: UnixListener,
    path: &Path,
    leaving: impl Future<Output = ()>,
) {
    let acceptor = Acceptor::new(listener, Admission::new(GUESTS));
    let mut guests = JoinSet::new();
    let (stop, stopped) = watch::channel(false);
    let start = |guests: &mut JoinSet<()>, stream: Connection<UnixStream>| {
        let mut stopped = stopped.clone();
        // An error: the sender is gone, with the whole service.
        let stop = async move { _ = stopped.wait_for(|stop| *stop).await };
        start_connection(guests, &store, stream, Some(Box::pin(stop)));
    };
    let mut leaving = std::pin::pin!(leaving);
    let mut stay_until = None;
    while stay_until.is_none_or(|end| Instant::now() < end) {
        tokio::select! {
            biased;
            () = &mut leaving, if stay_until.is_none() => stay_until = Some(Instant::now() + STAY_MAX),
            guest = next_guest(&acceptor, stay_until.is_some()) => match guest {
                Some(stream) => start(&mut guests, stream),
                None => break,
            }
        }
        // Requests for pods change the same block: at the same time they would only make each other's commits fail.
        let _ = tokio::time::timeout(TURN_MAX, guests.join_next()).await;
    }
    if let Err(error) = std::fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "the store's socket stays");
    }
    // Connections that the kernel had made before the socket lost its name.
    while let Some(stream) = next_guest(&acceptor, true).await {
        start(&mut guests, stream);
    }
    drop(acceptor);
    if tokio::time::timeout(GUESTS_TIMEOUT, all_ended(&mut guests)).await.is_ok() {
        return;
    }
    tracing::debug!("a process uses the store for too long; it has to reach it again");
    stop.send_replace(true);
    if tokio::time::timeout(LAST_ANSWERS_TIMEOUT, all_ended(&mut guests)).await.is_err() {
        tracing::warn!(
            "a process that uses the store got no answer in time, or does not read it; it is cut off"
        );
    }
}

async fn all_ended(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// The next connection; for an owner that leaves only one that has been made.
async fn next_guest(acceptor: &Acceptor<UnixListener>, is_leaving: bool) -> Option<Connection<UnixStream>> {
    if !is_leaving {
        return Some(acceptor.accept().await);
    }
    tokio::time::timeout(LAST_GUESTS_TIMEOUT, acceptor.accept()).await.ok()
}

/// Serves a connection until its client leaves, or after `stop` until its calls are answered.
fn start_connection(
    connections: &mut JoinSet<()>,
    store: &Embedded,
    stream: Connection<UnixStream>,
    stop: Option<Signal>,
) {
    while connections.try_join_next().is_some() {}
    let store = store.clone();
    connections.spawn_local(async move {
        if let Err(error) = connection(store, stream, stop).await {
            tracing::debug!(%error, "store client cut off");
        }
    });
}

async fn accept(store: Embedded, acceptor: Acceptor<UnixListener>) {
    let mut connections = JoinSet::new();
    loop {
        let stream = acceptor.accept().await;
        start_connection(&mut connections, &store, stream, None);
    }
}

/// Why a connection ended before its client did.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error("socket: {0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("it took nothing for {STALL:?}")]
    Stalled,
}

async fn connection(
    store: Embedded,
    stream: Connection<UnixStream>,
    stop: Option<Signal>,
) -> Result<(), Cut> {
    let begin = stream.requests();
    let stop = match stop {
        Some(signal) => Some(Stop { signal, socket: stream.as_fd().try_clone_to_owned()? }),
        None => None,
    };
    let (reader, writer) = tokio::io::split(stream);
    let (outgoing, queue) = mpsc::channel(OUTGOING_MAX);
    let calls = Calls { reader, bytes: Vec::new(), stop, is_stopped: false };
    let mut writing = std::pin::pin!(write_frames(writer, queue));
    tokio::select! {
        end = serve_calls(store, calls, outgoing, begin) => match end? {
            End::ByClient => Ok(()),
            End::Stopped => writing.await,
        },
        result = &mut writing => result,
    }
}

async fn write_frames(
    mut writer: WriteHalf<Connection<UnixStream>>,
    mut queue: mpsc::Receiver<Vec<u8>>,
) -> Result<(), Cut> {
    while let Some(frame) = queue.recv().await {
        tokio::time::timeout(STALL, writer.write_all(&frame)).await.map_err(|_| Cut::Stalled)??;
    }
    Ok(())
}

/// How reading calls ended.
enum End {
    ByClient,
    /// By the owner: all calls are done, and their answers are queued.
    Stopped,
}

/// Reads calls and starts their work until the client disconnects. Work in progress ends with the
/// connection; a commit that reached the writer takes effect anyway.
async fn serve_calls(
    store: Embedded,
    mut calls: Calls,
    outgoing: mpsc::Sender<Vec<u8>>,
    begin: impl Fn() -> Busy,
) -> Result<End, Cut> {
    let client = Rc::new(Client { store, outgoing });
    let places = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut work = JoinSet::new();
    let mut watches: HashMap<u64, AbortHandle> = HashMap::new();
    greet(&client, calls.next().await?).await?;
    while let Some(Call { id, request }) = calls.next().await? {
        while work.try_join_next().is_some() {}
        watches.retain(|_, task| !task.is_finished());
        match request {
            Request::Unwatch => {
                if let Some(task) = watches.remove(&id) {
                    task.abort();
                }
            }
            Request::Watch { prefix, since } if watches.len() < WATCHES_MAX => {
                let (busy, watch) = (begin(), client.clone().watch(id, prefix, since.map(Revision)));
                let watching = work.spawn_local(async move {
                    let _busy = busy;
                    watch.await;
                });
                watches.insert(id, watching);
            }
            Request::Watch { .. } => {
                let reason = format!("more than {WATCHES_MAX} watches on one connection");
                client.fail(id, StoreError::Invalid { operation: "watch".into(), reason }).await;
            }
            request => {
                let Ok(place) = places.clone().acquire_owned().await else { break };
                work.spawn_local(client.clone().work(id, request, (place, begin())));
            }
        }
    }
    if !calls.is_stopped {
        return Ok(End::ByClient);
    }
    watches.into_values().for_each(|task| task.abort());
    all_ended(&mut work).await;
    Ok(End::Stopped)
}

/// The calls of a connection.
struct Calls {
    reader: ReadHalf<Connection<UnixStream>>,
    /// Read and not decoded.
    bytes: Vec<u8>,
    /// None: calls are accepted until the client leaves.
    stop: Option<Stop>,
    is_stopped: bool,
}

/// Ends when no more calls are to be accepted.
type Signal = Pin<Box<dyn Future<Output = ()>>>;

struct Stop {
    signal: Signal,
    /// That of the connection.
    socket: OwnedFd,
}

// === impl Calls ===

impl Calls {
    /// The next call; none when the client has left, and after `stop` when all calls that the kernel has accepted were returned.
    async fn next(&mut self) -> Result<Option<Call>, Cut> {
        loop {
            if let Some((call, used)) = wire::decode(&self.bytes)? {
                self.bytes.drain(..used);
                return Ok(Some(call));
            }
            if self.is_stopped {
                return Ok(None);
            }
            self.bytes.reserve(READ_BYTES);
            let read = self.reader.read_buf(&mut self.bytes);
            let Some(stop) = &mut self.stop else {
                match read.await? {
                    0 => return Ok(None),
                    _ => continue,
                }
            };
            tokio::select! {
                biased;
                read = read => if read? == 0 {
                    return Ok(None);
                },
                () = &mut stop.signal => {
                    self.is_stopped = true;
                    read_last(&stop.socket, &mut self.bytes)?;
                }
            }
        }
    }
}

/// Makes further writes of the client fail, so that it knows which calls were not accepted (EPIPE), and reads what came before. The runtime does not notice
/// a shutdown by this process, so it cannot be asked to read until the end.
fn read_last(socket: &OwnedFd, bytes: &mut Vec<u8>) -> io::Result<()> {
    rustix::net::shutdown(socket, Shutdown::Read)?;
    let mut chunk = [0; 4096];
    loop {
        match rustix::io::read(socket, &mut chunk) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(()),
            Ok(read) => bytes.extend_from_slice(chunk.get(..read).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The first call must be a greeting of our version.
async fn greet(client: &Client, call: Option<Call>) -> Result<(), Cut> {
    match call {
        None => Ok(()),
        Some(Call { id, request: Request::Hello { version } }) => {
            client.send(id, Reply::Hello { version: wire::VERSION }).await;
            if version == wire::VERSION {
                Ok(())
            } else {
                Err(FrameError::Unexpected("of another version").into())
            }
        }
        Some(_) => Err(FrameError::Unexpected("before a greeting").into()),
    }
}

/// One connection, as its tasks use it.
struct Client {
    store: Embedded,
    outgoing: mpsc::Sender<Vec<u8>>,
}

// === impl Client ===

impl Client {
    /// Queues a frame. If the connection is closed, the frame is dropped.
    async fn send(&self, id: u64, reply: Reply) {
        let mut frame = Vec::new();
        match wire::encode(&Answer { id, reply }, &mut frame) {
            Ok(()) => {
                let _ = self.outgoing.send(frame).await;
            }
            Err(error) => tracing::error!(%error, "a store answer cannot be written"),
        }
    }

    async fn fail(&self, id: u64, error: StoreError) {
        self.send(id, Reply::Failed(CommitError::from(error).into())).await;
    }

    /// One request, from start to answer. Not an `async fn`: a commit is passed to the writer
    /// before the next request is read.
    fn work(
        self: Rc<Self>,
        id: u64,
        request: Request,
        place: (OwnedSemaphorePermit, Busy),
    ) -> impl Future<Output = ()> {
        let started = match request {
            Request::Commit { steps, expires_ms } => Ok(self.commit(steps, expires_ms)),
            request => Err(request),
        };
        async move {
            match started {
                Err(request) => self.answer(id, request).await,
                Ok(Err(refused)) => self.send(id, Reply::Failed(refused.into())).await,
                Ok(Ok(waiting)) => match waiting.outcome().await {
                    Ok(revision) => self.send(id, Reply::Committed(revision.0)).await,
                    Err(error) => self.send(id, Reply::Failed(error.into())).await,
                },
            }
            drop(place);
        }
    }

    fn commit(&self, steps: Vec<WireStep>, expires_ms: u64) -> Result<Waiting, CommitError> {
        if wire::monotonic_ms() >= expires_ms {
            let source = Cause::text("it came after its deadline");
            return Err(StoreError::Unavailable { operation: "commit".into(), source }.into());
        }
        self.store.submit(steps.into_iter().map(Step::from).collect())
    }

    async fn answer(&self, id: u64, request: Request) {
        // A caller may be checking the outcome of a commit that is still in progress.
        if let Err(error) = self.store.settle().await {
            return self.fail(id, error).await;
        }
        let reply = match request {
            Request::Get(key) => {
                self.store.get(&key).await.map(|record| Reply::Record(record.map(Into::into)))
            }
            Request::List(prefix) => match self.store.list(&prefix).await {
                Ok(snapshot) => return self.send_snapshot(id, snapshot).await,
                Err(error) => Err(error),
            },
            Request::Tenure(key) => self.store.tenure(&key).await.map(|found| {
                let lease = |tenure| match tenure {
                    Tenure::Forever => None,
                    Tenure::Leased(lease) => lease.map(|lease| lease.0),
                };
                Reply::Tenure(found.map(|(record, tenure)| (record.into(), lease(tenure))))
            }),
            Request::Grant { ttl_ms } => {
                self.store.grant(Duration::from_millis(ttl_ms)).await.map(|lease| Reply::Lease(lease.0))
            }
            Request::KeepAlive(lease) => {
                let ttl = self.store.keep_alive(LeaseId(lease)).await;
                ttl.map(|ttl| Reply::TtlMs(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)))
            }
            Request::Revoke(lease) => self.store.revoke(LeaseId(lease)).await.map(|()| Reply::Done),
            Request::Hello { .. } | Request::Commit { .. } | Request::Watch { .. } | Request::Unwatch => {
                Err(StoreError::Unsupported { operation: "a second greeting".into() })
            }
        };
        match reply {
            Ok(reply) => self.send(id, reply).await,
            Err(error) => self.fail(id, error).await,
        }
    }

    async fn send_snapshot(&self, id: u64, Snapshot { records, revision }: Snapshot) {
        let revision = revision.0;
        let mut part: Vec<WireRecord> = Vec::new();
        let mut bytes = 0;
        for record in records {
            let size = record_bytes(&record);
            if bytes + size > PART_BYTES && !part.is_empty() {
                self.send(id, Reply::Part { records: std::mem::take(&mut part), revision, last: false })
                    .await;
                bytes = 0;
            }
            bytes += size;
            part.push(record.into());
        }
        self.send(id, Reply::Part { records: part, revision, last: true }).await;
    }

    /// Sends the changes after `since` until the client disconnects.
    async fn watch(self: Rc<Self>, id: u64, prefix: Prefix, since: Option<Revision>) {
        let mut changes = self.store.changes(&prefix);
        let mut at = since;
        while !self.outgoing.is_closed() {
            // Compared for equality, not order: a client may come from a store that was replaced by
            // an older copy.
            if at == Some(self.store.revision()) {
                if changes.changed().await.is_err() {
                    return;
                }
                continue;
            }
            match self.store.follow(&prefix, at).await {
                Ok((followed, now)) => {
                    at = Some(now);
                    self.send_changes(id, followed, now).await;
                }
                Err(error) => return self.fail(id, error).await,
            }
        }
    }

    async fn send_changes(&self, id: u64, followed: Followed, now: Revision) {
        let events = match followed {
            Followed::Snapshot(snapshot) => return self.send_snapshot(id, snapshot).await,
            Followed::Events(events) => events,
        };
        let mut part = Vec::new();
        let mut bytes = 0;
        for event in events {
            let (size, revision, event) = match event {
                Event::Put(record) => (record_bytes(&record), record.revision, WireEvent::Put(record.into())),
                Event::Deleted { key, revision } => {
                    (key.as_str().len(), revision, WireEvent::Deleted { key, revision: revision.0 })
                }
                Event::Snapshot(_) => continue,
            };
            if bytes + size > PART_BYTES && !part.is_empty() {
                // Complete only up to the revision before the one that continues.
                self.send(
                    id,
                    Reply::Events { events: std::mem::take(&mut part), at: revision.0.saturating_sub(1) },
                )
                .await;
                bytes = 0;
            }
            bytes += size;
            part.push(event);
        }
        if !part.is_empty() {
            self.send(id, Reply::Events { events: part, at: now.0 }).await;
        }
    }
}

/// The approximate size of a record in a frame.
fn record_bytes(record: &Record) -> usize {
    record.key.as_str().len() + record.value.len() + 16
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use russet_http::listener::Acceptor;
    use tempfile::TempDir;

    use super::*;
    use crate::locked::{SOCKET_FILE, STORE_FILE};

    /// Both ends of a connection to a guest's owner.
    async fn connect(dir: &TempDir) -> (UnixStream, Connection<UnixStream>) {
        let path = dir.path().join(SOCKET_FILE);
        let acceptor = Acceptor::new(UnixListener::bind(&path).unwrap(), Admission::new(GUESTS));
        let (client, stream) = tokio::join!(UnixStream::connect(&path), acceptor.accept());
        (client.unwrap(), stream)
    }

    fn frames(calls: impl IntoIterator<Item = Request>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (id, request) in (0..).zip(calls) {
            wire::encode(&Call { id, request }, &mut bytes).unwrap();
        }
        bytes
    }

    #[tokio::test]
    async fn a_stop_returns_calls_that_the_kernel_accepted_and_refuses_later_ones() {
        let dir = tempfile::tempdir().unwrap();
        let (mut client, stream) = connect(&dir).await;
        client.write_all(&frames([Request::Unwatch, Request::Unwatch])).await.unwrap();
        let socket = stream.as_fd().try_clone_to_owned().unwrap();
        let mut bytes = Vec::new();
        read_last(&socket, &mut bytes).unwrap();
        let (reader, _writer) = tokio::io::split(stream);
        let mut calls = Calls { reader, bytes, stop: None, is_stopped: true };
        assert_eq!(calls.next().await.unwrap().unwrap().id, 0);
        assert_eq!(calls.next().await.unwrap().unwrap().id, 1);
        assert!(calls.next().await.unwrap().is_none());
        let refused = client.write_all(&frames([Request::Unwatch])).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_stopped_connection_answers_its_calls_before_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(dir.path().join(STORE_FILE)).unwrap();
        let (mut client, stream) = connect(&dir).await;
        let calls = [Request::Hello { version: wire::VERSION }, Request::List(Prefix::nodes())];
        client.write_all(&frames(calls)).await.unwrap();
        let local = LocalSet::new();
        local.run_until(connection(store, stream, Some(Box::pin(ready(()))))).await.unwrap();
        let mut answers = Vec::new();
        client.read_to_end(&mut answers).await.unwrap();
        let (hello, used) = wire::decode::<Answer>(&answers).unwrap().unwrap();
        assert!(matches!(hello.reply, Reply::Hello { .. }));
        let (list, _) = wire::decode::<Answer>(&answers[used..]).unwrap().unwrap();
        assert!(matches!(list, Answer { id: 1, reply: Reply::Part { last: true, .. } }));
    }
}
