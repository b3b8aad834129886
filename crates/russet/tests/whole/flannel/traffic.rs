//! Packets from pod to pod, with each backend.

use russet_linux::NetNs;
use russet_linux::bpf::attached;
use russet_netlink::{Direction, Socket};
use russet_testkit::{eventually, pings_with, run};
use rustix::process::Signal;

use super::lab::{Host, Lab};
use crate::node::TIMEOUT;

fn two(lab: &mut Lab) -> (Host, Host) {
    let (near, far) = (lab.running(&["-ip-masq"]), lab.running(&["-ip-masq"]));
    (near, far)
}

/// flannel.md sections 6.2 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ping"]
fn t43_vxlan_carries_1450_bytes_and_no_more() {
    let mut lab = Lab::vxlan();
    let (mut near, mut far) = two(&mut lab);
    let ((from, _), (_, to)) = (near.pod(), far.pod());
    eventually(TIMEOUT, || from.pings(&["-W", "1", &to]));
    assert!(from.pings(&["-W", "1", "-M", "do", "-s", "1422", &to]), "1450 bytes with its headers");
    assert!(!from.pings(&["-W", "1", "-M", "do", "-s", "1423", &to]));
}

/// flannel.md sections 6.3 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ping"]
fn t37_host_gw_carries_pods_packets_and_masquerades_what_leaves() {
    let mut lab = Lab::new(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#);
    let (mut near, mut far) = two(&mut lab);
    let ((from, _), (_, to)) = (near.pod(), far.pod());
    eventually(TIMEOUT, || from.pings(&["-W", "1", &to]));
    assert_eq!(near.env("FLANNEL_MTU"), "1500");
    assert!(
        near.ip(&["route"]).contains(&format!("{} via 10.77.0.12 dev eth0", far.subnet().replace('-', "/")))
    );
    // The hub has no route to pods: it answers because the packet has the node's address.
    assert!(from.pings(&["-W", "1", "10.77.0.1"]));
    assert!(lab.value(&near).ends_with(r#""BackendType":"host-gw"}"#));
}

/// flannel.md sections 6.1 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ping"]
fn udp_carries_pods_packets_also_after_a_restart_of_either_daemon() {
    let mut lab = Lab::new(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}"#);
    let (mut near, mut far) = two(&mut lab);
    let ((from, _), (_, to)) = (near.pod(), far.pod());
    eventually(TIMEOUT, || from.pings(&["-W", "1", &to]));
    for host in [&mut near, &mut far] {
        host.stop();
        host.start();
        eventually(TIMEOUT, || from.pings(&["-W", "1", &to]));
    }
}

/// The value of a metric of the node's daemon.
fn metric(host: &Host, name: &str) -> u64 {
    let text = host.node.inside("curl", &["-sS", &format!("http://127.0.0.1:{HEALTH_PORT}/metrics")]);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

fn is_ready(host: &Host) -> bool {
    let url = format!("http://127.0.0.1:{HEALTH_PORT}/readyz");
    host.node.inside("curl", &["-sS", &url]) == "flanneld is ready"
}

/// BPF programs at links of the node.
fn programs(host: &Host) -> usize {
    let netns = NetNs::open_named(host.node.netns_name()).unwrap();
    let count = || {
        let mut socket = Socket::route().unwrap();
        let links = socket.links().unwrap();
        let both = [Direction::Ingress, Direction::Egress];
        let at = |index| both.map(|direction| attached(index, direction).map_or(0, |found| found.len()));
        links.iter().flat_map(|link| at(link.index)).sum()
    };
    netns.with(count).unwrap()
}

const HEALTH_PORT: u16 = 8081;
const FAST_SENT: &str = r#"flanneld_fast_path_packets_total{direction="sent"}"#;

/// docs/fast-path.md: nodes that have the fast path say so in their leases, and the others send to them, and get from them,
/// what flannel's daemon would.
#[test]
#[ignore = "root: makes network namespaces; kernel: TCX; tool: etcd, ping, curl, tc"]
fn udp_with_the_fast_path_carries_pods_packets_between_nodes_that_have_it() {
    let mut lab = Lab::new(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}"#);
    let flags = ["-fast-path=require", "-healthz-port=8081"];
    let (mut near, mut far) = (lab.running(&flags), lab.running(&flags));
    let mut without = lab.running(&[]);
    let ((from, _), (_, to)) = (near.pod(), far.pod());
    let (_, there) = without.pod();
    let says_so = r#"{"PublicIP":"10.77.0.11","PublicIPv6":null,"BackendData":{"KernelDecap":true}}"#;
    eventually(TIMEOUT, || lab.value(&near) == says_so);
    assert_eq!(lab.value(&without), r#"{"PublicIP":"10.77.0.13","PublicIPv6":null}"#);
    // Only once the MAC of the next hop is known, and the other node's lease says that it has the fast path.
    let carries = |near: &Host| {
        let before = metric(near, FAST_SENT);
        from.pings(&["-W", "1", &to]) && metric(near, FAST_SENT) > before
    };
    eventually(TIMEOUT, || carries(&near));
    assert!(is_ready(&near) && metric(&near, "flanneld_fast_path") == 1);
    let before = metric(&near, FAST_SENT);
    eventually(TIMEOUT, || from.pings(&["-W", "1", &there]));
    assert_eq!(metric(&near, FAST_SENT), before, "to a node without it this process sends");

    // A filter at the uplink has to see every packet.
    near.node.inside("tc", &["qdisc", "add", "dev", "eth0", "clsact"]);
    eventually(TIMEOUT, || !is_ready(&near));
    assert!(near.log().contains("a queueing discipline or filter is at eth0"), "{}", near.log());
    eventually(TIMEOUT, || lab.value(&near) == r#"{"PublicIP":"10.77.0.11","PublicIPv6":null}"#);
    eventually(TIMEOUT, || from.pings(&["-W", "1", &to]));
    near.node.inside("tc", &["qdisc", "del", "dev", "eth0", "clsact"]);
    near.ip(&["link", "set", "flannel0", "mtu", "1000"]);
    eventually(TIMEOUT, || is_ready(&near) && lab.value(&near) == says_so);
    eventually(TIMEOUT, || carries(&near));

    // The device ends with the process, and what is attached, too.
    near.signal(Signal::KILL);
    near.ends();
    eventually(TIMEOUT, || programs(&near) == 0);
    near.start();
    eventually(TIMEOUT, || carries(&near));
    near.stop();
    assert_eq!(programs(&near), 0);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, curl"]
fn a_node_that_needs_the_fast_path_is_not_ready_with_a_backend_that_has_none() {
    let mut lab = Lab::vxlan();
    let required = lab.running(&["-fast-path=require", "-healthz-port=8081"]);
    assert!(!is_ready(&required));
    assert!(required.log().contains("there is no fast path for this backend"), "{}", required.log());
    let auto = lab.running(&["-fast-path=auto", "-healthz-port=8081"]);
    assert!(is_ready(&auto));
}

/// flannel.md sections 3.1, 7.3 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ping"]
fn t44_dual_stack_has_one_key_two_devices_and_six_lines() {
    let config = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}"#;
    let mut lab = Lab::new(config);
    let (mut near, mut far) = (lab.host(&[]), lab.host(&[]));
    for (host, number) in [(&mut near, 11), (&mut far, 12)] {
        host.ip(&["address", "add", &format!("fd00:77::{number}/64"), "dev", "eth0", "nodad"]);
        host.ip(&["route", "add", "default", "via", "fd00:77::1", "dev", "eth0"]);
        host.start();
    }
    let text = std::fs::read_to_string(near.env_path()).unwrap();
    assert_eq!(text.lines().count(), 6, "{text}");
    let keys = lab.lease_keys();
    assert!(
        keys.len() == 2 && keys.iter().all(|key| key.contains("-24&fd00:10:5:") && key.ends_with("::-64")),
        "{keys:?}"
    );
    let base = |host: &Host| host.env("FLANNEL_IPV6_SUBNET").replace("1/64", "");
    near.routes_to(&far.subnet());
    let subnet = format!("{}/64", base(&far));
    eventually(TIMEOUT, || {
        near.ip(&["-6", "route"]).contains(&format!("{subnet} via {} dev flannel-v6.1", base(&far)))
    });
    let fdb = run("bridge", &["-n", near.node.netns_name(), "fdb", "show", "dev", "flannel-v6.1"]);
    assert!(fdb.contains("dst fd00:77::12"), "{fdb}");
    let netns = near.node.netns_name().to_owned();
    let own = base(&near);
    let reached = |to: &str| pings_with(&netns, &["-W", "1", "-I", &own, to]);
    eventually(TIMEOUT, || reached(&base(&far)));
}
