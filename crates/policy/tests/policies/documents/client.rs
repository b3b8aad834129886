//! What the client of a denied flow sees.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{RecvFlags, ipproto};
use serde_json::json;

use super::{Node, egress, ingress};
use crate::world::*;

/// The pod `b`, which asks the pod `a` for a port on which nothing listens.
struct Client {
    own: IpAddr,
    server: SocketAddr,
    tcp: OwnedFd,
    icmp: OwnedFd,
}

/// ICMPv6 messages from this type on are no errors.
const FIRST_INFORMATION: u8 = 128;

// === impl Client ===

impl Client {
    fn new(own: &str, server: &str) -> Self {
        let (own, server) = (ip(own), SocketAddr::new(ip(server), 81));
        let errors = if own.is_ipv4() { ipproto::ICMP } else { ipproto::ICMPV6 };
        let [tcp, icmp] = [ipproto::TCP, errors].map(|protocol| inside(Some("b"), || raw(own, protocol)));
        Self { own, server, tcp, icmp }
    }

    /// How a connection and a datagram end.
    fn ask(&self, limit: Duration) -> [ErrorKind; 2] {
        let connecting = inside(Some("b"), || TcpStream::connect_timeout(&self.server, limit));
        let socket = udp(Some("b"), &self.own.to_string(), 0);
        socket.set_read_timeout(Some(limit)).unwrap();
        socket.connect(self.server).unwrap();
        socket.send(b"x").unwrap();
        [connecting.unwrap_err().kind(), socket.recv(&mut [0; 8]).unwrap_err().kind()]
    }

    /// How many segments of TCP have arrived, and how many errors of ICMP.
    fn arrived(&self) -> [usize; 2] {
        let mut counts = [0; 2];
        for (socket, count) in [&self.tcp, &self.icmp].into_iter().zip(&mut counts) {
            let is_icmpv6 = self.own.is_ipv6() && std::ptr::eq(socket, &self.icmp);
            let mut packet = [0; 128];
            while let Ok((_, bytes)) = rustix::net::recv(socket, &mut packet[..], RecvFlags::empty()) {
                assert!(bytes > 0);
                *count += usize::from(!is_icmpv6 || packet[0] < FIRST_INFORMATION);
            }
        }
        counts
    }
}

#[test]
#[ignore = "kernel: nf_tables, veth, raw sockets, root; tools: ip, nft"]
fn a_denied_client_sees_that_nothing_answers_and_neither_a_reset_nor_an_error() {
    // policy.md P51
    let all = json!([{ "action": "Deny", "from": [{ "namespaces": {} }] }]);
    let of_cluster = json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": "c" },
        "spec": { "tier": "Admin", "priority": 1, "subject": { "namespaces": {} }, "ingress": all } });
    on_a_node(|| {
        let mut node = Node::new();
        let clients = [("10.9.2.2", "10.9.1.2"), ("fd09:2::2", "fd09:1::2")];
        let clients = clients.map(|(own, server)| Client::new(own, server));
        for client in &clients {
            assert_eq!(client.ask(ARRIVES), [ErrorKind::ConnectionRefused; 2], "{}", client.own);
            assert!(client.arrived().into_iter().all(|count| count > 0), "{}", client.own);
        }
        for document in [ingress("a", json!([])), egress("b", json!([])), of_cluster] {
            node.put(&document);
            node.flush();
            for client in &clients {
                let ends = client.ask(DROPPED);
                assert_eq!(ends, [ErrorKind::TimedOut, ErrorKind::WouldBlock], "{document}");
                assert_eq!(client.arrived(), [0, 0], "{document}");
            }
            node.remove(&document);
            node.flush();
        }
    });
}
