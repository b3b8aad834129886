//! Coalesces consecutive packets of one flow, so that the kernel handles them as one.
//!
//! The reverse of [`segment`](super::segment): segmenting a coalesced packet gives the original packets.
//! Packets are coalesced only if both are known to be intact, because the kernel does not check a
//! coalesced packet's checksum.

use std::io::{self, IoSlice};

use russet_linux::tun::{Segments, VIRTIO_HEADER_BYTES, VirtioHeader};

use super::checksum::Sum;
use super::packet::{Ipv4, TCP, UDP, put, put_u16, set_header_checksum, u16_at, u32_at};
use super::segment::udp_length_is_right;

/// Takes packets in order and writes them, coalesced where possible. It must not outlive a batch of
/// arrivals, to whose memory it points.
#[derive(Debug)]
pub(super) struct Coalescer<'a> {
    allowed: Kinds,
    run: Vec<Packet<'a>>,
    /// Bytes of the run as one packet.
    run_bytes: usize,
    /// Whether the first packet of the run was verified.
    checked: bool,
    /// Whether the last packet ends the run.
    closed: bool,
}

/// The protocols that may be coalesced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kinds {
    tcp: RefusalsLeft,
    udp: RefusalsLeft,
}

/// Refusals that are still accepted before a protocol is no longer coalesced; 0 disables it. A
/// kernel that does not support a protocol refuses every time, one that got an odd packet from a
/// peer refuses once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RefusalsLeft(u8);

/// A packet with the fields that decide about coalescing.
#[derive(Debug, Clone, Copy)]
struct Packet<'a> {
    bytes: &'a [u8],
    ip: Ipv4,
    kind: Option<Kind>,
    /// The parts of `bytes`. Without a kind, the transport header is part of the payload.
    ip_header: &'a [u8],
    transport_header: &'a [u8],
    payload: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    Udp,
}

/// A TUN queue, or a test's substitute.
pub(super) trait Sink {
    /// Writes a virtio header and the packet behind it.
    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<()>;
}

/// More datagrams in one packet are refused with EINVAL by kernels before 6.9 (`UDP_MAX_SEGMENTS`).
const UDP_MAX_PACKETS: usize = 64;
/// The maximum of the IP header's length field.
const MAX_BYTES: usize = 65_535;
/// Consecutive refusals after which a protocol is no longer coalesced.
const REFUSALS: u8 = 8;
const FLAGS_AT: usize = 13;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

// === impl Coalescer ===

impl<'a> Coalescer<'a> {
    pub(super) fn new(allowed: Kinds) -> Self {
        Self { allowed, run: Vec::new(), run_bytes: 0, checked: false, closed: false }
    }

    /// The protocols that are still coalesced.
    pub(super) fn allowed(&self) -> Kinds {
        self.allowed
    }

    /// Takes a packet with a parsed header; writes the current run first if the packet does not
    /// join it.
    pub(super) fn push(&mut self, bytes: &'a [u8], ip: Ipv4, sink: &mut impl Sink) -> io::Result<()> {
        let packet = Packet::new(bytes, ip, self.allowed);
        let joins = self.joins(&packet);
        if let Some(first) = self.run.first().filter(|_| joins) {
            self.closed = packet.ends(first);
            self.run_bytes += packet.payload.len();
            self.run.push(packet);
            return Ok(());
        }
        let written = self.flush(sink);
        self.run_bytes = packet.bytes.len();
        self.checked = false;
        self.closed = packet.kind.is_none() || packet.ends(&packet);
        self.run.push(packet);
        written
    }

    /// Writes the current run.
    pub(super) fn flush(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        let written = match self.run.as_slice() {
            [] => Ok(()),
            [single] => single.write(sink),
            run => write_joined(run, self.run_bytes, sink),
        };
        let written = match self.run.first().and_then(|first| first.kind) {
            Some(kind) if self.run.len() > 1 => self.record_result(kind, written, sink),
            _ => written,
        };
        self.run.clear();
        written
    }

    /// Updates the remaining refusals by the result of a coalesced write.
    fn record_result(&mut self, kind: Kind, written: io::Result<()>, sink: &mut impl Sink) -> io::Result<()> {
        match written {
            Err(error) if is_refusal(&error) => self.write_singly(kind, sink),
            Err(error) => Err(error),
            Ok(()) => {
                self.allowed.left_for(kind).0 = REFUSALS;
                Ok(())
            }
        }
    }

    /// Writes the packets of the run singly, because the kernel may not support coalesced packets
    /// of this protocol.
    fn write_singly(&mut self, kind: Kind, sink: &mut impl Sink) -> io::Result<()> {
        for packet in &self.run {
            packet.write(sink)?;
        }
        let refusals_left = self.allowed.left_for(kind);
        refusals_left.0 = refusals_left.0.saturating_sub(1);
        Ok(())
    }

    fn joins(&mut self, packet: &Packet<'a>) -> bool {
        let Some(first) = self.run.first() else { return false };
        let is_too_large = self.run_bytes + packet.payload.len() > MAX_BYTES;
        if self.closed || !first.is_alike(packet) || is_too_large {
            return false;
        }
        let follows = match first.kind {
            Some(Kind::Tcp) => packet.follows_tcp(first, self.run_bytes - first.header_bytes()),
            _ => self.run.len() < UDP_MAX_PACKETS,
        };
        let number = self.run.len() as u16;
        let in_order = first.ip.dont_fragment || packet.ip.id == first.ip.id.wrapping_add(number);
        if !follows || !in_order {
            return false;
        }
        self.checked = self.checked || first.is_intact();
        self.checked && packet.is_intact()
    }
}

// === impl Kinds ===

impl Kinds {
    /// The protocols for which the kernel granted offloads.
    pub(super) fn new(tcp: bool, udp: bool) -> Self {
        let refusals_left = |takes| RefusalsLeft(if takes { REFUSALS } else { 0 });
        Self { tcp: refusals_left(tcp), udp: refusals_left(udp) }
    }

    fn left_for(&mut self, kind: Kind) -> &mut RefusalsLeft {
        match kind {
            Kind::Tcp => &mut self.tcp,
            Kind::Udp => &mut self.udp,
        }
    }
}

// === impl RefusalsLeft ===

impl RefusalsLeft {
    fn is_left(self) -> bool {
        self.0 > 0
    }
}

// === impl Packet ===

impl<'a> Packet<'a> {
    fn new(bytes: &'a [u8], ip: Ipv4, allowed: Kinds) -> Self {
        // The header was parsed from these bytes, so it is shorter.
        let (ip_header, transport) = bytes.split_at_checked(ip.header_bytes).unwrap_or((bytes, &[]));
        let kind = match ip.protocol {
            _ if ip.is_fragment() => None,
            TCP if allowed.tcp.is_left() => tcp_header_bytes(transport).map(|bytes| (Kind::Tcp, bytes)),
            // Without a checksum the datagram cannot be verified.
            UDP if allowed.udp.is_left()
                && udp_length_is_right(transport)
                && u16_at(transport, 6) != Some(0) =>
            {
                Some((Kind::Udp, 8))
            }
            _ => None,
        };
        let parts = kind.and_then(|(kind, bytes)| Some((kind, transport.split_at_checked(bytes)?)));
        // A packet without payload is never coalesced.
        match parts.filter(|(_, (_, payload))| !payload.is_empty()) {
            Some((kind, (transport_header, payload))) => {
                Self { bytes, ip, kind: Some(kind), ip_header, transport_header, payload }
            }
            None => Self { bytes, ip, kind: None, ip_header, transport_header: &[], payload: transport },
        }
    }

    /// Bytes of all headers.
    fn header_bytes(&self) -> usize {
        self.ip_header.len() + self.transport_header.len()
    }

    /// Whether both are of one flow, and their headers differ only in fields that segmentation
    /// restores: lengths, IDs, checksums, sequence, PSH.
    fn is_alike(&self, other: &Self) -> bool {
        let (ip, transport) = (self.ip_header.len(), self.transport_header.len());
        let lengths_agree = ip == other.ip_header.len() && transport == other.transport_header.len();
        // Version, header length and TOS; fragment word, TTL and protocol; addresses, options and ports.
        let fields = [0..2, 6..10, 12..ip + 4];
        self.kind.is_some()
            && self.kind == other.kind
            && lengths_agree
            && fields.into_iter().all(|field| self.bytes.get(field.clone()) == other.bytes.get(field))
            && other.payload.len() <= self.payload.len()
    }

    /// Whether its payload continues `first` after `carried` bytes, with the same acknowledgement,
    /// window and options.
    fn follows_tcp(&self, first: &Self, carried: usize) -> bool {
        let (a, b) = (first.transport_header, self.transport_header);
        let expected = u32_at(a, 4).map(|sequence| sequence.wrapping_add(carried as u32));
        let fields = [8..13, 14..16, 18..a.len()];
        u32_at(b, 4) == expected && fields.into_iter().all(|field| a.get(field.clone()) == b.get(field))
    }

    /// Whether it ends a run that began with `first`: it is shorter, or has PSH.
    fn ends(&self, first: &Self) -> bool {
        (self.kind == Some(Kind::Tcp) && self.flags() & PSH != 0) || self.bytes.len() < first.bytes.len()
    }

    /// The flags of a TCP segment.
    fn flags(&self) -> u8 {
        self.transport_header.get(FLAGS_AT).copied().unwrap_or(0)
    }

    fn is_intact(&self) -> bool {
        let pseudo = self.ip.pseudo(self.transport_header.len() + self.payload.len());
        Sum::default().add(self.ip_header).is_intact()
            && pseudo.add(self.transport_header).add(self.payload).is_intact()
    }

    fn write(&self, sink: &mut impl Sink) -> io::Result<()> {
        sink.write(&[IoSlice::new(&VirtioHeader::default().encode()), IoSlice::new(self.bytes)])
    }
}

/// Writes a run as one packet of `bytes` bytes: the first packet's headers with the last one's PSH,
/// and all payloads.
fn write_joined(run: &[Packet<'_>], bytes: usize, sink: &mut impl Sink) -> io::Result<()> {
    let [first, .., last] = run else { return Ok(()) };
    let ip_bytes = first.ip_header.len();
    let (mut header, mut transport) = (first.ip_header.to_vec(), first.transport_header.to_vec());
    put_u16(&mut header, 2, bytes as u16);
    set_header_checksum(&mut header);
    let (segments, csum_offset) = match first.kind {
        Some(Kind::Tcp) => {
            put(&mut transport, FLAGS_AT, [first.flags() | last.flags() & PSH]);
            (Segments::Tcp4, 16)
        }
        _ => {
            put_u16(&mut transport, 4, (bytes - ip_bytes) as u16);
            (Segments::Udp, 6)
        }
    };
    put(&mut transport, csum_offset, first.ip.pseudo(bytes - ip_bytes).folded());
    header.append(&mut transport);
    let virtio = VirtioHeader {
        needs_checksum: true,
        segments,
        header_bytes: header.len() as u16,
        segment_bytes: first.payload.len() as u16,
        csum_start: ip_bytes as u16,
        csum_offset: csum_offset as u16,
    };
    let virtio: [u8; VIRTIO_HEADER_BYTES] = virtio.encode();
    let mut pieces = Vec::with_capacity(run.len() + 2);
    pieces.extend([IoSlice::new(&virtio), IoSlice::new(&header)]);
    pieces.extend(run.iter().map(|packet| IoSlice::new(packet.payload)));
    sink.write(&pieces)
}

/// Header bytes of a segment with data and no flags besides ACK and PSH.
fn tcp_header_bytes(segment: &[u8]) -> Option<usize> {
    let bytes = usize::from(*segment.get(12)? >> 4) * 4;
    let flags = *segment.get(FLAGS_AT)?;
    (bytes >= 20 && bytes <= segment.len() && flags & !PSH == ACK).then_some(bytes)
}

fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

#[cfg(test)]
mod tests;
