//! Notifications to the service manager: that the agent serves plugins, that its main loop runs,
//! and that it stops.

use std::ffi::OsStr;
use std::time::Duration;

use russet_linux::notify;
use tokio::time::MissedTickBehavior;

/// Reports readiness, then sends watchdog notifications for as long as the service manager wants
/// them. As a task of the loop that serves plugins, it stops when that loop hangs.
pub async fn keep_informed() {
    if let Some(socket) = notify::socket() {
        inform(&socket, notify::watchdog_interval()).await;
    }
}

async fn inform(socket: &OsStr, interval: Option<Duration>) {
    if let Err(error) = notify::ready(socket) {
        tracing::warn!(%error, socket = %socket.display(), "the service manager cannot be notified");
    }
    let Some(interval) = interval else { return };
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = notify::alive(socket) {
            tracing::debug!(%error, "the watchdog notification cannot be sent");
        }
    }
}

/// Reports that the agent has begun to stop.
pub fn stopping() {
    if let Some(Err(error)) = notify::socket().map(|socket| notify::stopping(&socket)) {
        tracing::debug!(%error, "the service manager cannot be notified that the agent stops");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[tokio::test]
    async fn the_service_manager_gets_readiness_and_then_watchdog_notifications() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let local = tokio::task::LocalSet::new();
        local.spawn_local(async move { inform(path.as_os_str(), Some(Duration::from_millis(5))).await });
        let heard = tokio::task::spawn_blocking(move || {
            manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            ["READY=1", "WATCHDOG=1", "WATCHDOG=1"].map(|state| {
                let mut inbox = [0; 32];
                let length = manager.recv(&mut inbox).unwrap();
                assert_eq!(&inbox[..length], state.as_bytes());
            })
        });
        local.run_until(heard).await.unwrap();
    }
}
