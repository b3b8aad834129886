//! A node, a pod of it, and a neighbour that acts as another node, its pod, and the outside. The
//! node is the namespace of the test's own thread.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use russet_linux::NetNs;
use russet_overlay::firewall::{Firewall, FirewallReport, Mode, Wanted};
use russet_testkit::{in_netns_with_loopback, sh};

/// The node's pod.
pub const POD: &str = "10.5.1.2";
/// A pod of another node.
pub const REMOTE: &str = "10.5.2.2";
/// An address that belongs to no pod.
pub const OUTSIDE: &str = "203.0.113.9";
/// The node on the underlay.
pub const NODE: &str = "192.168.7.1";
/// The same in IPv6.
pub const POD6: &str = "fd00:10:5:1::2";
pub const REMOTE6: &str = "fd00:10:5:2::2";
pub const OUTSIDE6: &str = "2001:db8::9";
pub const NODE6: &str = "fd77::1";

/// The namespaces beside the node's own.
pub struct Lab {
    pub pod: NetNs,
    pub neighbour: NetNs,
}

pub fn wanted() -> Wanted {
    let nets = |texts: [&str; 2]| texts.iter().map(|text| text.parse().unwrap()).collect();
    Wanted {
        networks: nets(["10.5.0.0/16", "fd00:10:5::/48"]),
        own: nets(["10.5.1.0/24", "fd00:10:5:1::/64"]),
        masquerade: true,
        random_fully: true,
        forward: true,
    }
}

pub fn open(mode: Mode) -> Firewall {
    Firewall::open(mode).unwrap()
}

/// Applies, and requires that nothing fails.
#[track_caller]
pub fn apply(firewall: &mut Firewall, wanted: &Wanted) -> FirewallReport {
    let report = firewall.apply(wanted);
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    report
}

pub fn with_lab(body: impl FnOnce(&Lab) + Send) {
    in_netns_with_loopback(|| {
        let lab = Lab { pod: joined("pod"), neighbour: joined("nb") };
        for key in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            sh(&format!("sysctl -qw net.{key}=1"));
        }
        addresses("", "to-pod", &["10.5.1.1/24", "fd00:10:5:1::1/64"]);
        addresses("-n pod", "w0", &["10.5.1.2/24", "fd00:10:5:1::2/64"]);
        addresses("", "to-nb", &["192.168.7.1/24", "fd77::1/64"]);
        addresses("-n nb", "w0", &["192.168.7.2/24", "fd77::2/64"]);
        addresses("-n nb", "lo", &["10.5.2.2/32", "203.0.113.9/32", "fd00:10:5:2::2/128", "2001:db8::9/128"]);
        sh("ip -n pod route add default via 10.5.1.1");
        sh("ip -n pod -6 route add default via fd00:10:5:1::1");
        sh("ip route add default via 192.168.7.2");
        sh("ip -6 route add default via fd77::2");
        sh("ip -n nb route add 10.5.1.0/24 via 192.168.7.1");
        sh("ip -n nb -6 route add fd00:10:5:1::/64 via fd77::1");
        body(&lab);
    });
}

fn joined(name: &str) -> NetNs {
    let ns = NetNs::create_named(name).unwrap();
    sh(&format!("ip link add to-{name} type veth peer name w0 netns {name}"));
    sh(&format!("ip link set to-{name} up"));
    sh(&format!("ip -n {name} link set w0 up"));
    sh(&format!("ip -n {name} link set lo up"));
    ns
}

fn addresses(namespace: &str, device: &str, addresses: &[&str]) {
    for address in addresses {
        let flags = if address.contains(':') { "nodad" } else { "" };
        sh(&format!("ip {namespace} addr add {address} dev {device} {flags}"));
    }
}

/// The sender's address that `to` in `receiver` sees when `from` in `sender` (or the node) sends to
/// it; none when no packet arrives.
pub fn seen(sender: Option<&NetNs>, from: &str, receiver: &NetNs, to: &str) -> Option<IpAddr> {
    let bind = |address: &str| UdpSocket::bind(SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
    let receiver = receiver.with(|| bind(to)).unwrap();
    let sender = match sender {
        Some(ns) => ns.with(|| bind(from)).unwrap(),
        None => bind(from),
    };
    receiver.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    // The first packets wait for neighbour resolution, and on a busy machine for the interface's
    // own IPv6 address.
    (0..40).find_map(|_| {
        // A missing route may still be added.
        let _ = sender.send_to(b"x", receiver.local_addr().unwrap());
        receiver.recv_from(&mut [0; 8]).ok().map(|(_, from)| from.ip())
    })
}
/// Whether no packet arrives; checks once.
pub fn is_silent(sender: Option<&NetNs>, from: &str, receiver: &NetNs, to: &str) -> bool {
    let bind = |address: &str| UdpSocket::bind(SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
    let receiver = receiver.with(|| bind(to)).unwrap();
    let sender = match sender {
        Some(ns) => ns.with(|| bind(from)).unwrap(),
        None => bind(from),
    };
    receiver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    // Neither a drop nor an ICMP error is a packet.
    let _ = sender.send_to(b"x", receiver.local_addr().unwrap());
    receiver.recv_from(&mut [0; 8]).is_err()
}
