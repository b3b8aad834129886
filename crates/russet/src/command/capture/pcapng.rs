//! The file format of captured packets: pcapng, as draft-ietf-opsawg-pcapng has it, as far as a capture needs it, in little
//! endian.
//!
//! Written here and not by a crate: four kinds of blocks are no more code than the use of one, and the tests compare each with
//! the specification byte by byte.

use std::time::Duration;

use russet_linux::packet::Direction;

/// How packets of an interface begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkType {
    /// With an Ethernet header.
    Ethernet,
    /// With an IP header.
    Ip,
}

/// A packet to write.
#[derive(Debug, Clone, Copy)]
pub struct Captured<'a> {
    /// The number of its interface: 0 for the first one that was described.
    pub interface: u32,
    /// Since 1970.
    pub at: Duration,
    pub direction: Direction,
    /// What was captured, and how long the packet was.
    pub bytes: &'a [u8],
    pub whole_bytes: usize,
}

/// What was counted for an interface.
#[derive(Debug, Clone, Copy)]
pub struct InterfaceCounts {
    pub interface: u32,
    pub begin: Duration,
    pub end: Duration,
    /// What the interface sent and received.
    pub seen: u64,
    /// What was lost because it came too fast.
    pub dropped: u64,
    /// What was wanted.
    pub accepted: u64,
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const MAJOR: u16 = 1;
const MINOR: u16 = 0;
/// The length of the section is not known before its end.
const UNKNOWN: u64 = u64::MAX;

const LINKTYPE_ETHERNET: u16 = 1;
const LINKTYPE_RAW: u16 = 101;

const END_OF_OPTIONS: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_TSRESOL: u16 = 9;
/// Timestamps in units of ten to the power of minus nine seconds.
const NANOSECONDS: u8 = 9;
const EPB_FLAGS: u16 = 2;
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;
const ISB_FILTERACCEPT: u16 = 6;

/// A block while its body is written.
struct Block<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

/// Begins a file.
pub fn section(out: &mut Vec<u8>, program: &str) {
    let mut block = Block::begin(out, SECTION);
    block.u32(BYTE_ORDER).u16(MAJOR).u16(MINOR).u64(UNKNOWN);
    block.option(SHB_USERAPPL, program.as_bytes());
    block.end_with_options();
}

/// Describes the next interface.
pub fn interface(out: &mut Vec<u8>, link_type: LinkType, snap_bytes: u32, (name, description): (&str, &str)) {
    let number = match link_type {
        LinkType::Ethernet => LINKTYPE_ETHERNET,
        LinkType::Ip => LINKTYPE_RAW,
    };
    let mut block = Block::begin(out, INTERFACE);
    block.u16(number).u16(0).u32(snap_bytes);
    block.option(IF_NAME, name.as_bytes()).option(IF_DESCRIPTION, description.as_bytes());
    block.option(IF_TSRESOL, &[NANOSECONDS]);
    block.end_with_options();
}

pub fn packet(out: &mut Vec<u8>, packet: &Captured<'_>) {
    let flags = match packet.direction {
        Direction::Inbound => INBOUND,
        Direction::Outbound => OUTBOUND,
    };
    let mut block = Block::begin(out, PACKET);
    block.u32(packet.interface).time(packet.at);
    block.u32(length(packet.bytes.len())).u32(length(packet.whole_bytes)).padded(packet.bytes);
    block.option(EPB_FLAGS, &flags.to_le_bytes());
    block.end_with_options();
}

pub fn counts(out: &mut Vec<u8>, counts: &InterfaceCounts) {
    let mut block = Block::begin(out, STATISTICS);
    block.u32(counts.interface).time(counts.end);
    for (option, at) in [(ISB_STARTTIME, counts.begin), (ISB_ENDTIME, counts.end)] {
        let [high, low] = halves(at);
        block.option(option, &[high.to_le_bytes(), low.to_le_bytes()].concat());
    }
    for (option, count) in
        [(ISB_IFRECV, counts.seen), (ISB_IFDROP, counts.dropped), (ISB_FILTERACCEPT, counts.accepted)]
    {
        block.option(option, &count.to_le_bytes());
    }
    block.end_with_options();
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The halves of a time in nanoseconds, which are enough until the year 2554.
fn halves(at: Duration) -> [u32; 2] {
    let nanoseconds = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    [(nanoseconds >> 32) as u32, nanoseconds as u32]
}

// === impl Block ===

impl<'a> Block<'a> {
    fn begin(out: &'a mut Vec<u8>, kind: u32) -> Self {
        let start = out.len();
        let mut block = Self { out, start };
        // The length is known at the end.
        block.u32(kind).u32(0);
        block
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.out.extend(value.to_le_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.out.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.out.extend(value.to_le_bytes());
        self
    }

    fn time(&mut self, at: Duration) -> &mut Self {
        let [high, low] = halves(at);
        self.u32(high).u32(low)
    }

    /// Bytes, and zeros up to a multiple of four.
    fn padded(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend(bytes);
        let padded = bytes.len().next_multiple_of(4) - bytes.len();
        self.out.extend(std::iter::repeat_n(0, padded));
        self
    }

    /// A longer value is cut to what its length can say.
    fn option(&mut self, code: u16, value: &[u8]) -> &mut Self {
        let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
        let value = value.get(..usize::from(len)).unwrap_or_default();
        self.u16(code).u16(len).padded(value)
    }

    fn end_with_options(mut self) {
        self.u16(END_OF_OPTIONS).u16(0);
        let len = length(self.out.len() - self.start + size_of::<u32>());
        self.u32(len);
        if let Some(field) = self.out.get_mut(self.start + 4..self.start + 8) {
            field.copy_from_slice(&len.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_the_bytes_of_the_specification() {
        let mut out = Vec::new();
        section(&mut out, "rust");
        #[rustfmt::skip]
        let expected = [
            0x0a, 0x0d, 0x0d, 0x0a,  40, 0, 0, 0,
            0x4d, 0x3c, 0x2b, 0x1a,  1, 0,  0, 0,
            255, 255, 255, 255,  255, 255, 255, 255,
            4, 0,  4, 0,  b'r', b'u', b's', b't',
            0, 0,  0, 0,  40, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn an_interface_has_the_bytes_of_the_specification() {
        let mut out = Vec::new();
        interface(&mut out, LinkType::Ip, 0x0004_0000, ("eth0", "x"));
        #[rustfmt::skip]
        let expected = [
            1, 0, 0, 0,  48, 0, 0, 0,
            101, 0,  0, 0,  0, 0, 4, 0,
            2, 0,  4, 0,  b'e', b't', b'h', b'0',
            3, 0,  1, 0,  b'x', 0, 0, 0,
            9, 0,  1, 0,  9, 0, 0, 0,
            0, 0,  0, 0,  48, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn a_packet_has_the_bytes_of_the_specification() {
        let mut out = Vec::new();
        let at = Duration::from_nanos(0x0000_0102_0304_0506);
        let captured = Captured {
            interface: 2,
            at,
            direction: Direction::Outbound,
            bytes: &[7, 8, 9],
            whole_bytes: 1500,
        };
        packet(&mut out, &captured);
        #[rustfmt::skip]
        let expected = [
            6, 0, 0, 0,  48, 0, 0, 0,
            2, 0, 0, 0,  0x02, 0x01, 0, 0,  0x06, 0x05, 0x04, 0x03,
            3, 0, 0, 0,  0xdc, 5, 0, 0,  7, 8, 9, 0,
            2, 0,  4, 0,  2, 0, 0, 0,
            0, 0,  0, 0,  48, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn counts_have_the_bytes_of_the_specification() {
        let mut out = Vec::new();
        let (begin, end) = (Duration::from_nanos(1), Duration::from_nanos(1 << 32));
        counts(&mut out, &InterfaceCounts { interface: 1, begin, end, seen: 10, dropped: 3, accepted: 7 });
        #[rustfmt::skip]
        let expected = [
            5, 0, 0, 0,  88, 0, 0, 0,
            1, 0, 0, 0,  1, 0, 0, 0,  0, 0, 0, 0,
            2, 0,  8, 0,  0, 0, 0, 0,  1, 0, 0, 0,
            3, 0,  8, 0,  1, 0, 0, 0,  0, 0, 0, 0,
            4, 0,  8, 0,  10, 0, 0, 0,  0, 0, 0, 0,
            5, 0,  8, 0,  3, 0, 0, 0,  0, 0, 0, 0,
            6, 0,  8, 0,  7, 0, 0, 0,  0, 0, 0, 0,
            0, 0,  0, 0,  88, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn a_long_option_is_cut() {
        let mut out = Vec::new();
        section(&mut out, &"x".repeat(70_000));
        assert_eq!(out.len() % 4, 0);
        assert_eq!(out[26..28], [255, 255]);
    }
}
