//! Pods, connections between them, and deltas.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use russet_addr::IpNet;
use russet_linux::NetNs;
use russet_policy::{Policies, PolicyReport, PolicySettings};
use russet_testkit::{bound, in_netns_with_loopback, pings_with, run, sh};
use russet_verdict::ir::{Direction, Protocol};
use russet_verdict::table::{Delta, Identity, Key, Part, Word};
use russet_verdict::world::{Endpoint, Update};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// The pods: namespace, host end, addresses.
pub const PODS: [(&str, &str, [&str; 2]); 3] = [
    ("a", "russa", ["10.9.1.2", "fd09:1::2"]),
    ("b", "russb", ["10.9.2.2", "fd09:2::2"]),
    ("c", "russc", ["10.9.3.2", "fd09:3::2"]),
];
/// The identities that the tests give to the pods.
pub const A: u32 = 16;
pub const B: u32 = 17;
pub const C: u32 = 18;
/// How long a packet may take that is not dropped, on a busy machine.
pub const ARRIVES: Duration = Duration::from_secs(5);
/// How long it is waited for a packet that is dropped.
pub const DROPPED: Duration = Duration::from_millis(300);

/// Runs a test on a node with the pods.
pub fn on_a_node<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    in_netns_with_loopback(|| {
        for knob in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/{knob}"), "1").unwrap();
        }
        for (netns, host_end, addresses) in PODS {
            russet_testkit::forged::routed_pod(None, host_end, netns, addresses);
        }
        // The node's own address.
        sh("ip addr add 192.0.2.1/32 dev lo");
        sh("ip addr add 2001:db8::1/128 dev lo nodad");
        body()
    })
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn inside<T>(netns: Option<&str>, body: impl FnOnce() -> T) -> T {
    match netns {
        Some(name) => NetNs::open_named(name).unwrap().with(body).unwrap(),
        None => body(),
    }
}

pub fn listen(netns: Option<&str>, address: &str, port: u16) -> TcpListener {
    inside(netns, || bound(|| TcpListener::bind((ip(address), port))))
}

pub fn udp(netns: Option<&str>, address: &str, port: u16) -> UdpSocket {
    let socket = inside(netns, || bound(|| UdpSocket::bind((ip(address), port))));
    socket.set_read_timeout(Some(DROPPED)).unwrap();
    socket
}

pub fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A socket that sees every packet of a protocol to an address.
pub fn raw(address: IpAddr, protocol: rustix::net::Protocol) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family(address), SocketType::RAW, flags, Some(protocol)).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(address, 0)).unwrap();
    socket
}

/// Connects from a namespace, the node's own if there is none; none if nothing answers.
#[track_caller]
pub fn connect(netns: Option<&str>, address: &str, port: u16, expected: bool) -> Option<TcpStream> {
    let to = SocketAddr::new(ip(address), port);
    let limit = if expected { ARRIVES } else { DROPPED };
    match inside(netns, || TcpStream::connect_timeout(&to, limit)) {
        Ok(stream) => {
            assert!(expected, "{netns:?} reached {to}");
            Some(stream)
        }
        // A denied packet is dropped: no reset, no error of ICMP.
        Err(error) if error.kind() == ErrorKind::TimedOut && !expected => None,
        Err(error) => panic!("{netns:?} to {to}: {error}"),
    }
}

/// A connection: the client's end and the server's.
pub fn connected(netns: Option<&str>, address: &str, server: &TcpListener) -> (TcpStream, TcpStream) {
    let port = server.local_addr().unwrap().port();
    let client = connect(netns, address, port, true).unwrap();
    (client, server.accept().unwrap().0)
}

/// Whether a byte arrives at the other end.
pub fn carries(mut from: &TcpStream, mut to: &TcpStream, expected: bool) -> bool {
    to.set_read_timeout(Some(if expected { ARRIVES } else { DROPPED })).unwrap();
    from.write_all(b"x").unwrap();
    to.read_exact(&mut [0]).is_ok()
}

/// Sends a byte; whether it arrives.
pub fn sends(from: &UdpSocket, to: &UdpSocket) -> bool {
    from.send_to(b"x", to.local_addr().unwrap()).is_ok() && to.recv_from(&mut [0; 8]).is_ok()
}

pub fn pings(netns: &str, to: &str) -> bool {
    pings_with(netns, &["-W", "1", to])
}

/// A delta with the identities of all pods, which holds `local` as isolated in a direction.
pub fn isolated(direction: Direction, local: &str) -> Delta {
    let mut delta = Delta::default();
    for ((_, _, addresses), identity) in PODS.into_iter().zip([A, B, C]) {
        for address in addresses {
            delta.identities.insert(IpNet::from(ip(address)), Identity::new(identity));
        }
    }
    delta.defaults.insert((direction, ip(local)), Some(Word::DENY));
    delta
}

pub fn key(direction: Direction, local: &str, peer: u32, part: Part) -> Key {
    Key { direction, local: ip(local), peer: Identity::new(peer).unwrap(), part }
}

pub fn tcp(port: u16) -> Part {
    Part::Port(Protocol::TCP, port)
}

/// A delta that allows something.
pub fn allowing(keys: impl IntoIterator<Item = Key>) -> Delta {
    let decisions = keys.into_iter().map(|key| (key, Some(Word::ALLOW))).collect();
    Delta { decisions, ..Delta::default() }
}

/// A delta that takes back what was allowed.
pub fn forbidding(keys: impl IntoIterator<Item = Key>) -> Delta {
    let decisions = keys.into_iter().map(|key| (key, None)).collect();
    Delta { decisions, tightens: true, ..Delta::default() }
}

pub fn merged(mut delta: Delta, other: Delta) -> Delta {
    delta.identities.extend(other.identities);
    delta.decisions.extend(other.decisions);
    delta.wide.extend(other.wide);
    delta.defaults.extend(other.defaults);
    delta.tightens |= other.tightens;
    delta
}

/// An endpoint with its host end, if it has an address of a pod.
pub fn wired(update: Update) -> Update {
    match update {
        Update::Endpoint(key, Some(endpoint)) => {
            let is_of =
                |addresses: &[&str; 2]| addresses.iter().any(|it| endpoint.addresses.contains(&ip(it)));
            let found = PODS.into_iter().find(|(_, _, addresses)| is_of(addresses));
            let local = found.map(|(_, host_end, _)| host_end.parse().unwrap());
            Update::Endpoint(key, Some(Arc::new(Endpoint { local, ..Endpoint::clone(&endpoint) })))
        }
        other => other,
    }
}

pub fn open() -> Policies {
    Policies::open(PolicySettings::default()).unwrap()
}

/// Applies a delta at a time at which the epoch may advance.
#[track_caller]
pub fn apply(policies: &mut Policies, delta: &Delta) -> PolicyReport {
    apply_deciding(policies, delta, &BTreeSet::new())
}

/// [`apply`] for addresses that were held.
#[track_caller]
pub fn apply_deciding(policies: &mut Policies, delta: &Delta, decided: &BTreeSet<IpAddr>) -> PolicyReport {
    static SECONDS: AtomicU64 = AtomicU64::new(1);
    let now = Instant::now() + Duration::from_secs(SECONDS.fetch_add(1, Ordering::Relaxed));
    policies.apply(delta, decided, now).unwrap()
}

/// The whole ruleset, without counters.
pub fn ruleset() -> String {
    run("nft", &["-s", "list", "ruleset"])
}
