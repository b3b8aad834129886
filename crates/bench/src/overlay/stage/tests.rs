//! That packets of a way take the path that it is named after.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use russet_linux::packet::{Direction, PacketSocket};

use super::*;
use crate::overlay::load::{self, Test};

/// The largest frame that the first node sends to the wire while `body` runs.
fn largest_sent(stage: &Stage, body: impl FnOnce()) -> usize {
    let node = &stage.nodes[0];
    let socket = node.host.with(|| PacketSocket::open(node.wire)).unwrap().unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut most, mut buffer) = (0, [0; 64]);
            while !ended.load(Ordering::Relaxed) {
                while let Some(packet) = socket.receive(&mut buffer).unwrap() {
                    let is_sent = packet.direction == Direction::Outbound;
                    most = most.max(if is_sent { packet.whole_bytes } else { 0 });
                }
                std::thread::park_timeout(Duration::from_millis(1));
            }
            most
        });
        body();
        ended.store(true, Ordering::Relaxed);
        watcher.join().unwrap()
    })
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX, Linux 6.7"]
fn streams_take_the_path_of_their_way() {
    const LEGACY_FRAME_BYTES: usize = 65_536 + 14;
    for name in [
        "fast-open",
        "fast-policy",
        "fast-same",
        "fast-routed",
        "fast-routed-big",
        "vxlan-calico",
        "vxlan-metadata",
        "udp",
        "udp-sized",
    ] {
        let way: Way = name.parse().unwrap();
        let stage = Stage::set(way).unwrap();
        let sent = largest_sent(&stage, || {
            let sample = load::sample(&stage, Test::Stream).unwrap();
            assert!(sample.value > 0.0 && sample.cpu_ns_per_kib > Some(0.0), "{name}: {sample:?}");
        });
        assert_eq!(sent > LEGACY_FRAME_BYTES, way == Way::FastRoutedBig, "{name}: {sent}");
        assert_eq!(
            sent > 1514,
            way != Way::FastSame,
            "{name}: {sent}: only the neighbour is not behind the wire"
        );
        let carried = stage._fast_paths.iter().map(|it| it.observer().unwrap().carried().unwrap());
        let packets: Vec<u64> = carried.map(|it| it.packets).collect();
        let nodes = if way == Way::FastSame { 1 } else { 2 };
        assert_eq!(
            way.has_fast_path(),
            packets.iter().filter(|count| **count > 100).count() == nodes,
            "{name}: {packets:?}"
        );
    }
}
