//! The lock file that all IPAM plugins of Calico on one host take, Russet's and the Go ones
//! (calico-ipam.md section 4.4).
//!
//! It only keeps concurrent ADDs of one host from contending for one block; correctness depends on
//! compare-and-swap writes alone. Therefore a lock that cannot be acquired is only logged. It is
//! held around the work on addresses only, and its holder waits for nothing else.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use russet_linux::FileLock;
use russet_wiring::RequestLog;
use tokio::sync::Mutex;

/// The locks that this process holds. Its requests share one, so that the agent's requests can
/// share commits.
#[derive(Default)]
pub struct HostLocks {
    held: RefCell<HashMap<PathBuf, Weak<HeldLock>>>,
    /// Only one request at a time waits for other processes of the host.
    waiter: Mutex<()>,
}

/// A lock that is released when this is dropped.
pub struct HeldLock {
    _lock: FileLock,
    since: Instant,
}

/// A Go plugin may hold the lock for its whole limit of 90 s, but the runtime would have given up
/// by then: after this time the request continues without the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);
/// After this time a held lock is no longer shared, so that other processes get it, too.
const SHARING_MAX: Duration = Duration::from_millis(500);

// === impl HostLocks ===

impl HostLocks {
    /// The lock, or `None` if it cannot be acquired.
    pub(super) async fn take(&self, path: &Path, log: &RequestLog) -> Option<Rc<HeldLock>> {
        let end = Instant::now() + LOCK_TIMEOUT;
        let waiter = tokio::time::timeout(LOCK_TIMEOUT, self.waiter.lock()).await;
        let locked = match waiter {
            Ok(_waiter) => match self.shared(path) {
                Some(held) => return Some(held),
                None => take(path.to_owned(), end).await,
            },
            Err(_elapsed) => Err("other requests were waiting for it all the time".to_owned()),
        };
        match locked {
            Ok(lock) => {
                let held = Rc::new(HeldLock { _lock: lock, since: Instant::now() });
                let mut known = self.held.borrow_mut();
                known.retain(|_, held| held.strong_count() > 0);
                known.insert(path.to_owned(), Rc::downgrade(&held));
                Some(held)
            }
            Err(reason) => {
                log.warn(format!("going on without the host's lock {}: {reason}", path.display()));
                None
            }
        }
    }

    fn shared(&self, path: &Path) -> Option<Rc<HeldLock>> {
        self.held.borrow().get(path)?.upgrade().filter(|held| held.since.elapsed() < SHARING_MAX)
    }
}

async fn take(path: PathBuf, end: Instant) -> Result<FileLock, String> {
    if let Some(parent) = path.parent() {
        // With the mode that Go's plugin has under the usual umask.
        let made = DirBuilder::new().recursive(true).mode(0o755).create(parent);
        made.map_err(|error| format!("make {}: {error}", parent.display()))?;
    }
    if let Some(lock) = FileLock::try_exclusive(&path).map_err(|error| error.to_string())? {
        return Ok(lock);
    }
    let waiting = tokio::task::spawn_blocking(move || FileLock::exclusive(path, end));
    let locked = waiting.await.map_err(|error| error.to_string())?;
    locked.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    #[test]
    fn the_lock_is_the_files_and_requests_of_one_process_share_it() {
        run(async {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("calico/ipam.lock");
            let (locks, log) = (HostLocks::default(), RequestLog::new("calico-ipam"));
            let one = locks.take(&path, &log).await.unwrap();
            let two = locks.take(&path, &log).await.unwrap();
            assert!(Rc::ptr_eq(&one, &two));
            drop(one);
            assert!(FileLock::try_exclusive(&path).unwrap().is_none(), "flock(2), as Go's plugins take it");
            drop(two);
            let others = FileLock::try_exclusive(&path).unwrap();
            assert!(others.is_some());
            let waiting = locks.take(&path, &log);
            let release = async {
                tokio::task::yield_now().await;
                drop(others);
            };
            assert!(tokio::join!(waiting, release).0.is_some());
            assert_eq!(log.text(), "");
        });
    }

    #[test]
    fn a_lock_that_cannot_be_had_is_a_line_in_the_log() {
        run(async {
            let log = RequestLog::new("calico-ipam");
            assert!(HostLocks::default().take(Path::new("/proc/none/ipam.lock"), &log).await.is_none());
            assert!(log.text().contains("without the host's lock"), "{}", log.text());
        });
    }
}
