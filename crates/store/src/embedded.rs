//! The embedded engine: a redb file that one process owns. A dedicated thread writes, so that
//! concurrent commits share one disk sync; reads run on the caller's thread. Used by the agent
//! (which also serves it to other processes, see `service`), and by a plugin without an agent.

mod disk;
mod tables;
#[cfg(test)]
mod tests;
mod watch;
mod writer;

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use redb::{Database, ReadTransaction, ReadableDatabase};
use russet_model::{Key, Prefix};
use tokio::sync::{oneshot, watch as signal};

use crate::follow::Followed;
use crate::{
    BoxFuture, Cause, Claims, CommitError, LeaseId, Record, Revision, Snapshot, Step, Store, StoreError,
    Tenure, Watch, check_steps,
};
use disk::{Counters, Disk};
use tables::Failure;
use watch::EmbeddedWatch;
use writer::Job;

/// Limit of redb's page cache. The whole agent has 10 MB; a node's working set (its blocks and
/// handles) is smaller.
const CACHE_BYTES: usize = 1 << 20;
/// Commits in the change log. A watch that is further behind compares a complete list instead.
/// 4,096 rows are below 1 MB.
const LOG_COMMITS: u64 = 4096;
/// Requests that may wait for the writer: far above one node's ADDs, so more means that the disk has stopped. Opening the store allocates room for all.
const QUEUE_MAX: usize = 1024;

/// The embedded store. Clones share it; the file is closed when the last clone and the last watch
/// are dropped.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

/// Options for opening an embedded store. Production uses the default.
#[derive(Debug, Clone)]
pub struct Options {
    /// Additional time of every disk sync, for benchmarks: edge flash needs 5 ms.
    pub sync_delay: Duration,
    /// Limit of the file's size in bytes; beyond it, writes fail as on a full disk.
    pub max_bytes: Option<u64>,
    /// Whether to verify every page's checksum when opening: a modified file is then refused at
    /// once. Costs three more syncs.
    pub verify: bool,
    /// How many commits a watch may be behind and still resume without a complete list.
    pub log_commits: u64,
}

/// Counters since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Requested commits that took effect.
    pub commits: u64,
    /// Transactions for these commits.
    pub transactions: u64,
    /// Disk syncs, including those of opening.
    pub syncs: u64,
}

struct Inner {
    jobs: Option<SyncSender<Job>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the writer thread and the readers share.
struct Shared {
    path: PathBuf,
    options: Options,
    /// None only if the file could not be opened again after a disk error.
    database: RwLock<Option<Database>>,
    counters: Arc<Counters>,
    commits: AtomicU64,
    transactions: AtomicU64,
    /// Commits that the writer has not answered yet.
    waiting: AtomicUsize,
    /// Those of them whose callers gave up: a read that checks their outcome must come after them.
    abandoned: AtomicUsize,
    /// The last revision. It is stored before watches are notified of it.
    revision: AtomicU64,
    watchers: Mutex<Vec<Watcher>>,
}

/// A watch that is notified when something below its prefix has changed.
struct Watcher {
    prefix: Prefix,
    signal: signal::Sender<()>,
}

/// A commit that the writer has not answered.
pub(crate) struct Waiting {
    answer: oneshot::Receiver<Result<Revision, CommitError>>,
    answered: bool,
    shared: Arc<Shared>,
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self { sync_delay: Duration::ZERO, max_bytes: None, verify: true, log_commits: LOG_COMMITS }
    }
}

// === impl Embedded ===

impl Embedded {
    /// Opens the store at `path`, and creates the file (0600) and directory (0700) if missing.
    /// Fails at once if another process has it open.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, Options::default())
    }

    /// The same, with options.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        let counters = Arc::new(Counters::default());
        counters.max_bytes.store(options.max_bytes.unwrap_or(0), Ordering::Relaxed);
        let database = open_database(&path, &options, &counters, options.verify)?;
        let in_file = |error| classify(error, &format!("read store {}", path.display()));
        let transaction = database.begin_read().map_err(redb::Error::from).map_err(in_file)?;
        let revision = tables::revision(&transaction).map_err(in_file)?;
        let leases = tables::leases(&transaction).map_err(in_file)?;
        drop(transaction);
        let shared = Arc::new(Shared {
            path,
            options,
            database: RwLock::new(Some(database)),
            counters,
            commits: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            abandoned: AtomicUsize::new(0),
            revision: AtomicU64::new(revision.0),
            watchers: Mutex::default(),
        });
        let (jobs, queue) = sync_channel(QUEUE_MAX);
        let writer = writer::Writer::new(shared.clone(), queue, leases);
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer.run())
            .map_err(|error| StoreError::Unavailable {
                operation: "start the store's writer thread".into(),
                source: Cause::new(error),
            })?;
        Ok(Self { inner: Arc::new(Inner { jobs: Some(jobs), shared, thread: Some(thread) }) })
    }

    /// The counters since the store was opened.
    pub fn stats(&self) -> Stats {
        let shared = &self.inner.shared;
        Stats {
            commits: shared.commits.load(Ordering::Relaxed),
            transactions: shared.transactions.load(Ordering::Relaxed),
            syncs: shared.counters.syncs.load(Ordering::Relaxed),
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.inner.shared.path
    }

    /// The revision of the last commit.
    pub fn revision(&self) -> Revision {
        self.inner.shared.revision()
    }

    /// Changes the limit on the file's size while the store is open.
    pub fn set_max_bytes(&self, max_bytes: Option<u64>) {
        self.inner.shared.counters.max_bytes.store(max_bytes.unwrap_or(0), Ordering::Relaxed);
    }

    /// Notified after commits that concern the prefix, and perhaps after others. A commit after this call whose
    /// notification is outstanding shows in [`Self::revision`] already.
    pub(crate) fn changes(&self, prefix: &Prefix) -> signal::Receiver<()> {
        let (signal, changes) = signal::channel(());
        let mut watchers = self.inner.shared.watchers();
        watchers.retain(|watcher| !watcher.signal.is_closed());
        watchers.push(Watcher { prefix: prefix.clone(), signal });
        changes
    }

    /// The changes after `since` under a prefix, and the revision up to which they are complete.
    pub(crate) async fn follow(
        &self,
        prefix: &Prefix,
        since: Option<Revision>,
    ) -> Result<(Followed, Revision), StoreError> {
        self.read(|| format!("follow {prefix}"), |transaction| tables::follow(transaction, prefix, since))
            .await
    }

    /// Reads on this thread. After a disk error redb refuses everything, so the first error makes
    /// the writer open the file again, and the read is repeated once.
    async fn read<T>(
        &self,
        operation: impl Fn() -> String,
        query: impl Fn(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        if self.inner.shared.abandoned.load(Ordering::Acquire) > 0 {
            self.settle().await?;
        }
        match self.inner.shared.read(&query) {
            Ok(value) => return Ok(value),
            Err(error) if !latches(&error) => return Err(classify(error, &operation())),
            Err(_) => {}
        }
        self.ask(&operation, |reply| Job::Reopen { reply }).await??;
        self.inner.shared.read(&query).map_err(|error| classify(error, &operation()))
    }

    /// Reads row by row, on this thread. Not repeated after a disk error, because rows were passed
    /// on already.
    async fn scan_rows(&self, prefix: &Prefix, take: &mut dyn FnMut(Record)) -> Result<Revision, StoreError> {
        let operation = || format!("scan {prefix}");
        // Like every read: after abandoned commits, and from a readable file.
        self.read(operation, tables::revision).await?;
        let scanned = self.inner.shared.read(|transaction| tables::scan(transaction, prefix, take));
        scanned.map_err(|error| classify(error, &operation()))
    }

    /// Passes a commit to the writer, in the order of the calls.
    pub(crate) fn submit(&self, steps: Vec<Step>) -> Result<Waiting, CommitError> {
        check_steps(&steps)?;
        let count = steps.len();
        let (reply, answer) = oneshot::channel();
        let shared = self.inner.shared.clone();
        shared.waiting.fetch_add(1, Ordering::AcqRel);
        self.enqueue(&|| format!("commit {count} steps"), Job::Commit { steps, reply }).inspect_err(
            |_| {
                shared.waiting.fetch_sub(1, Ordering::AcqRel);
            },
        )?;
        Ok(Waiting { answer, answered: false, shared })
    }

    /// Returns when every earlier commit is decided; at once if there is none.
    pub(crate) async fn settle(&self) -> Result<(), StoreError> {
        match self.inner.shared.waiting.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => self.ask(|| "wait for earlier commits".into(), |reply| Job::Fence { reply }).await,
        }
    }

    /// Passes a job to the writer and waits for its answer.
    async fn ask<T>(
        &self,
        operation: impl Fn() -> String,
        job: impl FnOnce(oneshot::Sender<T>) -> Job,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(&operation, job(reply))?;
        answer.await.map_err(|_| writer_ended(operation()))
    }

    fn enqueue(&self, operation: &impl Fn() -> String, job: Job) -> Result<(), StoreError> {
        let unavailable =
            |reason: &str| StoreError::Unavailable { operation: operation(), source: Cause::text(reason) };
        let jobs = self.inner.jobs.as_ref().ok_or_else(|| unavailable("the store is closed"))?;
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => unavailable("too many requests wait for the disk"),
            TrySendError::Disconnected(_) => unavailable("the writer thread is gone"),
        })
    }
}

fn writer_ended(operation: String) -> StoreError {
    StoreError::Unknown { operation, source: Cause::text("the writer thread ended before it answered") }
}

// === impl Waiting ===

impl Waiting {
    /// The outcome.
    pub(crate) async fn outcome(mut self) -> Result<Revision, CommitError> {
        let answer = (&mut self.answer).await;
        self.answered = true;
        answer.unwrap_or_else(|_| Err(writer_ended("commit".into()).into()))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // Counted before the channel closes: the writer decrements the count when it finds the
        // channel closed.
        self.shared.abandoned.fetch_add(1, Ordering::AcqRel);
        self.answer.close();
        if self.answer.try_recv().is_ok() {
            self.shared.abandoned.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Store for Embedded {
    fn claims(&self) -> Claims {
        Claims { atomic: true, ttl: true }
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.read(move || format!("get {key}"), move |transaction| tables::get(transaction, key)))
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(
            self.read(move || format!("list {prefix}"), move |transaction| tables::list(transaction, prefix)),
        )
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(self.scan_rows(prefix, take))
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(async move {
            let count = steps.len();
            if count == 0 {
                return Ok(Vec::new());
            }
            let revision = self.submit(steps)?.outcome().await?;
            Ok(vec![revision; count])
        })
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(
            async move { Ok(Box::new(EmbeddedWatch::new(self.clone(), prefix.clone())) as Box<dyn Watch>) },
        )
    }

    fn tenure<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<(Record, Tenure)>, StoreError>> {
        Box::pin(self.read(move || format!("get {key}"), move |transaction| tables::tenure(transaction, key)))
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        Box::pin(async move { self.ask(|| "grant lease".into(), |reply| Job::Grant { ttl, reply }).await? })
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(async move {
            self.ask(|| format!("keep lease {} alive", lease.0), |reply| Job::KeepAlive { lease, reply })
                .await?
        })
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.ask(|| format!("revoke lease {}", lease.0), |reply| Job::Revoke { lease, reply }).await?
        })
    }
}

// === impl Inner ===

impl Drop for Inner {
    fn drop(&mut self) {
        // The writer ends after the queue is empty and on disk, so a process that opens the file
        // next finds it closed.
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(path = %self.shared.path.display(), "the store's writer thread had panicked");
        }
        *self.shared.database.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

// === impl Shared ===

impl Shared {
    fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Watcher>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies the watches of which `is_concerned` says so of their prefix. Each notification wakes a task that reads
    /// the change log, and an agent has more than a dozen watches: most commits concern few of them.
    fn notify(&self, is_concerned: impl Fn(&Prefix) -> bool) {
        let mut watchers = self.watchers();
        watchers.retain(|watcher| !watcher.signal.is_closed());
        for watcher in watchers.iter().filter(|watcher| is_concerned(&watcher.prefix)) {
            watcher.signal.send_replace(());
        }
    }

    fn read<T>(
        &self,
        query: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = database.as_ref().ok_or(redb::Error::PreviousIo)?;
        query(&database.begin_read()?)
    }
}

// === opening ===

fn open_database(
    path: &Path,
    options: &Options,
    counters: &Arc<Counters>,
    check: bool,
) -> Result<Database, StoreError> {
    let operation = format!("open store {}", path.display());
    let file = open_file(path).map_err(|error| classify(error.into(), &operation))?;
    let disk =
        Disk::new(file, counters.clone(), options.sync_delay).map_err(|error| classify(error, &operation))?;
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .set_check_integrity_on_open(check)
        .create_with_backend(disk)
        .map_err(|error| classify(error.into(), &operation))?;
    match tables::prepare(&database) {
        Ok(()) => Ok(database),
        Err(Failure::Refused(refusal)) => Err(refusal.error),
        Err(Failure::Disk(error)) => Err(classify(error, &operation)),
    }
}

/// Opens or creates the file with access for its owner only; wider permissions of an existing file
/// are removed.
fn open_file(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.len() == 0 {
        // A new name survives a power cut only if its directory is synced, too.
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Whether redb refuses everything until the file is opened again.
fn latches(error: &redb::Error) -> bool {
    matches!(error, redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::DatabaseClosed)
}

/// Maps an error of the file to the classes that callers use. All of them mean that nothing was
/// written; if that is uncertain, the writer knows.
fn classify(error: redb::Error, operation: &str) -> StoreError {
    let operation = operation.to_owned();
    match error {
        redb::Error::DatabaseAlreadyOpen => StoreError::Unavailable {
            operation,
            source: Cause::text(
                "another process has it open: a running agent, or a plugin that works without one",
            ),
        },
        redb::Error::Io(error)
            if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
        {
            StoreError::Full { operation, source: Cause::new(error) }
        }
        redb::Error::Io(error)
            if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            not_a_store(operation, &error.to_string())
        }
        redb::Error::Corrupted(reason) => not_a_store(operation, &reason),
        redb::Error::UpgradeRequired(version) => {
            not_a_store(operation, &format!("redb file format {version} is too old"))
        }
        redb::Error::TableTypeMismatch { .. } | redb::Error::TableDoesNotExist(_) => {
            not_a_store(operation, &error.to_string())
        }
        error => StoreError::Unavailable { operation, source: Cause::new(error) },
    }
}

fn not_a_store(operation: String, reason: &str) -> StoreError {
    let advice =
        "not a usable store file; it was left as it is: restore a backup, or move it away to start empty";
    StoreError::Corrupt { operation, source: Cause::text(format!("{advice} ({reason})")) }
}
