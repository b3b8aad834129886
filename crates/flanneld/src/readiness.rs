//! Publishes that this node has a subnet to pods, probes and the service manager, in this order:
//! `subnet.env`, `/readyz`, `READY=1`. A file that cannot be written does not end the daemon
//! (flannel.md section 1.5): readiness is not published, and writing is tried again. Called by
//! `run` and `maintain`.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use russet_linux::notify::ServiceManager;
use tokio::time::Instant;

use crate::health::Status;
use crate::subnet_env::SubnetEnv;

/// Publishes the readiness of one lease.
pub(crate) struct ReadinessPublisher<'a> {
    env: SubnetEnv,
    file: &'a Path,
    status: &'a Status,
    service_manager: ServiceManager,
    /// The time of the next attempt, while the file is not written.
    again: Option<Instant>,
    /// The last error of writing.
    failed: Option<String>,
}

/// Pause between attempts to write the file.
const RETRY: Duration = Duration::from_secs(1);

// === impl ReadinessPublisher ===

impl<'a> ReadinessPublisher<'a> {
    pub(crate) fn new(env: SubnetEnv, file: &'a Path, status: &'a Status) -> Self {
        Self { env, file, status, service_manager: ServiceManager::from_env(), again: None, failed: None }
    }

    /// Publishes, or schedules another attempt. A new error is logged.
    pub(crate) fn publish(&mut self) {
        let written = self.env.write(self.file).map_err(|error| error.to_string());
        // The file of an earlier lease may exist: its subnet is free now, or another node's.
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
        self.service_manager.ready();
    }

    /// Resolves at the next attempt; never once everything is published.
    pub(crate) async fn due(&self) {
        match self.again {
            Some(again) => tokio::time::sleep_until(again).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// flannel.md sections 1.5 and 7.4.
    #[tokio::test(start_paused = true)]
    async fn readiness_is_published_only_after_the_file_is_written_which_is_retried() {
        let directory = tempfile::tempdir().unwrap();
        let (blocked, inbox) = (directory.path().join("flannel"), directory.path().join("notify"));
        std::fs::write(&blocked, "not a directory").unwrap();
        let manager = UnixDatagram::bind(&inbox).unwrap();
        manager.set_nonblocking(true).unwrap();
        let (file, status) = (blocked.join("subnet.env"), Status::default());
        let env = SubnetEnv { subnet: "10.5.29.0/24".parse().ok(), mtu: 1450, ..SubnetEnv::default() };
        // As after the loss of a lease.
        status.ready.store(true, Ordering::Release);
        let service_manager = ServiceManager { socket: Some(inbox.into()), watchdog_interval: None };
        let mut readiness =
            ReadinessPublisher { service_manager, ..ReadinessPublisher::new(env, &file, &status) };
        readiness.publish();
        assert!(!status.ready.load(Ordering::Acquire) && manager.recv(&mut [0; 32]).is_err());
        readiness.due().await;
        std::fs::remove_file(&blocked).unwrap();
        readiness.publish();
        assert!(status.ready.load(Ordering::Acquire) && file.exists());
        let mut said = [0; 32];
        let length = manager.recv(&mut said).unwrap();
        assert_eq!(&said[..length], b"READY=1");
        let never = tokio::time::timeout(Duration::from_secs(3600), readiness.due()).await;
        assert!(never.is_err(), "everything is published");
    }
}
