//! The rows of flannel.md section 10 about the udp backend.

use std::net::UdpSocket;
use std::time::Duration;

use russet_flanneld::udp::{Count, Options};
use russet_testkit::{bound, eventually};

use crate::lab::{Node, with_nodes};

const DEADLINE: Duration = Duration::from_secs(10);
const UDP: u8 = 17;
const ICMP: u8 = 1;

fn u16_at(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

/// flannel.md section 6.1 and section 11 experiment 22.
#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn t39_a_reply_to_ttl_64_has_60_and_the_datagram_is_the_inner_packet_between_ports_8285() {
    with_nodes(|[one, two]| {
        let _proxies = [one.start(one.options()), two.start(two.options())];
        let capture = two.capture();
        let (answered, said) = one.ping("-t 64", "10.1.2.2");
        assert!(answered && said.contains("ttl=60"), "{said}");
        let outer = capture.next(|packet| packet[9] == UDP);
        let (header, payload) = outer.split_at(28);
        assert_eq!(header[12..20], [192, 168, 77, 1, 192, 168, 77, 2]);
        assert_eq!(u16_at(header, 6), 0x4000, "DF");
        assert_eq!((u16_at(header, 20), u16_at(header, 22)), (8285, 8285));
        assert_ne!(u16_at(header, 26), 0, "a UDP checksum");
        assert_eq!(payload.len(), 84, "20 + 8 + 56 bytes of ping");
        assert_eq!(payload[..4], [0x45, 0, 0, 84]);
        assert_eq!((payload[8], payload[9]), (62, ICMP));
        assert_eq!(payload[12..20], [10, 1, 1, 2, 10, 1, 2, 2]);
    });
}

/// flannel.md section 6.1: the budget from pod to pod.
#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn t40_ttl_5_is_delivered_4_is_exceeded_at_the_remote_lease_base_and_3_and_2_are_silent() {
    for options in [Node::options, Node::fast_options] {
        with_nodes(|nodes| keeps_the_budget(nodes, options));
    }
}

fn keeps_the_budget([one, two]: [Node; 2], options: fn(&Node) -> Options) {
    let proxies = [one.start(options(&one)), two.start(options(&two))];
    let (delivered, said) = one.ping("-t 5", "10.1.2.2");
    assert!(delivered, "{said}");
    let (_, said) = one.ping("-t 4", "10.1.2.2");
    assert!(said.contains("From 10.1.2.0 ") && said.contains("Time to live exceeded"), "{said}");
    let expired = |number: usize| proxies[number].count(Count::Expired);
    assert_eq!((expired(0), expired(1)), (0, 0));
    for (ttl, at) in [(3, 1), (2, 0)] {
        let before = expired(at);
        let (_, said) = one.ping(&format!("-W 1 -t {ttl}"), "10.1.2.2");
        assert!(!said.contains("From "), "ttl {ttl}: {said}");
        eventually(DEADLINE, || expired(at) > before);
        assert_eq!(expired(at), before + 1, "ttl {ttl}");
    }
    let (_, said) = one.ping("-t 1", "10.1.2.2");
    assert!(said.contains("From 10.1.1.1 ") && said.contains("Time to live exceeded"), "{said}");
}

/// flannel.md section 6.1.
#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn t41_a_datagram_for_a_subnet_without_peer_is_answered_with_net_unreachable_and_an_echo_is_not() {
    for options in [Node::options, Node::fast_options] {
        with_nodes(|nodes| answers(nodes, options));
    }
}

fn answers([one, two]: [Node; 2], options: fn(&Node) -> Options) {
    let proxies = [one.start(options(&one)), two.start(options(&two))];
    let capture = one.capture();
    let sender = one.pod.with(|| bound(|| UdpSocket::bind("10.1.1.2:4000"))).unwrap();
    sender.send_to(b"a payload of more than eight bytes", "10.1.99.1:4001").unwrap();
    // The proxy's packets arrive from flannel0.
    let answer = capture.next(|packet| packet[9] == ICMP);
    assert_eq!(answer.len(), 56);
    assert_eq!(answer[..10], [0x45, 0, 0, 56, 0, 0, 0, 0, 8, ICMP]);
    assert_eq!(answer[12..20], [10, 1, 1, 0, 10, 1, 1, 2]);
    assert_eq!(answer[20..22], [3, 0], "net unreachable");
    assert_eq!(answer[40..48], [10, 1, 1, 2, 10, 1, 99, 1], "the offender");
    assert_eq!((u16_at(&answer, 48), u16_at(&answer, 50)), (4000, 4001));

    let (answered, said) = one.ping("-W 1", "10.1.99.1");
    assert!(!answered && !said.contains("From "), "{said}");
    eventually(DEADLINE, || proxies[0].count(Count::NoPeer) > 1);
    assert_eq!(proxies[0].count(Count::NoPeer), 2);
}

/// flannel.md section 6.1: the peer's port is assumed to be our own.
#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn t42_port_7890_on_both_works_and_peers_with_different_ports_do_not_talk() {
    with_nodes(|[one, two]| {
        let at = |port, options: Options| Options { port, ..options };
        let first = one.start(at(7890, one.options()));
        let second = two.start(at(7890, two.options()));
        let (answered, said) = one.ping("", "10.1.2.2");
        assert!(answered, "{said}");
        drop(second);
        let second = two.start(two.options());
        let (answered, said) = one.ping("-W 1", "10.1.2.2");
        assert!(!answered, "{said}");
        eventually(DEADLINE, || first.count(Count::Sent) > 1);
        assert_eq!((first.count(Count::Sent), second.count(Count::Received)), (2, 0));
    });
}
