//! Packets for the tests of this module, with checksums by the independent sum.

use std::net::Ipv4Addr;

use super::checksum::tests::by_the_book;
use super::packet::{TCP, UDP};

pub(super) const A: Ipv4Addr = Ipv4Addr::new(10, 1, 15, 2);
pub(super) const B: Ipv4Addr = Ipv4Addr::new(10, 1, 20, 3);

/// What differs between the packets of a flow.
#[derive(Debug, Clone)]
pub(super) struct Tcp {
    pub(super) id: u16,
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// A multiple of 4 bytes, at most 40.
    pub(super) options: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

pub(super) const ACK: u8 = 0x10;
pub(super) const PSH: u8 = 0x08;

impl Tcp {
    pub(super) fn new(payload: &[u8]) -> Self {
        let options = vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 7];
        let payload = payload.to_vec();
        Self { id: 7, sequence: 1000, acknowledged: 5, flags: ACK, window: 512, options, payload }
    }

    pub(super) fn packet(&self) -> Vec<u8> {
        let mut tcp = vec![0x1f, 0x90, 0xc3, 0x50];
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledged.to_be_bytes());
        let offset = u8::try_from(5 + self.options.len() / 4).unwrap() << 4;
        tcp.extend([offset, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        with_checksum(TCP, 16, &mut tcp);
        ip(TCP, self.id, &tcp)
    }
}

pub(super) fn udp(payload: &[u8]) -> Vec<u8> {
    udp_with_id(7, payload)
}

pub(super) fn udp_with_id(id: u16, payload: &[u8]) -> Vec<u8> {
    let mut udp = vec![0x1f, 0x90, 0xc3, 0x50];
    udp.extend(u16::try_from(8 + payload.len()).unwrap().to_be_bytes());
    udp.extend([0; 2]);
    udp.extend(payload);
    with_checksum(UDP, 6, &mut udp);
    ip(UDP, id, &udp)
}

/// An IPv4 packet from A to B that may not be fragmented.
pub(super) fn ip(protocol: u8, id: u16, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let id = id.to_be_bytes();
    let mut packet = vec![0x45, 0, total[0], total[1], id[0], id[1], 0x40, 0, 64, protocol, 0, 0];
    packet.extend(A.octets());
    packet.extend(B.octets());
    let sum = !by_the_book(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

fn with_checksum(protocol: u8, at: usize, segment: &mut [u8]) {
    let sum = match !by_the_book(&[&pseudo(protocol, segment.len())[..], segment].concat()) {
        // In UDP 0 would mean that there is no checksum; in TCP it is an ordinary value.
        0 if protocol == UDP => 0xffff,
        sum => sum,
    };
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

fn pseudo(protocol: u8, len: usize) -> Vec<u8> {
    let len = u16::try_from(len).unwrap().to_be_bytes();
    [&A.octets()[..], &B.octets(), &[0, protocol, len[0], len[1]]].concat()
}

/// Whether header and payload of a packet from A to B are intact, by the independent sum.
pub(super) fn is_intact(packet: &[u8]) -> bool {
    let pseudo = pseudo(packet[9], packet.len() - 20);
    by_the_book(&packet[..20]) == 0xffff && by_the_book(&[&pseudo[..], &packet[20..]].concat()) == 0xffff
}
