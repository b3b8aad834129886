//! Packets from pod to pod, with each backend.

use russet_testkit::{eventually, pings_with, run};

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
