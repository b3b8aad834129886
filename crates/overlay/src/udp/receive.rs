//! From the peers to the TUN: one thread for each socket.

use std::io::{self, IoSlice};
use std::sync::Arc;

use russet_linux::tun::Queue;
use russet_linux::udp::{Inbox, UdpSocket};

use super::luck::Luck;
use super::merge::{Kinds, Merger, Sink};
use super::packet::{Ipv4, step_ttl};
use super::shared::{Count, Shared};
use super::table::Reader;

/// One socket's packets on their way in.
pub(super) struct Receiver {
    pub(super) queue: Arc<Queue>,
    pub(super) socket: Arc<UdpSocket>,
    pub(super) shared: Arc<Shared>,
    /// Who may send; none where any machine may.
    pub(super) peers: Option<Reader>,
    /// Which kinds of packets this queue still takes joined.
    pub(super) joins: Kinds,
}

/// A TUN queue that may have no virtio headers.
struct TunSink<'a> {
    queue: &'a Queue,
    shared: &'a Shared,
    /// The device is gone.
    gone: Option<io::Error>,
}

/// Arrivals that are taken in one call: 64 KiB each, so that they stay in the second-level cache.
const ARRIVALS: usize = 4;

// === impl Receiver ===

impl Receiver {
    /// Receives until told to stop, or until the device is gone.
    pub(super) fn run(mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut inbox = Inbox::new(ARRIVALS);
        let mut luck = Luck::default();
        loop {
            let slots = if luck.tries() { ARRIVALS } else { 1 };
            // An unconnected socket has no errors but those of the whole system.
            self.socket.wait(&mut inbox, slots)?;
            if shared.is_stopping() {
                return Ok(());
            }
            luck.found(inbox.is_busy());
            self.deliver(&mut inbox)?;
        }
    }

    fn deliver(&mut self, inbox: &mut Inbox) -> io::Result<()> {
        let mut sink = TunSink { queue: &self.queue, shared: &self.shared, gone: None };
        let mut merger = Merger::new(self.joins);
        for arrival in inbox.arrivals() {
            let each = usize::from(arrival.datagram_bytes).max(1);
            let packets = arrival.bytes.len().div_ceil(each) as u64;
            // Any other sender would choose the inner source.
            if self.peers.as_mut().is_some_and(|peers| !peers.has_sender(arrival.from)) {
                self.shared.counters.add(Count::Foreign, packets);
                continue;
            }
            self.shared.counters.add(Count::Received, packets);
            for datagram in arrival.bytes.chunks_mut(each) {
                match accept(datagram, self.shared.mtu_bytes) {
                    Ok((packet, ip)) => self.shared.counters.undelivered(merger.push(packet, ip, &mut sink)),
                    Err(why) => self.shared.counters.add(why, 1),
                }
            }
        }
        self.shared.counters.undelivered(merger.flush(&mut sink));
        self.joins = merger.allowed();
        sink.gone.map_or(Ok(()), Err)
    }
}

/// A datagram as the packet that it must be, one hop older.
fn accept(datagram: &mut [u8], mtu_bytes: usize) -> Result<(&[u8], Ipv4), Count> {
    let ip = Ipv4::parse(datagram).ok_or(Count::Malformed)?;
    if ip.total_bytes > mtu_bytes {
        return Err(Count::Oversized);
    }
    match step_ttl(datagram) {
        true => Ok((&datagram[..ip.total_bytes], ip)),
        false => Err(Count::Expired),
    }
}

// === impl TunSink ===

impl Sink for TunSink<'_> {
    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let pieces = if self.shared.virtio { pieces } else { &pieces[1..] };
        let written = self.queue.write(pieces);
        match &written {
            Ok(()) => self.shared.counters.add(Count::Writes, 1),
            Err(error) if Queue::is_gone(error) => {
                self.gone = Some(io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(0)))
            }
            Err(_) => {}
        }
        written
    }
}
