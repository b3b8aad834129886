//! Datagrams that no peer sent: a sender that reaches the port chooses the inner source (policy.md section 3.6).

use std::net::UdpSocket;
use std::time::Duration;

use russet_flanneld::udp::{Count, Options, PORT};
use russet_testkit::{bound, eventually, frame, sh};

use crate::lab::{Node, lease, node, with_nodes};

#[test]
#[ignore = "kernel: tun, network namespaces, root"]
fn a_datagram_from_an_address_that_no_peer_has_is_dropped_and_counted() {
    for options in [Node::options, Node::fast_options] {
        with_nodes(|nodes| is_dropped(&nodes, options(&nodes[0])));
    }
}

fn is_dropped(nodes: &[Node; 2], options: Options) {
    let proxy = nodes[0].start(options);
    let receiver = nodes[0].pod.with(|| bound(|| UdpSocket::bind("10.1.1.2:7002"))).unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    // The other node, and an address of it that no lease names.
    sh("ip -n h2 addr add 192.168.77.66/24 dev w0");
    let bind =
        |address: &'static str| nodes[1].host.with(move || UdpSocket::bind((address, 0)).unwrap()).unwrap();
    let (attacker, peer) = (bind("192.168.77.66"), bind("192.168.77.2"));
    let packet =
        |payload: u8| frame::udp_packet([10, 1, 2, 2].into(), [10, 1, 1, 2].into(), 7002, &[payload]);
    let first = || {
        let mut byte = [0; 1];
        eventually(Duration::from_secs(20), || {
            attacker.send_to(&packet(1), ("192.168.77.1", PORT)).unwrap();
            peer.send_to(&packet(2), ("192.168.77.1", PORT)).unwrap();
            receiver.recv_from(&mut byte).is_ok()
        });
        while receiver.recv_from(&mut [0]).is_ok() {}
        byte[0]
    };
    for _ in 0..10 {
        assert_eq!(first(), 2);
    }
    assert!(proxy.count(Count::Foreign) >= 10);
    // From the next lease on it is a peer.
    proxy.put(lease(6), node(66));
    assert_eq!(first(), 1);
    proxy.remove(lease(6));
    assert_eq!(first(), 2);
}
