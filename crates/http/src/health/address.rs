//! The address of the health server, as written in settings, and the error if it is in use.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// `127.0.0.1:9471`, or `unix:/run/russet/health.sock`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// An address of this machine.
    Tcp(SocketAddr),
    /// A unix socket, for every process that can reach it.
    Unix(PathBuf),
}

/// The text is neither of both.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?}: an address and a port are wanted, as in 127.0.0.1:9471, or `unix:` and the absolute path of a socket"
)]
pub struct AddressError(String);

const UNIX_PREFIX: &str = "unix:";

// === impl Address ===

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError(text.to_owned());
        match text.strip_prefix(UNIX_PREFIX) {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(error()),
            None => text.parse().map(Self::Tcp).map_err(|_| error()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

/// Adds to the error the user whose process uses the port, which helps to tell an old daemon from a
/// user's program.
pub(crate) fn explained(address: SocketAddr, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::AddrInUse {
        return error;
    }
    let holder = match user_listening_at(address.port()) {
        Some(uid) => format!("a process of user {uid}"),
        None => "another process".to_owned(),
    };
    let port = address.port();
    io::Error::new(
        error.kind(),
        format!("{holder} listens at port {port} (`ss -ltnp sport = :{port}` names it)"),
    )
}

/// The user whose process listens at a port, from the kernel's socket tables.
fn user_listening_at(port: u16) -> Option<u32> {
    ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"].into_iter().find_map(|path| {
        let table = std::fs::read_to_string(path).ok()?;
        table.lines().skip(1).find_map(|line| user_of(line, port))
    })
}

/// Parses a line of proc_net_tcp.txt: `sl local_address rem_address st queues timer retransmits uid
/// ...`, where state 0A means listening.
fn user_of(line: &str, port: u16) -> Option<u32> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, uid) = (fields.get(1)?, fields.get(3)?, fields.get(7)?);
    let (_, local_port) = local.rsplit_once(':')?;
    let is_it = u16::from_str_radix(local_port, 16) == Ok(port) && *state == "0A";
    is_it.then(|| uid.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_parses_back_as_printed() {
        for text in ["127.0.0.1:9471", "[fd00::1]:9471", "unix:/run/russet/health.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for bad in ["unix:relative", "localhost:9471", "9471", ""] {
            assert!(bad.parse::<Address>().unwrap_err().to_string().contains("`unix:`"), "{bad}");
        }
    }

    #[test]
    fn the_user_of_a_port_in_use_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(user_listening_at(port), Some(rustix::process::getuid().as_raw()));
        drop(listener);
        assert_eq!(user_listening_at(port), None);
        let line = "   1: 0100007F:24FF 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 10 1 0";
        assert_eq!((user_of(line, 9471), user_of(line, 9470)), (Some(1000), None));
    }
}
