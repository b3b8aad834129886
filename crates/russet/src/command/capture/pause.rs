//! Has the fast path leave the captured packets to the kernel's path while the capture runs, so that they are seen at
//! all devices. The agent ends a pause that is not renewed, as by a capture that was killed.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use russet_agent::Paths;
use russet_agent::fast_path::{PAUSE_PATH, PauseReport, PauseRequest};
use russet_linux::random;

use crate::command::ask::{AskError, ask};
use crate::output;

/// What the fast path is to be paused for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paused {
    /// Indexes of pods' host ends, and of tunnels' devices.
    pub interfaces: BTreeSet<u32>,
    /// The outer addresses of nodes.
    pub peers: BTreeSet<IpAddr>,
}

/// A pause. It ends when this is dropped.
pub struct Pause {
    end: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How long a pause outlives this process if it is killed.
const FOR: Duration = Duration::from_secs(10);
/// How often it is renewed, also with an agent that was started meanwhile.
const RENEW: Duration = Duration::from_secs(3);
/// The agent answers once the maps have followed.
const TIMEOUT: Duration = Duration::from_secs(8);

// === impl Paused ===

impl Paused {
    pub fn is_empty(&self) -> bool {
        self.interfaces.is_empty() && self.peers.is_empty()
    }
}

// === impl Pause ===

impl Pause {
    /// Pauses the fast path. Without an agent there is none; what keeps it from being paused is said, and the capture
    /// goes on.
    pub fn begin(paths: &Paths, paused: &Paused) -> Self {
        let request = PauseRequest {
            id: u64::from_ne_bytes(random::random()),
            interfaces: paused.interfaces.clone(),
            peers: paused.peers.clone(),
            for_ms: u64::try_from(FOR.as_millis()).unwrap_or(u64::MAX),
        };
        match pause(paths, &request) {
            Ok(true) => output::progress("the fast path is paused for these packets while the capture runs"),
            Ok(false) | Err(AskError::NoAgent(_)) => {}
            Err(error) => output::progress(&format!(
                "note: packets that the fast path carries are missing at the host end and inside of tunnels: {error}"
            )),
        }
        let (end, ended) = sync_channel(0);
        let paths = paths.clone();
        let thread = std::thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(RENEW) {
                // An agent that does not answer now may do so the next time.
                let _ = pause(&paths, &request);
            }
            // Otherwise it ends by itself.
            let _ = pause(&paths, &PauseRequest { for_ms: 0, ..request });
        });
        Self { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether there is a fast path, which is paused now.
fn pause(paths: &Paths, request: &PauseRequest) -> Result<bool, AskError> {
    let question = (PAUSE_PATH, PauseReport::SCHEMA);
    ask::<PauseReport>(&paths.cni_socket(), question, request, TIMEOUT).map(|answer| answer.is_on)
}
