//! The sending direction, from the TUN to the peers: one thread for each queue.
//!
//! The first packet after a pause goes out at once, except for the rest of one that was too large
//! for a single call. As long as packets can be read without waiting they are gathered, and those
//! that fit together go out in one call.

use std::io::{self, IoSlice};
use std::net::Ipv4Addr;
use std::sync::Arc;

use russet_linux::tun::{Queue, Segments, VIRTIO_HEADER_BYTES, VirtioHeader};
use russet_linux::udp::UdpSocket;

use super::backoff::PollBackoff;
use super::gso_batch::GsoBatch;
use super::packet::{IPV4_MIN_HEADER_BYTES, Ipv4, complete_checksum, step_ttl};
use super::segment::LargePacket;
use super::shared::{Count, Shared};
use super::table::Reader;
use super::unreachable::unreachable;

/// The sending state of one queue.
pub(super) struct Sender {
    pub(super) queue: Arc<Queue>,
    pub(super) socket: Arc<UdpSocket>,
    pub(super) shared: Arc<Shared>,
    pub(super) peers: Reader,
    batch: GsoBatch,
    /// Packets in the order in which they were read.
    memory: Vec<u8>,
    used: usize,
    /// Whether a packet filled at least one call: more will follow, for which its rest can wait.
    flows: bool,
}

/// The largest packet with its virtio header.
const READ_BYTES: usize = VIRTIO_HEADER_BYTES + 65_536;
/// Room to read another packet while the rests of two are kept.
const MEMORY_BYTES: usize = 3 * READ_BYTES;

// === impl Sender ===

impl Sender {
    pub(super) fn new(queue: Arc<Queue>, socket: Arc<UdpSocket>, shared: Arc<Shared>, peers: Reader) -> Self {
        let memory = vec![0; MEMORY_BYTES];
        Self { queue, socket, shared, peers, batch: GsoBatch::new(), memory, used: 0, flows: false }
    }

    /// Sends until it is stopped, or until the device is gone.
    pub(super) fn run(mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut backoff = PollBackoff::default();
        while !shared.is_stopping() {
            // Nothing is queued, so there is room.
            let bytes = self.queue.wait(&mut self.memory)?;
            self.flows = false;
            self.take(bytes);
            if !self.flows {
                self.send();
            }
            if self.flows || backoff.should_poll() {
                let more = self.gather()?;
                backoff.record(more);
                while more && self.gather()? {}
                self.send();
            }
        }
        Ok(())
    }

    /// Reads another packet if there is one.
    fn gather(&mut self) -> io::Result<bool> {
        if self.used + READ_BYTES > self.memory.len() {
            self.send();
        }
        let free = self.memory.get_mut(self.used..).unwrap_or_default();
        let Some(bytes) = self.queue.read(free)? else { return Ok(false) };
        self.take(bytes);
        Ok(true)
    }

    /// Queues a packet that was read behind the existing ones.
    fn take(&mut self, bytes: usize) {
        let (at, end) = (self.used, self.used + bytes);
        self.used = end;
        let taken = match self.shared.virtio {
            false => self.forward(at, end, &VirtioHeader::default()),
            true => {
                match self.memory.get(at..end).and_then(|read| read.first_chunk()).map(VirtioHeader::decode) {
                    None => Err(Count::Malformed),
                    Some(header) => self.forward(at + VIRTIO_HEADER_BYTES, end, &header),
                }
            }
        };
        if let Err(why) = taken {
            self.shared.counters.add(why, 1);
        }
    }

    /// Finds the peer and prepares the packet for it.
    fn forward(&mut self, start: usize, end: usize, virtio: &VirtioHeader) -> Result<(), Count> {
        let packet = self.memory.get_mut(start..end).ok_or(Count::Malformed)?;
        let ip = Ipv4::parse(packet).ok_or(Count::Malformed)?;
        let Some(to) = self.peers.find(ip.destination) else {
            self.refuse(start, &ip);
            return Err(Count::NoPeer);
        };
        if !step_ttl(packet) {
            return Err(Count::Expired);
        }
        let end = start + ip.total_bytes;
        if virtio.segments != Segments::None {
            return self.forward_whole(start, end, ip, virtio, to);
        }
        let packet = packet.get_mut(..ip.total_bytes).ok_or(Count::Malformed)?;
        if virtio.needs_checksum && !complete_checksum(packet, virtio) {
            return Err(Count::Malformed);
        }
        if ip.total_bytes > self.shared.mtu_bytes {
            return Err(Count::Oversized);
        }
        self.make_room(to, ip.total_bytes);
        self.batch.push_whole(to, &self.memory, start..end, IPV4_MIN_HEADER_BYTES);
        Ok(())
    }

    /// Queues a large packet that is yet to be segmented.
    fn forward_whole(
        &mut self,
        start: usize,
        end: usize,
        ip: Ipv4,
        virtio: &VirtioHeader,
        to: Ipv4Addr,
    ) -> Result<(), Count> {
        let packet = self.memory.get(start..end).ok_or(Count::Malformed)?;
        let large = LargePacket::new(packet, ip, virtio).ok_or(Count::Malformed)?;
        if large.bytes_of(0) > self.shared.mtu_bytes {
            return Err(Count::Oversized);
        }
        for number in 0..large.count() {
            if !self.batch.takes(to, large.bytes_of(number)) {
                self.flows = number > 0;
                send(&mut self.batch, &self.memory, &self.socket, &self.shared);
            }
            self.batch.push(to, |heads| {
                let body = large.segment(number, heads);
                start + body.start..start + body.end
            });
        }
        Ok(())
    }

    fn make_room(&mut self, to: Ipv4Addr, bytes: usize) {
        if !self.batch.takes(to, bytes) {
            send(&mut self.batch, &self.memory, &self.socket, &self.shared);
        }
    }

    /// Answers the sender of a packet for which there is no route.
    fn refuse(&self, start: usize, ip: &Ipv4) {
        let offender = self.memory.get(start..start + ip.total_bytes);
        let answer = offender.and_then(|offender| unreachable(self.shared.own, offender, ip));
        let Some(answer) = answer else { return };
        let header = VirtioHeader::default().encode();
        let header: &[u8] = if self.shared.virtio { &header } else { &[] };
        // The answer may be lost like any packet: a device that is down accepts none.
        let _ = self.queue.write(&[IoSlice::new(header), IoSlice::new(&answer)]);
    }

    /// Sends the queued datagrams and frees their memory.
    fn send(&mut self) {
        send(&mut self.batch, &self.memory, &self.socket, &self.shared);
        self.used = 0;
    }
}

fn send(batch: &mut GsoBatch, memory: &[u8], socket: &UdpSocket, shared: &Shared) {
    if batch.is_empty() {
        return;
    }
    let count = batch.len() as u64;
    let sent = batch.send(memory, shared.port, socket);
    shared.counters.add(if sent.is_ok() { Count::Sent } else { Count::Unsent }, count);
    shared.counters.add(Count::Sends, 1);
}
