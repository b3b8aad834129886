//! Network namespaces: open, verify, and enter for the duration of a scope.
//!
//! `attach` and `plugins` open the path that the runtime gave; tests and `sandbox` create named ones.

mod named;

use std::fmt;
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FsWord, Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// An open network namespace. It lives at least as long as this value, whatever happens to its path.
pub struct NetNs {
    fd: OwnedFd,
    path: PathBuf,
    id: NetNsId,
}

/// The identity of a namespace: two are the same exactly if their identities are equal *and* both
/// are held open (the kernel reuses the inode of a dead namespace).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetNsId {
    /// Device of the namespace file system.
    pub dev: u64,
    /// Inode in it; what `ip netns identify` and `lsns` show.
    pub inode: u64,
}

/// Keeps the thread inside another namespace until this is dropped.
///
/// Not `Send`: namespaces are per thread, so the thread that left must return. Never hold it across
/// an `.await`.
#[must_use = "the thread returns to its own namespace when the guard is dropped"]
pub struct NetNsGuard {
    home: NetNs,
    not_send: PhantomData<*const ()>,
}

/// A namespace that could not be opened, entered, created or deleted.
#[derive(Debug, thiserror::Error)]
pub enum NetNsError {
    /// There is nothing at the path: the namespace is gone, which DEL treats as success.
    #[error("open network namespace {}: no such path", path.display())]
    Missing {
        /// What was opened.
        path: PathBuf,
    },
    /// The path is a file, a directory, a device, or the mount point of a removed namespace.
    #[error("open network namespace {}: not a namespace", path.display())]
    NotANamespace {
        /// What was opened.
        path: PathBuf,
    },
    /// The path is a namespace of another kind.
    #[error("open network namespace {}: it is a {kind} namespace", path.display())]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// `mnt`, `pid`, `user`, ...
        kind: &'static str,
    },
    /// The name cannot be a file below `/run/netns`.
    #[error("invalid network namespace name {name:?}: {rule}")]
    Name {
        /// The name.
        name: String,
        /// The rule that it violates.
        rule: &'static str,
    },
    /// A namespace of this name exists.
    #[error("create network namespace {}: it exists already", path.display())]
    Exists {
        /// Its path.
        path: PathBuf,
    },
    /// The kernel refused a step.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// The step, as in `enter network namespace`.
        operation: &'static str,
        /// Its subject.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// The file system of namespaces (`NSFS_MAGIC` of linux/magic.h).
const NSFS_MAGIC: FsWord = 0x6e73_6673;
/// `_IO(0xb7, 3)` of linux/nsfs.h: the CLONE_NEW* flag of a namespace's kind.
const NS_GET_NSTYPE: libc::c_ulong = 0xb703;
/// The calling thread's namespace; `/proc/self` would be the main thread's.
const OWN: &str = "/proc/thread-self/ns/net";

// === impl NetNs ===

impl NetNs {
    /// Opens the namespace at `path` and checks that it is a *network* namespace.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, NetNsError> {
        let path = path.as_ref();
        // NONBLOCK, so that opening a FIFO does not hang.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
                return Err(NetNsError::Missing { path: path.to_owned() });
            }
            Err(rustix::io::Errno::NXIO | rustix::io::Errno::NODEV) => {
                return Err(NetNsError::NotANamespace { path: path.to_owned() });
            }
            Err(errno) => return Err(NetNsError::io("open network namespace", path, errno)),
        };
        Self::from_fd(fd, path)
    }

    /// The calling thread's namespace.
    pub fn current() -> Result<Self, NetNsError> {
        Self::open(OWN)
    }

    /// The namespace of a process (of its main thread).
    pub fn of_process(pid: u32) -> Result<Self, NetNsError> {
        Self::open(format!("/proc/{pid}/ns/net"))
    }

    /// Creates a namespace without a name; it exists as long as a handle, process or mount refers
    /// to it.
    pub fn create_unnamed() -> Result<Self, NetNsError> {
        on_new_thread(|| {
            unshare_net()?;
            Self::current()
        })
    }

    fn from_fd(fd: OwnedFd, path: &Path) -> Result<Self, NetNsError> {
        let io = |errno| NetNsError::io("inspect network namespace", path, errno);
        if rustix::fs::fstatfs(&fd).map_err(io)?.f_type != NSFS_MAGIC {
            return Err(NetNsError::NotANamespace { path: path.to_owned() });
        }
        // SAFETY: this ioctl takes no argument and touches no memory of ours; the fd is open.
        let kind = unsafe { libc::ioctl(fd.as_raw_fd(), NS_GET_NSTYPE as _) };
        if kind < 0 {
            let source = io::Error::last_os_error();
            return Err(NetNsError::Io {
                operation: "inspect network namespace",
                path: path.to_owned(),
                source,
            });
        }
        if kind != libc::CLONE_NEWNET {
            return Err(NetNsError::WrongKind { path: path.to_owned(), kind: kind_name(kind) });
        }
        let stat = rustix::fs::fstat(&fd).map_err(io)?;
        let id = NetNsId { dev: stat.st_dev, inode: stat.st_ino };
        Ok(Self { fd, path: path.to_owned(), id })
    }

    /// Another handle of the same namespace.
    pub fn try_clone(&self) -> Result<Self, NetNsError> {
        let duplicate = |source| NetNsError::Io {
            operation: "duplicate network namespace",
            path: self.path.clone(),
            source,
        };
        let fd = self.fd.try_clone().map_err(duplicate)?;
        Ok(Self { fd, path: self.path.clone(), id: self.id })
    }

    pub const fn id(&self) -> NetNsId {
        self.id
    }

    pub fn same_as(&self, other: &NetNs) -> bool {
        self.id == other.id
    }

    /// The path at which it was opened. For messages only, because the path may refer to another
    /// namespace by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the calling thread into the namespace until the guard is dropped.
    pub fn enter(&self) -> Result<NetNsGuard, NetNsError> {
        let home = Self::current()?;
        self.switch()?;
        Ok(NetNsGuard { home, not_send: PhantomData })
    }

    /// Runs `body` inside the namespace on the calling thread.
    pub fn with<T>(&self, body: impl FnOnce() -> T) -> Result<T, NetNsError> {
        let _inside = self.enter()?;
        Ok(body())
    }

    /// Runs `body` inside the namespace on a new thread: for callers whose thread must not move
    /// even briefly, and for bodies with more than a few calls. A panic of `body` continues in the
    /// caller.
    pub fn run_in_thread<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, NetNsError> {
        on_new_thread(|| {
            self.switch()?;
            Ok(body())
        })
    }

    fn switch(&self) -> Result<(), NetNsError> {
        rustix::thread::move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| NetNsError::io("enter network namespace", &self.path, errno))
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for NetNs {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl fmt::Debug for NetNs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NetNs({} net:[{}])", self.path.display(), self.id.inode)
    }
}

// === impl NetNsGuard ===

impl Drop for NetNsGuard {
    /// Returns to the original namespace. If that fails, the process is aborted: the thread would
    /// continue to configure the wrong namespace, possibly the node's own, and a panic here could
    /// only become a panic within a panic.
    fn drop(&mut self) {
        if let Err(error) = self.home.switch() {
            let text = format!("fatal: cannot return from a network namespace: {error}\n");
            // A closed stderr must not prevent the abort.
            let _ = io::stderr().write_all(text.as_bytes());
            std::process::abort();
        }
    }
}

// === impl NetNsError ===

impl NetNsError {
    /// Whether the namespace does not exist any more, so that nothing has to be removed from it.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::NotANamespace { .. })
    }

    fn io(operation: &'static str, path: &Path, errno: rustix::io::Errno) -> Self {
        Self::Io { operation, path: path.to_owned(), source: errno.into() }
    }
}

/// Moves the calling thread permanently into a new, empty network namespace.
pub(crate) fn unshare_net() -> Result<(), NetNsError> {
    // SAFETY: NEWNET changes the thread's network namespace, neither memory nor file descriptors.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|errno| NetNsError::io("unshare network namespace", Path::new(OWN), errno))
}

/// Runs `body` on a new thread; returns its result or propagates its panic.
pub(crate) fn on_new_thread<T: Send>(
    body: impl FnOnce() -> Result<T, NetNsError> + Send,
) -> Result<T, NetNsError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, body).map_err(
            |source| NetNsError::Io {
                operation: "start a thread for network namespace",
                path: PathBuf::from(OWN),
                source,
            },
        )?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn kind_name(kind: i32) -> &'static str {
    match kind {
        libc::CLONE_NEWNS => "mnt",
        libc::CLONE_NEWCGROUP => "cgroup",
        libc::CLONE_NEWUTS => "uts",
        libc::CLONE_NEWIPC => "ipc",
        libc::CLONE_NEWUSER => "user",
        libc::CLONE_NEWPID => "pid",
        0x80 => "time",
        _ => "strange",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_distinguishes_missing_paths_files_and_other_namespaces() {
        // cni-runtime.md section 1: DEL of a container whose namespace is gone succeeds.
        let missing = NetNs::open("/proc/thread-self/ns/absent").unwrap_err();
        assert!(matches!(missing, NetNsError::Missing { .. }) && missing.is_gone(), "{missing}");
        let file = NetNs::open("/proc/version").unwrap_err();
        assert!(matches!(file, NetNsError::NotANamespace { .. }) && file.is_gone(), "{file}");
        let mount = NetNs::open("/proc/thread-self/ns/mnt").unwrap_err();
        assert!(matches!(mount, NetNsError::WrongKind { kind: "mnt", .. }) && !mount.is_gone(), "{mount}");
    }

    #[test]
    fn opening_a_fifo_does_not_hang() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        assert!(matches!(NetNs::open(&path), Err(NetNsError::NotANamespace { .. })));
    }

    #[test]
    fn a_threads_own_namespace_is_the_same_through_every_path() {
        let own = NetNs::current().unwrap();
        assert!(own.same_as(&NetNs::of_process(std::process::id()).unwrap()));
        assert_eq!(own.id(), own.try_clone().unwrap().id());
    }

    #[test]
    #[ignore = "kernel: unshare(CLONE_NEWNET) needs root"]
    fn a_guard_returns_when_dropped_even_by_a_panic() {
        let other = NetNs::create_unnamed().unwrap();
        let home = NetNs::current().unwrap();
        assert!(!home.same_as(&other));
        let inside = other.with(|| NetNs::current().unwrap()).unwrap();
        assert!(inside.same_as(&other));
        let panicked = std::panic::catch_unwind(|| other.with(|| panic!("on purpose")));
        assert!(panicked.is_err());
        assert!(NetNs::current().unwrap().same_as(&home));
    }

    #[test]
    #[ignore = "kernel: unshare(CLONE_NEWNET) needs root"]
    fn guards_nest() {
        let (a, b) = (NetNs::create_unnamed().unwrap(), NetNs::create_unnamed().unwrap());
        let home = NetNs::current().unwrap();
        {
            let _a = a.enter().unwrap();
            b.with(|| assert!(NetNs::current().unwrap().same_as(&b))).unwrap();
            assert!(NetNs::current().unwrap().same_as(&a));
        }
        assert!(NetNs::current().unwrap().same_as(&home));
    }

    #[test]
    #[ignore = "kernel: unshare(CLONE_NEWNET) needs root"]
    fn a_thread_inside_a_namespace_leaves_the_callers_thread_alone() {
        let other = NetNs::create_unnamed().unwrap();
        let home = NetNs::current().unwrap();
        let seen = other.run_in_thread(|| NetNs::current().unwrap().id()).unwrap();
        assert_eq!(seen, other.id());
        assert!(NetNs::current().unwrap().same_as(&home));
    }
}
