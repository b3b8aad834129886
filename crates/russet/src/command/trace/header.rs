//! The headers of a traced packet, as far as a trace chooses and names packets by them.
//!
//! The bytes are those of the network, and the kernel cuts them: what cannot be read is missing.

use std::net::IpAddr;

/// Addresses, protocol and ports of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// Source and destination port.
    pub ports: Option<(u16, u16)>,
    /// Type and code.
    pub icmp: Option<(u8, u8)>,
    /// The flags of TCP.
    tcp_flags: Option<u8>,
}

pub const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP_V6: u8 = 58;
const SCTP: u8 = 132;
/// The protocols whose header begins with two ports.
const PORTED: [u8; 3] = [TCP, UDP, SCTP];
/// Where the flags are in the header of TCP, with their names.
const TCP_FLAGS_AT: usize = 13;
const TCP_FLAGS: [(u8, &str); 5] = [(2, "SYN"), (16, "ACK"), (8, "PSH"), (1, "FIN"), (4, "RST")];

// === impl Header ===

impl Header {
    pub fn read(network: &[u8], transport: &[u8]) -> Option<Self> {
        let (source, destination, protocol) = match network.first()? >> 4 {
            4 => (
                IpAddr::from(array::<4>(network, 12)?),
                IpAddr::from(array::<4>(network, 16)?),
                *network.get(9)?,
            ),
            // The number of an extension header is shown as it is.
            6 => (
                IpAddr::from(array::<16>(network, 8)?),
                IpAddr::from(array::<16>(network, 24)?),
                *network.get(6)?,
            ),
            _ => return None,
        };
        let be16 = |at| array(transport, at).map(u16::from_be_bytes);
        let ports = PORTED.contains(&protocol).then(|| Some((be16(0)?, be16(2)?))).flatten();
        let is_icmp = protocol == ICMP || protocol == ICMP_V6;
        let icmp = is_icmp.then(|| array::<2>(transport, 0)).flatten().map(|[kind, code]| (kind, code));
        let tcp_flags = (protocol == TCP).then(|| transport.get(TCP_FLAGS_AT).copied()).flatten();
        Some(Self { source, destination, protocol, ports, icmp, tcp_flags })
    }

    /// `tcp`, or the number of a protocol.
    pub fn protocol_name(&self) -> String {
        match self.protocol {
            TCP => "tcp".into(),
            UDP => "udp".into(),
            SCTP => "sctp".into(),
            ICMP | ICMP_V6 => "icmp".into(),
            number => number.to_string(),
        }
    }

    /// `tcp 40000 -> 80 SYN`
    pub fn what(&self) -> String {
        let ports = self.ports.map(|(from, to)| format!(" {from} -> {to}")).unwrap_or_default();
        let icmp = self.icmp.map(|(kind, code)| format!(" {kind}/{code}")).unwrap_or_default();
        let set: Vec<&str> = self.tcp_flags().collect();
        let flags = if set.is_empty() { String::new() } else { format!(" {}", set.join(",")) };
        format!("{}{ports}{icmp}{flags}", self.protocol_name())
    }

    fn tcp_flags(&self) -> impl Iterator<Item = &'static str> {
        let flags = self.tcp_flags.unwrap_or(0);
        TCP_FLAGS.into_iter().filter(move |(bit, _)| flags & bit != 0).map(|(_, name)| name)
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn ipv4(source: [u8; 4], destination: [u8; 4], protocol: u8) -> Vec<u8> {
        let mut header = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0];
        header.extend(source);
        header.extend(destination);
        header
    }

    #[test]
    fn a_packet_is_named_by_protocol_ports_and_flags() {
        let network = ipv4([10, 0, 0, 1], [10, 0, 0, 2], 6);
        let mut transport = vec![0x9c, 0x40, 0, 80];
        transport.extend([0; 9]);
        transport.push(0x12);
        let header = Header::read(&network, &transport).unwrap();
        assert_eq!(header.what(), "tcp 40000 -> 80 SYN,ACK");
        assert_eq!(header.destination, "10.0.0.2".parse::<IpAddr>().unwrap());
        // A later fragment has no transport header.
        assert_eq!(Header::read(&network, &[]).unwrap().what(), "tcp");
        let mut network = vec![0x60, 0, 0, 0, 0, 8, 58, 64];
        network.extend([0xfd; 32]);
        assert_eq!(Header::read(&network, &[128, 0, 1]).unwrap().what(), "icmp 128/0");
    }

    #[test]
    fn what_is_cut_is_no_packet() {
        let network = ipv4([10, 0, 0, 1], [10, 0, 0, 2], 17);
        assert!((0..20).all(|len| Header::read(&network[..len], &[]).is_none()));
        assert!((0..4).all(|len| Header::read(&network, &vec![1; len]).unwrap().ports.is_none()));
        assert_eq!(Header::read(&[0x10; 40], &[]), None);
    }
}
