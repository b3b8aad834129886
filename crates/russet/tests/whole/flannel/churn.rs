//! Many nodes come and go at once: through etcd, the daemon's watch, and into the kernel.

use std::io::Write as _;
use std::process::{Command, Stdio};

use russet_linux::{NetNs, process};
use russet_testkit::eventually;

use super::lab::{Host, Lab, PREFIX};
use crate::node::TIMEOUT;

/// How many nodes come and go, and how many times.
const NODES: u32 = 1000;
const ROUNDS: u32 = 10;
/// etcd's limit of operations in a transaction is 128.
const AT_ONCE: usize = 125;

/// Subnets of 16 addresses in 10.5.0.0/16, after those that daemons choose.
fn subnet(n: u32) -> String {
    let base = u32::from(std::net::Ipv4Addr::new(10, 5, 128, 0)) + n * 16;
    format!("{}-28", std::net::Ipv4Addr::from(base))
}

/// One etcdctl process executes these transactions.
fn transactions(lab: &Lab, lines: &[String]) {
    let hub = NetNs::open_named(lab.fabric.hub()).unwrap();
    for chunk in lines.chunks(AT_ONCE) {
        let mut command = Command::new("etcdctl");
        command.args(["--endpoints", "10.77.0.1:2379", "txn"]).env("ETCDCTL_API", "3");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        process::in_netns(&mut command, &hub).unwrap();
        let mut child = command.spawn().unwrap();
        let text = format!("\n{}\n\n", chunk.concat());
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

fn put(lab: &Lab, nodes: impl Iterator<Item = u32>, round: u32) {
    let line = |n: u32| {
        let (high, low) = (n / 250, n % 250 + 1);
        let mac = format!("02:00:00:{round:02x}:{:02x}:{:02x}", n / 256, n % 256);
        let value = format!(
            r#"{{"PublicIP":"10.78.{high}.{low}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
        );
        // The syntax of Go's quoted strings is that of JSON here.
        format!("put {PREFIX}/subnets/{} {}\n", subnet(n), serde_json::Value::from(value))
    };
    transactions(lab, &nodes.map(line).collect::<Vec<_>>());
}

fn delete(lab: &Lab, nodes: impl Iterator<Item = u32>) {
    let line = |n: u32| format!("del {PREFIX}/subnets/{}\n", subnet(n));
    transactions(lab, &nodes.map(line).collect::<Vec<_>>());
}

/// The number of routes, neighbours and forwarding entries.
fn objects(host: &Host) -> [usize; 3] {
    let count = |text: String, word: &str| text.lines().filter(|line| line.contains(word)).count();
    [
        count(host.ip(&["route", "show", "proto", "115"]), "dev flannel.1"),
        count(host.ip(&["neigh", "show", "dev", "flannel.1", "nud", "permanent"]), "lladdr"),
        count(host.fdb(), "dst 10.78."),
    ]
}

/// flannel.md sections 3.5 and 10.
#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge"]
fn t24_a_thousand_nodes_that_come_and_go_ten_times_leave_exactly_those_that_are_there() {
    let mut lab = Lab::new(r#"{"Network":"10.5.0.0/16","SubnetLen":28,"Backend":{"Type":"vxlan"}}"#);
    let mut host = lab.running(&["-iface=eth0"]);
    for round in 0..ROUNDS {
        put(&lab, 0..NODES, round);
        delete(&lab, 0..NODES);
    }
    // The last round keeps every third.
    put(&lab, 0..NODES, ROUNDS);
    delete(&lab, (0..NODES).filter(|n| n % 3 != 0));
    let left = (0..NODES).filter(|n| n % 3 == 0).count();
    eventually(TIMEOUT, || objects(&host) == [left; 3]);
    let (routes, entries) = (host.ip(&["route"]), host.fdb());
    for n in (0..NODES).step_by(99) {
        let route = format!("{} via ", subnet(n).replace('-', "/"));
        assert_eq!(routes.contains(&route), n % 3 == 0, "{route}");
        let mac = format!("02:00:00:{ROUNDS:02x}:{:02x}:{:02x} ", n / 256, n % 256);
        assert_eq!(entries.contains(&mac), n % 3 == 0, "{mac}");
    }
    assert!(host.runs());
}
