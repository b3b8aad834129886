//! File locks with a deadline: the node lock, `store.lock`, and one lock for each container.
//!
//! `flock` either waits for ever or not at all. To wait until a deadline, the lock is tried without
//! waiting, and between attempts the thread sleeps on an inotify watch for the file's closing,
//! which a holder's release or death causes. The kernel reports the close shortly *before* it drops
//! the lock, and a holder may unlock without closing, so the watch only shortens the wait: a
//! back-off with jitter bounds it.

mod holder;

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FlockOperation, Mode, OFlags, inotify};
use rustix::io::Errno;

pub use holder::LockHolder;

/// A held lock; dropping it, or the end of the process, releases it.
///
/// The file stays, unless its holder removes it: if another process removed it, two processes could
/// hold locks of the same name.
#[must_use = "the lock is released when this is dropped"]
pub struct FileLock {
    // Closing the descriptor releases the lock.
    _fd: OwnedFd,
    path: PathBuf,
}

/// The lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process held it until the deadline.
    #[error("lock {}: still held by another process after {} ms", path.display(), waited.as_millis())]
    Timeout {
        /// The lock file.
        path: PathBuf,
        waited: Duration,
    },
    /// The file could not be opened or locked.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// `open lock` or `lock`.
        operation: &'static str,
        /// The lock file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// The first pause after a failed attempt; a close event resets the pause to it.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause: the worst delay after a holder that unlocks without closing.
const PAUSE_MAX: Duration = Duration::from_millis(64);
/// A lock is normally released within this time; after it, the waiter reports the holder.
const REPORT_AFTER: Duration = Duration::from_secs(1);

// === impl FileLock ===

impl FileLock {
    /// Acquires the lock at `path` exclusively, waiting until `deadline`. Creates the file (0600)
    /// if necessary. Waiters are not served in order.
    pub fn exclusive(path: impl AsRef<Path>, deadline: Instant) -> Result<Self, LockError> {
        Self::take(path.as_ref(), FlockOperation::NonBlockingLockExclusive, deadline)
    }

    /// The same, but calls `report` once with the holder if the wait takes longer than a second.
    pub fn exclusive_reporting(
        path: impl AsRef<Path>,
        deadline: Instant,
        report: impl FnOnce(&LockHolder),
    ) -> Result<Self, LockError> {
        let path = path.as_ref();
        let began = Instant::now();
        let report_at = began + REPORT_AFTER;
        if report_at < deadline {
            match Self::exclusive(path, report_at) {
                Err(LockError::Timeout { .. }) => report(&LockHolder::of(path)),
                other => return other,
            }
        }
        Self::exclusive(path, deadline).map_err(|error| error.since(began))
    }

    /// Acquires the lock together with other shared holders.
    pub fn shared(path: impl AsRef<Path>, deadline: Instant) -> Result<Self, LockError> {
        Self::take(path.as_ref(), FlockOperation::NonBlockingLockShared, deadline)
    }

    /// Acquires the lock if it is free; `None` if another process holds it.
    pub fn try_exclusive(path: impl AsRef<Path>) -> Result<Option<Self>, LockError> {
        match Self::exclusive(path, Instant::now()) {
            Ok(lock) => Ok(Some(lock)),
            Err(LockError::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, for locks of short-lived things. Requires that the lock is held
    /// exclusively: waiters then find that the file is gone, and create a new one. A file that
    /// another process has put in its place is not removed.
    pub fn remove_file(&self) -> Result<(), LockError> {
        if !is_at(&self._fd, &self.path)? {
            return Ok(());
        }
        match rustix::fs::unlink(&self.path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(LockError::io("remove lock", &self.path, errno)),
        }
    }

    fn take(path: &Path, operation: FlockOperation, deadline: Instant) -> Result<Self, LockError> {
        let began = Instant::now();
        let mut file = open(path)?;
        let mut wait = None;
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) if is_at(&file, path)? => return Ok(Self { _fd: file, path: path.to_owned() }),
                // The file was deleted or replaced during the wait: the acquired lock protects
                // nothing.
                Ok(()) => file = open(path)?,
                Err(Errno::WOULDBLOCK) => {
                    let now = Instant::now();
                    if now >= deadline {
                        return Err(LockError::Timeout { path: path.to_owned(), waited: now - began });
                    }
                    wait.get_or_insert_with(|| Wait::new(path)).pause(deadline - now);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(LockError::io("lock", path, errno)),
            }
        }
    }
}

impl fmt::Debug for FileLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileLock({})", self.path.display())
    }
}

// === impl LockError ===

impl LockError {
    /// Whether trying again later can help.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }

    /// Replaces the waiting time by the time since `began`.
    fn since(self, began: Instant) -> Self {
        match self {
            Self::Timeout { path, .. } => Self::Timeout { path, waited: began.elapsed() },
            other => other,
        }
    }

    fn io(operation: &'static str, path: &Path, errno: Errno) -> Self {
        Self::Io { operation, path: path.to_owned(), source: errno.into() }
    }
}

/// The pauses between attempts.
struct Wait {
    /// `None` if the machine is out of inotify instances; then only the back-off determines the
    /// pauses.
    watch: Option<OwnedFd>,
    pause: Duration,
}

// === impl Wait ===

impl Wait {
    fn new(path: &Path) -> Self {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .and_then(|fd| {
                let closed = inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::CLOSE_NOWRITE;
                inotify::add_watch(&fd, path, closed | inotify::WatchFlags::DELETE_SELF)?;
                Ok(fd)
            })
            .ok();
        Self { watch, pause: PAUSE_MIN }
    }

    fn pause(&mut self, remaining: Duration) {
        let pause = jittered(self.pause).min(remaining).max(Duration::from_micros(100));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        let timeout = Timespec {
            tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: pause.subsec_nanos().into(),
        };
        let mut fds: Vec<_> =
            self.watch.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
        // An interrupted poll is a short pause; the caller checks the time.
        if rustix::event::poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            self.pause = PAUSE_MIN;
            self.drain();
        }
    }

    fn drain(&self) {
        let mut buffer = [0_u8; 4096];
        if let Some(fd) = &self.watch {
            while rustix::io::read(fd, &mut buffer).is_ok_and(|length| length > 0) {}
        }
    }
}

/// Between half and all of `pause`, so that waiters do not retry in step.
fn jittered(pause: Duration) -> Duration {
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    pause / 2 + pause.mul_f64((random % 1024) as f64 / 2048.0)
}

fn open(path: &Path) -> Result<OwnedFd, LockError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| LockError::io("open lock", path, errno))
}

/// Whether `path` still names `file`.
fn is_at(file: &OwnedFd, path: &Path) -> Result<bool, LockError> {
    let held = rustix::fs::fstat(file).map_err(|errno| LockError::io("lock", path, errno))?;
    match rustix::fs::lstat(path) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(LockError::io("lock", path, errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn a_held_lock_times_out_at_the_deadline_and_names_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.lock");
        let _held = FileLock::exclusive(&path, soon()).unwrap();
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = FileLock::exclusive(&path, deadline).unwrap_err();
        assert!(error.is_timeout() && Instant::now() >= deadline);
        assert!(error.to_string().contains("node.lock: still held by another process"), "{error}");
        assert!(FileLock::try_exclusive(&path).unwrap().is_none());
    }

    #[test]
    fn a_long_wait_reports_the_holder_once_and_then_gets_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let held = FileLock::exclusive(&path, soon()).unwrap();
        // A waiter with a shorter deadline gets only the error.
        let now = FileLock::exclusive_reporting(&path, Instant::now(), |_| panic!("reported"));
        assert!(now.unwrap_err().is_timeout());
        let (report, reported) = mpsc::channel();
        std::thread::scope(|scope| {
            let path = &path;
            let report = move |holder: &LockHolder| report.send(holder.to_string()).unwrap();
            let waiter = scope.spawn(move || FileLock::exclusive_reporting(path, soon(), report).map(drop));
            assert!(reported.recv().unwrap().starts_with(&format!("process {} ", std::process::id())));
            drop(held);
            waiter.join().unwrap().unwrap();
        });
        assert!(reported.recv().is_err(), "reported twice");
        FileLock::exclusive_reporting(&path, soon(), |_| panic!("the lock is free")).map(drop).unwrap();
    }

    #[test]
    fn a_released_lock_wakes_a_waiter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let held = FileLock::exclusive(&path, soon()).unwrap();
        let (started, waiting) = mpsc::channel();
        std::thread::scope(|scope| {
            let path = &path;
            let waiter = scope.spawn(move || {
                started.send(()).unwrap();
                FileLock::exclusive(path, soon()).map(drop)
            });
            waiting.recv().unwrap();
            drop(held);
            waiter.join().unwrap().unwrap();
        });
    }

    #[test]
    fn shared_holders_exclude_only_exclusive_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let _one = FileLock::shared(&path, soon()).unwrap();
        let _two = FileLock::shared(&path, soon()).unwrap();
        assert!(FileLock::try_exclusive(&path).unwrap().is_none());
    }

    #[test]
    fn a_lock_file_that_was_replaced_is_not_mistaken_for_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let old = FileLock::exclusive(&path, soon()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let new = FileLock::exclusive(&path, soon()).unwrap();
        assert!(is_at(&new._fd, &path).unwrap());
        assert!(!is_at(&old._fd, &path).unwrap());
    }

    #[test]
    fn many_threads_never_hold_it_together() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _lock = FileLock::exclusive(&path, soon()).unwrap();
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
    }

    #[test]
    fn holders_that_remove_the_file_never_hold_it_together() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let lock = FileLock::exclusive(&path, soon()).unwrap();
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        lock.remove_file().unwrap();
                    }
                });
            }
        });
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_replaced_the_lock_file_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let old = FileLock::exclusive(&path, soon()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _new = FileLock::exclusive(&path, soon()).unwrap();
        old.remove_file().unwrap();
        assert!(path.exists());
    }

    #[test]
    fn a_symbolic_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(matches!(FileLock::exclusive(&path, soon()), Err(LockError::Io { .. })));
    }
}
