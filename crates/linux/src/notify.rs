//! Notifies the service manager that a daemon is ready, alive or stopping, by the protocol of
//! sd_notify: one datagram each (flannel.md section 1.2). The daemons call this.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Notifications within the watchdog's time limit, so that two may be late or lost.
const WATCHDOG_PARTS: u32 = 3;

/// The service manager's socket from `NOTIFY_SOCKET`; `None` without a service manager or if it
/// wants no notifications.
pub fn socket() -> Option<OsString> {
    std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty())
}

/// The interval of watchdog notifications: a third of the service manager's limit
/// (sd_watchdog_enabled(3)). `None` if it watches no process or another one.
pub fn watchdog_interval() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    interval_of(number("WATCHDOG_USEC"), std::env::var_os("WATCHDOG_PID").map(|_| number("WATCHDOG_PID")))
}

fn interval_of(limit_us: Option<u64>, pid: Option<Option<u64>>) -> Option<Duration> {
    let is_ours = pid.is_none_or(|pid| pid == Some(u64::from(std::process::id())));
    let limit = Duration::from_micros(limit_us.filter(|us| *us > 0 && is_ours)?);
    Some(limit / WATCHDOG_PARTS)
}

/// Sends `READY=1` to the socket that `NOTIFY_SOCKET` names; a leading `@` means an abstract one.
pub fn ready(socket: &OsStr) -> io::Result<()> {
    send(socket, "READY=1")
}

/// Sends a watchdog notification.
pub fn alive(socket: &OsStr) -> io::Result<()> {
    send(socket, "WATCHDOG=1")
}

/// Notifies that the daemon is stopping.
pub fn stopping(socket: &OsStr) -> io::Result<()> {
    send(socket, "STOPPING=1")
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
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
            alive(&name).unwrap();
            stopping(&name).unwrap();
            for state in ["READY=1", "WATCHDOG=1", "STOPPING=1"] {
                let mut inbox = [0; 32];
                let length = socket.recv(&mut inbox).unwrap();
                assert_eq!(&inbox[..length], state.as_bytes());
            }
        }
        assert!(ready(OsStr::new("/nowhere/notify")).is_err());
    }

    #[test]
    fn the_watchdog_interval_is_a_third_of_the_limit() {
        let me = u64::from(std::process::id());
        let twenty_seconds = Some(Duration::from_secs(20));
        assert_eq!(interval_of(Some(60_000_000), None), twenty_seconds);
        assert_eq!(interval_of(Some(60_000_000), Some(Some(me))), twenty_seconds);
        for (limit_us, pid) in
            [(None, None), (Some(0), None), (Some(60_000_000), Some(Some(1))), (Some(60_000_000), Some(None))]
        {
            assert_eq!(interval_of(limit_us, pid), None);
        }
    }
}
