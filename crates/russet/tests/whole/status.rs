//! `russet status` on nodes that do and do not reach each other.

use std::process::{Command, Stdio};

use russet_linux::process;
use russet_testkit::{Process, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::{Answer, TIMEOUT, TestNode};
use crate::peers::FAST;

/// The exit code and the report.
fn status(node: &TestNode, args: &[&str]) -> (i32, Value) {
    let answer = node.russet_inside(&[&["status", "-o", "json"], args].concat());
    (
        answer.status,
        serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}")),
    )
}

fn page(node: &TestNode, args: &[&str]) -> Answer {
    let answer = node.russet_inside(&[&["status"], args].concat());
    println!("{}", answer.stdout);
    answer
}

#[test]
#[ignore = "root: two nodes on an etcd, a foreign rule, a route that is deleted; kernel: vxlan; tool: etcd, ip, nft"]
fn a_node_is_shown_with_problems_first_and_the_exit_code_says_whether_there_are_any() {
    let mut fabric = Fabric::new();
    let mut nodes = ["node-a", "node-b"].map(|name| fabric.node(name, &FAST));
    // Without an agent there is nothing to show, and what to do is said.
    let answer = nodes[0].russet_inside(&["status"]);
    assert_eq!(answer.status, 1, "{answer:?}");
    assert!(
        answer.stderr.contains("no agent runs at ") && answer.stderr.contains("systemctl start"),
        "{answer:?}"
    );
    nodes.iter_mut().for_each(TestNode::start_agent);
    let pod = nodes[0].pod();
    nodes[0].add(&pod).result();
    let [a, b] = &nodes;
    eventually(TIMEOUT, || {
        let (code, report) = status(a, &[]);
        code == 0 && report["peers"]["counts"]["reachable"] == 1
    });
    let (_, report) = status(a, &[]);
    assert_eq!((&report["node"], &report["endpoints"]), (&json!("node-a"), &json!(1)));
    assert!(report["datastore"]["latency_us"].as_u64().is_some_and(|us| us > 0), "{report:#}");
    assert_eq!(report["routes"]["expected"], report["routes"]["present"]);
    assert_eq!(
        report["routes"]["paths"][0],
        json!({"ip_version": 4, "encapsulation": "vxlan", "device": "vxlan.calico", "mtu_bytes": 1450})
    );
    let peer = &report["peers"]["peers"][0];
    assert_eq!(
        (&peer["node"], &peer["path"], &peer["underlay"]),
        (&json!("node-b"), &json!("tunnel"), &json!("10.77.0.12"))
    );
    assert!(peer["rtt_us"].as_u64().is_some_and(|us| us < 2_000_000), "{report:#}");
    let text = page(a, &[]).stdout;
    assert!(text.starts_with("node-a: ready, no problems (agent "), "{text}");
    assert!(text.lines().count() < 24, "{text}");

    b.inside(
        "nft",
        &["table inet foreign { chain guard { type filter hook input priority 0; udp dport 4789 drop; }; }"],
    );
    eventually(TIMEOUT, || {
        let answer = page(a, &[]);
        let second = answer.stdout.lines().nth(1).unwrap_or_default();
        answer.status == 3 && second.starts_with("! node node-b is not reached (IPv4, tunnel): the node answers at 10.77.0.12, its tunnel does not")
    });
    // The same is a finding of the doctor.
    let found = a.russet_inside(&["doctor", "-o", "json"]);
    let found: Value = serde_json::from_str(&found.stdout).unwrap();
    let kinds: Vec<&Value> = found["findings"].as_array().unwrap().iter().map(|it| &it["kind"]).collect();
    assert!(kinds.contains(&&json!("peer")), "{found:#}");
    // Again and again, until it is interrupted.
    let pages = a.path("pages");
    let mut watch = Command::new(env!("CARGO_BIN_EXE_russet"));
    watch.args(["status", "--watch", "--root"]).arg(a.root()).stdin(Stdio::null());
    watch.stdout(std::fs::File::create(&pages).unwrap());
    let watch = Process::start(process::in_netns(&mut watch, a.netns()).unwrap());
    eventually(TIMEOUT, || std::fs::read_to_string(&pages).unwrap().matches("node-a: ready, ").count() >= 2);
    assert_eq!(watch.end(Signal::TERM).code(), Some(3));
}
