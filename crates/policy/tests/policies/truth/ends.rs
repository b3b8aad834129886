//! The ends of flows: their sockets, and which packets arrive.
//!
//! No time-out decides that a packet does not arrive: behind the packets of a round follow others,
//! over the same links, that no policy is about. When these have arrived, so have those, or they
//! never will: links and processors' queues keep the order, since one thread on one processor sends
//! everything.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use russet_linux::NetNs;
use russet_testkit::bound;
use russet_verdict::ir::Protocol;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};

use super::nodes::{self, Lab, PROBED_NODE};
use super::packets::{Mark, SOURCE_PORT, behind_header, opening_port};
use super::{OTHER_PORT, Try};
use crate::world::{family, raw};

/// All ends, and the number of rounds.
pub struct Ends {
    all: Vec<End>,
    controls: Vec<UdpSocket>,
    round: u32,
}

/// An address, and its sockets.
pub struct End {
    pub name: String,
    pub is_pod: bool,
    pub address: IpAddr,
    netns: Option<NetNs>,
    sender: UdpSocket,
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpListener>,
    /// They see every packet of TCP, SCTP and ICMP to the address.
    opened: OwnedFd,
    sctp: OwnedFd,
    icmp: OwnedFd,
}

/// The flows, by their place in the list, of which packets arrived.
#[derive(Debug, Default)]
pub struct Packets {
    pub arrived: BTreeSet<usize>,
    /// TCP connections.
    pub connected: BTreeSet<usize>,
}

const PORTS: [u16; 3] = [80, 81, OTHER_PORT];
/// Outside the ports that are probed.
const CONTROL_PORT: u16 = 7;
/// How long packets may take that nothing drops, on a busy machine.
const ARRIVES: Duration = Duration::from_secs(10);
/// Behind the packets, behind the answers to them, and behind the answers to those.
const WAVES: u32 = 3;
const PACKET_BYTES: usize = 256;

// === impl Ends ===

impl Ends {
    pub fn open(lab: &Lab) -> Self {
        stay_on_this_processor();
        let (mut all, mut controls) = (Vec::new(), Vec::new());
        for pod in &lab.pods {
            let netns = || Some(NetNs::open_named(&nodes::netns_of(pod)).unwrap());
            let name = format!("{}/{}", pod.namespace.as_deref().unwrap_or_default(), pod.name);
            all.extend(pod.addresses.iter().map(|address| End::open(&name, true, *address, netns())));
            controls.push(inside(netns().as_ref(), || udp(nodes::control(pod), CONTROL_PORT)));
        }
        for host in nodes::others() {
            let is_node = host.name == "node";
            let netns = || is_node.then(|| NetNs::open_named(PROBED_NODE).unwrap());
            let more = nodes::OUTSIDE.iter().filter(|_| !is_node).map(|text| text.parse().unwrap());
            let addresses: BTreeSet<IpAddr> = host.addresses.iter().copied().chain(more).collect();
            all.extend(addresses.into_iter().map(|address| End::open(&host.name, false, address, netns())));
            controls.push(inside(netns().as_ref(), || udp(host.addresses[0], CONTROL_PORT)));
        }
        Self { all, controls, round: 0 }
    }

    pub fn all(&self) -> &[End] {
        &self.all
    }

    /// Sends the packets of all flows, and returns which arrived.
    pub fn send(&mut self, tries: &[Try]) -> Packets {
        self.round += 1;
        let mut streams = Vec::new();
        for (index, one) in tries.iter().enumerate() {
            let mark = Mark { round: self.round, index: u32::try_from(index).unwrap() };
            let (from, to) = (&self.all[one.from], SocketAddr::new(one.flow.destination, 0));
            if let Some(stream) = from.send(mark, one.flow.protocol, to, one.flow.destination_port, tries) {
                streams.push((index, stream));
            }
        }
        for wave in 0..WAVES {
            self.wait_for_control(wave);
        }
        let mut seen = Packets::default();
        for (index, stream) in &streams {
            if is_connected(stream) {
                seen.connected.insert(*index);
            }
        }
        self.all.iter().for_each(|end| end.receive(self.round, tries, &mut seen.arrived));
        seen
    }

    /// Each end sends a packet to each other one, and waits for theirs.
    fn wait_for_control(&self, wave: u32) {
        let mark = Mark { round: self.round, index: wave };
        for from in &self.controls {
            for to in self.controls.iter().filter(|to| !std::ptr::eq(*to, from)) {
                from.send_to(&mark.bytes(), to.local_addr().unwrap()).unwrap();
            }
        }
        for socket in &self.controls {
            let (mut left, until) = (self.controls.len() - 1, Instant::now() + ARRIVES);
            while left > 0 {
                let mut packet = [0; PACKET_BYTES];
                match socket.recv_from(&mut packet) {
                    Ok((bytes, _)) => left -= usize::from(Mark::read(&packet[..bytes]) == Some(mark)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        assert!(Instant::now() < until, "packets that no policy is about did not arrive");
                        std::thread::yield_now();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

// === impl End ===

impl End {
    fn open(name: &str, is_pod: bool, address: IpAddr, netns: Option<NetNs>) -> Self {
        let icmp = if address.is_ipv4() { ipproto::ICMP } else { ipproto::ICMPV6 };
        inside(netns.as_ref().and_then(|netns| netns.try_clone().ok()).as_ref(), || Self {
            name: name.to_owned(),
            is_pod,
            address,
            netns,
            sender: udp(address, SOURCE_PORT),
            udp: PORTS.iter().map(|port| udp(address, *port)).collect(),
            tcp: PORTS.iter().map(|port| listener(address, *port)).collect(),
            opened: raw(address, ipproto::TCP),
            sctp: raw(address, ipproto::SCTP),
            icmp: raw(address, icmp),
        })
    }

    /// Sends the first packet of a flow. A connection of TCP goes on by itself.
    fn send(
        &self,
        mark: Mark,
        protocol: Protocol,
        to: SocketAddr,
        port: u16,
        tries: &[Try],
    ) -> Option<OwnedFd> {
        let raw = |socket: &OwnedFd, packet: Vec<u8>| {
            rustix::net::sendto(socket, &packet, SendFlags::empty(), &to).unwrap();
            None
        };
        match protocol {
            Protocol::UDP => {
                self.sender.send_to(&mark.bytes(), (to.ip(), port)).unwrap();
                None
            }
            Protocol::TCP => {
                let own = SocketAddr::new(self.address, mark.tcp_port(tries.len()));
                Some(inside(self.netns.as_ref(), || connecting(own, SocketAddr::new(to.ip(), port))))
            }
            Protocol::SCTP => raw(&self.sctp, mark.sctp(port)),
            _ => raw(&self.icmp, mark.echo(to.is_ipv4())),
        }
    }

    /// Takes what has arrived.
    fn receive(&self, round: u32, tries: &[Try], arrived: &mut BTreeSet<usize>) {
        let mut add = |mark: Option<Mark>| {
            arrived.extend(mark.filter(|it| it.round == round).and_then(|it| usize::try_from(it.index).ok()));
        };
        let mut packet = [0; PACKET_BYTES];
        for socket in &self.udp {
            while let Ok((bytes, _)) = socket.recv_from(&mut packet) {
                add(Mark::read(&packet[..bytes]));
            }
        }
        for (socket, protocol) in [(&self.sctp, Protocol::SCTP), (&self.icmp, Protocol::ICMP)] {
            self.drain(socket, |bytes| add(Mark::of_raw(protocol, bytes)));
        }
        let first = Mark { round, index: 0 }.tcp_port(tries.len());
        self.drain(&self.opened, |bytes| {
            let index = opening_port(bytes).and_then(|port| port.checked_sub(first)).map(u32::from);
            add(index.map(|index| Mark { round, index }));
        });
        self.tcp.iter().for_each(|listener| while listener.accept().is_ok() {});
    }

    /// Reads what is in a raw socket, without headers of IP.
    fn drain(&self, socket: &OwnedFd, mut each: impl FnMut(&[u8])) {
        let mut packet = [0; PACKET_BYTES];
        while let Ok((_, bytes)) = rustix::net::recv(socket, &mut packet[..], RecvFlags::empty()) {
            let packet = &packet[..bytes.min(PACKET_BYTES)];
            let payload = if self.address.is_ipv4() { behind_header(packet) } else { Some(packet) };
            payload.into_iter().for_each(&mut each);
        }
    }
}

fn inside<T>(netns: Option<&NetNs>, body: impl FnOnce() -> T) -> T {
    match netns {
        Some(netns) => netns.with(body).unwrap(),
        None => body(),
    }
}

fn udp(address: IpAddr, port: u16) -> UdpSocket {
    let socket = bound(|| UdpSocket::bind((address, port)));
    socket.set_nonblocking(true).unwrap();
    socket
}

fn listener(address: IpAddr, port: u16) -> TcpListener {
    let listener = bound(|| TcpListener::bind((address, port)));
    listener.set_nonblocking(true).unwrap();
    listener
}

/// A connection that is about to be opened. Closing it sends a reset, so that nothing of it
/// remains.
fn connecting(from: SocketAddr, to: SocketAddr) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family(from.ip()), SocketType::STREAM, flags, None).unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    bound(|| Ok(rustix::net::bind(&socket, &from)?));
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => socket,
        Err(error) => panic!("{from} to {to}: {error}"),
    }
}

fn is_connected(socket: &OwnedFd) -> bool {
    matches!(rustix::net::getpeername(socket), Ok(Some(_)))
}

/// Packets that one processor sends stay in order.
fn stay_on_this_processor() {
    let mut one = rustix::thread::CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
}
