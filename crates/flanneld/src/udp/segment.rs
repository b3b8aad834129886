//! Segments a packet that the kernel has left whole (TCP or UDP, up to 64 KiB) into those that go
//! over the wire.
//!
//! Only headers are made here; payloads stay in place.

use std::ops::Range;

use russet_linux::tun::{Segments, VirtioHeader};

use super::checksum::Sum;
use super::packet::{Ipv4, TCP, UDP, put_u16, put_u32, u16_at, u32_at};

/// A large packet with parsed headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct LargePacket<'a> {
    packet: &'a [u8],
    ip: Ipv4,
    /// Bytes of all headers.
    header_bytes: usize,
    segment_bytes: usize,
    /// Sums of the parts that all headers share: the IPv4 header without length and ID, and the
    /// transport header with pseudo header, without length, sequence and flags.
    ip_sum: Sum,
    transport_sum: Sum,
}

const UDP_HEADER_BYTES: usize = 8;
const TCP_MIN_HEADER_BYTES: usize = 20;
const TCP_FLAGS_AT: usize = 13;
const FIN_AND_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;

// === impl LargePacket ===

impl<'a> LargePacket<'a> {
    /// None when the virtio header does not match the packet.
    pub(super) fn new(packet: &'a [u8], ip: Ipv4, virtio: &VirtioHeader) -> Option<Self> {
        let packet = packet.get(..ip.total_bytes)?;
        let transport = packet.get(ip.header_bytes..)?;
        let transport_bytes = match (virtio.segments, ip.protocol) {
            (Segments::Tcp4, TCP) => usize::from(*transport.get(12)? >> 4) * 4,
            (Segments::Udp, UDP) => UDP_HEADER_BYTES,
            _ => return None,
        };
        let least = if ip.protocol == TCP { TCP_MIN_HEADER_BYTES } else { UDP_HEADER_BYTES };
        let header_bytes = ip.header_bytes + transport_bytes;
        let segment_bytes = usize::from(virtio.segment_bytes);
        let is_whole = transport_bytes >= least && header_bytes < packet.len() && segment_bytes != 0;
        if !is_whole || ip.is_fragment() {
            return None;
        }
        let header = &packet[..ip.header_bytes];
        // Length, ID and checksum are the words 1, 2 and 5.
        let ip_sum = Sum::default().add(&header[..2]).add(&header[6..10]).add(&header[12..]);
        let ports = ip.pseudo(0).add(&transport[..4]);
        let transport_sum = match ip.protocol {
            // Acknowledgement, window, and all behind the checksum.
            TCP => ports.add(&transport[8..12]).add(&transport[14..16]).add(&transport[18..transport_bytes]),
            _ => ports,
        };
        Some(Self { packet, ip, header_bytes, segment_bytes, ip_sum, transport_sum })
    }

    /// The number of packets after segmentation.
    pub(super) fn count(&self) -> usize {
        (self.packet.len() - self.header_bytes).div_ceil(self.segment_bytes)
    }

    /// Bytes of the packet with this number; the first is the largest.
    pub(super) fn bytes_of(&self, number: usize) -> usize {
        let payload = self.packet.len() - self.header_bytes;
        self.header_bytes + payload.saturating_sub(number * self.segment_bytes).min(self.segment_bytes)
    }

    /// Appends the header of the packet with this number to `headers`; returns the place of its
    /// payload.
    pub(super) fn segment(&self, number: usize, headers: &mut Vec<u8>) -> Range<usize> {
        let start = self.header_bytes + number * self.segment_bytes;
        let end = (start + self.segment_bytes).min(self.packet.len());
        let at = headers.len();
        headers.extend_from_slice(&self.packet[..self.header_bytes]);
        let (ip, transport) = headers[at..].split_at_mut(self.ip.header_bytes);
        let bytes = transport.len() + (end - start);
        // Both fit, because the whole packet's length did.
        put_u16(ip, 2, (self.ip.header_bytes + bytes) as u16);
        put_u16(ip, 4, self.ip.id.wrapping_add(number as u16));
        let checksum = self.ip_sum.add(&ip[2..6]).checksum();
        ip[10..12].copy_from_slice(&checksum);
        let payload = &self.packet[start..end];
        match self.ip.protocol {
            TCP => self.finish_tcp(transport, number, payload),
            _ => self.finish_udp(transport, payload),
        }
        start..end
    }

    fn finish_tcp(&self, header: &mut [u8], number: usize, payload: &[u8]) {
        let sequence = u32_at(header, 4).unwrap_or(0);
        put_u32(header, 4, sequence.wrapping_add((number * self.segment_bytes) as u32));
        if number + 1 < self.count() {
            header[TCP_FLAGS_AT] &= !FIN_AND_PSH;
        }
        if number > 0 {
            header[TCP_FLAGS_AT] &= !CWR;
        }
        let bytes = (header.len() + payload.len()) as u16;
        let sum =
            self.transport_sum.add(&bytes.to_be_bytes()).add(&header[4..8]).add(&header[12..14]).add(payload);
        header[16..18].copy_from_slice(&sum.checksum());
    }

    fn finish_udp(&self, header: &mut [u8], payload: &[u8]) {
        let bytes = header.len() + payload.len();
        put_u16(header, 4, bytes as u16);
        // The length is part of the pseudo header, too.
        let length = (bytes as u16).to_be_bytes();
        let sum = self.transport_sum.add(&length).add(&length).add(payload);
        header[6..8].copy_from_slice(&sum.checksum_not_zero());
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
