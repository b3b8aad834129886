//! The receiving direction, from the peers to the TUN: one thread for each socket.

use std::io::{self, IoSlice};
use std::sync::Arc;

use russet_linux::tun::Queue;
use russet_linux::udp::{Inbox, UdpSocket};

use super::backoff::PollBackoff;
use super::coalesce::{Coalescer, Kinds, Sink};
use super::packet::{Ipv4, step_ttl};
use super::shared::{Count, Shared};
use super::table::Reader;

/// The receiving state of one socket.
pub(super) struct Receiver {
    pub(super) queue: Arc<Queue>,
    pub(super) socket: Arc<UdpSocket>,
    pub(super) shared: Arc<Shared>,
    /// The permitted senders; none where any machine may send.
    pub(super) peers: Option<Reader>,
    /// The protocols that this queue still accepts coalesced.
    pub(super) joins: Kinds,
}

/// A TUN queue, with or without virtio headers.
struct TunSink<'a> {
    queue: &'a Queue,
    shared: &'a Shared,
    /// The error that says that the device is gone.
    gone: Option<io::Error>,
}

/// Datagrams received in one call: 64 KiB each, so that they fit into the second-level cache.
const ARRIVALS: usize = 4;

// === impl Receiver ===

impl Receiver {
    /// Receives until it is stopped, or until the device is gone.
    pub(super) fn run(mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut inbox = Inbox::new(ARRIVALS);
        let mut backoff = PollBackoff::default();
        loop {
            let slots = if backoff.should_poll() { ARRIVALS } else { 1 };
            // An unconnected socket reports only system-wide errors.
            self.socket.wait(&mut inbox, slots)?;
            if shared.is_stopping() {
                return Ok(());
            }
            backoff.record(inbox.is_busy());
            self.deliver(&mut inbox)?;
        }
    }

    fn deliver(&mut self, inbox: &mut Inbox) -> io::Result<()> {
        let mut sink = TunSink { queue: &self.queue, shared: &self.shared, gone: None };
        let mut coalescer = Coalescer::new(self.joins);
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
                    Ok((packet, ip)) => {
                        self.shared.counters.undelivered(coalescer.push(packet, ip, &mut sink))
                    }
                    Err(why) => self.shared.counters.add(why, 1),
                }
            }
        }
        self.shared.counters.undelivered(coalescer.flush(&mut sink));
        self.joins = coalescer.allowed();
        sink.gone.map_or(Ok(()), Err)
    }
}

/// Checks a datagram and returns it as a packet with a decremented TTL.
fn accept(datagram: &mut [u8], mtu_bytes: usize) -> Result<(&[u8], Ipv4), Count> {
    let ip = Ipv4::parse(datagram).ok_or(Count::Malformed)?;
    if ip.total_bytes > mtu_bytes {
        return Err(Count::Oversized);
    }
    if !step_ttl(datagram) {
        return Err(Count::Expired);
    }
    datagram.get(..ip.total_bytes).map(|packet| (packet, ip)).ok_or(Count::Malformed)
}

// === impl TunSink ===

impl Sink for TunSink<'_> {
    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let pieces = if self.shared.virtio { pieces } else { pieces.get(1..).unwrap_or_default() };
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
