//! The fast path: programs carry what is plain, between nodes that both have it; the threads carry the rest.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use russet_flanneld::udp::{Count, FastPath, Proxy, Via};
use russet_linux::bpf::{Program, ProgramLink, attached};
use russet_netlink::Direction;
use russet_testkit::{eventually, require_tool, sh};

use crate::lab::{Node, lease, link, node, with_nodes};
use crate::plain::{object, sum};
use crate::transfer::{tcp, tcp_by, udp_segments};

const DEADLINE: Duration = Duration::from_secs(10);
const MEGABYTES: usize = 1 << 20;
const UDP: u8 = 17;
/// `r0 = TC_ACT_UNSPEC; exit`.
const NOTHING: [u64; 2] = [0xffff_ffff_0000_00b7, 0x95];
/// The wires of dataplane.md section 2.1: one on which a packet crosses whole, W1, one whose ends segment and join, W2, and
/// one whose cards cannot compute checksums either.
const WIRES: [&str; 3] = [
    "",
    "tx-tcp-segmentation off tx-udp-segmentation off tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off gro on",
    "tso off gso off tx-udp-segmentation off tx off gro off",
];

/// A node's backend with the fast path.
struct Fast {
    proxy: Proxy,
    fast_path: Arc<FastPath>,
}

// === impl Fast ===

impl Fast {
    #[track_caller]
    fn start(node: &Node) -> Self {
        let options = node.fast_options();
        let fast_path = options.fast_path.clone().unwrap();
        let proxy = node.start(options);
        assert_eq!(fast_path.failure(), None);
        assert!(fast_path.carries());
        Self { proxy, fast_path }
    }

    /// Packets that the programs have sent and received.
    fn carried(&self) -> [u64; 2] {
        self.fast_path.carried().unwrap().map(|carried| carried.packets)
    }

    /// Packets that the threads have sent and received.
    fn forwarded(&self) -> [u64; 2] {
        [Count::Sent, Count::Received].map(|what| self.proxy.count(what))
    }

    /// What the daemon does when something may have changed.
    fn repair(&self, node: &Node) -> bool {
        node.host.with(|| self.proxy.repair_fast_path()).unwrap()
    }

    fn is_disturbed(&self, node: &Node) -> bool {
        node.host.with(|| self.proxy.is_fast_path_disturbed()).unwrap()
    }
}

/// The programs carry packets between the two from now on.
#[track_caller]
fn both(nodes: &[Node; 2]) -> [Fast; 2] {
    let fast = [Fast::start(&nodes[0]), Fast::start(&nodes[1])];
    // The threads carry packets until MACs are known, and count one after it is sent.
    nodes[0].know_the_way("10.1.2.2");
    eventually(DEADLINE, || fast.iter().all(|fast| fast.forwarded()[0] > 0 || fast.carried()[0] > 0));
    fast
}

fn is_sent_by_the_first(packet: &[u8]) -> bool {
    packet.len() > 28 && packet[0] == 0x45 && packet[9] == UDP && packet[12..16] == [192, 168, 77, 1]
}

fn set_wires(settings: &str) {
    for host in ["h1", "h2"].iter().filter(|_| !settings.is_empty()) {
        sh(&format!("ip netns exec {host} ethtool -K w0 {settings}"));
    }
}

/// flannel.md section 6.1 and section 11 experiment 22.
#[test]
#[ignore = "kernel: TUN devices, TCX and namespaces need root"]
fn t39_on_the_fast_path_a_reply_to_ttl_64_has_60_and_the_datagram_is_the_inner_packet_between_ports_8285() {
    with_nodes(|nodes| {
        let fast = both(&nodes);
        let (forwarded, carried) = (fast[0].forwarded(), fast[0].carried());
        let capture = nodes[1].capture_all();
        let (answered, said) = nodes[0].ping("-t 64", "10.1.2.2");
        assert!(answered && said.contains("ttl=60"), "{said}");
        let outer = capture.next(is_sent_by_the_first);
        let (header, payload) = outer.split_at(28);
        assert_eq!((header[0], header[1], header[8]), (0x45, 0, 64));
        assert_eq!(header[2..4], 112_u16.to_be_bytes());
        assert_eq!(header[6..8], 0x4000_u16.to_be_bytes(), "DF");
        assert_eq!(header[12..20], [192, 168, 77, 1, 192, 168, 77, 2]);
        assert_eq!(header[20..24], [8285_u16.to_be_bytes(); 2].concat());
        assert_eq!(header[24..28], [0, 92, 0, 0], "without a UDP checksum");
        assert_eq!((payload.len(), payload[8]), (84, 62));
        assert_eq!((sum(&header[..20]), object(payload)), (0xffff, None));
        assert_eq!(fast[0].forwarded(), forwarded, "no packet took the way through the threads");
        assert_eq!(fast[0].carried(), carried.map(|packets| packets + 1));
    });
}

/// dataplane.md sections 2.6 and 5, on each wire of its method: datagrams that are still to be segmented are left to the
/// threads, and a stream is not.
#[test]
#[ignore = "kernel: TUN devices, TCX and namespaces need root; tool: ethtool"]
fn streams_and_all_2000_datagrams_of_a_pod_arrive_over_every_wire() {
    require_tool("ethtool");
    for wire in WIRES {
        with_nodes(|nodes| {
            set_wires(wire);
            let fast = both(&nodes);
            let [one, two] = &nodes;
            assert_eq!(udp_segments(&one.pod, &two.pod, [10, 1, 2, 2].into(), 50, 40, 1200), 2000, "{wire}");
            let forwarded = fast[0].forwarded();
            tcp(&one.pod, &two.pod, [10, 1, 2, 2].into(), 16 * MEGABYTES);
            tcp(&two.pod, &one.pod, [10, 1, 1, 2].into(), 16 * MEGABYTES);
            // An entry of a neighbour may become old meanwhile.
            let through = fast[0].forwarded()[0] - forwarded[0];
            assert!(through < 100, "{wire}: {through} packets took the way through the threads");
            assert!(
                fast[0].carried().iter().all(|packets| *packets > 200),
                "{wire}: {:?}",
                fast[0].carried()
            );
        });
    }
}

/// dataplane.md section 2.6: where the cards compute no checksums, the kernel has finished them.
#[test]
#[ignore = "kernel: TUN devices, TCX and namespaces need root; tool: ethtool"]
fn on_a_wire_without_checksum_offload_every_inner_packet_has_its_checksums() {
    require_tool("ethtool");
    with_nodes(|nodes| {
        set_wires(WIRES[2]);
        let _fast = both(&nodes);
        let capture = nodes[1].capture_all();
        tcp(&nodes[0].pod, &nodes[1].pod, [10, 1, 2, 2].into(), MEGABYTES);
        for number in 0..50 {
            let outer = capture.next(is_sent_by_the_first);
            assert_eq!((sum(&outer[..20]), object(&outer[28..])), (0xffff, None), "packet {number}");
        }
    });
}

/// A pod whose host end computes checksums itself sees whether the kernel knows where they are.
#[test]
#[ignore = "kernel: TUN devices, TCX and namespaces need root; tool: ethtool"]
fn datagrams_of_a_nodes_threads_arrive_at_pods_without_checksum_offload() {
    require_tool("ethtool");
    with_nodes(|nodes| {
        let [one, two] = &nodes;
        sh("ip netns exec h1 ethtool -K pod0 tx off");
        let fast = Fast::start(one);
        fast.proxy.put(lease(2), node(2));
        let other = two.start(two.options());
        one.know_the_way("10.1.2.2");
        let before = fast.carried();
        tcp(&two.pod, &one.pod, [10, 1, 1, 2].into(), 4 * MEGABYTES);
        tcp(&one.pod, &two.pod, [10, 1, 2, 2].into(), 4 * MEGABYTES);
        assert_eq!(udp_segments(&two.pod, &one.pod, [10, 1, 1, 2].into(), 50, 1, 700), 50);
        assert_eq!(fast.carried()[0], before[0], "the other node does not take packets out of datagrams");
        assert!(fast.carried()[1] > before[1] + 50 && other.count(Count::Sent) > 50);
    });
}

/// The messages to a sender, and fragments, are the same with and without.
#[test]
#[ignore = "kernel: TUN devices, TCX and namespaces need root"]
fn packets_that_are_too_large_cause_the_same_messages_with_the_fast_path() {
    for is_fast in [false, true] {
        with_nodes(|nodes| {
            let start = |node: &Node| node.start(if is_fast { node.fast_options() } else { node.options() });
            let proxies = nodes.each_ref().map(start);
            let [one, _] = &nodes;
            sh("ip -n h1 link set pod0 mtu 1500");
            sh("ip -n p1 link set eth0 mtu 1500");
            one.know_the_way("10.1.2.2");
            assert!(one.ping("-s 1444 -M do", "10.1.2.2").0);
            assert!(one.ping("-s 4000", "10.1.2.2").0, "fragments");
            let (answered, said) = one.ping("-W 1 -s 1445 -M do", "10.1.2.2");
            let says_so = said.contains("From 10.1.1.1 ") && said.contains("(mtu = 1472)");
            assert!(!answered && says_so, "{said}");
            // A path between the nodes that is narrower than the device says.
            sh("ip -n h1 route add 192.168.77.2/32 dev w0 mtu lock 1400");
            let unsent = proxies[0].count(Count::Unsent);
            let (answered, said) = one.ping("-W 1 -s 1444", "10.1.2.2");
            assert!(!answered, "fast path: {is_fast}: {said}");
            eventually(DEADLINE, || proxies[0].count(Count::Unsent) > unsent);
            assert!(one.ping("-s 1000", "10.1.2.2").0);
        });
    }
}

#[test]
#[ignore = "kernel: TUN devices, TCX and namespaces need root"]
fn a_lease_that_is_gone_gets_nothing_and_the_narrowest_prefix_decides_who_sends() {
    with_nodes(|nodes| {
        let fast = both(&nodes);
        let [one, _] = &nodes;
        let decapsulates = |number| Via { decapsulates: true, ..node(number) };
        let is_sent = |carried, forwarded| {
            eventually(DEADLINE, || (fast[0].carried()[0], fast[0].forwarded()[0]) == (carried, forwarded));
        };
        let (carried, forwarded) = (fast[0].carried()[0], fast[0].forwarded()[0]);
        fast[0].proxy.remove(lease(2));
        assert!(!one.ping("-W 1", "10.1.2.2").0);
        is_sent(carried, forwarded);
        // The wide prefix is of a node that does not exist.
        fast[0]
            .proxy
            .reset(&[("10.1.0.0/16".parse().unwrap(), decapsulates(99)), (lease(2), decapsulates(2))]);
        assert!(one.ping("", "10.1.2.2").0);
        is_sent(carried + 1, forwarded);
        // The threads send to a node that only they understand.
        fast[0].proxy.put(lease(2), node(2));
        assert!(one.ping("", "10.1.2.2").0);
        is_sent(carried + 1, forwarded + 1);
        fast[0].proxy.put(lease(2), decapsulates(2));
        assert!(one.ping("", "10.1.2.2").0);
        is_sent(carried + 2, forwarded + 1);
    });
}

#[test]
#[ignore = "kernel: TUN devices, TCX and namespaces need root"]
fn no_packet_is_lost_while_the_mac_of_the_next_hop_is_unknown() {
    with_nodes(|nodes| {
        let fast = both(&nodes);
        for _ in 0..3 {
            let forwarded = fast[0].forwarded();
            sh("ip -n h1 neigh flush dev w0");
            assert!(nodes[0].ping("", "10.1.2.2").0);
            eventually(DEADLINE, || fast[0].forwarded()[0] == forwarded[0] + 1);
        }
        // Behind a gateway, too: the outer header has the node's address, and the frame the gateway's MAC.
        sh("ip -n h1 route add 192.168.78.0/24 via 192.168.77.2");
        let behind = Via { address: [192, 168, 78, 5].into(), decapsulates: true };
        fast[0].proxy.put("10.1.9.0/24".parse().unwrap(), behind);
        let (capture, carried) = (nodes[1].capture_all(), fast[0].carried());
        assert!(!nodes[0].ping("-W 1", "10.1.9.2").0);
        let outer =
            capture.next(|packet| is_sent_by_the_first(packet) && packet[16..20] == [192, 168, 78, 5]);
        assert_eq!(outer[28 + 16..28 + 20], [10, 1, 9, 2]);
        assert_eq!(fast[0].carried()[0], carried[0] + 1);
    });
}

/// As with a Service whose only pod is on the sender's node. Such packets may still have marks of the tunnel they were in.
#[test]
#[ignore = "kernel: TUN devices, TCX and namespaces need root; tool: nft, ethtool"]
fn packets_that_go_back_into_the_tunnel_arrive() {
    require_tool("ethtool");
    for wire in WIRES {
        with_nodes(|nodes| {
            set_wires(wire);
            let fast = both(&nodes);
            let nft = |rule: &str| sh(&format!("ip netns exec h2 nft {rule}"));
            nft("add table ip t");
            nft("add chain ip t to { type nat hook prerouting priority dstnat ; }");
            nft("add chain ip t from { type nat hook postrouting priority srcnat ; }");
            nft("add rule ip t to ip daddr 10.1.2.77 dnat to 10.1.1.2");
            nft("add rule ip t from ip daddr 10.1.1.2 ip saddr 10.1.1.2 masquerade");
            let (pod, before) = (&nodes[0].pod, fast[1].carried());
            tcp_by(pod, pod, [10, 1, 1, 2].into(), [10, 1, 2, 77].into(), 16 * MEGABYTES);
            assert!(fast[1].carried()[1] > before[1] + 200, "{wire}: {:?}", fast[1].carried());
        });
    }
}

/// What another program attaches has to see every packet; what it detaches is attached again.
#[test]
#[ignore = "kernel: TUN devices, TCX and namespaces need root; tool: tc, bpftool"]
fn the_fast_path_gives_way_to_programs_of_others_and_comes_back() {
    require_tool("bpftool");
    with_nodes(|nodes| {
        let [one, _] = &nodes;
        let fast = both(&nodes);
        let reached = |by_programs: bool| {
            let before = fast[0].carried()[1];
            let (answered, said) = one.ping("", "10.1.2.2");
            assert!(answered, "{said}");
            assert_eq!(fast[0].carried()[1] > before, by_programs);
        };
        let gives_way = |reason: &str| {
            assert!(fast[0].is_disturbed(one) && fast[0].repair(one));
            assert!(fast[0].fast_path.failure().is_some_and(|why| why.contains(reason)), "{reason}");
            assert!(!fast[0].fast_path.carries() && !fast[0].repair(one));
            reached(false);
        };
        let comes_back = || {
            assert!(fast[0].repair(one) && fast[0].fast_path.carries());
            assert!(!fast[0].is_disturbed(one) && !fast[0].repair(one));
            reached(true);
        };
        assert!(!fast[0].is_disturbed(one));
        reached(true);
        let other = Program::from_instructions("other", &NOTHING).unwrap();
        for direction in [Direction::Ingress, Direction::Egress] {
            let device = if direction == Direction::Ingress { "w0" } else { "flannel0" };
            let attach = || ProgramLink::attach(&other, link(device), direction).unwrap();
            let attached = one.host.with(attach).unwrap();
            gives_way("BPF programs of others");
            drop(attached);
            comes_back();
        }
        for device in ["w0", "flannel0"] {
            sh(&format!("ip netns exec h1 tc qdisc add dev {device} clsact"));
            gives_way(&format!("filter is at {device}"));
            sh(&format!("ip netns exec h1 tc qdisc del dev {device} clsact"));
            comes_back();
        }
        for (device, direction) in [("w0", Direction::Ingress), ("flannel0", Direction::Egress)] {
            let there = || attached(link(device), direction).unwrap()[0].link;
            sh(&format!("bpftool link detach id {}", one.host.with(there).unwrap()));
            assert!(fast[0].is_disturbed(one));
            assert!(one.ping("", "10.1.2.2").0, "the threads carry it");
            comes_back();
        }
    });
}

/// Each start and stop finds and leaves nothing of another.
#[test]
#[ignore = "kernel: TUN devices, TCX and namespaces need root"]
fn a_proxy_that_ends_takes_its_programs_with_it() {
    with_nodes(|nodes| {
        let [one, two] = &nodes;
        let _other = Fast::start(two);
        let options = one.fast_options();
        let fast_path = options.fast_path.clone().unwrap();
        for _ in 0..3 {
            let proxy = one.start(options.clone());
            assert!(fast_path.carries());
            assert!(one.ping("", "10.1.2.2").0 && one.ping("", "10.1.2.2").0);
            drop(proxy);
            assert!(!fast_path.carries());
            let at_uplink = || attached(link("w0"), Direction::Ingress).unwrap();
            assert_eq!(one.host.with(at_uplink).unwrap(), []);
            let sender = one.pod.with(|| UdpSocket::bind("10.1.1.2:0")).unwrap().unwrap();
            let before = fast_path.carried().unwrap();
            let _ = sender.send_to(b"to no device", "10.1.2.2:9");
            assert_eq!(fast_path.carried().unwrap(), before);
        }
        // A device that another program has deleted takes the program at it along.
        let proxy = one.start(options.clone());
        sh("ip -n h1 link del flannel0");
        eventually(DEADLINE, || proxy.failure().is_some());
        drop(proxy);
        let _again = one.start(options.clone());
        assert!(fast_path.carries());
        assert!(one.ping("", "10.1.2.2").0);
    });
}
