//! A peer that works like the original: one packet in each read, one in each datagram, no offloads.
//! Whatever it receives must be a packet that the original accepts.

use std::io::IoSlice;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use russet_flanneld::udp::{Count, Options};
use russet_linux::tun::{Queue, Tun};
use russet_testkit::{bound, sh};

use crate::lab::{Node, lease, node, with_nodes};
use crate::transfer::{tcp, udp_segments};

/// The peer. All its packets go to the one other node.
struct Plain {
    device: String,
    stopped: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    packets: u64,
    /// Datagrams that the original would not accept.
    wrong: Vec<String>,
}

const MTU: usize = 1472;

// === impl Plain ===

impl Plain {
    fn start(node: &Node, other: Ipv4Addr) -> Self {
        let options = node.options();
        let bind = || bound(|| UdpSocket::bind((options.local, options.port)));
        let (tun, socket) =
            node.host.with(|| (Tun::create(&options.tun, 1, false).unwrap(), bind())).unwrap();
        let (n, device) = (node.number, tun.name.as_str());
        sh(&format!("ip -n h{n} addr add {}/32 dev {device}", options.own));
        sh(&format!("ip -n h{n} link set {device} mtu {MTU} up"));
        sh(&format!("ip -n h{n} route add {} dev {device}", options.network));
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        // It is slow, and packets beyond its socket buffer would be lost.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
        let mut queues = tun.queues;
        let (queue, socket) = (Arc::new(queues.remove(0)), Arc::new(socket));
        let mut plain = Self {
            device: format!("-n h{n} link del {device}"),
            stopped: Arc::default(),
            seen: Arc::default(),
            threads: Vec::new(),
        };
        plain.send(&queue, &socket, other, &options);
        plain.receive(queue, socket, other, &options);
        plain
    }

    fn send(&mut self, queue: &Arc<Queue>, socket: &Arc<UdpSocket>, other: Ipv4Addr, options: &Options) {
        let (queue, socket, port) = (Arc::clone(queue), Arc::clone(socket), options.port);
        self.threads.push(std::thread::spawn(move || {
            let mut packet = [0; MTU];
            // Until the device is deleted.
            while let Ok(bytes) = queue.wait(&mut packet) {
                if packet[0] >> 4 == 4 && age(&mut packet[..bytes]) {
                    socket.send_to(&packet[..bytes], (other, port)).unwrap();
                }
            }
        }));
    }

    fn receive(&mut self, queue: Arc<Queue>, socket: Arc<UdpSocket>, other: Ipv4Addr, options: &Options) {
        let (seen, stopped, port) = (Arc::clone(&self.seen), Arc::clone(&self.stopped), options.port);
        self.threads.push(std::thread::spawn(move || {
            let mut datagram = [0; 65_536];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((bytes, from)) = socket.recv_from(&mut datagram) else { continue };
                let packet = &mut datagram[..bytes];
                let mut seen = seen.lock().unwrap();
                seen.packets += 1;
                let objection = object(packet);
                if from != (other, port).into() || objection.is_some() {
                    seen.wrong.push(format!("{bytes} bytes from {from}: {objection:?}"));
                }
                if age(packet) {
                    queue.write(&[IoSlice::new(packet)]).unwrap();
                }
            }
        }));
    }

    /// The number of packets received; panics if one of them was wrong.
    fn packets(&self) -> u64 {
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.wrong, [""; 0]);
        seen.packets
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        sh(&format!("ip {}", self.device));
        self.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Why a datagram is not a single inner packet with right checksums.
pub fn object(packet: &[u8]) -> Option<&'static str> {
    let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
    if packet.len() < 20 || packet[0] != 0x45 || total != packet.len() {
        return Some("no IPv4 packet of its length");
    }
    if packet.len() > MTU {
        return Some("larger than the MTU");
    }
    if sum(&packet[..20]) != 0xffff {
        return Some("header checksum");
    }
    let transport = &packet[20..];
    let [high, low] = u16::try_from(transport.len()).unwrap().to_be_bytes();
    let pseudo = [&packet[12..20], &[0, packet[9], high, low]].concat();
    match packet[9] {
        6 | 17 if sum(&[&pseudo[..], transport].concat()) != 0xffff => Some("transport checksum"),
        _ => None,
    }
}

/// Decrements the TTL and recomputes the checksum.
fn age(packet: &mut [u8]) -> bool {
    packet[8] = packet[8].saturating_sub(1);
    packet[10..12].fill(0);
    let checksum = !sum(&packet[..20]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet[8] > 0
}

pub fn sum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// flannel.md section 6.1: a peer that runs the original understands every packet.
#[test]
#[ignore = "kernel: TUN devices and namespaces need root"]
fn a_peer_with_one_packet_in_each_datagram_understands_all_and_is_understood() {
    for options in [Node::options, Node::fast_options] {
        with_nodes(|nodes| understands(nodes, options));
    }
}

/// With the fast path, programs take what it sends out of datagrams.
fn understands([one, two]: [Node; 2], options: fn(&Node) -> Options) {
    let options = options(&one);
    let fast_path = options.fast_path.clone();
    let proxy = one.start(options);
    proxy.put(lease(2), node(2));
    let peer = Plain::start(&two, [192, 168, 77, 1].into());
    let (answered, said) = one.ping("-t 64", "10.1.2.2");
    assert!(answered && said.contains("ttl=60"), "{said}");
    let (answered, said) = two.ping("-s 1444", "10.1.1.2");
    assert!(answered, "{said}");
    assert_eq!(udp_segments(&one.pod, &two.pod, [10, 1, 2, 2].into(), 5, 30, 1200), 150);
    assert_eq!(udp_segments(&two.pod, &one.pod, [10, 1, 1, 2].into(), 5, 30, 1200), 150);
    tcp(&one.pod, &two.pod, [10, 1, 2, 2].into(), 8 << 20);
    tcp(&two.pod, &one.pod, [10, 1, 1, 2].into(), 8 << 20);
    assert!(peer.packets() > (8 << 20) / 1472);
    assert!(proxy.offloads().segments);
    peer.packets();
    if let Some(fast_path) = fast_path {
        let [sent, received] = fast_path.carried().unwrap();
        assert_eq!(sent.packets, 0);
        assert!(received.packets > (8 << 20) / 1472 && proxy.count(Count::Received) < 100);
    }
}
