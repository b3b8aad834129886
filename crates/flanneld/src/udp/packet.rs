//! The inner packet: its IPv4 header, its TTL, and checksums that its sender has left unfinished.

use std::net::Ipv4Addr;

use russet_linux::tun::VirtioHeader;

use super::checksum::Sum;

/// A well-formed IPv4 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ipv4 {
    pub(super) header_bytes: usize,
    pub(super) total_bytes: usize,
    pub(super) protocol: u8,
    pub(super) source: Ipv4Addr,
    pub(super) destination: Ipv4Addr,
    /// The fragment's offset in its datagram, in units of 8 bytes.
    pub(super) fragment_offset: u16,
    pub(super) more_fragments: bool,
    pub(super) dont_fragment: bool,
    pub(super) id: u16,
}

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const IPV4_MIN_HEADER_BYTES: usize = 20;

const TTL_AT: usize = 8;
const CHECKSUM_AT: usize = 10;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

// === impl Ipv4 ===

impl Ipv4 {
    /// Parses the header of a complete packet; bytes behind the packet are ignored.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let header: &[u8; IPV4_MIN_HEADER_BYTES] = packet.first_chunk()?;
        let header_bytes = usize::from(header[0] & 0xf) * 4;
        let total_bytes = usize::from(u16_at(header, 2)?);
        let fits = header_bytes >= IPV4_MIN_HEADER_BYTES
            && header_bytes <= total_bytes
            && total_bytes <= packet.len();
        if header[0] >> 4 != 4 || !fits {
            return None;
        }
        let fragment = u16_at(header, 6)?;
        Some(Self {
            header_bytes,
            total_bytes,
            protocol: header[9],
            source: ipv4_at(header, 12)?,
            destination: ipv4_at(header, 16)?,
            fragment_offset: fragment & 0x1fff,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            id: u16_at(header, 4)?,
        })
    }

    /// Whether the packet is only a part of a datagram.
    pub(super) fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// The sum of the pseudo header for `bytes` of TCP or UDP.
    pub(super) fn pseudo(&self, bytes: usize) -> Sum {
        Sum::pseudo(self.source, self.destination, self.protocol, bytes)
    }
}

/// Decrements the TTL and updates the header checksum (RFC 1624). False when the TTL expires: the
/// packet must be dropped silently (flannel.md section 6.1).
#[must_use]
pub(super) fn step_ttl(packet: &mut [u8]) -> bool {
    let Some(sum) = u16_at(packet, CHECKSUM_AT) else { return false };
    let Some(ttl) = packet.get_mut(TTL_AT).filter(|ttl| **ttl > 1) else { return false };
    *ttl -= 1;
    // The TTL is the upper half of a word, which has lost 0x0100.
    let (sum, carry) = sum.overflowing_add(0x0100);
    put_u16(packet, CHECKSUM_AT, sum + u16::from(carry));
    true
}

/// Completes an unfinished checksum. False when the virtio header points outside of the packet.
#[must_use]
pub(super) fn complete_checksum(packet: &mut [u8], virtio: &VirtioHeader) -> bool {
    let covered = packet.get_mut(usize::from(virtio.csum_start)..);
    let Some(covered) = covered else { return false };
    let checksum = Sum::default().add(covered).checksum_not_zero();
    let field = covered.get_mut(usize::from(virtio.csum_offset)..).and_then(|rest| rest.first_chunk_mut());
    let Some(field) = field else { return false };
    *field = checksum;
    true
}

/// Computes the checksum of a new IPv4 header.
pub(super) fn set_header_checksum(header: &mut [u8]) {
    put_u16(header, CHECKSUM_AT, 0);
    let checksum = Sum::default().add(header).checksum();
    put(header, CHECKSUM_AT, checksum);
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word))
}

fn ipv4_at(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    u32_at(bytes, at).map(Ipv4Addr::from)
}

/// Ignores a range beyond the end; callers have checked it.
pub(super) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(field) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *field = value;
    }
}

/// Like [`put`].
pub(super) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    put(bytes, at, value.to_be_bytes());
}

/// Like [`put`].
pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::checksum::tests::by_the_book;
    use super::super::samples;
    use super::*;

    #[test]
    fn malformed_headers_are_not_parsed() {
        let good = samples::udp(b"payload");
        assert_eq!(Ipv4::parse(&good).unwrap().total_bytes, good.len());
        assert_eq!(Ipv4::parse(&good[..good.len() - 1]), None, "cut off");
        assert_eq!(Ipv4::parse(&good[..19]), None, "short");
        for (at, value) in [(0, 0x65), (0, 0x44), (0, 0x4f), (2, 0xff), (3, 19)] {
            let mut bad = good[..40.min(good.len())].to_vec();
            bad[at] = value;
            assert_eq!(Ipv4::parse(&bad), None, "byte {at} is {value:#x}");
        }
    }

    #[test]
    fn bytes_behind_the_packet_are_ignored() {
        let mut packet = samples::udp(b"payload");
        let bytes = packet.len();
        packet.extend([0; 30]);
        assert_eq!(Ipv4::parse(&packet).unwrap().total_bytes, bytes);
    }

    #[test]
    fn a_ttl_of_one_or_zero_expires() {
        for ttl in [0, 1] {
            let mut packet = samples::udp(b"");
            packet[8] = ttl;
            assert!(!step_ttl(&mut packet));
            assert_eq!(packet[8], ttl);
        }
        assert!(!step_ttl(&mut [0; 9]));
    }

    proptest! {
        #[test]
        fn the_header_checksum_stays_right_while_the_ttl_falls(ttl in 2u8.., id: u16, tos: u8, source: u32) {
            let mut packet = samples::udp(b"abc");
            packet[8] = ttl;
            packet[1] = tos;
            put_u16(&mut packet, 4, id);
            put_u32(&mut packet, 12, source);
            set_header_checksum(&mut packet[..20]);
            prop_assert!(step_ttl(&mut packet));
            prop_assert_eq!(packet[8], ttl - 1);
            prop_assert_eq!(by_the_book(&packet[..20]), 0xffff);
        }

        #[test]
        fn a_completed_checksum_equals_an_independent_sum(payload: Vec<u8>) {
            let large = samples::udp(&payload);
            let mut open = large.clone();
            let ip = Ipv4::parse(&large).unwrap();
            open[26..28].copy_from_slice(&ip.pseudo(large.len() - 20).folded());
            let virtio = VirtioHeader { needs_checksum: true, csum_start: 20, csum_offset: 6, ..VirtioHeader::default() };
            prop_assert!(complete_checksum(&mut open, &virtio));
            prop_assert_eq!(open, large);
        }

        #[test]
        fn a_wrong_virtio_header_changes_nothing(bytes: Vec<u8>, start: u16, offset: u16) {
            let mut packet = bytes.clone();
            let virtio = VirtioHeader { csum_start: start, csum_offset: offset, ..VirtioHeader::default() };
            let inside = usize::from(start) + usize::from(offset) + 2 <= bytes.len();
            prop_assert_eq!(complete_checksum(&mut packet, &virtio), inside);
            prop_assert!(inside || packet == bytes);
        }
    }
}
