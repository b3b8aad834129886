//! The headers of captured packets, as far as a capture chooses by them: addresses, ports, and the packet in a tunnel.
//!
//! The bytes are untrusted, and may be cut anywhere. What cannot be read is no packet that was wanted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::pcapng::LinkType;

/// The IP header of a packet, and what is behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// Empty for all fragments but the first.
    pub payload: &'a [u8],
}

const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
/// IEEE 802.1Q and 802.1ad.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// More tags than any network has.
const TAGS_MAX: usize = 4;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const IPV4_MIN_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// More extension headers than any packet has.
const EXTENSIONS_MAX: usize = 8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const IPV4_IN_IP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const UDP_BYTES: usize = 8;
const VXLAN_BYTES: usize = 8;
/// RFC 7348: the flag I, with which the network's number is valid.
const VXLAN_VALID: u8 = 0x08;

/// Source and destination of an Ethernet frame.
pub fn macs(frame: &[u8]) -> Option<[[u8; 6]; 2]> {
    let [destination, source] = [0, 6].map(|at| array(frame, at));
    Some([source?, destination?])
}

/// The IP packet that an interface of this type has sent or received.
pub fn ip(link_type: LinkType, bytes: &[u8]) -> Option<Ip<'_>> {
    match link_type {
        LinkType::Ip => Ip::read(bytes),
        LinkType::Ethernet => of_ethernet(bytes),
    }
}

fn of_ethernet(frame: &[u8]) -> Option<Ip<'_>> {
    let mut at = ETHERNET_BYTES - 2;
    for _ in 0..TAGS_MAX {
        match be16(frame, at)? {
            IPV4 | IPV6 => return Ip::read(frame.get(at + 2..)?),
            tag if TAGS.contains(&tag) => at += TAG_BYTES,
            _ => return None,
        }
    }
    None
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

// === impl Ip ===

impl<'a> Ip<'a> {
    fn read(packet: &'a [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::read_v4(packet),
            6 => Self::read_v6(packet),
            _ => None,
        }
    }

    fn read_v4(packet: &'a [u8]) -> Option<Self> {
        let header_bytes = usize::from(packet.first()? & 15) * 4;
        let address = |at| array::<4>(packet, at).map(|octets| IpAddr::from(Ipv4Addr::from(octets)));
        let is_later_fragment = be16(packet, 6)? & 0x1fff != 0;
        let payload = match is_later_fragment || header_bytes < IPV4_MIN_BYTES {
            true => &[],
            false => packet.get(header_bytes..).unwrap_or_default(),
        };
        Some(Self { source: address(12)?, destination: address(16)?, protocol: *packet.get(9)?, payload })
    }

    fn read_v6(packet: &'a [u8]) -> Option<Self> {
        let address = |at| array::<16>(packet, at).map(|octets| IpAddr::from(Ipv6Addr::from(octets)));
        let (source, destination) = (address(8)?, address(24)?);
        let (mut protocol, mut payload) = (*packet.get(6)?, packet.get(IPV6_BYTES..).unwrap_or_default());
        for _ in 0..EXTENSIONS_MAX {
            let len = match protocol {
                HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                    payload.get(1).map_or(usize::MAX, |units| (usize::from(*units) + 1) * 8)
                }
                FRAGMENT if be16(payload, 2).is_some_and(|offset| offset & 0xfff8 == 0) => 8,
                FRAGMENT => usize::MAX,
                _ => break,
            };
            (protocol, payload) = match (payload.first(), payload.get(len..)) {
                (Some(next), Some(rest)) => (*next, rest),
                (Some(next), None) => (*next, &[][..]),
                (None, _) => break,
            };
        }
        Some(Self { source, destination, protocol, payload })
    }

    pub fn has(&self, address: IpAddr) -> bool {
        self.source == address || self.destination == address
    }

    /// Source and destination port, of protocols that have ports.
    pub fn ports(&self) -> Option<[u16; 2]> {
        match self.protocol {
            TCP | UDP | SCTP => Some([be16(self.payload, 0)?, be16(self.payload, 2)?]),
            _ => None,
        }
    }

    /// The packet inside, if this one is a tunnel's: VXLAN to one of these ports, or IP in IP.
    pub fn inner(&self, vxlan_ports: &[u16]) -> Option<Ip<'a>> {
        match self.protocol {
            IPV4_IN_IP | IPV6_IN_IP => Self::read(self.payload),
            UDP if self.ports().is_some_and(|[_, to]| vxlan_ports.contains(&to)) => {
                let vxlan = self.payload.get(UDP_BYTES..)?;
                let is_valid = vxlan.first()? & VXLAN_VALID != 0;
                is_valid.then(|| of_ethernet(vxlan.get(VXLAN_BYTES..)?)).flatten()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const PORT: u16 = 4789;

    pub fn ipv4(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
        let len = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
        let mut packet = vec![0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend(source);
        packet.extend(destination);
        packet.extend(payload);
        packet
    }

    pub fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind.to_be_bytes(), payload].concat()
    }

    pub fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
        [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0; 4], payload].concat()
    }

    pub fn vxlan(inner: &[u8]) -> Vec<u8> {
        [&[8, 0, 0, 0, 0, 16, 0, 0][..], inner].concat()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_packet_inside_of_a_tunnel_is_found() {
        let inner = ipv4([10, 244, 1, 2], [10, 244, 2, 3], TCP, &[0, 80, 1, 0, 9]);
        let outer = udp(50_000, PORT, &vxlan(&ethernet(IPV4, &inner)));
        let frame =
            ethernet(0x8100, &[&[0, 5, 8, 0][..], &ipv4([10, 0, 0, 1], [10, 0, 0, 2], UDP, &outer)].concat());
        let found = ip(LinkType::Ethernet, &frame).unwrap();
        assert!(
            found.has(address("10.0.0.1"))
                && found.has(address("10.0.0.2"))
                && !found.has(address("10.244.1.2"))
        );
        assert_eq!(found.ports(), Some([50_000, PORT]));
        let within = found.inner(&[PORT]).unwrap();
        assert_eq!((within.source, within.destination), (address("10.244.1.2"), address("10.244.2.3")));
        assert_eq!(within.ports(), Some([80, 256]));
        assert_eq!(found.inner(&[8472]), None);
        let in_ip = ipv4([10, 0, 0, 1], [10, 0, 0, 2], IPV4_IN_IP, &inner);
        assert_eq!(ip(LinkType::Ip, &in_ip).unwrap().inner(&[]), Some(within));
        let [source, destination] = macs(&frame).unwrap();
        assert_eq!((source[5], destination[5]), (2, 1));
    }

    #[test]
    fn extension_headers_are_skipped_and_later_fragments_have_no_ports() {
        let v6 = |next: u8, payload: &[u8]| {
            let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
            packet.extend(Ipv6Addr::LOCALHOST.octets());
            packet.extend(Ipv6Addr::LOCALHOST.octets());
            packet.extend(payload);
            packet
        };
        let segment = [0, 80, 0, 81];
        let found = |packet: &[u8]| ip(LinkType::Ip, packet).unwrap().ports();
        let options = [&[FRAGMENT, 0, 0, 0, 0, 0, 0, 0][..], &[TCP, 0, 0, 1, 0, 0, 0, 0], &segment].concat();
        assert_eq!(found(&v6(HOP_BY_HOP, &options)), Some([80, 81]));
        assert_eq!(found(&v6(FRAGMENT, &[&[TCP, 0, 0, 8, 0, 0, 0, 0][..], &segment].concat())), None);
        assert_eq!(found(&v6(ROUTING, &[ROUTING])), None);
        assert_eq!(found(&v6(ROUTING, &[ROUTING, 0].repeat(100))), None);
        let mut fragment = ipv4([1; 4], [2; 4], UDP, &segment);
        assert_eq!(found(&fragment), Some([80, 81]));
        fragment[7] = 1;
        assert_eq!(found(&fragment), None);
    }

    #[test]
    fn cut_and_hostile_bytes_are_no_packets_and_no_panic() {
        let inner = ipv4([10, 244, 1, 2], [10, 244, 2, 3], TCP, &[0, 80, 1, 0]);
        let outer = udp(1, PORT, &vxlan(&ethernet(IPV4, &inner)));
        let frame = ethernet(IPV4, &ipv4([10, 0, 0, 1], [10, 0, 0, 2], UDP, &outer));
        for len in 0..frame.len() {
            let found = ip(LinkType::Ethernet, &frame[..len]);
            let ports = found.and_then(|it| it.inner(&[PORT])).and_then(|it| it.ports());
            assert_eq!((len, ports), (len, None));
            macs(&frame[..len]);
        }
        let mut state = 1_u32;
        for _ in 0..20_000 {
            let mut bytes = frame.clone();
            for _ in 0..4 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (state >> 8) as usize % bytes.len();
                bytes[at] = (state >> 24) as u8;
            }
            for link_type in [LinkType::Ethernet, LinkType::Ip] {
                let found = ip(link_type, &bytes);
                found.and_then(|it| it.inner(&[PORT])).and_then(|it| it.ports());
            }
        }
        let many_tags = ethernet(0x8100, &[0, 1, 0x81, 0].repeat(50));
        assert_eq!(ip(LinkType::Ethernet, &many_tags), None);
    }
}
