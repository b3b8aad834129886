//! Tells pods, probes and the service manager, in this order, that this node has a subnet: `subnet.env`, `/readyz`, `READY=1`. A file that cannot be
//! written does not end the daemon (flannel.md section 1.5): nobody is told that it is ready, and it is tried again. Called by `run` and `tend`.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use russet_linux::notify;
use tokio::time::{Instant, MissedTickBehavior};

use crate::health::Status;
use crate::subnet_env::SubnetEnv;

/// What is to be told of one lease.
pub(crate) struct Telling<'a> {
    env: SubnetEnv,
    file: &'a Path,
    status: &'a Status,
    /// `NOTIFY_SOCKET`.
    socket: Option<OsString>,
    /// When the file is to be tried again, while it is not written.
    again: Option<Instant>,
    /// Why it was not written last.
    failed: Option<String>,
}

/// Pause before another try at the file.
const RETRY: Duration = Duration::from_secs(1);

// === impl Telling ===

impl<'a> Telling<'a> {
    /// Nobody is told yet.
    pub(crate) fn new(env: SubnetEnv, file: &'a Path, status: &'a Status) -> Self {
        Self { env, file, status, socket: notify::socket(), again: None, failed: None }
    }

    /// Tells everybody, or has it tried again. A reason is a line of the log when it is new.
    pub(crate) fn tell(&mut self) {
        let written = self.env.write(self.file).map_err(|error| error.to_string());
        // A file of a former lease may be there still: its subnet is nobody's, or another node's.
        self.status.ready.store(written.is_ok(), Ordering::Release);
        if let Err(error) = written {
            self.again = Some(Instant::now() + RETRY);
            if self.failed.as_ref() != Some(&error) {
                tracing::warn!(error, "write the subnet file: pods cannot be attached");
                self.failed = Some(error);
            }
            return;
        }
        self.again = None;
        tracing::info!(file = %self.file.display(), "subnet and MTU are written");
        if let Some(Err(error)) = self.socket.as_ref().map(|socket| notify::ready(socket)) {
            tracing::warn!(%error, "tell the service manager");
        }
    }

    /// Resolves when it is time to tell again; never when everybody is told.
    pub(crate) async fn due(&self) {
        match self.again {
            Some(again) => tokio::time::sleep_until(again).await,
            None => std::future::pending().await,
        }
    }
}

/// Signs of life for as long as the service manager wants them; never ends. A part of the daemon's own task, so that it falls silent when that stands still.
pub(crate) async fn show_life() -> Infallible {
    match (notify::socket(), notify::watchdog_interval()) {
        (Some(socket), Some(interval)) => signs_of_life(&socket, interval).await,
        _ => std::future::pending().await,
    }
}

async fn signs_of_life(socket: &OsStr, interval: Duration) -> Infallible {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = notify::alive(socket) {
            tracing::debug!(%error, "no sign of life to the service manager");
        }
    }
}

/// Notifies the service manager that the daemon has begun to stop.
pub(crate) fn stopping() {
    if let Some(Err(error)) = notify::socket().map(|socket| notify::stopping(&socket)) {
        tracing::debug!(%error, "the service manager does not learn that the daemon stops");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// flannel.md sections 1.5 and 7.4.
    #[tokio::test(start_paused = true)]
    async fn nobody_is_told_before_the_file_is_written_which_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let (blocked, inbox) = (directory.path().join("flannel"), directory.path().join("notify"));
        std::fs::write(&blocked, "not a directory").unwrap();
        let manager = UnixDatagram::bind(&inbox).unwrap();
        manager.set_nonblocking(true).unwrap();
        let (file, status) = (blocked.join("subnet.env"), Status::default());
        let env = SubnetEnv { subnet: "10.5.29.0/24".parse().ok(), mtu: 1450, ..SubnetEnv::default() };
        // As after a lease that was lost.
        status.ready.store(true, Ordering::Release);
        let mut telling = Telling { socket: Some(inbox.into()), ..Telling::new(env, &file, &status) };
        telling.tell();
        assert!(!status.ready.load(Ordering::Acquire) && manager.recv(&mut [0; 32]).is_err());
        telling.due().await;
        std::fs::remove_file(&blocked).unwrap();
        telling.tell();
        assert!(status.ready.load(Ordering::Acquire) && file.exists());
        let mut said = [0; 32];
        let length = manager.recv(&mut said).unwrap();
        assert_eq!(&said[..length], b"READY=1");
        let never = tokio::time::timeout(Duration::from_secs(3600), telling.due()).await;
        assert!(never.is_err(), "everybody is told");
    }
}
