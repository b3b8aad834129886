//! Unix sockets that are bound, restricted, and only then listening.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

/// Mode for root, or the user of this process.
pub const PRIVATE: u32 = 0o600;

/// Connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1024;

/// Listens at `path`, which must not exist. No process can connect to a socket before `listen`, and
/// by then it has its mode, so the umask never matters.
pub fn listen_at(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let socket = bound(path, mode)?;
    listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// The same, but replaces the socket of an earlier server. The caller holds a lock that only one
/// server has. A file that is not a socket is left alone, which makes this fail.
pub fn replace_at(path: &Path, mode: u32) -> io::Result<tokio::net::UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) | Err(_) => {}
    }
    tokio::net::UnixListener::from_std(listen_at(path, mode)?)
}

fn bound(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_socket_has_its_mode_before_a_process_can_connect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = bound(&path, PRIVATE).unwrap();
        assert_eq!(mode_of(&path), PRIVATE);
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        listen(&socket, BACKLOG).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[tokio::test]
    async fn the_socket_of_a_dead_server_is_replaced_and_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(listen_at(&path, 0o666).unwrap());
        assert_eq!(listen_at(&path, PRIVATE).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let _listener = replace_at(&path, PRIVATE).unwrap();
        assert_eq!(mode_of(&path), PRIVATE);
        UnixStream::connect(&path).unwrap();
        let file = dir.path().join("f");
        fs::write(&file, "kept").unwrap();
        assert_eq!(replace_at(&file, PRIVATE).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read(&file).unwrap(), b"kept");
    }
}
