//! Notifies the service manager that a daemon is ready, alive or stopping, by the protocol of
//! sd_notify: one datagram each (flannel.md section 1.2). The daemons call this.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

/// The service manager of this process. Without one, or if it wants no notifications, all
/// notifications do nothing. An error is logged: no daemon ends because it cannot notify its manager.
#[derive(Debug, Clone, Default)]
pub struct ServiceManager {
    /// `NOTIFY_SOCKET`; a leading `@` means an abstract one.
    pub socket: Option<OsString>,
    /// The interval of watchdog notifications; `None` if it watches no process or another one.
    pub watchdog_interval: Option<Duration>,
}

/// Notifications within the watchdog's time limit, so that two may be late or lost.
const WATCHDOG_PARTS: u32 = 3;

// === impl ServiceManager ===

impl ServiceManager {
    /// Of the variables that it sets: sd_notify(3), sd_watchdog_enabled(3).
    pub fn from_env() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let pid = std::env::var_os("WATCHDOG_PID").map(|_| number("WATCHDOG_PID"));
        Self {
            socket: std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()),
            watchdog_interval: interval_of(number("WATCHDOG_USEC"), pid),
        }
    }

    /// Notifies that the daemon is ready.
    pub fn ready(&self) {
        if let Some(Err(error)) = self.send("READY=1") {
            let socket = self.socket.as_deref().unwrap_or_default();
            tracing::warn!(%error, socket = %socket.display(), "the service manager cannot be notified");
        }
    }

    /// Notifies that the daemon has begun to stop.
    pub fn stopping(&self) {
        if let Some(Err(error)) = self.send("STOPPING=1") {
            tracing::debug!(%error, "the service manager cannot be notified that the daemon stops");
        }
    }

    /// Sends watchdog notifications for as long as it is polled, which a daemon's main loop does:
    /// they stop when that loop hangs.
    pub async fn keep_alive(&self) -> Infallible {
        let Some(interval) = self.watchdog_interval.filter(|_| self.socket.is_some()) else {
            return std::future::pending().await;
        };
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Some(Err(error)) = self.send("WATCHDOG=1") {
                tracing::debug!(%error, "the watchdog notification cannot be sent");
            }
        }
    }

    fn send(&self, state: &str) -> Option<io::Result<()>> {
        self.socket.as_deref().map(|socket| send(socket, state))
    }
}

/// A part of the service manager's limit.
fn interval_of(limit_us: Option<u64>, pid: Option<Option<u64>>) -> Option<Duration> {
    let is_ours = pid.is_none_or(|pid| pid == Some(u64::from(std::process::id())));
    let limit = Duration::from_micros(limit_us.filter(|us| *us > 0 && is_ours)?);
    Some(limit / WATCHDOG_PARTS)
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

    fn receive(socket: &UnixDatagram) -> String {
        let mut inbox = [0; 32];
        let length = socket.recv(&mut inbox).unwrap();
        String::from_utf8(inbox[..length].to_vec()).unwrap()
    }

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
            let manager = ServiceManager { socket: Some(name), watchdog_interval: None };
            manager.ready();
            manager.stopping();
            assert_eq!([receive(&socket), receive(&socket)], ["READY=1", "STOPPING=1"]);
        }
        assert!(send(OsStr::new("/nowhere/notify"), "READY=1").is_err());
    }

    #[tokio::test]
    async fn the_service_manager_gets_watchdog_notifications_at_its_interval() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let manager = ServiceManager {
            socket: Some(path.into_os_string()),
            watchdog_interval: Some(Duration::from_millis(5)),
        };
        let received = tokio::task::spawn_blocking(move || [receive(&socket), receive(&socket)]);
        tokio::select! {
            never = manager.keep_alive() => match never {},
            received = received => assert_eq!(received.unwrap(), ["WATCHDOG=1", "WATCHDOG=1"]),
        }
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
