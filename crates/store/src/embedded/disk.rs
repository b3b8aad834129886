//! The file of the embedded engine: redb's own file backend with reserved space, counted syncs, a
//! size limit, and a slow disk for tests.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// Counters and limits of the file.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// fdatasync calls.
    pub(super) syncs: AtomicU64,
    /// Limit of the size in bytes; 0 is no limit. It can be changed while the store is open.
    pub(super) max_bytes: AtomicU64,
    /// A sync failed, so the kernel's cache does not show what is on the disk.
    pub(super) sync_failed: AtomicBool,
}

/// The store's file.
#[derive(Debug)]
pub(super) struct Disk {
    inner: FileBackend,
    /// The same open file, for calls that redb's backend does not offer.
    file: File,
    counters: Arc<Counters>,
    sync_delay: Duration,
}

// === impl Disk ===

impl Disk {
    pub(super) fn new(
        file: File,
        counters: Arc<Counters>,
        sync_delay: Duration,
    ) -> Result<Self, redb::Error> {
        let clone = file.try_clone()?;
        Ok(Self { inner: FileBackend::new(file)?, file: clone, counters, sync_delay })
    }

    /// Reserves the blocks, so that a full disk fails here, before anything was written, and never
    /// in the middle of a commit.
    fn reserve(&self, old_bytes: u64, new_bytes: u64) -> io::Result<()> {
        let max_bytes = self.counters.max_bytes.load(Ordering::Relaxed);
        if max_bytes != 0 && new_bytes > max_bytes {
            return Err(Errno::NOSPC.into());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), old_bytes, new_bytes - old_bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => {
                // Some of the blocks may be allocated: release them, and restore the length that
                // redb expects.
                self.inner.set_len(old_bytes)?;
                Err(error.into())
            }
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let old = self.inner.len()?;
        if len > old {
            self.reserve(old, len)?;
        }
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        if !self.sync_delay.is_zero() {
            pretend_slow_flash(self.sync_delay);
        }
        let result = self.inner.sync_data();
        if result.is_err() {
            self.counters.sync_failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}

/// The delay simulates the device, so it must block the thread as the device would.
#[allow(clippy::disallowed_methods)]
fn pretend_slow_flash(delay: Duration) {
    std::thread::sleep(delay);
}
