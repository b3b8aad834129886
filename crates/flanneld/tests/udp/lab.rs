//! Two nodes in namespaces of their own, `h1` and `h2`, on one wire, with a pod each, `p1` and `p2`.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use russet_addr::Ipv4Net;
use russet_flanneld::udp::{FastPath, OVERHEAD_BYTES, Options, PORT, Proxy, Via};
use russet_linux::NetNs;
use russet_netlink::Socket;
use russet_testkit::{eventually_some, in_netns_with_loopback, sh};
use rustix::net::{AddressFamily, Protocol, SocketType, sockopt};

/// A node with 192.168.77.N on the wire `w0`, the lease 10.1.N.0/24, and a pod with 10.1.N.2.
pub struct Node {
    pub number: u8,
    pub host: NetNs,
    pub pod: NetNs,
}

/// The packets that a node's interfaces receive.
pub struct Capture(rustix::fd::OwnedFd);

const DEADLINE: Duration = Duration::from_secs(10);
const WIRE_MTU: u32 = 1500;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_ALL: u16 = 3;

/// Runs `body` with two nodes that can reach each other, and no backend yet.
pub fn with_nodes(body: impl FnOnce([Node; 2]) + Send) {
    in_netns_with_loopback(|| {
        let nodes = [1, 2].map(Node::new);
        sh("ip link add w0 netns h1 type veth peer name w0 netns h2");
        for node in &nodes {
            node.wire();
        }
        body(nodes);
    });
}

// === impl Node ===

impl Node {
    fn new(number: u8) -> Self {
        let [host, pod] = ["h", "p"].map(|kind| NetNs::create_named(&format!("{kind}{number}")).unwrap());
        host.with(without_ipv6).unwrap();
        Self { number, host, pod }
    }

    fn wire(&self) {
        let (n, mtu) = (self.number, WIRE_MTU - OVERHEAD_BYTES);
        sh(&format!("ip link add pod0 netns h{n} mtu {mtu} type veth peer name eth0 netns p{n} mtu {mtu}"));
        for (namespace, device, address) in [
            (format!("h{n}"), "w0", format!("192.168.77.{n}/24")),
            (format!("h{n}"), "pod0", format!("10.1.{n}.1/24")),
            (format!("p{n}"), "eth0", format!("10.1.{n}.2/24")),
        ] {
            sh(&format!("ip -n {namespace} link set lo up"));
            sh(&format!("ip -n {namespace} addr add {address} dev {device}"));
            sh(&format!("ip -n {namespace} link set {device} up"));
        }
        sh(&format!("ip -n p{n} route add default via 10.1.{n}.1"));
        self.host.with(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")).unwrap().unwrap();
    }

    /// The options that flanneld would use on this node.
    pub fn options(&self) -> Options {
        Options {
            tun: "flannel%d".to_owned(),
            mtu: WIRE_MTU - OVERHEAD_BYTES,
            own: [10, 1, self.number, 0].into(),
            network: "10.1.0.0/16".parse().unwrap(),
            local: [192, 168, 77, self.number].into(),
            port: PORT,
            queues: 1,
            offload: true,
            guard: true,
            fast_path: None,
        }
    }

    /// The same with the fast path, which then is the other node's, too.
    pub fn fast_options(&self) -> Options {
        let load = || FastPath::load(link("w0")).unwrap();
        Options { fast_path: Some(Arc::new(self.host.with(load).unwrap())), ..self.options() }
    }

    /// Starts a proxy with the other node as peer.
    pub fn start(&self, options: Options) -> Proxy {
        // A child process of another test before its `exec` may still hold the socket of an earlier
        // proxy.
        let try_it = || self.host.run_in_thread(|| Proxy::start(options.clone())).unwrap().ok();
        let proxy = eventually_some(DEADLINE, try_it);
        let has_fast_path = options.fast_path.is_some();
        let other = 3 - self.number;
        proxy.put(lease(other), Via { decapsulates: has_fast_path, ..node(other) });
        proxy
    }

    /// The output of the pod's ping of `target`. It waits long for a reply, as the first ARP
    /// request may be lost; use `-W 1` if none is expected.
    pub fn ping(&self, options: &str, target: &str) -> (bool, String) {
        let command = format!("-c 1 -W 5 {options} {target}");
        let mut ping = std::process::Command::new("ping");
        ping.args(command.split_whitespace());
        let output = russet_linux::process::in_netns(&mut ping, &self.pod).unwrap().output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Resolves every MAC on the path: a neighbour that is being resolved queues three large
    /// packets and drops the others.
    #[track_caller]
    pub fn know_the_way(&self, target: &str) {
        let (answered, said) = self.ping("", target);
        assert!(answered, "{said}");
    }

    /// Begins to capture the packets that the node receives.
    pub fn capture(&self) -> Capture {
        self.host.with(|| Capture::new(ETH_P_IP)).unwrap()
    }

    /// Begins to capture what its interfaces receive and send, before any program at them.
    pub fn capture_all(&self) -> Capture {
        self.host.with(|| Capture::new(ETH_P_ALL)).unwrap()
    }
}

/// Nodes of this backend have no IPv6, whose addresses would change for seconds after their links
/// are up.
fn without_ipv6() {
    let switches = ["all", "default"].map(|of| format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"));
    for switch in switches.iter().filter(|switch| std::fs::exists(switch).unwrap()) {
        std::fs::write(switch, "1").unwrap();
    }
}

/// The index of a link in the calling thread's namespace.
pub fn link(name: &str) -> u32 {
    Socket::route().unwrap().link_by_name(&name.parse().unwrap()).unwrap().index
}

/// A node of which nothing else is known than its address.
pub fn node(number: u8) -> Via {
    Ipv4Addr::from([192, 168, 77, number]).into()
}

/// The subnet of a node.
pub fn lease(number: u8) -> Ipv4Net {
    Ipv4Net::new([10, 1, number, 0].into(), 24).unwrap()
}

// === impl Capture ===

impl Capture {
    fn new(protocol: u16) -> Self {
        // In network order, as packet(7) requires in socket(2).
        let protocol = Protocol::from_raw(u32::from(protocol.to_be()).try_into().unwrap());
        let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::DGRAM, Some(protocol)).unwrap();
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(DEADLINE)).unwrap();
        sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
        Self(socket)
    }

    /// The next IPv4 packet that is `wanted`; panics if none arrives.
    pub fn next(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let mut buffer = vec![0; 65_536];
        loop {
            let (bytes, _) = rustix::net::recv(&self.0, &mut buffer[..], rustix::net::RecvFlags::empty())
                .expect("the expected packet arrives");
            if wanted(&buffer[..bytes]) {
                return buffer[..bytes].to_vec();
            }
        }
    }
}
