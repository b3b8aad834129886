//! BIG TCP of two agents: when pods have it, and that they lose it (docs/big-tcp.md).

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use russet_addr::Family;
use russet_linux::NetNs;
use russet_netlink::{Batch, LinkSet, PacketSizes, Socket};
use russet_testkit::{bound, eventually};
use serde_json::Value;

use crate::fabric::Fabric;
use crate::kubernetes::call;
use crate::node::{TIMEOUT, TestNode, TestPod};

const BIG: PacketSizes = PacketSizes::all(190_000);
const STREAM_BYTES: usize = 32 << 20;

struct Pod {
    pod: TestPod,
    addresses: Vec<IpAddr>,
}

/// The sizes of an interface, in a named namespace.
fn sizes(netns: &str, interface: &str) -> PacketSizes {
    let read = || Socket::route().unwrap().link_by_name(&interface.parse().unwrap()).unwrap().sizes;
    NetNs::open_named(netns).unwrap().run_in_thread(read).unwrap()
}

/// What an administrator does, because `ip` of some years ago cannot.
fn set_sizes(netns: &str, interface: &str, sizes: PacketSizes) {
    let set = || {
        let mut batch = Batch::new();
        batch.set_link(&LinkSet { sizes: Some(sizes), ..LinkSet::named(interface.parse().unwrap()) });
        Socket::route().unwrap().execute(&batch).unwrap();
    };
    NetNs::open_named(netns).unwrap().run_in_thread(set).unwrap();
}

// === impl Pod ===

impl Pod {
    fn on(node: &mut TestNode, name: &str) -> Self {
        let pod = node.pod();
        let answer = call(node, "ADD", &pod, name);
        assert_eq!(answer.status, 0, "{answer:?}\n{}", node.log());
        let addresses = answer.addresses().iter().map(|address| address.parse().unwrap()).collect();
        Self { pod, addresses }
    }

    /// Those of the pod's end and of the host end.
    fn sizes(&self, node: &TestNode) -> [PacketSizes; 2] {
        [sizes(&self.pod.netns_name, "eth0"), sizes(node.netns_name(), &self.host_end(node))]
    }

    fn host_end(&self, node: &TestNode) -> String {
        let address = self.addresses[0].to_string();
        let route: Value = serde_json::from_str(&node.ip(&["-j", "route", "get", &address])).unwrap();
        route[0]["dev"].as_str().unwrap().to_owned()
    }

    /// Sends a stream to another pod, by this family; what arrives has to be what was sent.
    fn streams_to(&self, other: &Self, family: Family) {
        let [from, to] = [self, other].map(|pod| NetNs::open_named(&pod.pod.netns_name).unwrap());
        let is_wanted = |address: &&IpAddr| Family::of(**address) == family;
        let address = SocketAddr::new(*other.addresses.iter().find(is_wanted).unwrap(), 9000);
        let listener = to.run_in_thread(|| bound(|| TcpListener::bind(address))).unwrap();
        let connect = || TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
        let mut sender = from.run_in_thread(connect).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
        let bytes: Vec<u8> = (0..STREAM_BYTES / 8).flat_map(usize::to_be_bytes).collect();
        std::thread::scope(|scope| {
            let sent = &bytes;
            scope.spawn(move || sender.write_all(sent).unwrap());
            let mut arrived = Vec::new();
            receiver.read_to_end(&mut arrived).unwrap();
            assert!(arrived == bytes, "{address}");
        });
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: Linux 6.7; tool: etcd, ip, tc"]
fn pods_have_big_tcp_once_their_whole_path_has_it_and_lose_it_when_it_is_switched_off() {
    // dataplane.md sections 2.5 and 4 (L3)
    let mut fabric = Fabric::new();
    let settings = ["--big-tcp", "auto", "--encapsulation", "none"];
    let (mut one, mut two) = (fabric.node("n1", &settings), fabric.node("n2", &settings));
    one.start_agent();
    two.start_agent();
    let (client, server) = (Pod::on(&mut one, "client"), Pod::on(&mut two, "server"));
    eventually(TIMEOUT, || client.pod.pings(&["-W", "1", &server.addresses[0].to_string()]));
    // The uplink is a veth: what lies at its other end is not for the agent to know.
    let remark = "BIG TCP: off: the uplink eth0 is a veth: gso_max_size";
    eventually(TIMEOUT, || one.get("/readyz?verbose").contains(remark));
    assert_eq!(client.sizes(&one), [PacketSizes::LEGACY; 2]);

    for node in [&one, &two] {
        set_sizes(node.netns_name(), "eth0", BIG);
    }
    // At the hub only some: on one way packets are segmented there.
    set_sizes(fabric.hub(), "w2", BIG);
    eventually(TIMEOUT, || client.sizes(&one) == [BIG; 2] && server.sizes(&two) == [BIG; 2]);
    assert!(!one.get("/readyz?verbose").contains("BIG TCP"));
    let neighbour = Pod::on(&mut one, "neighbour");
    assert_eq!(neighbour.sizes(&one), [BIG; 2], "at once: its creation has them");
    for family in Family::BOTH {
        client.streams_to(&neighbour, family);
    }
    // The nodes have no IPv6 among them.
    client.streams_to(&server, Family::V4);
    server.streams_to(&client, Family::V4);

    // A limit of bandwidth counts packets, which then have to be small.
    let host_end = client.host_end(&one);
    let limit = ["root", "tbf", "rate", "1gbit", "burst", "1mb", "latency", "50ms"];
    one.inside("tc", &[&["qdisc", "add", "dev", &host_end], &limit[..]].concat());
    eventually(TIMEOUT, || client.sizes(&one) == [PacketSizes::LEGACY; 2]);
    assert_eq!(neighbour.sizes(&one), [BIG; 2]);
    assert!(one.get("/readyz?verbose").contains("BIG TCP: not at 1 interfaces"));
    one.inside("tc", &["qdisc", "del", "dev", &host_end, "root"]);
    eventually(TIMEOUT, || client.sizes(&one) == [BIG; 2]);

    one.stop_agent();
    one.agent_args.retain(|argument| argument != "auto" && argument != "--big-tcp");
    one.start_agent();
    eventually(TIMEOUT, || {
        [&client, &neighbour].iter().all(|pod| pod.sizes(&one) == [PacketSizes::LEGACY; 2])
    });
    assert_eq!(sizes(one.netns_name(), "eth0"), BIG, "the administrator's");
    server.streams_to(&client, Family::V4);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip"]
fn pods_that_are_reached_by_a_tunnel_have_no_big_tcp() {
    // dataplane.md section 2.5
    let mut fabric = Fabric::new();
    let mut node = fabric.node("n1", &["--big-tcp", "auto", "--encapsulation", "vxlan"]);
    node.start_agent();
    set_sizes(node.netns_name(), "eth0", BIG);
    let pod = Pod::on(&mut node, "pod");
    eventually(TIMEOUT, || node.get("/readyz?verbose").contains("BIG TCP: off: packets to pods of "));
    assert_eq!(pod.sizes(&node), [PacketSizes::LEGACY; 2]);
    assert_eq!(sizes(node.netns_name(), "eth0"), BIG);
}
