//! Tells the service manager that a daemon is ready: sd_notify's protocol, one datagram (flannel.md section 1.2). `russet flanneld` and `russet cri` do.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where the service manager wants to hear it, as in `NOTIFY_SOCKET`; nowhere if it does not, or there is none.
pub fn socket() -> Option<OsString> {
    std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty())
}

/// Sends `READY=1` to the socket that `NOTIFY_SOCKET` names; a leading `@` means an abstract one.
pub fn ready(socket: &OsStr) -> io::Result<()> {
    let address = match socket.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// flannel.md section 1.2.
    #[test]
    fn one_datagram_goes_to_the_socket_by_path_or_by_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let abstract_name = format!("russet-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        for (socket, name) in [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (UnixDatagram::bind_addr(&address).unwrap(), format!("@{abstract_name}").into()),
        ] {
            ready(&name).unwrap();
            let mut inbox = [0; 32];
            let length = socket.recv(&mut inbox).unwrap();
            assert_eq!(&inbox[..length], b"READY=1");
        }
        assert!(ready(OsStr::new("/nowhere/notify")).is_err());
    }
}
