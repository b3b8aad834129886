//! Watches directories that may not exist yet, may be removed, or may be created again:
//! configuration and plugin directories. `runtime` calls this.
//!
//! A watch is armed for one wait: after waking, the caller reads the directories and arms a new
//! watch. Paths are looked up again each time, so directories that were removed, created again or
//! replaced by a symbolic link need no special handling.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// An armed watch on directories.
#[derive(Debug)]
pub struct DirWatch {
    inotify: OwnedFd,
    interests: BTreeMap<i32, Interest>,
}

/// Ends a wait from another thread.
#[derive(Debug)]
pub struct WakeHandle(OwnedFd);

/// The reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Something in the directories may have changed.
    Changed,
    /// Another thread called.
    Called,
    /// The limit was reached.
    TimedOut,
}

/// The entries that matter in one watched directory.
#[derive(Debug, Default)]
struct Interest {
    /// All of them.
    all: bool,
    /// These entries, each on the path to a directory.
    names: BTreeSet<OsString>,
}

/// Events for files that are complete, removed or moved; symbolic links and hard links cause only
/// the first of these.
const CONTENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);
/// How often a directory may appear during arming before it is left to the caller's next look.
const TRIES: usize = 8;

// === impl DirWatch ===

impl DirWatch {
    /// Watches `dirs`; for one that does not exist, its nearest existing parent.
    pub fn arm(dirs: &[PathBuf]) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut watch = Self { inotify, interests: BTreeMap::new() };
        for dir in dirs {
            watch.watch(&std::path::absolute(dir)?)?;
        }
        Ok(watch)
    }

    fn watch(&mut self, dir: &Path) -> io::Result<()> {
        for _ in 0..TRIES {
            // The path first: later changes of the directory cause an event of one watch or the
            // other.
            let found = self.watch_path_to(dir)?;
            if let Some(interest) = self.add(dir)? {
                interest.all = true;
                return Ok(());
            }
            // If the next component exists by now, it was created before its parent was watched.
            if found.is_none_or(|next| next.symlink_metadata().is_err()) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Watches the nearest existing parent for the next component towards `dir`; returns the path
    /// of that component.
    fn watch_path_to<'a>(&mut self, dir: &'a Path) -> io::Result<Option<&'a Path>> {
        let mut next = dir;
        while let (Some(parent), Some(name)) = (next.parent(), next.file_name()) {
            if let Some(interest) = self.add(parent)? {
                interest.names.insert(name.to_owned());
                return Ok(Some(next));
            }
            next = parent;
        }
        Ok(None)
    }

    /// `None` if there is no such directory.
    fn add(&mut self, dir: &Path) -> io::Result<Option<&mut Interest>> {
        match inotify::add_watch(&self.inotify, dir, CONTENTS | WatchFlags::ONLYDIR) {
            Ok(wd) => Ok(Some(self.interests.entry(wd).or_default())),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for a change, for `call`, or until `limit`.
    pub fn wait(&self, call: &WakeHandle, limit: Duration) -> io::Result<Woken> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match wait_for(&[call.0.as_fd(), self.inotify.as_fd()], left)? {
                Some(0) => return Ok(Woken::Called),
                Some(_) if self.any_relevant()? => return Ok(Woken::Changed),
                Some(_) => {}
                None => return Ok(Woken::TimedOut),
            }
        }
    }

    /// Reads pending events; true if any of them matters.
    fn any_relevant(&self) -> io::Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut any_relevant = false;
        loop {
            match reader.next() {
                Ok(event) => {
                    // Lost events may have been of any kind.
                    let lost = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                    let name = event.file_name().map(|name| name.to_bytes());
                    let interest = self.interests.get(&event.wd());
                    any_relevant |= lost || interest.is_some_and(|interest| interest.covers(name));
                }
                Err(Errno::AGAIN) => return Ok(any_relevant),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Waits until one of `fds` is readable, and returns the first that is; `None` after `limit`.
fn wait_for(fds: &[BorrowedFd<'_>], limit: Duration) -> io::Result<Option<usize>> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(polled.iter().position(|fd| !fd.revents().is_empty())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

// === impl WakeHandle ===

impl WakeHandle {
    /// A handle that was not called yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends every wait, current and future ones.
    pub fn call(&self) {
        // Fails only if the counter is full, that is, after very many calls.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Resets the handle: earlier calls do not end waits that begin now.
    pub fn reset(&self) {
        // Fails if there was no call.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Waits without a directory; true if there was a call.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        Ok(wait_for(&[self.0.as_fd()], limit)?.is_some())
    }
}

impl AsFd for WakeHandle {
    /// Readable once there was a call.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

// === impl Interest ===

impl Interest {
    /// An event without a name concerns the directory itself.
    fn covers(&self, name: Option<&[u8]>) -> bool {
        self.all || name.is_none_or(|name| self.names.iter().any(|it| it.as_encoded_bytes() == name))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Far longer than a test may take.
    const LIMIT: Duration = Duration::from_secs(60);

    fn woken(watch: &DirWatch, limit: Duration) -> Woken {
        watch.wait(&WakeHandle::new().unwrap(), limit).unwrap()
    }

    #[test]
    fn a_call_counts_until_it_is_reset() {
        let call = WakeHandle::new().unwrap();
        call.reset();
        for _ in 0..2 {
            assert!(!call.wait(Duration::ZERO).unwrap());
            call.call();
            call.call();
            assert!(call.wait(LIMIT).unwrap() && call.wait(LIMIT).unwrap());
            call.reset();
        }
    }

    #[test]
    fn a_directory_that_appears_below_a_parent_that_appears_is_seen_at_each_step() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b/net.d");
        let arm = || DirWatch::arm(std::slice::from_ref(&dir)).unwrap();
        let watch = arm();
        fs::create_dir(root.path().join("other")).unwrap();
        assert_eq!(
            woken(&watch, Duration::ZERO),
            Woken::TimedOut,
            "another entry of the parent does not matter"
        );
        fs::create_dir(root.path().join("a")).unwrap();
        assert_eq!(woken(&watch, LIMIT), Woken::Changed);
        let watch = arm();
        fs::create_dir_all(&dir).unwrap();
        assert_eq!(woken(&watch, LIMIT), Woken::Changed);
        let watch = arm();
        fs::write(dir.join("x"), "1").unwrap();
        assert_eq!(woken(&watch, LIMIT), Woken::Changed);
    }

    #[test]
    fn removal_renaming_links_and_files_moved_in_are_changes_and_reading_is_none() {
        // cni-runtime.md section 0 item 7: containerd notices neither links nor files that are
        // moved in.
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("net.d");
        fs::create_dir(&dir).unwrap();
        fs::write(root.path().join("outside"), "1").unwrap();
        type Step<'a> = (&'a str, &'a dyn Fn() -> io::Result<()>);
        let steps: [Step<'_>; 5] = [
            ("link", &|| std::os::unix::fs::symlink(root.path().join("outside"), dir.join("link"))),
            ("moved in", &|| fs::rename(root.path().join("outside"), dir.join("inside"))),
            ("moved away", &|| fs::rename(&dir, root.path().join("elsewhere"))),
            ("back", &|| fs::rename(root.path().join("elsewhere"), &dir)),
            ("removed", &|| fs::remove_dir_all(&dir)),
        ];
        for (name, step) in steps {
            let watch = DirWatch::arm(std::slice::from_ref(&dir)).unwrap();
            if let Ok(entries) = fs::read_dir(&dir) {
                assert!(entries.flatten().all(|it| fs::read(it.path()).is_ok() || it.path().is_symlink()));
            }
            assert_eq!(woken(&watch, Duration::ZERO), Woken::TimedOut, "before: {name}");
            step().unwrap();
            assert_eq!(woken(&watch, LIMIT), Woken::Changed, "{name}");
        }
    }

    #[test]
    fn a_directory_watched_for_itself_and_for_an_entry_reports_everything() {
        let root = tempfile::tempdir().unwrap();
        let dirs = [root.path().join("sub"), root.path().to_owned(), root.path().join("sub2")];
        let watch = DirWatch::arm(&dirs).unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        assert_eq!(woken(&watch, LIMIT), Woken::Changed);
    }

    #[test]
    fn a_call_ends_a_wait() {
        let root = tempfile::tempdir().unwrap();
        let watch = DirWatch::arm(&[root.path().to_owned()]).unwrap();
        let call = WakeHandle::new().unwrap();
        assert!(!call.wait(Duration::ZERO).unwrap());
        call.call();
        assert_eq!(watch.wait(&call, LIMIT).unwrap(), Woken::Called);
        assert!(call.wait(LIMIT).unwrap());
    }
}
