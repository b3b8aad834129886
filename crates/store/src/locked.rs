//! Which process may open the embedded store of a directory: an owner while it runs, or, without one,
//! a plugin for one request. Both hold `store.lock`.
//!
//! The lock is an flock, which the kernel releases when its process dies. Its file names the holder,
//! for the error of a process that waits in vain.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use russet_model::{Key, Prefix};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::embedded::Options;
use crate::{
    BoxFuture, Cause, Claims, CommitError, Embedded, LeaseId, Record, Remote, Revision, Snapshot, Step,
    Store, StoreError, Tenure, Watch,
};

/// The store's file in its directory.
pub const STORE_FILE: &str = "store.redb";
/// The lock of the process that has the store open.
pub const LOCK_FILE: &str = "store.lock";
/// The socket on which the owner serves other processes.
pub const SOCKET_FILE: &str = "store.sock";

/// How often a process that waits for the lock looks whether its owner listens now: an owner keeps
/// the lock while it runs.
const OWNER_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// First and longest pause between two tries of [`join`]. An owner takes about 2 ms to open the file.
const JOIN_INTERVAL_MIN: Duration = Duration::from_millis(2);
const JOIN_INTERVAL_MAX: Duration = Duration::from_millis(12);
/// What is read of the holder's note.
const NOTE_MAX_BYTES: u64 = 200;

/// The embedded store of a directory, opened by the holder of its lock. Dropping it closes the store and gives the lock back.
pub struct Locked {
    // The order matters: the store is closed before the lock is given back.
    store: Embedded,
    _lock: File,
}

/// A process that waits for the lock. The kernel serves waiters that block in flock(2) in their order
/// and wakes the next one when the lock is free.
struct Queue {
    /// The lock's file, before the first try.
    file: Option<File>,
    /// The locked file, once the kernel has granted it.
    blocked: Option<oneshot::Receiver<io::Result<File>>>,
}

/// Access to the embedded store of a directory, which this or another process owns.
pub enum Access {
    /// Through the process that owns it.
    Remote(Remote),
    /// In this process, which holds the lock.
    Locked(Locked),
}

/// Reaches the store in `dir`: through its owner's socket if a process answers there, else by taking
/// the lock, for which it waits at most `deadline`.
/// The deadline is also that of each later call through the socket.
pub async fn open_or_connect(dir: &Path, deadline: Duration) -> Result<Access, StoreError> {
    let end = Instant::now() + deadline;
    let mut queue = Queue::join(dir).map_err(|error| lock_error(dir, error))?;
    loop {
        if owner_answers(&dir.join(SOCKET_FILE)).await {
            return Ok(Access::Remote(Remote::connect_with(dir.join(SOCKET_FILE), deadline)));
        }
        let next_check = end.min(Instant::now() + OWNER_CHECK_INTERVAL);
        if let Some(lock) = queue.lock_before(next_check).await.map_err(|error| lock_error(dir, error))? {
            // For a moment only: the owner verifies the whole file when it starts.
            return Locked::open(dir, lock, Options { verify: false, ..Options::default() })
                .map(Access::Locked);
        }
        if Instant::now() >= end {
            return Err(held_by_another(dir, deadline));
        }
    }
}

/// Reaches the store in `dir` for a process that lives for one request: as a guest of the process that has it open, whatever that one is, or by taking the
/// lock. The one that takes the lock should serve the others until it leaves ([`serve_guests`](crate::serve_guests)): opening and closing the file
/// costs several disk syncs, which a burst of requests must not pay one after the other. Waits at most `deadline`.
pub async fn join(dir: &Path, deadline: Duration) -> Result<Access, StoreError> {
    let end = Instant::now() + deadline;
    let lock = open_lock(dir).map_err(|error| lock_error(dir, error))?;
    let mut interval = JOIN_INTERVAL_MIN;
    loop {
        // The connection by which the owner is found is the one that is used: an owner that leaves answers those that it has.
        let socket = dir.join(SOCKET_FILE);
        match UnixStream::connect(&socket).await {
            Ok(stream) => return Ok(Access::Remote(Remote::guest(stream, socket))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => {
                if try_lock(&lock).map_err(|error| lock_error(dir, error))? {
                    let options = Options { verify: false, ..Options::default() };
                    return Locked::open(dir, lock, options).map(Access::Locked);
                }
            }
        }
        if Instant::now() >= end {
            return Err(held_by_another(dir, deadline));
        }
        tokio::time::sleep(interval).await;
        interval = JOIN_INTERVAL_MAX.min(interval + JOIN_INTERVAL_MIN);
    }
}

/// The socket of the owner of `dir`: only its own user may connect. What a dead owner left there is replaced, which holding the lock makes safe.
pub fn listen(dir: &Path, _owner: &Locked) -> io::Result<UnixListener> {
    russet_http::listener::unix::replace_at(&dir.join(SOCKET_FILE), russet_http::listener::unix::PRIVATE)
}

async fn owner_answers(socket: &Path) -> bool {
    match UnixStream::connect(socket).await {
        Ok(_) => true,
        // A full listen queue is an owner, too: a stopped or a busy one.
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

// === impl Locked ===

impl Locked {
    /// Takes the lock of `dir`, waiting at most `deadline`, and opens the store. This is how an owner starts.
    pub async fn acquire(dir: &Path, deadline: Duration) -> Result<Self, StoreError> {
        let end = Instant::now() + deadline;
        let mut queue = Queue::join(dir).map_err(|error| lock_error(dir, error))?;
        let lock = queue.lock_before(end).await.map_err(|error| lock_error(dir, error))?;
        Self::open(dir, lock.ok_or_else(|| held_by_another(dir, deadline))?, Options::default())
    }

    fn open(dir: &Path, mut lock: File, options: Options) -> Result<Self, StoreError> {
        // Only a hint for processes that wait: the lock holds also if the disk has no room for it.
        let _ = sign(&mut lock);
        Ok(Self { store: Embedded::open_with(dir.join(STORE_FILE), options)?, _lock: lock })
    }

    /// The store. Clones must not outlive the lock.
    pub fn store(&self) -> &Embedded {
        &self.store
    }
}

// === impl Queue ===

impl Queue {
    fn join(dir: &Path) -> io::Result<Self> {
        open_lock(dir).map(|file| Self { file: Some(file), blocked: None })
    }

    /// The lock, or none when others have it until `end`. A lock that comes later is given back, if this value is gone by then.
    async fn lock_before(&mut self, end: Instant) -> io::Result<Option<File>> {
        if let Some(file) = self.file.take() {
            if try_lock(&file)? {
                return Ok(Some(file));
            }
            self.blocked = Some(lock_in_thread(file)?);
        }
        let Some(blocked) = &mut self.blocked else { return Ok(None) };
        match tokio::time::timeout_at(end, blocked).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())).map(Some),
            Err(_elapsed) => Ok(None),
        }
    }
}

/// Locks in a thread of its own, which ends when it has the lock, at the latest with the process.
fn lock_in_thread(file: File) -> io::Result<oneshot::Receiver<io::Result<File>>> {
    let (answer, blocked) = oneshot::channel();
    let lock = move || {
        let locked = loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                result => break result,
            }
        };
        // An answer that has no receiver any more is dropped, and the lock with it.
        let _ = answer.send(locked.map(|()| file).map_err(io::Error::from));
    };
    std::thread::Builder::new().name("store-lock".into()).spawn(lock)?;
    Ok(blocked)
}

fn open_lock(dir: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join(LOCK_FILE))
}

fn try_lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Leaves our name for those who wait.
fn sign(lock: &mut File) -> io::Result<()> {
    let name = std::env::args_os().next().map(PathBuf::from);
    let name = name.as_deref().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    lock.set_len(0)?;
    lock.rewind()?;
    write!(lock, "{name} (pid {})", std::process::id())
}

fn holder(dir: &Path) -> Option<String> {
    let mut note = String::new();
    File::open(dir.join(LOCK_FILE)).ok()?.take(NOTE_MAX_BYTES).read_to_string(&mut note).ok()?;
    let note: String = note.trim().chars().flat_map(char::escape_debug).collect();
    (!note.is_empty()).then_some(note)
}

fn held_by_another(dir: &Path, deadline: Duration) -> StoreError {
    let holder = holder(dir).unwrap_or_else(|| "another process".into());
    let reason =
        format!("still held by {holder} after {deadline:?}, and no process answers on {SOCKET_FILE}");
    StoreError::Unavailable {
        operation: format!("lock {}", dir.join(LOCK_FILE).display()),
        source: Cause::text(reason),
    }
}

fn lock_error(dir: &Path, error: io::Error) -> StoreError {
    StoreError::Unavailable {
        operation: format!("lock {}", dir.join(LOCK_FILE).display()),
        source: Cause::new(error),
    }
}

// === impl Access ===

impl Access {
    fn store(&self) -> &dyn Store {
        match self {
            Self::Remote(remote) => remote,
            Self::Locked(locked) => &locked.store,
        }
    }
}

impl Store for Access {
    fn claims(&self) -> Claims {
        self.store().claims()
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.store().get(key)
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.store().list(prefix)
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        self.store().scan(prefix, take)
    }

    fn scan_marked<'a>(
        &'a self,
        prefix: &'a Prefix,
        marks: &'a mut dyn FnMut(&Key) -> Vec<Key>,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        self.store().scan_marked(prefix, marks, take)
    }

    fn keys<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Vec<Key>, StoreError>> {
        self.store().keys(prefix)
    }

    fn holds<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.store().holds(prefix)
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        self.store().commit(steps)
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        self.store().watch(prefix)
    }

    fn follow<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        self.store().follow(prefix, take)
    }

    fn tenure<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<(Record, Tenure)>, StoreError>> {
        self.store().tenure(key)
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        self.store().grant(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        self.store().keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store().revoke(lease)
    }
}
