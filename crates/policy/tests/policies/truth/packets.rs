//! Packets that carry a number, and what a raw socket receives of them.

use russet_verdict::ir::Protocol;

/// What a packet says: the round in which it was sent, and the place of its flow in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub round: u32,
    pub index: u32,
}

/// The source ports of TCP connections; 1,024 and more are free for everybody.
const TCP_PORTS: std::ops::Range<u16> = 10_000..60_000;
/// The common source port of the other protocols with ports.
pub const SOURCE_PORT: u16 = 40_000;
/// A chunk of SCTP that begins an association, and its length (RFC 9260 section 3.3.2).
const INIT: u8 = 1;
const INIT_BYTES: u16 = 20;
const SCTP_HEADER_BYTES: usize = 12;
const ECHO: [u8; 2] = [8, 128];
const ICMP_HEADER_BYTES: usize = 8;
/// The place of the flags in a TCP header, and the flag that opens a connection.
const TCP_FLAGS_AT: usize = 13;
const SYN: u8 = 0x02;

// === impl Mark ===

impl Mark {
    pub fn bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.round.to_be_bytes());
        bytes[4..].copy_from_slice(&self.index.to_be_bytes());
        bytes
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self { round: number(bytes, 0)?, index: number(bytes, 4)? })
    }

    /// The source port of its connection. Connections of one round, of which there are `tries` at
    /// most, have different ones.
    pub fn tcp_port(self, tries: usize) -> u16 {
        let (count, tries) = (u32::from(TCP_PORTS.end - TCP_PORTS.start), u32::try_from(tries).unwrap());
        let rounds = (count / tries).max(1);
        TCP_PORTS.start + u16::try_from((self.round % rounds) * tries + self.index).unwrap()
    }

    /// An INIT of SCTP.
    pub fn sctp(self, port: u16) -> Vec<u8> {
        let mut packet = Vec::new();
        packet.extend(SOURCE_PORT.to_be_bytes());
        packet.extend(port.to_be_bytes());
        // The verification tag, which an INIT does not have yet, and the checksum.
        packet.extend([0; 8]);
        packet.extend([INIT, 0]);
        packet.extend(INIT_BYTES.to_be_bytes());
        // A tag is not 0.
        packet.extend((self.index + 1).to_be_bytes());
        packet.extend(65_535_u32.to_be_bytes());
        packet.extend([0, 1, 0, 1]);
        packet.extend(self.round.to_be_bytes());
        let sum = crc32c(&packet).to_le_bytes();
        packet[8..SCTP_HEADER_BYTES].copy_from_slice(&sum);
        packet
    }

    /// An echo request. The kernel fills in the checksum for IPv6.
    pub fn echo(self, is_v4: bool) -> Vec<u8> {
        let mut packet = vec![ECHO[usize::from(!is_v4)], 0, 0, 0];
        packet.extend(&self.index.to_be_bytes()[2..]);
        packet.extend([0, 1]);
        packet.extend(self.bytes());
        if is_v4 {
            let sum = russet_testkit::frame::checksum(&packet);
            packet[2..4].copy_from_slice(&sum);
        }
        packet
    }

    /// What a packet of SCTP or ICMP says; `bytes` begin behind the header of IP.
    pub fn of_raw(protocol: Protocol, bytes: &[u8]) -> Option<Self> {
        if protocol == Protocol::SCTP {
            let chunk = bytes.get(SCTP_HEADER_BYTES..).filter(|chunk| chunk.first() == Some(&INIT))?;
            return Some(Self { round: number(chunk, 16)?, index: number(chunk, 4)?.checked_sub(1)? });
        }
        let is_echo = bytes.first().is_some_and(|kind| ECHO.contains(kind));
        if is_echo { Self::read(bytes.get(ICMP_HEADER_BYTES..)?) } else { None }
    }
}

/// The source port of a packet of TCP, if it opens a connection.
pub fn opening_port(bytes: &[u8]) -> Option<u16> {
    let port = u16::from_be_bytes([*bytes.first()?, *bytes.get(1)?]);
    (bytes.get(TCP_FLAGS_AT) == Some(&SYN)).then_some(port)
}

/// What is behind the header of IPv4, which a raw socket gets with its packets.
pub fn behind_header(packet: &[u8]) -> Option<&[u8]> {
    packet.get(usize::from(packet.first()? & 0xf) * 4..)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The checksum of SCTP (RFC 9260 appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[test]
fn the_checksum_is_that_of_the_standard() {
    // RFC 3720 appendix B.4: 32 bytes of zeros.
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
}
