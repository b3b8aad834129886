//! Pods' traffic arrives: with all offloads, with none, and in bursts.

use std::time::Duration;

use russet_flanneld::udp::{Count, Options};
use russet_testkit::{eventually, require_tool, sh};

use crate::lab::{Node, with_nodes};
use crate::transfer::{tcp, udp_segments};

const MEGABYTES: usize = 1 << 20;
const DEADLINE: Duration = Duration::from_secs(10);

fn both_ways(one: &Node, two: &Node, bytes: usize) {
    tcp(&one.pod, &two.pod, [10, 1, 2, 2].into(), bytes);
    tcp(&two.pod, &one.pod, [10, 1, 1, 2].into(), bytes);
}

/// dataplane.md sections 2.6 and 5: this test found a bug in every implementation.
#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn all_2000_datagrams_arrive_that_a_pod_sends_with_segmentation() {
    with_nodes(|[one, two]| {
        let proxies = [one.start(one.options()), two.start(two.options())];
        one.know_the_way("10.1.2.2");
        assert_eq!(udp_segments(&one.pod, &two.pod, [10, 1, 2, 2].into(), 50, 40, 1200), 2000);
        if proxies[0].offloads().tun.udp {
            let writes = proxies[1].count(Count::Writes);
            assert!(writes < 500, "the datagrams were coalesced: {writes} writes");
        }
    });
}

#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn small_datagrams_in_a_burst_arrive() {
    with_nodes(|[one, two]| {
        let _proxies = [one.start(one.options()), two.start(two.options())];
        one.know_the_way("10.1.2.2");
        // Less than the TUN's queue holds: what exceeds it is lost in the original, too.
        assert_eq!(udp_segments(&one.pod, &two.pod, [10, 1, 2, 2].into(), 400, 1, 64), 400);
    });
}

#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn a_stream_arrives_whole_in_large_pieces() {
    with_nodes(|[one, two]| {
        let proxies = [one.start(one.options()), two.start(two.options())];
        both_ways(&one, &two, 64 * MEGABYTES);
        let count = |what| proxies[0].count(what);
        assert!(proxies[0].offloads().segments && proxies[0].offloads().joins);
        let (sent, sends) = (count(Count::Sent), count(Count::Sends));
        assert!(sent > 4 * sends, "{sent} packets in {sends} sends");
        let (received, writes) = (count(Count::Received), count(Count::Writes));
        assert!(received > 4 * writes, "{received} packets in {writes} writes");
        for what in [Count::Unsent, Count::Undelivered, Count::NoPeer, Count::Malformed, Count::Oversized] {
            assert_eq!(count(what), 0, "{what:?}");
        }
    });
}

#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn streams_arrive_whole_when_either_side_or_both_have_no_offloads() {
    for (first, second) in [(false, true), (true, false), (false, false)] {
        with_nodes(|[one, two]| {
            let with = |offload, options: Options| Options { offload, ..options };
            let proxies = [one.start(with(first, one.options())), two.start(with(second, two.options()))];
            one.know_the_way("10.1.2.2");
            assert_eq!(udp_segments(&one.pod, &two.pod, [10, 1, 2, 2].into(), 10, 20, 1200), 200);
            both_ways(&one, &two, 4 * MEGABYTES);
            let plain = [&proxies[0], &proxies[1]][usize::from(first)];
            assert!(!plain.offloads().segments && !plain.offloads().joins && !plain.offloads().tun.header);
            // The last acknowledgements may still be in transit.
            eventually(DEADLINE, || plain.count(Count::Received) == plain.count(Count::Writes));
        });
    }
}

/// The wire acts as a NIC that can neither segment UDP nor compute checksums.
#[test]
#[ignore = "kernel: TUN devices and namespaces need root; tool: ethtool"]
fn streams_arrive_whole_over_a_wire_without_offloads() {
    require_tool("ethtool");
    with_nodes(|[one, two]| {
        for node in ["h1", "h2"] {
            sh(&format!(
                "ip netns exec {node} ethtool -K w0 tso off gso off tx-udp-segmentation off tx off gro off"
            ));
        }
        let _proxies = [one.start(one.options()), two.start(two.options())];
        one.know_the_way("10.1.2.2");
        assert_eq!(udp_segments(&one.pod, &two.pod, [10, 1, 2, 2].into(), 50, 40, 1200), 2000);
        both_ways(&one, &two, 16 * MEGABYTES);
    });
}

#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn streams_arrive_whole_over_several_queues() {
    with_nodes(|[one, two]| {
        let several = |options: Options| Options { queues: 3, ..options };
        let _proxies = [one.start(several(one.options())), two.start(several(two.options()))];
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| tcp(&one.pod, &two.pod, [10, 1, 2, 2].into(), 4 * MEGABYTES));
            }
        });
    });
}
