//! The header in front of every packet of a TUN with `IFF_VNET_HDR`: `struct virtio_net_hdr`, linux/virtio_net.h.

/// Work that a packet still needs: its checksum, or its segmentation. The default means that it is
/// complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VirtioHeader {
    /// The checksum from `csum_start` on must be stored at `csum_start + csum_offset`, which
    /// contains the sum of the pseudo header.
    pub needs_checksum: bool,
    /// The kind of segments into which the packet must be split.
    pub segments: Segments,
    /// Bytes of all headers.
    pub header_bytes: u16,
    /// Bytes of payload of each segment but the last.
    pub segment_bytes: u16,
    /// The offset at which the checksummed part begins.
    pub csum_start: u16,
    /// The offset of the checksum, from `csum_start`.
    pub csum_offset: u16,
}

/// `VIRTIO_NET_HDR_GSO_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Segments {
    /// A single packet.
    #[default]
    None,
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams, over IPv4 or IPv6.
    Udp,
    /// Another kind.
    Other(u8),
}

/// Size of the header, without the fields of later versions.
pub const VIRTIO_HEADER_BYTES: usize = 10;

const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Set together with the kind if the first segment carries CWR.
const GSO_ECN: u8 = 0x80;

// === impl VirtioHeader ===

impl VirtioHeader {
    /// Decodes the header in front of a packet; numbers are in the machine's byte order, the
    /// kernel's default.
    pub fn decode(bytes: &[u8; VIRTIO_HEADER_BYTES]) -> Self {
        let [flags, kind, h0, h1, s0, s1, c0, c1, o0, o1] = *bytes;
        Self {
            needs_checksum: flags & NEEDS_CSUM != 0,
            segments: Segments::from_number(kind & !GSO_ECN),
            header_bytes: u16::from_ne_bytes([h0, h1]),
            segment_bytes: u16::from_ne_bytes([s0, s1]),
            csum_start: u16::from_ne_bytes([c0, c1]),
            csum_offset: u16::from_ne_bytes([o0, o1]),
        }
    }

    /// Encodes the header for the kernel.
    pub fn encode(&self) -> [u8; VIRTIO_HEADER_BYTES] {
        let mut bytes = [0; VIRTIO_HEADER_BYTES];
        bytes[0] = if self.needs_checksum { NEEDS_CSUM } else { 0 };
        bytes[1] = self.segments.number();
        bytes[2..4].copy_from_slice(&self.header_bytes.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.segment_bytes.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.csum_start.to_ne_bytes());
        bytes[8..10].copy_from_slice(&self.csum_offset.to_ne_bytes());
        bytes
    }
}

// === impl Segments ===

impl Segments {
    fn from_number(number: u8) -> Self {
        match number {
            0 => Self::None,
            GSO_TCPV4 => Self::Tcp4,
            GSO_TCPV6 => Self::Tcp6,
            GSO_UDP_L4 => Self::Udp,
            other => Self::Other(other),
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Tcp4 => GSO_TCPV4,
            Self::Tcp6 => GSO_TCPV6,
            Self::Udp => GSO_UDP_L4,
            Self::Other(number) => number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_encoding_and_decoding() {
        for segments in [Segments::None, Segments::Tcp4, Segments::Tcp6, Segments::Udp, Segments::Other(3)] {
            let header = VirtioHeader {
                needs_checksum: true,
                segments,
                header_bytes: 52,
                segment_bytes: 1420,
                csum_start: 20,
                csum_offset: 16,
            };
            assert_eq!(VirtioHeader::decode(&header.encode()), header);
        }
    }

    #[test]
    fn a_congestion_mark_does_not_change_the_kind() {
        let mut bytes = [0; VIRTIO_HEADER_BYTES];
        bytes[1] = GSO_TCPV4 | GSO_ECN;
        assert_eq!(VirtioHeader::decode(&bytes).segments, Segments::Tcp4);
        assert_eq!(VirtioHeader::default().encode(), [0; VIRTIO_HEADER_BYTES]);
    }
}
