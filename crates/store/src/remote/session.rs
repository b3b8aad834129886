//! The task behind every `Remote`: one connection after another, calls out, answers in. Only it
//! uses the socket, and it never waits for a caller.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use russet_sync::Backoff;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{Command, Completed, PendingCall, WatchMessage};
use crate::wire::{self, Answer, Call, FrameError, HELLO_ID, Reply, Request, WireEvent, WireRecord};
use crate::{CommitError, Event, Record, Revision, Snapshot};

/// The first and the longest pause between two attempts to connect. An agent's restart takes about
/// a second.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Calls are combined up to this size before they are written.
const BATCH_BYTES: usize = 64 << 10;
/// One read from the socket.
const READ_BYTES: usize = 64 << 10;

pub(super) struct Session {
    path: Arc<PathBuf>,
    queue: mpsc::Receiver<Command>,
    /// Sent and not answered.
    pending: HashMap<u64, PendingCall>,
    /// Those of `pending` of which no byte has been sent.
    unwritten: Vec<u64>,
    /// To be sent before the queue: calls of the last connection, and the command that ended the
    /// wait.
    backlog: VecDeque<Command>,
    watches: HashMap<u64, mpsc::Sender<WatchMessage>>,
    /// Lists of which parts have arrived.
    listings: HashMap<u64, Vec<Record>>,
    backoff: Backoff,
    /// The first connection, where the caller has made it.
    first: Option<UnixStream>,
    /// Whether this ends when the owner listens no more.
    guest: bool,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the owner closed the connection")]
    Closed,
    #[error("the owner speaks version {0}, this program {own}; restart the older one", own = wire::VERSION)]
    Version(u32),
}

// === impl Session ===

impl Session {
    pub(super) fn new(path: Arc<PathBuf>, queue: mpsc::Receiver<Command>) -> Self {
        Self {
            path,
            queue,
            pending: HashMap::new(),
            unwritten: Vec::new(),
            backlog: VecDeque::new(),
            watches: HashMap::new(),
            listings: HashMap::new(),
            backoff: Backoff::new(RETRY_MIN, RETRY_MAX),
            first: None,
            guest: false,
        }
    }

    /// A session that uses `stream` first, and ends when the owner is gone.
    pub(super) fn of_guest(path: Arc<PathBuf>, queue: mpsc::Receiver<Command>, stream: UnixStream) -> Self {
        Self { first: Some(stream), guest: true, ..Self::new(path, queue) }
    }

    /// Works until every `Remote` and every watch is gone.
    pub(super) async fn run(mut self) {
        loop {
            if self.backlog.is_empty() {
                match self.queue.recv().await {
                    Some(command) => self.backlog.push_back(command),
                    None => return,
                }
            }
            let connected = match self.first.take() {
                Some(stream) => Ok(stream),
                None => UnixStream::connect(self.path.as_path()).await,
            };
            let broken = match connected {
                Err(error) if self.guest && is_without_listener(&error) => return,
                Ok(stream) => match self.exchange(stream).await {
                    Ok(()) => return,
                    Err(broken) => broken,
                },
                Err(error) => Broken::Io(error),
            };
            tracing::debug!(path = %self.path.display(), error = %broken, "store connection");
            self.after_loss();
            if self.queue.is_closed() && self.queue.is_empty() {
                return;
            }
            tokio::time::sleep(self.backoff.pause()).await;
        }
    }

    /// Repeats calls that were not sent or only read. The outcome of other commits is unknown,
    /// which their callers learn from the dropped channel; watches subscribe again themselves.
    fn after_loss(&mut self) {
        self.watches.clear();
        self.listings.clear();
        let unwritten = std::mem::take(&mut self.unwritten);
        let mut again: Vec<PendingCall> = self.pending.drain().map(|(_, call)| call).collect();
        again.retain(|call| unwritten.contains(&call.id) || call.only_reads());
        again.sort_by_key(|call| call.id);
        again.iter().filter(|call| unwritten.contains(&call.id)).for_each(|call| call.ticket.unsend());
        self.backlog.extend(again.into_iter().map(Command::Call));
        self.backlog.retain(|command| !matches!(command, Command::Call(call) if call.reply.is_closed()));
    }

    /// Uses one connection until it breaks; `Ok` if no caller needs it any more.
    async fn exchange(&mut self, stream: UnixStream) -> Result<(), Broken> {
        let mut outgoing = Vec::new();
        let mut incoming = Vec::new();
        // A guest connects to a process of the same release: it does not wait for the answer to its greeting.
        let mut greeted = self.guest;
        // An owner that leaves refuses calls and answers those that it has accepted; then it closes the connection.
        let mut is_refused = false;
        wire::encode(
            &Call { id: HELLO_ID, request: Request::Hello { version: wire::VERSION } },
            &mut outgoing,
        )?;
        loop {
            if greeted && !is_refused && outgoing.is_empty() {
                self.submit_backlog(&mut outgoing)?;
            }
            tokio::select! {
                biased;
                ready = stream.readable() => {
                    ready?;
                    read_some(&stream, &mut incoming)?;
                    self.take_answers(&mut incoming, &mut outgoing, &mut greeted)?;
                }
                ready = stream.writable(), if !outgoing.is_empty() => {
                    ready?;
                    match write_some(&stream, &mut outgoing) {
                        Ok(true) => self.unwritten.clear(),
                        Ok(false) => {}
                        Err(Broken::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                            outgoing.clear();
                            is_refused = true;
                            let unwritten = self.unwritten.iter().filter_map(|id| self.pending.get(id));
                            unwritten.for_each(|call| call.ticket.unsend());
                        }
                        Err(broken) => return Err(broken),
                    }
                }
                command = self.queue.recv(), if greeted && !is_refused && outgoing.is_empty() => match command {
                    Some(command) => self.backlog.push_back(command),
                    None => return Ok(()),
                }
            }
        }
    }

    /// Encodes the waiting calls. From here on a call counts as sent.
    fn submit_backlog(&mut self, outgoing: &mut Vec<u8>) -> Result<(), Broken> {
        while outgoing.len() < BATCH_BYTES {
            let Some(command) = self.backlog.pop_front().or_else(|| self.queue.try_recv().ok()) else {
                break;
            };
            match command {
                Command::Call(call) => {
                    if call.ticket.send() {
                        let message = Call { id: call.id, request: call.request.clone() };
                        wire::encode(&message, outgoing)?;
                        self.unwritten.push(call.id);
                        self.pending.insert(call.id, call);
                    }
                }
                Command::Watch { id, prefix, since, messages } => {
                    let request = Request::Watch { prefix, since: since.map(|since| since.0) };
                    wire::encode(&Call { id, request }, outgoing)?;
                    self.watches.insert(id, messages);
                }
                Command::Unwatch { id } => {
                    self.listings.remove(&id);
                    if self.watches.remove(&id).is_some() {
                        wire::encode(&Call { id, request: Request::Unwatch }, outgoing)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn take_answers(
        &mut self,
        incoming: &mut Vec<u8>,
        outgoing: &mut Vec<u8>,
        greeted: &mut bool,
    ) -> Result<(), Broken> {
        let mut taken = 0;
        while let Some((Answer { id, reply }, used)) =
            wire::decode(incoming.get(taken..).unwrap_or_default())?
        {
            taken += used;
            match reply {
                Reply::Hello { version } if version != wire::VERSION => return Err(Broken::Version(version)),
                Reply::Hello { .. } => {
                    *greeted = true;
                    self.backoff.reset();
                }
                reply if self.watches.contains_key(&id) => self.tell_watch(id, reply, outgoing)?,
                reply => self.complete(id, reply),
            }
        }
        incoming.drain(..taken);
        Ok(())
    }

    /// Adds a part of a list; returns the list if this was the last part.
    fn assemble(&mut self, id: u64, records: Vec<WireRecord>, revision: u64, last: bool) -> Option<Snapshot> {
        let listing = self.listings.entry(id).or_default();
        listing.extend(records.into_iter().map(Record::from));
        let records = last.then(|| self.listings.remove(&id)).flatten()?;
        Some(Snapshot { records, revision: Revision(revision) })
    }

    fn complete(&mut self, id: u64, reply: Reply) {
        // An answer without a receiver: its caller gave up, or its watch was dropped.
        if !self.pending.contains_key(&id) {
            return;
        }
        let completed = match reply {
            Reply::Part { records, revision, last } => match self.assemble(id, records, revision, last) {
                Some(snapshot) => Completed::Listing(snapshot),
                None => return,
            },
            reply => Completed::Reply(reply),
        };
        self.listings.remove(&id);
        if let Some(call) = self.pending.remove(&id) {
            let _ = call.reply.send(completed);
        }
    }

    /// Passes a message to a watch. A watch that is too slow is cut off, and resumes from its
    /// position when it has caught up.
    fn tell_watch(&mut self, id: u64, reply: Reply, outgoing: &mut Vec<u8>) -> Result<(), Broken> {
        let message = match reply {
            Reply::Part { records, revision, last } => match self.assemble(id, records, revision, last) {
                Some(snapshot) => WatchMessage::Snapshot(snapshot),
                None => return Ok(()),
            },
            Reply::Events { events, at } => {
                WatchMessage::Events { events: events.into_iter().map(event).collect(), at: Revision(at) }
            }
            Reply::Failed(error) => WatchMessage::Failed(CommitError::from(error).error),
            _ => return Err(FrameError::Unexpected("for a watch").into()),
        };
        let failed = matches!(message, WatchMessage::Failed(_));
        match self.watches.get(&id).map(|watch| watch.try_send(message)) {
            Some(Err(TrySendError::Full(_) | TrySendError::Closed(_))) => {
                self.watches.remove(&id);
                wire::encode(&Call { id, request: Request::Unwatch }, outgoing)?;
            }
            _ if failed => {
                self.watches.remove(&id);
            }
            _ => {}
        }
        Ok(())
    }
}

fn is_without_listener(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

// === impl PendingCall ===

impl PendingCall {
    /// Whether it can be repeated safely.
    fn only_reads(&self) -> bool {
        matches!(
            self.request,
            Request::Get(_) | Request::Tenure(_) | Request::List(_) | Request::KeepAlive(_)
        )
    }
}

fn event(event: WireEvent) -> Event {
    match event {
        WireEvent::Put(record) => Event::Put(record.into()),
        WireEvent::Deleted { key, revision } => Event::Deleted { key, revision: Revision(revision) },
    }
}

fn read_some(stream: &UnixStream, incoming: &mut Vec<u8>) -> Result<(), Broken> {
    incoming.reserve(READ_BYTES);
    match stream.try_read_buf(incoming) {
        Ok(0) => Err(Broken::Closed),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes what the socket accepts; returns whether anything was written.
fn write_some(stream: &UnixStream, outgoing: &mut Vec<u8>) -> Result<bool, Broken> {
    match stream.try_write(outgoing) {
        Ok(written) => {
            outgoing.drain(..written);
            Ok(written > 0)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    }
}
