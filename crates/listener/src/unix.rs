//! Unix sockets that are bound, restricted, and only then listened on.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

/// For root, or the user that we run as.
pub const PRIVATE: u32 = 0o600;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// Listens at `path`, where nothing may be. Nobody can connect to a socket before `listen`, and by then it has its mode: there is no moment in which the
/// umask decides who is let in.
pub fn listen_at(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let socket = bound(path, mode)?;
    listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// The same, in the place of the socket that a server before this one left. The caller holds a lock that only one server has. What is not a socket is
/// left alone, which makes this fail.
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
    fn a_socket_has_its_mode_before_anybody_can_connect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = bound(&path, PRIVATE).unwrap();
        assert_eq!(mode_of(&path), PRIVATE);
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        listen(&socket, BACKLOG).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[tokio::test]
    async fn a_dead_servers_socket_is_replaced_and_nothing_else() {
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
