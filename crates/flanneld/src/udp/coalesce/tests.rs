//! Tests of coalescing against segmentation.

use proptest::prelude::*;

use super::super::samples::{self, Tcp, is_intact};
use super::super::segment::LargePacket;
use super::*;

/// Collects what a kernel would get: each write, segmented according to its virtio header.
#[derive(Default)]
struct Kernel {
    writes: Vec<Vec<Vec<u8>>>,
    refuses_joined: bool,
}

impl Sink for Kernel {
    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        let (header, packet) = bytes.split_first_chunk::<VIRTIO_HEADER_BYTES>().unwrap();
        let virtio = VirtioHeader::decode(header);
        if virtio == VirtioHeader::default() {
            self.writes.push(vec![packet.to_vec()]);
            return Ok(());
        }
        if self.refuses_joined {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let ip = Ipv4::parse(packet).unwrap();
        assert_eq!(ip.total_bytes, packet.len());
        let large = LargePacket::new(packet, ip, &virtio).unwrap();
        let segment = |number| {
            let mut header = Vec::new();
            let payload = large.segment(number, &mut header);
            header.extend(&packet[payload]);
            header
        };
        self.writes.push((0..large.count()).map(segment).collect());
        Ok(())
    }
}

fn both() -> Kinds {
    Kinds::new(true, true)
}

fn merge_into(kernel: &mut Kernel, packets: &[Vec<u8>]) -> Kinds {
    merge_as(both(), kernel, packets)
}

fn merge_as(allowed: Kinds, kernel: &mut Kernel, packets: &[Vec<u8>]) -> Kinds {
    let mut coalescer = Coalescer::new(allowed);
    for packet in packets {
        coalescer.push(packet, Ipv4::parse(packet).unwrap(), kernel).unwrap();
    }
    coalescer.flush(kernel).unwrap();
    coalescer.allowed()
}

/// The number of packets in each write; also checks that segmentation restores the input.
fn coalesce(packets: &[Vec<u8>]) -> Vec<usize> {
    let mut kernel = Kernel::default();
    assert_eq!(merge_into(&mut kernel, packets), both());
    assert_eq!(kernel.writes.concat(), packets);
    kernel.writes.iter().map(Vec::len).collect()
}

/// `count` segments of one flow, 100 bytes each.
fn stream(count: u16) -> Vec<Tcp> {
    let segment =
        |n: u16| Tcp { id: 7 + n, sequence: 1000 + u32::from(n) * 100, ..Tcp::new(&[n as u8; 100]) };
    (0..count).map(segment).collect()
}

fn packets(segments: &[Tcp]) -> Vec<Vec<u8>> {
    segments.iter().map(Tcp::packet).collect()
}

#[test]
fn the_segments_of_a_stream_are_coalesced() {
    assert_eq!(coalesce(&packets(&stream(40))), [40]);
}

#[test]
fn a_push_and_a_short_segment_end_a_run() {
    let mut segments = stream(6);
    segments[2].flags |= samples::PSH;
    assert_eq!(coalesce(&packets(&segments)), [3, 3]);
    let mut segments = stream(6);
    segments[2].payload.truncate(60);
    assert_eq!(coalesce(&packets(&segments)), [3, 3]);
}

#[test]
fn packets_of_different_flows_are_not_coalesced() {
    let changes: [fn(&mut Tcp); 8] = [
        |segment| segment.sequence += 1,
        |segment| segment.acknowledged += 1,
        |segment| segment.window += 1,
        |segment| segment.options[4] += 1,
        |segment| segment.options = vec![1, 1, 1, 1],
        |segment| segment.flags |= 0x01,
        |segment| segment.flags |= 0x80,
        |segment| segment.payload.push(0),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut segments = stream(2);
        change(&mut segments[1]);
        assert_eq!(coalesce(&packets(&segments)), [1, 1], "change {number}");
    }
}

#[test]
fn segments_with_different_headers_are_not_coalesced() {
    for (at, value) in [(1, 1), (8, 63), (15, 9), (20, 1), (22, 1)] {
        let mut packets = packets(&stream(2));
        packets[1][at] = value;
        assert_eq!(coalesce(&packets), [1, 1], "byte {at}");
    }
}

#[test]
fn a_damaged_packet_is_written_alone_and_unchanged() {
    for damaged in [0, 1, 2] {
        let mut packets = packets(&stream(4));
        packets[damaged][80] ^= 1;
        let runs = coalesce(&packets);
        assert_eq!(runs.iter().sum::<usize>(), 4);
        assert!(runs.len() > 1, "{damaged}: {runs:?}");
    }
}

#[test]
fn at_most_64_udp_datagrams_are_coalesced() {
    let datagrams: Vec<_> = (0..130).map(|n| samples::udp_with_id(n, &[n as u8; 100])).collect();
    assert_eq!(coalesce(&datagrams), [64, 64, 2]);
}

#[test]
fn a_datagram_without_checksum_stays_alone() {
    let mut datagrams: Vec<_> = (0..2).map(|n| samples::udp_with_id(n, &[1; 100])).collect();
    datagrams.iter_mut().for_each(|datagram| datagram[26..28].fill(0));
    assert_eq!(coalesce(&datagrams), [1, 1]);
}

#[test]
fn no_run_is_longer_than_an_ip_packet() {
    let segment = |n: u16| Tcp { id: n, sequence: u32::from(n) * 1420, ..Tcp::new(&[1; 1420]) };
    let packets: Vec<_> = (0..100).map(|n| segment(n).packet()).collect();
    assert_eq!(coalesce(&packets), [46, 46, 8]);
}

#[test]
fn a_kernel_that_refuses_coalesced_packets_gets_single_ones_from_then_on() {
    let mut kernel = Kernel { refuses_joined: true, ..Kernel::default() };
    let packets = packets(&stream(4));
    let mut allowed = both();
    for _ in 0..REFUSALS {
        assert!(allowed.tcp.is_left());
        kernel.writes.clear();
        allowed = merge_as(allowed, &mut kernel, &packets);
        assert_eq!(kernel.writes.concat(), packets);
    }
    assert_eq!(allowed, Kinds::new(false, true));
}

#[test]
fn a_single_refusal_between_accepted_packets_has_no_effect() {
    let packets = packets(&stream(4));
    let mut allowed = both();
    for refuses_joined in [true, false].repeat(usize::from(REFUSALS)) {
        allowed = merge_as(allowed, &mut Kernel { refuses_joined, ..Kernel::default() }, &packets);
    }
    assert_eq!(allowed, both());
}

#[test]
fn without_the_flag_that_forbids_fragments_ids_must_be_consecutive() {
    let mut packets = packets(&stream(3));
    packets.iter_mut().for_each(|packet| {
        packet[6] = 0;
        set_header_checksum(&mut packet[..20]);
    });
    assert_eq!(coalesce(&packets), [3]);
    packets[1][5] += 9;
    set_header_checksum(&mut packets[1][..20]);
    assert_eq!(coalesce(&packets), [1, 1, 1]);
}

#[test]
fn a_tcp_checksum_of_zero_is_valid() {
    let segment =
        |n: u16, payload: &[u8]| Tcp { id: n, sequence: 100 * u32::from(n), ..Tcp::new(payload) }.packet();
    let mut payload = [3; 100];
    payload[98..].fill(0);
    let before = segment(1, &payload);
    // The word that completes the sum to all ones.
    payload[98..].copy_from_slice(&before[36..38]);
    let packets = [segment(0, &[3; 100]), segment(1, &payload), segment(2, &[3; 100])];
    assert_eq!(packets[1][36..38], [0, 0]);
    let mut kernel = Kernel::default();
    merge_into(&mut kernel, &packets);
    assert_eq!(kernel.writes.concat(), packets);
    assert_eq!(kernel.writes.len(), 1);
}

/// The next packet of a flow, or one that interrupts the flow.
#[derive(Debug, Clone)]
enum Step {
    Next(usize, bool),
    Skip,
    Datagram(usize),
    Noise(Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (prop_oneof![4 => Just(100usize), 1 => 0usize..120], prop::bool::weighted(0.1)).prop_map(|(n, push)| Step::Next(n, push)),
        1 => Just(Step::Skip),
        4 => prop_oneof![4 => Just(80usize), 1 => 0usize..120].prop_map(Step::Datagram),
        1 => prop::collection::vec(any::<u8>(), 0..60).prop_map(Step::Noise),
    ]
}

proptest! {
    #[test]
    fn segmenting_coalesced_packets_restores_them(steps in prop::collection::vec(step(), 0..60)) {
        let (mut sequence, mut id) = (u32::MAX - 300, u16::MAX - 3);
        let mut came = Vec::new();
        for step in steps {
            match step {
                Step::Next(bytes, push) => {
                    let flags = samples::ACK | if push { samples::PSH } else { 0 };
                    came.push(Tcp { id, sequence, flags, ..Tcp::new(&vec![id as u8; bytes]) }.packet());
                    sequence = sequence.wrapping_add(bytes as u32);
                    id = id.wrapping_add(1);
                }
                Step::Skip => sequence = sequence.wrapping_add(10),
                Step::Datagram(bytes) => {
                    came.push(samples::udp_with_id(id, &vec![3; bytes]));
                    id = id.wrapping_add(1);
                }
                Step::Noise(bytes) => came.push(samples::ip(bytes.len() as u8, 1, &bytes)),
            }
        }
        let mut kernel = Kernel::default();
        merge_into(&mut kernel, &came);
        // IDs of unfragmentable packets have no meaning (RFC 6864) and need not survive.
        let without_id = |packet: &Vec<u8>| [&packet[..4], &packet[6..10], &packet[12..]].concat();
        let left: Vec<_> = kernel.writes.concat().iter().map(without_id).collect();
        prop_assert_eq!(left, came.iter().map(without_id).collect::<Vec<_>>());
        prop_assert!(kernel.writes.iter().filter(|write| write.len() > 1).flatten().all(|packet| is_intact(packet)));
    }

    #[test]
    fn arbitrary_packets_cause_no_panic(all in prop::collection::vec(prop::collection::vec(any::<u8>(), 20..120), 0..8)) {
        let mut kernel = Kernel::default();
        let mut coalescer = Coalescer::new(both());
        let plausible: Vec<Vec<u8>> = all.into_iter().map(|mut packet| {
            let total = packet.len() as u16;
            packet[0] = 0x45;
            put_u16(&mut packet, 2, total);
            put_u16(&mut packet, 6, 0x4000);
            packet[9] = if packet[9] & 1 == 0 { TCP } else { UDP };
            packet
        }).collect();
        for packet in &plausible {
            coalescer.push(packet, Ipv4::parse(packet).unwrap(), &mut kernel).unwrap();
        }
        coalescer.flush(&mut kernel).unwrap();
        prop_assert_eq!(kernel.writes.concat(), plausible);
    }
}
