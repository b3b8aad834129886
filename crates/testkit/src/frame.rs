//! Packets as bytes, for tests that send what a kernel would not: inner packets with any source,
//! and VXLAN around them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// Bytes of a UDP header.
const UDP_BYTES: usize = 8;
/// The protocol number of UDP.
const UDP: u8 = 17;

/// An IP packet with one UDP datagram from port 40000; both addresses are of one family.
pub fn udp_packet(from: IpAddr, to: IpAddr, port: u16, payload: &[u8]) -> Vec<u8> {
    let bytes = UDP_BYTES + payload.len();
    let udp = [&40_000_u16.to_be_bytes()[..], &port.to_be_bytes(), &length(bytes), &[0, 0], payload].concat();
    match (from, to) {
        // Without a checksum, which IPv4 allows.
        (IpAddr::V4(from), IpAddr::V4(to)) => [ipv4_header(from, to, bytes), udp].concat(),
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6_udp(from, to, udp),
        _ => panic!("{from} and {to} are of different families"),
    }
}

/// What VXLAN carries in a datagram: its header, an Ethernet header to `mac`, and the packet.
pub fn vxlan(vni: u32, mac: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let ether_type = if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    let mut ethernet = Vec::with_capacity(ETHERNET_BYTES);
    ethernet.extend(mac);
    ethernet.extend([0x02, 0, 0, 0, 0, 0x66]);
    ethernet.extend(ether_type);
    [&[0x08, 0, 0, 0][..], &(vni << 8).to_be_bytes(), &ethernet, packet].concat()
}

fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).expect("a small packet").to_be_bytes()
}

fn ipv4_header(from: Ipv4Addr, to: Ipv4Addr, payload_bytes: usize) -> Vec<u8> {
    let total = length(20 + payload_bytes);
    let mut header = vec![0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, UDP, 0, 0];
    header.extend(from.octets());
    header.extend(to.octets());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    header
}

fn ipv6_udp(from: Ipv6Addr, to: Ipv6Addr, mut udp: Vec<u8>) -> Vec<u8> {
    let bytes = length(udp.len());
    let pseudo = [&from.octets()[..], &to.octets(), &[0, 0], &bytes, &[0, 0, 0, UDP], &udp].concat();
    let sum = checksum(&pseudo);
    udp[6..8].copy_from_slice(&sum);
    let header = [&[0x60, 0, 0, 0][..], &bytes, &[UDP, 64], &from.octets(), &to.octets()].concat();
    [header, udp].concat()
}

/// The checksum of IPv4, ICMP and UDP (RFC 1071).
pub fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}
