//! Packets that their sender must not send: whether they arrive, and what dropped them.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use russet_linux::NetNs;

use crate::{bound, eventually, inside, run, sh};

const DEADLINE: Duration = Duration::from_secs(20);
/// Sends a frame out of an interface: `python3 -c THIS eth0 HEX`.
const SEND_FRAME: &str = "import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
s.send(bytes.fromhex(sys.argv[2]))";

/// A UDP socket in a named namespace; its reads end after 10 ms.
#[track_caller]
pub fn socket(netns: &str, address: impl Into<IpAddr>, port: u16) -> UdpSocket {
    let address = address.into();
    let bind = || bound(|| UdpSocket::bind((address, port)));
    let socket = NetNs::open_named(netns).and_then(|netns| netns.with(bind)).expect("enter a namespace");
    socket.set_read_timeout(Some(Duration::from_millis(10))).expect("set a timeout");
    socket
}

/// Sends the forged packets, whose payload is not 2, and an honest one in turns until one arrives; whether it is the
/// honest one. What was sent before it has arrived by then, or never will.
#[track_caller]
pub fn first_is_honest(attack: &dyn Fn(), honest: &UdpSocket, receiver: &UdpSocket) -> bool {
    let to = receiver.local_addr().expect("a bound socket");
    let mut packet = [0; 1];
    eventually(DEADLINE, || {
        attack();
        let _ = honest.send_to(&[2], to);
        receiver.recv_from(&mut packet).is_ok()
    });
    packet[0] == 2
}

/// Sends the byte 1 without a pause while `body` runs. What `body` gets waits until more packets have been sent.
pub fn while_sending<T>(sender: &UdpSocket, to: SocketAddr, body: impl FnOnce(&dyn Fn()) -> T) -> T {
    /// Ends the thread, also if `body` panics.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (sent, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _ends = Ends(&ends);
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let _ = sender.send_to(&[1], to);
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        body(&|| {
            let before = sent.load(Ordering::Relaxed);
            eventually(DEADLINE, || sent.load(Ordering::Relaxed) > before + 20);
        })
    })
}

/// Sends honest packets, whose byte is 2, until one arrives; whether nothing else has arrived by then.
#[track_caller]
pub fn only_honest_arrived(honest: &UdpSocket, receiver: &UdpSocket) -> bool {
    let to = receiver.local_addr().expect("a bound socket");
    let mut packet = [0; 1];
    let (mut others, mut came) = (0, false);
    eventually(DEADLINE, || {
        let _ = honest.send_to(&[2], to);
        while receiver.recv_from(&mut packet).is_ok() {
            came |= packet == [2];
            others += u32::from(packet != [2]);
        }
        came
    });
    others == 0
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends an Ethernet frame, given as hexadecimal digits, out of `eth0` of a named namespace.
#[track_caller]
pub fn send_frame(netns: &str, frame: &str) {
    inside(netns, &["python3", "-c", SEND_FRAME, "eth0", frame]);
}

/// How many packets the rules with this comment have dropped, in a table such as `inet russet` of the calling thread's
/// namespace or of a named one.
#[track_caller]
pub fn dropped(netns: Option<&str>, table: &str, comment: &str) -> u64 {
    let (family, table) = table.split_once(' ').expect("a family and a name");
    let list = ["-j", "list", "table", family, table];
    let text = match netns {
        Some(netns) => inside(netns, &[&["nft"], &list[..]].concat()),
        None => run("nft", &list),
    };
    let listing: serde_json::Value = serde_json::from_str(&text).expect("JSON of nft");
    let rules = listing["nftables"].as_array().into_iter().flatten().filter_map(|object| object.get("rule"));
    let count = |rule: &serde_json::Value| {
        rule["expr"].as_array()?.iter().find_map(|expr| expr["counter"]["packets"].as_u64())
    };
    rules.filter(|rule| rule["comment"] == comment).filter_map(count).sum()
}

/// Wires a pod in a new namespace as the plugin does, with addresses of full length and the routes to them: behind
/// `host_end` on the node, which is the calling thread's namespace or a named one.
pub fn routed_pod(node: Option<&str>, host_end: &str, netns: &str, addresses: [&str; 2]) {
    NetNs::create_named(netns).expect("create a namespace");
    let [v4, v6] = addresses;
    let place = node.map(|name| format!("-n {name} ")).unwrap_or_default();
    let on_node = |command: &str| sh(&format!("ip {place}{command}"));
    on_node(&format!("link add {host_end} type veth peer name eth0 netns {netns}"));
    let exec = node.map(|name| format!("ip netns exec {name} ")).unwrap_or_default();
    sh(&format!("{exec}sysctl -qw net.ipv6.conf.{host_end}.accept_dad=0"));
    on_node(&format!("link set {host_end} address ee:ee:ee:ee:ee:ee"));
    on_node(&format!("addr add 169.254.1.1/32 dev {host_end}"));
    on_node(&format!("addr add fe80::1/64 dev {host_end} nodad"));
    on_node(&format!("link set {host_end} up"));
    for command in [
        "link set lo up",
        &format!("addr add {v4}/32 dev eth0"),
        &format!("addr add {v6}/128 dev eth0 nodad"),
        "link set eth0 up",
        "route add 169.254.1.1 dev eth0",
        "route add default via 169.254.1.1",
        "-6 route add default via fe80::1 dev eth0",
    ] {
        sh(&format!("ip -n {netns} {command}"));
    }
    on_node(&format!("route add {v4}/32 dev {host_end}"));
    on_node(&format!("-6 route add {v6}/128 dev {host_end}"));
}
