//! State that the threads of a proxy share: settings, counters, and the stop flag.

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

#[derive(Debug)]
pub(super) struct Shared {
    /// Whether packets of the TUN have virtio headers.
    pub(super) virtio: bool,
    pub(super) mtu_bytes: usize,
    /// The base address of our lease.
    pub(super) own: Ipv4Addr,
    /// Our port, which is also the peers'.
    pub(super) port: u16,
    /// Threads that wake while this is set must end.
    pub(super) stopping: AtomicBool,
    pub(super) counters: Counters,
    failure: Mutex<Option<String>>,
}

/// The counted events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Packets that went to a peer.
    Sent,
    /// Calls that sent packets, including failed ones.
    Sends,
    /// Packets that the kernel refused to send: no route, a path MTU that is too small, a firewall.
    Unsent,
    /// Packets that came from peers.
    Received,
    /// Calls that wrote one packet, or several coalesced ones, to the kernel.
    Writes,
    /// Writes that the kernel refused.
    Undelivered,
    /// Packets for subnets that no peer has.
    NoPeer,
    /// Packets whose TTL expired.
    Expired,
    /// Packets that are not IPv4.
    Malformed,
    /// Packets that are larger than the MTU.
    Oversized,
    /// Packets from addresses that no peer has.
    Foreign,
}

/// The number of occurrences of each event.
#[derive(Debug, Default)]
pub(super) struct Counters([AtomicU64; Count::ALL.len()]);

// === impl Shared ===

impl Shared {
    pub(super) fn new(virtio: bool, mtu_bytes: u32, own: Ipv4Addr, port: u16) -> Self {
        Self {
            virtio,
            mtu_bytes: mtu_bytes as usize,
            own,
            port,
            stopping: AtomicBool::new(false),
            counters: Counters::default(),
            failure: Mutex::default(),
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Records that a thread cannot continue. The first reason is kept.
    pub(super) fn fail(&self, thread: &str, error: &io::Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| format!("{thread}: {error}"));
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

// === impl Count ===

impl Count {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Sent,
        Self::Sends,
        Self::Unsent,
        Self::Received,
        Self::Writes,
        Self::Undelivered,
        Self::NoPeer,
        Self::Expired,
        Self::Malformed,
        Self::Oversized,
        Self::Foreign,
    ];
}

// === impl Counters ===

impl Counters {
    pub(super) fn add(&self, what: Count, count: u64) {
        if let Some(counter) = self.0.get(what as usize) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Counts a failed write; later packets may succeed.
    pub(super) fn undelivered(&self, written: io::Result<()>) {
        if written.is_err() {
            self.add(Count::Undelivered, 1);
        }
    }

    pub(super) fn get(&self, what: Count) -> u64 {
        self.0.get(what as usize).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}
