use super::*;

fn logged(prefix: &str, bytes: &[u8]) -> LoggedPacket {
    LoggedPacket { prefix: prefix.to_owned(), bytes: bytes.to_vec(), ..LoggedPacket::default() }
}

/// A packet of TCP from 10.1.0.2:4000 to 10.1.0.3:80, with options in both headers.
fn v4(protocol: u8) -> Vec<u8> {
    let mut packet =
        vec![0x46, 0, 0, 44, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 1, 0, 2, 10, 1, 0, 3, 1, 1, 1, 0];
    packet.extend([0x0f, 0xa0, 0, 80]);
    packet
}

/// The same of IPv6, behind options for each router and a routing header.
fn v6(protocol: u8) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 20, 0, 64];
    packet.extend("fd00::2".parse::<Ipv6Addr>().unwrap().octets());
    packet.extend("fd00::3".parse::<Ipv6Addr>().unwrap().octets());
    packet.extend([43, 0, 1, 4, 0, 0, 0, 0]);
    packet.extend([protocol, 1, 0, 0, 0, 0, 0, 0]);
    packet.extend([0; 8]);
    packet.extend([0x0f, 0xa0, 0, 80]);
    packet
}

fn flow(source: &str, destination: &str, protocol: Protocol, ports: (u16, u16)) -> Flow {
    Flow {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol,
        source_port: ports.0,
        destination_port: ports.1,
    }
}

#[test]
fn a_packet_is_the_first_of_its_flow() {
    let request = flow("10.1.0.2", "10.1.0.3", Protocol::TCP, (4000, 80));
    let read = LoggedFlow::read(&logged("russet|D|in", &v4(6))).unwrap();
    assert_eq!(read, LoggedFlow { direction: Direction::Ingress, allowed: false, flow: request, host: None });
    assert_eq!(read.local(), request.destination);
    let read = LoggedFlow::read(&logged("russet|A|out", &v6(17))).unwrap();
    let request = flow("fd00::2", "fd00::3", Protocol::UDP, (4000, 80));
    assert_eq!(read, LoggedFlow { direction: Direction::Egress, allowed: true, flow: request, host: None });
    assert_eq!(read.local(), request.source);
    // A reply is that of the request that it answers.
    let read = LoggedFlow::read(&logged("russet|D|out|reply", &v4(6))).unwrap();
    assert_eq!(read.flow, flow("10.1.0.3", "10.1.0.2", Protocol::TCP, (80, 4000)));
    // Type and code of ICMP, and protocols without ports.
    for (protocol, port) in [(1, 0x0fa0), (58, 0x0fa0), (47, 0)] {
        let read = LoggedFlow::read(&logged("russet|D|in", &v4(protocol))).unwrap();
        assert_eq!(read.flow, flow("10.1.0.2", "10.1.0.3", Protocol(protocol), (0, port)));
    }
}

#[test]
fn a_packet_at_an_interface_of_the_node_is_at_the_entrances_of_its_hook() {
    let at = |hook, interfaces: [Option<u32>; 2]| {
        let [in_index, out_index] = interfaces;
        let packet = LoggedPacket { hook, in_index, out_index, ..logged("russet|D|host", &v4(6)) };
        let flow = LoggedFlow::read(&packet).unwrap();
        assert!(!flow.allowed);
        (flow.direction, flow.host.unwrap())
    };
    let (comes, goes) = (Direction::Ingress, Direction::Egress);
    assert_eq!(at(Some(0), [Some(7), None]), (comes, vec![(Entrance::RawIn, 7), (Entrance::PreDnat, 7)]));
    assert_eq!(at(Some(1), [Some(7), None]), (comes, vec![(Entrance::Input, 7)]));
    let both = vec![(Entrance::ForwardIn, 7), (Entrance::ForwardOut, 8)];
    assert_eq!(at(Some(2), [Some(7), Some(8)]), (comes, both));
    assert_eq!(at(Some(3), [None, Some(8)]), (goes, vec![(Entrance::RawOut, 8)]));
    assert_eq!(at(Some(4), [None, Some(8)]), (goes, vec![(Entrance::Output, 8)]));
    // What the kernel does not say leaves nothing to ask about.
    for (hook, interfaces) in
        [(None, [Some(7), Some(8)]), (Some(9), [Some(7), None]), (Some(1), [None, Some(8)])]
    {
        assert_eq!(at(hook, interfaces).1, []);
    }
    assert!(LoggedFlow::read(&logged("russet|A|host", &v4(6))).unwrap().allowed);
}

#[test]
fn what_is_none_of_ours_is_not_read() {
    for prefix in ["", "russet", "russet|X|in", "russet|D|in ", "ulogd", "russet|D|\u{1b}"] {
        assert_eq!(LoggedFlow::read(&logged(prefix, &v4(6))), None, "{prefix:?}");
    }
    for packet in [&b""[..], &[0x44; 60], &[0x16; 60], &[0xff; 96]] {
        assert_eq!(LoggedFlow::read(&logged("russet|D|in", packet)), None, "{packet:?}");
    }
}

/// Every truncation of packets with every value of every byte that is a length or a protocol.
#[test]
fn hostile_packets_are_read_without_a_panic() {
    for packet in [v4(6), v6(6)] {
        for len in 0..=packet.len() {
            let cut = LoggedFlow::read(&logged("russet|D|in", &packet[..len]));
            let addresses = if packet[0] == 0x46 { 20 } else { 40 };
            assert_eq!(cut.is_some(), len >= addresses, "{len} bytes");
        }
        for at in 0..packet.len() {
            for value in 0..=u8::MAX {
                let mut changed = packet.clone();
                changed[at] = value;
                for len in [changed.len(), 41.min(changed.len()), 24] {
                    let _ = LoggedFlow::read(&logged(
                        ["russet|D|in", "russet|D|in|reply"][usize::from(value) % 2],
                        &changed[..len],
                    ));
                }
            }
        }
    }
    // A chain of headers without end, each of which leads to the next one.
    let mut endless = v6(0);
    endless.truncate(40);
    endless.extend([0; 56]);
    let read = LoggedFlow::read(&logged("russet|D|in", &endless)).unwrap();
    assert_eq!((read.flow.protocol, read.flow.destination_port), (Protocol(0), 0));
}
