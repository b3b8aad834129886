//! Ethernet frames for the programs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::model::Tuple;

/// What a packet says of itself.
#[derive(Debug, Clone)]
pub struct Headers {
    pub from: IpAddr,
    pub to: IpAddr,
    pub ports: (u16, u16),
    pub transport: Transport,
    pub ttl: u8,
    /// Of IPv4, or an extension header of IPv6.
    pub has_options: bool,
    /// The field of IPv4.
    pub fragment: u16,
    pub tos: u8,
    pub payload_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// With these flags.
    Tcp(u8),
    Udp,
    Other(u8),
}

/// A frame to the host, and what is in it.
#[derive(Debug, Clone)]
pub struct Frame {
    pub headers: Headers,
    pub bytes: Vec<u8>,
    pub outer: Option<Outer>,
}

/// What the outer headers of a tunnel say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outer {
    pub from: IpAddr,
    pub to: IpAddr,
    pub vni: u32,
    pub tos: u8,
}

pub const ETHERNET_BYTES: usize = 14;
/// Of headers of IPv4.
pub const OUTER_BYTES: usize = 50;
/// Where the inner Ethernet header has its source.
const INNER_FROM: std::ops::Range<usize> = 6..12;

/// The Internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn ethernet(ethertype: u16) -> Vec<u8> {
    let mut header = vec![0; 12];
    header.extend(ethertype.to_be_bytes());
    header
}

fn ipv4(
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    (tos, fragment, ttl): (u8, u16, u8),
    options: &[u8],
    rest: usize,
) -> Vec<u8> {
    let bytes = 20 + options.len();
    let mut header = vec![0x40 | (bytes / 4) as u8, tos];
    header.extend(((bytes + rest) as u16).to_be_bytes());
    header.extend([0x12, 0x34]);
    header.extend(fragment.to_be_bytes());
    header.extend([ttl, protocol, 0, 0]);
    header.extend(from.octets());
    header.extend(to.octets());
    header.extend(options);
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

fn ipv6(from: Ipv6Addr, to: Ipv6Addr, (tos, next, ttl): (u8, u8, u8), bytes: usize) -> Vec<u8> {
    let mut header = (0x6000_0000 | u32::from(tos) << 20).to_be_bytes().to_vec();
    header.extend((bytes as u16).to_be_bytes());
    header.extend([next, ttl]);
    header.extend(from.octets());
    header.extend(to.octets());
    header
}

// === impl Headers ===

impl Headers {
    pub fn protocol(&self) -> u8 {
        match self.transport {
            Transport::Tcp(_) => 6,
            Transport::Udp => 17,
            Transport::Other(number) => number,
        }
    }

    pub fn tuple(&self) -> Tuple {
        Tuple { from: self.from, to: self.to, ports: self.ports, protocol: self.protocol() }
    }

    /// Bytes of the header behind that of IP.
    pub fn transport_bytes(&self) -> usize {
        if matches!(self.transport, Transport::Tcp(_)) { 20 } else { 8 }
    }

    fn payload(&self) -> Vec<u8> {
        let mut bytes = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
        bytes.resize(self.transport_bytes(), 0);
        if let Transport::Tcp(flags) = self.transport {
            (bytes[12], bytes[13]) = (0x50, flags);
        }
        bytes.resize(bytes.len() + self.payload_bytes, 0x5a);
        bytes
    }
}

// === impl Outer ===

impl Outer {
    /// Of the headers, with the inner packet's Ethernet header.
    pub fn bytes(self) -> usize {
        if self.from.is_ipv6() { OUTER_BYTES + 20 } else { OUTER_BYTES }
    }

    pub fn has_met_congestion(self) -> bool {
        self.tos & 3 == 3
    }
}

// === impl Frame ===

impl Frame {
    pub fn new(headers: &Headers) -> Self {
        let payload = headers.payload();
        let (ethertype, ip) = match (headers.from, headers.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let options: &[u8] = if headers.has_options { &[1; 4] } else { &[] };
                let fields = (headers.tos, headers.fragment, headers.ttl);
                (0x0800, ipv4(from, to, headers.protocol(), fields, options, payload.len()))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                // Destination options of 8 bytes with padding.
                let options: &[u8] =
                    if headers.has_options { &[headers.protocol(), 0, 1, 4, 0, 0, 0, 0] } else { &[] };
                let next = if headers.has_options { 60 } else { headers.protocol() };
                let fields = (headers.tos, next, headers.ttl);
                let mut header = ipv6(from, to, fields, options.len() + payload.len());
                header.extend(options);
                (0x86dd, header)
            }
            _ => panic!("two families"),
        };
        let bytes = [ethernet(ethertype), ip, payload].concat();
        Self { headers: headers.clone(), bytes, outer: None }
    }

    /// The same in a tunnel.
    pub fn in_vxlan(mut self, outer: Outer) -> Self {
        self.bytes[INNER_FROM].fill(0x77);
        let inner = self.bytes.len();
        let mut udp = [49_152_u16.to_be_bytes(), 4_789_u16.to_be_bytes()].concat();
        udp.extend(((8 + 8 + inner) as u16).to_be_bytes());
        udp.extend([0; 2]);
        let vxlan = [0x0800_0000_u32.to_be_bytes(), (outer.vni << 8).to_be_bytes()].concat();
        let rest = udp.len() + vxlan.len() + inner;
        let (ethertype, ip) = match (outer.from, outer.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                (0x0800, ipv4(from, to, 17, (outer.tos, 0x4000, 64), &[], rest))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => (0x86dd, ipv6(from, to, (outer.tos, 17, 64), rest)),
            _ => panic!("two families"),
        };
        let bytes = [ethernet(ethertype), ip, udp, vxlan, self.bytes].concat();
        Self { bytes, outer: Some(outer), ..self }
    }

    /// Whether everything is there up to the ports, and of TCP the flags.
    pub fn has_headers(&self) -> bool {
        let outer = self.outer.map_or(0, Outer::bytes);
        let ip = if self.headers.from.is_ipv6() { 40 } else { 20 };
        let transport = if matches!(self.headers.transport, Transport::Tcp(_)) { 14 } else { 8 };
        self.bytes.len() >= ETHERNET_BYTES + outer + ip + transport
    }

    /// Whether all outer headers are there.
    pub fn has_outer(&self) -> bool {
        self.outer.is_some_and(|outer| self.bytes.len() >= ETHERNET_BYTES + outer.bytes())
    }

    /// Its first bytes.
    pub fn cut(mut self, len: usize) -> Self {
        self.bytes.truncate(len);
        self
    }
}

/// Compares frames but for the port and the identification that an outer packet gets by chance.
#[track_caller]
pub fn assert_same(found: &[u8], wanted: &[u8], case: &str) {
    let mut found = found.to_vec();
    let is_outer = wanted.len() > ETHERNET_BYTES + OUTER_BYTES
        && wanted[34..36] == [0, 0]
        && wanted[36..38] == 4_789_u16.to_be_bytes();
    if is_outer && found.len() == wanted.len() {
        let port = u16::from_be_bytes([found[34], found[35]]);
        assert!(port >= 49_152, "{case}: {port}");
        found[34..36].fill(0);
        assert_eq!(checksum(&found[14..34]), 0, "{case}");
        // The identification, and with it the checksum.
        found[18..20].fill(0);
        found[24..26].copy_from_slice(&wanted[24..26]);
    }
    assert_eq!(found, wanted, "{case}");
}
