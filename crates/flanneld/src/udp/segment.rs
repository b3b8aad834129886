//! Segments a packet that the kernel has left whole (TCP or UDP, up to 64 KiB) into those that go
//! over the wire.
//!
//! Only headers are made here; payloads stay in place.

use std::ops::Range;

use russet_linux::tun::{Segments, VirtioHeader};

use super::checksum::Sum;
use super::packet::{Ipv4, TCP, UDP, put, put_u16, put_u32, u16_at, u32_at};

/// A large packet with parsed headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct LargePacket<'a> {
    ip: Ipv4,
    /// All headers.
    headers: &'a [u8],
    /// Never empty.
    payload: &'a [u8],
    /// Never 0.
    segment_bytes: usize,
    /// Sums of the parts that all headers share: the IPv4 header without length and ID, and the
    /// transport header with pseudo header, without length, sequence and flags.
    ip_sum: Sum,
    transport_sum: Sum,
}

const UDP_HEADER_BYTES: usize = 8;
const TCP_MIN_HEADER_BYTES: usize = 20;
/// The header's length, and the flags behind it.
const TCP_OFFSET_AT: usize = 12;
const FIN_AND_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;

// === impl LargePacket ===

impl<'a> LargePacket<'a> {
    /// None when the virtio header does not match the packet.
    pub(super) fn new(packet: &'a [u8], ip: Ipv4, virtio: &VirtioHeader) -> Option<Self> {
        let packet = packet.get(..ip.total_bytes)?;
        let (ip_header, transport) = packet.split_at_checked(ip.header_bytes)?;
        let transport_bytes = match (virtio.segments, ip.protocol) {
            (Segments::Tcp4, TCP) => usize::from(*transport.get(12)? >> 4) * 4,
            (Segments::Udp, UDP) => UDP_HEADER_BYTES,
            _ => return None,
        };
        let least = if ip.protocol == TCP { TCP_MIN_HEADER_BYTES } else { UDP_HEADER_BYTES };
        let (headers, payload) = packet.split_at_checked(ip.header_bytes + transport_bytes)?;
        let segment_bytes = usize::from(virtio.segment_bytes);
        let is_whole = transport_bytes >= least && !payload.is_empty() && segment_bytes != 0;
        if !is_whole || ip.is_fragment() {
            return None;
        }
        let sum_of = |sum: Sum, bytes: &[u8], range: Range<usize>| Some(sum.add(bytes.get(range)?));
        // Length, ID and checksum are the words 1, 2 and 5.
        let mut ip_sum = Sum::default();
        for range in [0..2, 6..10, 12..ip.header_bytes] {
            ip_sum = sum_of(ip_sum, ip_header, range)?;
        }
        let mut transport_sum = sum_of(ip.pseudo(0), transport, 0..4)?;
        if ip.protocol == TCP {
            // Acknowledgement, window, and all behind the checksum.
            for range in [8..12, 14..16, 18..transport_bytes] {
                transport_sum = sum_of(transport_sum, transport, range)?;
            }
        }
        Some(Self { ip, headers, payload, segment_bytes, ip_sum, transport_sum })
    }

    /// The number of packets after segmentation.
    pub(super) fn count(&self) -> usize {
        self.payload.len().div_ceil(self.segment_bytes)
    }

    /// Bytes of the packet with this number; the first is the largest.
    pub(super) fn bytes_of(&self, number: usize) -> usize {
        let left = self.payload.len().saturating_sub(number * self.segment_bytes);
        self.headers.len() + left.min(self.segment_bytes)
    }

    /// Appends the header of the packet with this number to `headers`; returns the place of its
    /// payload.
    pub(super) fn segment(&self, number: usize, headers: &mut Vec<u8>) -> Range<usize> {
        let before = number * self.segment_bytes;
        let payload = self.payload.chunks(self.segment_bytes).nth(number).unwrap_or_default();
        let at = headers.len();
        headers.extend_from_slice(self.headers);
        let added = headers.get_mut(at..).unwrap_or_default();
        if let Some((ip, transport)) = added.split_at_mut_checked(self.ip.header_bytes) {
            self.finish_ip(ip, number, transport.len() + payload.len());
            match self.ip.protocol {
                TCP => self.finish_tcp(transport, number, payload),
                _ => self.finish_udp(transport, payload),
            }
        }
        let start = self.headers.len() + before;
        start..start + payload.len()
    }

    /// `bytes` are those behind this header.
    fn finish_ip(&self, header: &mut [u8], number: usize, bytes: usize) {
        // Both fit, because the whole packet's length did.
        let length = ((header.len() + bytes) as u16).to_be_bytes();
        let id = self.ip.id.wrapping_add(number as u16).to_be_bytes();
        put(header, 2, length);
        put(header, 4, id);
        put(header, 10, self.ip_sum.add(&length).add(&id).checksum());
    }

    fn finish_tcp(&self, header: &mut [u8], number: usize, payload: &[u8]) {
        let before = (number * self.segment_bytes) as u32;
        let sequence = u32_at(header, 4).unwrap_or(0).wrapping_add(before);
        put_u32(header, 4, sequence);
        let [offset, mut flags] = u16_at(header, TCP_OFFSET_AT).unwrap_or(0).to_be_bytes();
        if number + 1 < self.count() {
            flags &= !FIN_AND_PSH;
        }
        if number > 0 {
            flags &= !CWR;
        }
        put(header, TCP_OFFSET_AT, [offset, flags]);
        let length = ((header.len() + payload.len()) as u16).to_be_bytes();
        let sum = self.transport_sum.add(&length).add(&sequence.to_be_bytes());
        put(header, 16, sum.add(&[offset, flags]).add(payload).checksum());
    }

    fn finish_udp(&self, header: &mut [u8], payload: &[u8]) {
        let bytes = header.len() + payload.len();
        put_u16(header, 4, bytes as u16);
        // The length is part of the pseudo header, too.
        let length = (bytes as u16).to_be_bytes();
        let sum = self.transport_sum.add(&length).add(&length).add(payload);
        put(header, 6, sum.checksum_not_zero());
    }
}

/// Whether a UDP datagram's length agrees with the IP header.
pub(super) fn udp_length_is_right(datagram: &[u8]) -> bool {
    u16_at(datagram, 4).is_some_and(|bytes| usize::from(bytes) == datagram.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::samples::{self, ACK, PSH, Tcp};
    use super::*;

    fn virtio(segments: Segments, segment_bytes: u16) -> VirtioHeader {
        VirtioHeader { needs_checksum: true, segments, segment_bytes, ..VirtioHeader::default() }
    }

    /// All packets after segmentation of a large one.
    fn segment(packet: &[u8], virtio: &VirtioHeader) -> Option<Vec<Vec<u8>>> {
        let large = LargePacket::new(packet, Ipv4::parse(packet)?, virtio)?;
        let each = |number| {
            let mut header = Vec::new();
            let payload = large.segment(number, &mut header);
            header.extend(&packet[payload]);
            header
        };
        Some((0..large.count()).map(each).collect())
    }

    #[test]
    fn tcp_segments_equal_those_that_the_sender_would_have_made() {
        let payload: Vec<u8> = (0..250u8).collect();
        let flags = ACK | PSH | CWR | 1;
        let large = Tcp { sequence: u32::MAX - 50, id: u16::MAX, flags, ..Tcp::new(&payload) };
        let expected: Vec<Vec<u8>> = payload
            .chunks(100)
            .enumerate()
            .map(|(number, payload)| {
                let flags = [ACK | CWR, ACK, ACK | PSH | 1][number];
                let sequence = large.sequence.wrapping_add(number as u32 * 100);
                let id = large.id.wrapping_add(number as u16);
                Tcp { id, sequence, flags, payload: payload.to_vec(), ..large.clone() }.packet()
            })
            .collect();
        assert_eq!(segment(&large.packet(), &virtio(Segments::Tcp4, 100)).unwrap(), expected);
    }

    #[test]
    fn udp_datagrams_equal_those_that_the_sender_would_have_made() {
        let payload: Vec<u8> = (0..250u8).collect();
        let expected: Vec<Vec<u8>> = payload
            .chunks(100)
            .enumerate()
            .map(|(number, payload)| samples::udp_with_id(7 + number as u16, payload))
            .collect();
        assert_eq!(segment(&samples::udp(&payload), &virtio(Segments::Udp, 100)).unwrap(), expected);
    }

    #[test]
    fn a_packet_that_contradicts_its_virtio_header_is_refused() {
        let tcp = Tcp::new(&[1; 300]).packet();
        assert!(segment(&tcp, &virtio(Segments::Tcp4, 100)).is_some());
        assert!(segment(&tcp, &virtio(Segments::Udp, 100)).is_none());
        assert!(segment(&tcp, &virtio(Segments::Other(3), 100)).is_none());
        assert!(segment(&tcp, &virtio(Segments::Tcp4, 0)).is_none());
        assert!(segment(&Tcp::new(&[]).packet(), &virtio(Segments::Tcp4, 100)).is_none());
        for offset in [0x40, 0xf0] {
            let mut bad = Tcp::new(&[1; 12]).packet();
            bad[32] = offset;
            assert!(segment(&bad, &virtio(Segments::Tcp4, 100)).is_none(), "data offset {offset:#x}");
        }
        let mut fragment = tcp.clone();
        fragment[6] = 0x20;
        assert!(segment(&fragment, &virtio(Segments::Tcp4, 100)).is_none());
    }

    proptest! {
        #[test]
        fn every_segment_is_intact_and_nothing_of_the_payload_is_lost(
            payload in prop::collection::vec(any::<u8>(), 1..5000),
            each in 1u16..2000,
            tcp: bool,
        ) {
            let (packet, header, kind) = match tcp {
                true => (Tcp::new(&payload).packet(), 52, Segments::Tcp4),
                false => (samples::udp(&payload), 28, Segments::Udp),
            };
            let segments = segment(&packet, &virtio(kind, each)).unwrap();
            prop_assert!(segments.iter().all(|segment| samples::is_intact(segment)));
            prop_assert!(segments.iter().all(|segment| Ipv4::parse(segment).unwrap().total_bytes == segment.len()));
            prop_assert_eq!(segments.iter().flat_map(|segment| &segment[header..]).copied().collect::<Vec<u8>>(), payload);
        }

        #[test]
        fn no_packet_and_no_virtio_header_make_it_panic(
            mut packet in prop::collection::vec(any::<u8>(), 0..200),
            header: [u8; 10],
            looks_right: bool,
        ) {
            if looks_right && packet.len() >= 20 {
                let total = packet.len() as u16;
                packet[0] = 0x45;
                packet[9] = if packet[9] & 1 == 0 { TCP } else { UDP };
                put_u16(&mut packet, 2, total);
                put_u16(&mut packet, 6, 0);
            }
            let _ = segment(&packet, &VirtioHeader::decode(&header));
        }
    }
}
