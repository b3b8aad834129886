//! BIG TCP: what a pod sends in packets of more than 64 KiB arrives whatever the path takes.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use russet_attach::{Attachment, packet_sizes};
use russet_linux::NetNs;
use russet_linux::packet::{Direction, PacketSocket};
use russet_netlink::{Link, PacketSizes, Socket};
use russet_testkit::{bound, inside, run};

use crate::bench::{Node, attachment, namespace, on_a_node};

const BIG: PacketSizes = PacketSizes::all(190_000);
/// With its Ethernet header, and the option of IPv6 for its length.
const LEGACY_FRAME_BYTES: usize = 65_536 + 14 + 8;
const STREAM_WORDS: u64 = 4 << 20;
const DEADLINE: Duration = Duration::from_secs(60);
const PORT: u16 = 9000;

/// The largest frames of an interface, in each direction, while `body` runs.
fn largest_frames(socket: &PacketSocket, body: impl FnOnce()) -> [usize; 2] {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut most, mut buffer) = ([0; 2], [0; 64]);
            while !ended.load(Ordering::Relaxed) {
                while let Some(packet) = socket.receive(&mut buffer).unwrap() {
                    let place = usize::from(packet.direction == Direction::Outbound);
                    most[place] = most[place].max(packet.whole_bytes);
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

/// Sends numbers from one namespace to another, which have to arrive in order.
fn stream(from: &NetNs, to: &NetNs, address: IpAddr) {
    let address = SocketAddr::new(address, PORT);
    let listener = to.with(|| bound(|| TcpListener::bind(address))).unwrap();
    let connect = || TcpStream::connect_timeout(&address, DEADLINE);
    let mut sender = from.with(connect).unwrap().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            sender.set_write_timeout(Some(DEADLINE)).unwrap();
            for chunk in 0..STREAM_WORDS / CHUNK_WORDS {
                let words = chunk * CHUNK_WORDS..(chunk + 1) * CHUNK_WORDS;
                sender.write_all(&words.flat_map(u64::to_be_bytes).collect::<Vec<u8>>()).unwrap();
            }
        });
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut chunk = vec![0; 8 * CHUNK_WORDS as usize];
        for number in 0..STREAM_WORDS / CHUNK_WORDS {
            stream.read_exact(&mut chunk).unwrap();
            let words = number * CHUNK_WORDS..(number + 1) * CHUNK_WORDS;
            assert!(chunk.chunks(8).eq(words.map(u64::to_be_bytes)), "chunk {number} differs");
        }
    });
}

const CHUNK_WORDS: u64 = 1 << 17;

/// A pod with sizes of its own.
fn pod(node: &mut Node, number: u8, sizes: Option<PacketSizes>) -> (NetNs, Link) {
    let (name, v4, v6) = (format!("p{number}"), format!("10.1.0.{number}"), format!("fd00::{number}"));
    let netns = namespace(&name);
    let wanted = Attachment { sizes, ..attachment(&name, &name, &[&v4, &v6]) };
    let attached = node.attach(&wanted, &netns);
    let link = node.socket.link_by_index(attached.host_ifindex).unwrap();
    (netns, link)
}

fn pod_end(netns: &NetNs) -> Link {
    netns.with(|| Socket::route().unwrap().link_by_name(&"eth0".parse().unwrap()).unwrap()).unwrap()
}

/// How many segments a namespace has dropped because their checksums were wrong.
fn wrong_checksums(netns: &str) -> u64 {
    let text = inside(netns, &["cat", "/proc/net/snmp"]);
    let rows: Vec<Vec<&str>> =
        text.lines().filter(|line| line.starts_with("Tcp:")).map(|line| line.split(' ').collect()).collect();
    let place = rows[0].iter().position(|name| *name == "InCsumErrors").unwrap();
    rows[1][place].parse().unwrap()
}

#[test]
#[ignore = "kernel: root, TUN; Linux 6.7"]
fn this_kernel_segments_what_a_device_does_not_take() {
    packet_sizes::probe(BIG).unwrap();
    // The kernel refuses a size below that of headers.
    let error = packet_sizes::probe(PacketSizes { gso: 1, ..BIG }).unwrap_err();
    assert!(!error.to_string().is_empty());
}

#[test]
#[ignore = "kernel: root"]
fn pods_are_created_with_their_sizes_and_get_others_later() {
    on_a_node(|node| {
        let (netns, host_end) = pod(node, 1, Some(BIG));
        assert_eq!((host_end.sizes, pod_end(&netns).sizes), (BIG, BIG));
        let (path, ifname) = (netns.path().to_owned(), "eth0".parse().unwrap());
        packet_sizes::set_pod(&mut node.socket, &host_end, (&path, &ifname), PacketSizes::LEGACY).unwrap();
        let host_end = node.socket.link_by_index(host_end.index).unwrap();
        assert_eq!((host_end.sizes, pod_end(&netns).sizes), (PacketSizes::LEGACY, PacketSizes::LEGACY));
        let (other, untouched) = pod(node, 2, None);
        assert_eq!((untouched.sizes, pod_end(&other).sizes), (PacketSizes::LEGACY, PacketSizes::LEGACY));
        // Another pod's interface of the same name is not changed.
        let path = other.path().to_owned();
        packet_sizes::set_pod(&mut node.socket, &host_end, (&path, &ifname), BIG).unwrap_err();
        assert_eq!(pod_end(&other).sizes, PacketSizes::LEGACY);
    });
}

#[test]
#[ignore = "kernel: root; tool: ip, ethtool"]
fn large_packets_of_pods_arrive_by_a_path_that_takes_none_of_them() {
    // dataplane.md section 2.5
    on_a_node(|node| {
        let (sender, host_end) = pod(node, 1, Some(BIG));
        let (near, _) = pod(node, 2, Some(BIG));
        let far = namespace("far");
        run("ip", &["link", "add", "w0", "type", "veth", "peer", "name", "w0", "netns", "far"]);
        for (at, number) in [(None, 1), (Some("far"), 2)] {
            let ip = |args: &str| {
                let inside = at.iter().flat_map(|name| ["-n", *name]);
                run("ip", &inside.chain(args.split(' ')).collect::<Vec<_>>());
            };
            ip(&format!("address add 10.2.0.{number}/24 dev w0"));
            ip(&format!("address add fd02::{number}/64 dev w0 nodad"));
            ip("link set w0 up");
        }
        run("ip", &["-n", "far", "route", "add", "10.1.0.0/24", "via", "10.2.0.1"]);
        run("ip", &["-n", "far", "route", "add", "fd00::/64", "via", "fd02::1"]);
        // Every segment has a checksum then, which the receiver compares.
        run("ethtool", &["-K", "w0", "tx-checksum-ip-generic", "off"]);
        let wire = node.socket.link_by_name(&"w0".parse().unwrap()).unwrap();
        assert_eq!(wire.sizes, PacketSizes::LEGACY);
        let at_pod = PacketSocket::open(host_end.index).unwrap();
        let at_wire = PacketSocket::open(wire.index).unwrap();
        for (far_address, near_address) in [("10.2.0.2", "10.1.0.2"), ("fd02::2", "fd00::2")] {
            let [_, sent] = largest_frames(&at_wire, || {
                let [came, _] =
                    largest_frames(&at_pod, || stream(&sender, &far, far_address.parse().unwrap()));
                assert!(came > LEGACY_FRAME_BYTES, "{far_address}: at most {came} bytes came from the pod");
            });
            assert!((1..=LEGACY_FRAME_BYTES).contains(&sent), "{far_address}: {sent} bytes on the wire");
            assert_eq!(wrong_checksums("far"), 0);
            // Between pods of the node no packet is segmented.
            let [came, _] = largest_frames(&at_pod, || stream(&sender, &near, near_address.parse().unwrap()));
            assert!(came > LEGACY_FRAME_BYTES, "{near_address}: at most {came} bytes came from the pod");
        }
    });
}
