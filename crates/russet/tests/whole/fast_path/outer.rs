//! The tunnel's own packets: what decides about them has its effect, and what the kernel's path carries for pods needs
//! no tunnel's device once it has let such packets pass.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};

use russet_linux::bpf::{Attachable, Map, Object, Program, Way, programs};
use russet_netlink::{Direction, Socket};
use russet_testkit::{eventually, let_pass};
use serde_json::Value;

use super::{Exchange, Pod, SILENT, Setup, is_carried};
use crate::node::{TIMEOUT, TestNode};

/// An address of no pod, which the first node translates to the server's.
const SERVICE: &str = "10.96.0.1";
const CONNECTIONS: u64 = 30;
/// Bytes.
const MUCH: u32 = 8 << 20;

/// Packets that a node has sent (`tx`) or received (`rx`) through a tunnel's device.
pub fn through_device(node: &TestNode, device: &str, direction: &str) -> u64 {
    let link: Value = serde_json::from_str(&node.ip(&["-j", "-s", "link", "show", device])).unwrap();
    link[0]["stats64"][direction]["packets"].as_u64().unwrap()
}

/// How many packets pass the tunnel's device of the client's node while connections begin and end.
fn device_packets(setup: &Setup, to: SocketAddr) -> u64 {
    let sent = || through_device(&setup.one, "vxlan.calico", "tx");
    let before = sent();
    for _ in 0..CONNECTIONS {
        setup.client.exchanges(to, 1);
    }
    sent() - before
}

pub fn drop_outer_packets(node: &TestNode, hook: &str) {
    let chain = format!("{{ type filter hook {hook} priority 0; }}");
    node.inside("nft", &["add", "table", "inet", "foreign"]);
    node.inside("nft", &["add", "chain", "inet", "foreign", "f", &chain]);
    node.inside("nft", &["add", "rule", "inet", "foreign", "f", "udp", "dport", "4789", "drop"]);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF; tool: etcd, ping, nft"]
fn what_decides_about_the_tunnels_packets_decides_about_the_fast_path() {
    // dataplane.md section 4 L1
    let setup = Setup::new("vxlan");
    let (one, two) = (&setup.one, &setup.two);
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    let datagrams = Exchange::udp(&setup.client, &setup.server, false);
    is_carried(&far, &[one, two]);
    datagrams.goes_on();
    for (node, hook) in [(one, "output"), (one, "postrouting"), (two, "prerouting"), (two, "input")] {
        drop_outer_packets(node, hook);
        datagrams.stops();
        far.stops();
        node.inside("nft", &["delete", "table", "inet", "foreign"]);
        far.resumes();
        datagrams.resumes();
        is_carried(&far, &[one, two]);
    }
    // The kernel reports no such change: it has effect when packets of the tunnel take the kernel's path again.
    let to_others = ["dst", "10.77.0.0/24", "proto", "udp", "dport", "4789", "dir", "out"];
    one.ip(&[&["xfrm", "policy", "add"], &to_others[..], &["action", "block"]].concat());
    datagrams.stops();
    far.stops();
    one.ip(&["xfrm", "policy", "flush"]);
    far.resumes();
    is_carried(&far, &[one, two]);
}

/// Sends much in one piece, which arrives whole.
pub fn sends_much(client: &Pod, server: &Pod, is_v6: bool, to: impl Fn(SocketAddr) -> SocketAddr) {
    let address = server.serves(is_v6, |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&sum(&all).to_be_bytes()).unwrap();
    });
    let to = to(address);
    let mut stream = client.within(move || TcpStream::connect_timeout(&to, TIMEOUT).unwrap());
    let all: Vec<u8> = (0..MUCH).map(|number| number.to_le_bytes()[1]).collect();
    stream.write_all(&all).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(u64::from_be_bytes(answer), sum(&all));
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()))
}

/// Has a node translate the service's address to that of a pod.
fn translate(node: &TestNode, target: SocketAddr) -> SocketAddr {
    let target = target.to_string();
    let chain = "{ type nat hook prerouting priority -100; }";
    let rule = ["ip", "daddr", SERVICE, "tcp", "dport", "80", "dnat", "to", &target];
    node.inside("nft", &["add", "table", "ip", "translated"]);
    node.inside("nft", &["delete", "table", "ip", "translated"]);
    node.inside("nft", &["add", "table", "ip", "translated"]);
    node.inside("nft", &["add", "chain", "ip", "translated", "c", chain]);
    node.inside("nft", &[&["add", "rule", "ip", "translated", "c"], &rule[..]].concat());
    SocketAddr::new(SERVICE.parse().unwrap(), 80)
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF; tool: etcd, ping, nft"]
fn connections_begin_and_end_without_the_tunnels_device_also_those_to_translated_addresses() {
    let mut setup = Setup::new("vxlan");
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    is_carried(&far, &[&setup.one, &setup.two]);
    let address = setup.server.answers(false);
    let service = translate(&setup.one, address);
    for to in [address, service] {
        // A change of rules has the tunnel's packets decided about again, as the next 20 s without any do.
        eventually(TIMEOUT, || device_packets(&setup, to) < CONNECTIONS / 3);
    }
    sends_much(&setup.client, &setup.server, false, |address| address);
    sends_much(&setup.client, &setup.server, false, |address| translate(&setup.one, address));
    // Without an agent they pass it.
    let service = translate(&setup.one, address);
    setup.one.kill_agent();
    let_pass(SILENT);
    assert!(device_packets(&setup, service) > 4 * CONNECTIONS);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd, ping"]
fn a_program_of_another_owner_where_the_uplink_sends_sees_all_and_ends_nothing() {
    let mut setup = Setup::new("vxlan");
    let far = Exchange::tcp(&setup.client, &setup.server, false);
    is_carried(&far, &[&setup.one, &setup.two]);
    // It leaves every packet as it is.
    let attach = || {
        let object = Object::read(programs::FAST_LEARN).unwrap();
        let maps: Vec<Map> = object.maps().iter().map(|it| Map::create(it).unwrap()).collect();
        let program = Program::load(&object, &maps.iter().collect::<Vec<_>>()).unwrap();
        let links = Socket::route().unwrap().links().unwrap();
        let ifindex = links.iter().find(|link| link.name == "eth0").unwrap().index;
        Attachable::new(program, Way::Tcx).unwrap().attach(ifindex, Direction::Egress).unwrap()
    };
    let attached = setup.one.netns().run_in_thread(attach).unwrap();
    // A pod has the hooks of all links be compared.
    let third = Pod::on(&mut setup.one, "third");
    let its_own = Exchange::tcp(&third, &setup.server, false);
    far.goes_on();
    drop(far);
    is_carried(&its_own, &[&setup.one, &setup.two]);
    drop(attached);
    is_carried(&its_own, &[&setup.one, &setup.two]);
}
