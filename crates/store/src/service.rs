//! The owner's side of the unix socket, through which other processes on the same machine use the
//! embedded store. Run by the agent.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use russet_listener::{Acceptor, Admission, Allowed, Busy, Connection, Limits};
use russet_model::Prefix;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
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
const GUESTS: Limits = Limits { connections: 256, ..LISTENER };
/// How long a guest has the store to itself.
const TURN_MAX: Duration = Duration::from_millis(25);
/// How long an owner whose own request is done stays for others that come one after the other.
const STAY_MAX: Duration = Duration::from_millis(100);
/// How long an owner that leaves waits for guests that have connected: they are about to do one commit.
const GUESTS_TIMEOUT: Duration = Duration::from_millis(250);
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
/// but not for longer than [`GUESTS_TIMEOUT`].
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
    let mut leaving = std::pin::pin!(leaving);
    let mut stay_until = None;
    while stay_until.is_none_or(|end| Instant::now() < end) {
        tokio::select! {
            biased;
            () = &mut leaving, if stay_until.is_none() => stay_until = Some(Instant::now() + STAY_MAX),
            guest = next_guest(&acceptor, stay_until.is_some()) => match guest {
                Some(stream) => start_connection(&mut guests, &store, stream),
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
        start_connection(&mut guests, &store, stream);
    }
    drop(acceptor);
    let finished = async { while guests.join_next().await.is_some() {} };
    if tokio::time::timeout(GUESTS_TIMEOUT, finished).await.is_err() {
        tracing::debug!("a process uses the store for too long; it has to reach it again");
    }
}

/// The next connection; for an owner that leaves only one that has been made.
async fn next_guest(acceptor: &Acceptor<UnixListener>, is_leaving: bool) -> Option<Connection<UnixStream>> {
    if !is_leaving {
        return Some(acceptor.accept().await);
    }
    tokio::time::timeout(LAST_GUESTS_TIMEOUT, acceptor.accept()).await.ok()
}

fn start_connection(connections: &mut JoinSet<()>, store: &Embedded, stream: Connection<UnixStream>) {
    while connections.try_join_next().is_some() {}
    let store = store.clone();
    connections.spawn_local(async move {
        if let Err(error) = connection(store, stream).await {
            tracing::debug!(%error, "store client cut off");
        }
    });
}

async fn accept(store: Embedded, acceptor: Acceptor<UnixListener>) {
    let mut connections = JoinSet::new();
    loop {
        let stream = acceptor.accept().await;
        start_connection(&mut connections, &store, stream);
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

async fn connection(store: Embedded, stream: Connection<UnixStream>) -> Result<(), Cut> {
    let begin = stream.requests();
    let (reader, writer) = tokio::io::split(stream);
    let (outgoing, queue) = mpsc::channel(OUTGOING_MAX);
    tokio::select! {
        result = read_calls(store, reader, outgoing, begin) => result,
        result = write_frames(writer, queue) => result,
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

/// Reads calls and starts their work until the client disconnects. Work in progress ends with the
/// connection; a commit that reached the writer takes effect anyway.
async fn read_calls(
    store: Embedded,
    mut reader: ReadHalf<Connection<UnixStream>>,
    outgoing: mpsc::Sender<Vec<u8>>,
    begin: impl Fn() -> Busy,
) -> Result<(), Cut> {
    let client = Rc::new(Client { store, outgoing });
    let places = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut work = JoinSet::new();
    let mut watches: HashMap<u64, AbortHandle> = HashMap::new();
    let mut bytes = Vec::new();
    greet(&client, next_call(&mut reader, &mut bytes).await?).await?;
    while let Some(Call { id, request }) = next_call(&mut reader, &mut bytes).await? {
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
                let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
                work.spawn_local(client.clone().work(id, request, (place, begin())));
            }
        }
    }
    Ok(())
}

async fn next_call(
    reader: &mut ReadHalf<Connection<UnixStream>>,
    bytes: &mut Vec<u8>,
) -> Result<Option<Call>, Cut> {
    loop {
        if let Some((call, used)) = wire::decode(bytes)? {
            bytes.drain(..used);
            return Ok(Some(call));
        }
        bytes.reserve(READ_BYTES);
        if reader.read_buf(bytes).await? == 0 {
            return Ok(None);
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
        let mut signal = self.store.revisions();
        let mut at = since;
        while !self.outgoing.is_closed() {
            let last = *signal.borrow_and_update();
            // Compared for equality, not order: a client may come from a store that was replaced by
            // an older copy.
            if at == Some(last) {
                if signal.changed().await.is_err() {
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
