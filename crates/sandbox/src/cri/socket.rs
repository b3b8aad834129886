//! The unix socket that the server listens on: its address on the command line, and the lock that
//! allows one server only.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use russet_linux::{FileLock, LockError, LockHolder};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Where a server listens: `unix:///run/russet/cri.sock`, or the path alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address(PathBuf);

/// The text is not the address of a unix socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no address: unix:///run/russet/cri.sock, or an absolute path of at most {PATH_MAX_BYTES} bytes, is wanted"
)]
pub struct AddressError(String);

/// A socket that only this server serves; dropping it removes the socket, if it is still ours.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: another server may have replaced the socket by force.
    identity: (u64, u64),
    _lock: FileLock,
}

/// The socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another program answers on it.
    #[error("listen on {}: another server answers there", .0.display())]
    InUse(PathBuf),
    /// Another server of Russet holds it, and did not end in time.
    #[error("listen on {}: {holder} serves there, and has not ended within {} s", path.display(), waited.as_secs())]
    Held {
        path: PathBuf,
        holder: LockHolder,
        /// How long the server has waited.
        waited: Duration,
    },
    /// The file is not a socket, and is not replaced.
    #[error("listen on {}: there is something that is not a socket", .0.display())]
    NoSocket(PathBuf),
    /// The lock beside the socket failed.
    #[error("listen on {}: {source}", path.display())]
    Lock { path: PathBuf, source: LockError },
    /// A system call failed.
    #[error("{operation} {}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

/// `sun_path` less its closing NUL.
const PATH_MAX_BYTES: usize = 107;
/// As other runtimes' sockets: root, and a group that the administrator may assign.
const MODE: u32 = 0o660;
/// The mode of a new directory; the agent's sockets are in it, too.
const DIRECTORY_MODE: u32 = 0o700;

// === impl Address ===

impl Address {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let path = text.strip_prefix("unix://").unwrap_or(text);
        let good = path.starts_with('/')
            && !path.ends_with('/')
            && !path.contains('\0')
            && path.len() <= PATH_MAX_BYTES;
        if good { Ok(Self(PathBuf::from(path))) } else { Err(AddressError(text.to_owned())) }
    }
}

// === impl Listener ===

impl Listener {
    /// Listens at `address`. Replaces a dead server's socket, but neither one on which a server
    /// answers nor another file. A stopping server holds its socket until it has ended: waits for
    /// that up to `timeout`.
    pub fn open(address: &Address, timeout: Duration) -> Result<Self, SocketError> {
        let path = address.path();
        if let Some(directory) = path.parent() {
            let mut maker = fs::DirBuilder::new();
            let made = maker.recursive(true).mode(DIRECTORY_MODE).create(directory);
            made.map_err(|source| failed("make directory", directory, source))?;
        }
        // Two servers that start at once both find no listener; the lock admits one of them.
        let mut beside = path.as_os_str().to_owned();
        beside.push(".lock");
        let lock = lock(Path::new(&beside), path, timeout)?;
        clear(path)?;
        let listener = russet_http::listener::unix::listen_at(path, MODE)
            .map_err(|source| failed("listen on", path, source))?;
        let found = fs::symlink_metadata(path).map_err(|source| failed("look at", path, source))?;
        Ok(Self { listener, path: path.to_owned(), identity: (found.dev(), found.ino()), _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A duplicate of the listening socket, for the acceptor.
    pub(crate) fn listener(&self) -> Result<tokio::net::UnixListener, SocketError> {
        let listener = self.listener.try_clone().and_then(tokio::net::UnixListener::from_std);
        listener.map_err(|source| failed("listen on", &self.path, source))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours =
            fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the socket stays");
        }
    }
}

/// The lock beside the socket.
fn lock(file: &Path, socket: &Path, timeout: Duration) -> Result<FileLock, SocketError> {
    let on_holder = |holder: &LockHolder| {
        let (socket, timeout_s) = (socket.display(), timeout.as_secs());
        tracing::warn!(%socket, %holder, timeout_s, "another server has the socket; waiting until it has ended");
    };
    FileLock::exclusive_reporting(file, Instant::now() + timeout, on_holder).map_err(|error| match error {
        LockError::Timeout { waited, .. } => {
            SocketError::Held { path: socket.to_owned(), holder: LockHolder::of(file), waited }
        }
        source => SocketError::Lock { path: socket.to_owned(), source },
    })
}

/// Removes a dead server's socket.
fn clear(path: &Path) -> Result<(), SocketError> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|source| failed("look at", path, source))?,
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::NoSocket(path.to_owned()));
    }
    match answers(path) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(|source| failed("remove", path, source)),
        Err(Errno::NOENT) => Ok(()),
        // A full queue also means that a server listens.
        _ => Err(SocketError::InUse(path.to_owned())),
    }
}

/// Non-blocking: a server that does not accept, and whose queue is full, would block this for ever.
fn answers(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> SocketError {
    SocketError::Io { operation, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;

    use rustix::net::{bind, listen};

    use super::*;

    fn address(directory: &tempfile::TempDir) -> Address {
        directory.path().join("run/cri.sock").to_str().unwrap().parse().unwrap()
    }

    fn open(address: &Address) -> Result<Listener, SocketError> {
        Listener::open(address, Duration::ZERO)
    }

    #[test]
    fn an_address_is_a_url_or_a_path() {
        let path = Path::new("/run/russet/cri.sock");
        assert_eq!("unix:///run/russet/cri.sock".parse::<Address>().unwrap().path(), path);
        assert_eq!("/run/russet/cri.sock".parse::<Address>().unwrap().path(), path);
        let long = format!("unix:///{}", "a".repeat(PATH_MAX_BYTES));
        for wrong in ["", "unix://cri.sock", "tcp://127.0.0.1:1", "cri.sock", "unix:///run/", &long] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_owner_and_group_may_connect() {
        let directory = tempfile::tempdir().unwrap();
        let listener = open(&address(&directory)).unwrap();
        assert_eq!(fs::metadata(listener.path()).unwrap().permissions().mode() & 0o7777, MODE);
    }

    #[test]
    fn a_second_server_is_refused_and_the_first_keeps_its_socket() {
        let directory = tempfile::tempdir().unwrap();
        let listener = open(&address(&directory)).unwrap();
        let refused = open(&address(&directory)).unwrap_err();
        assert!(matches!(refused, SocketError::Held { .. }), "{refused}");
        let says = format!("run/cri.sock: process {} (", std::process::id());
        assert!(refused.to_string().contains(&says), "{refused}");
        UnixStream::connect(listener.path()).unwrap();
        drop(listener);
        assert!(!address(&directory).path().exists());
        drop(open(&address(&directory)).unwrap());
    }

    #[test]
    fn a_server_that_is_not_ours_keeps_its_socket() {
        let directory = tempfile::tempdir().unwrap();
        let address = address(&directory);
        fs::create_dir_all(address.path().parent().unwrap()).unwrap();
        let _other = UnixListener::bind(address.path()).unwrap();
        assert!(matches!(open(&address), Err(SocketError::InUse(_))));
        UnixStream::connect(address.path()).unwrap();
    }

    #[test]
    fn a_server_with_a_full_queue_is_detected_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let address = address(&directory);
        fs::create_dir_all(address.path().parent().unwrap()).unwrap();
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(address.path()).unwrap()).unwrap();
        listen(&socket, 0).unwrap();
        // Connections stay in the queue although their callers have left.
        let taken = (0..8).take_while(|_| answers(address.path()).is_ok()).count();
        assert!(taken < 8, "the queue is never full");
        assert!(matches!(open(&address), Err(SocketError::InUse(_))));
    }

    #[test]
    fn a_server_that_ends_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let first = open(&address(&directory)).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| Listener::open(&address(&directory), Duration::from_secs(20)).unwrap());
            drop(first);
            UnixStream::connect(next.join().unwrap().path()).unwrap();
        });
    }

    #[test]
    fn the_socket_of_a_dead_server_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let address = address(&directory);
        fs::create_dir_all(address.path().parent().unwrap()).unwrap();
        drop(UnixListener::bind(address.path()).unwrap());
        assert!(address.path().exists());
        let _door = open(&address).unwrap();
        UnixStream::connect(address.path()).unwrap();
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let address = address(&directory);
        fs::create_dir_all(address.path().parent().unwrap()).unwrap();
        fs::write(address.path(), "precious").unwrap();
        assert!(matches!(open(&address), Err(SocketError::NoSocket(_))));
        assert_eq!(fs::read_to_string(address.path()).unwrap(), "precious");
    }

    #[test]
    fn a_socket_that_replaced_ours_survives_our_end() {
        let directory = tempfile::tempdir().unwrap();
        let listener = open(&address(&directory)).unwrap();
        let path = listener.path().to_owned();
        let aside = path.with_extension("aside");
        let _other = UnixListener::bind(&aside).unwrap();
        fs::rename(&aside, &path).unwrap();
        drop(listener);
        assert!(path.exists());
    }
}
