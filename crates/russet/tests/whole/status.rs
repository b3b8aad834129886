//! `russet status` on nodes that do and do not reach each other, and `--cluster` on the records of all agents.

use std::process::{Command, Stdio};

use russet_linux::process;
use russet_testkit::{Process, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fabric::{Fabric, RESOURCES};
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

#[test]
#[ignore = "root: three nodes on an etcd, of which one is killed and one is cut off; kernel: vxlan; tool: etcd, ip, nft"]
fn the_cluster_shows_who_is_silent_who_is_not_ready_and_who_is_not_reached() {
    let mut fabric = Fabric::new();
    let mut nodes = ["node-a", "node-b", "node-c"].map(|name| fabric.node(name, &FAST));
    nodes.iter_mut().for_each(TestNode::start_agent);
    // A node whose agent is Calico's.
    let spec = json!({"bgp": {"ipv4Address": "10.77.0.99/24"}});
    fabric.put_resource("nodes", "Node", "plain", spec);
    let states = |node: &TestNode| {
        let (code, report) = status(node, &["--cluster"]);
        let nodes = report["nodes"].as_array().unwrap().iter();
        let mut all: Vec<String> = nodes
            .map(|it| format!("{} {}", it["node"].as_str().unwrap(), it["state"].as_str().unwrap()))
            .collect();
        all.sort();
        (code, all, report)
    };
    eventually(TIMEOUT, || {
        states(&nodes[0]).1 == ["node-a ready", "node-b ready", "node-c ready", "plain no-record"]
    });
    // plain does not answer any probe: three agents say so, in one line.
    eventually(TIMEOUT, || {
        let answer = page(&nodes[0], &["--cluster"]);
        answer.status == 3 && answer.stdout.contains("! plain is not reached by node-a, node-b, node-c")
    });
    fabric.etcdctl(&["del", &format!("{RESOURCES}/nodes/plain")]);
    eventually(TIMEOUT, || states(&nodes[0]).0 == 0);
    // One is killed: its record stays, and becomes old. The record is rewritten as if that were long ago.
    nodes[2].kill_agent();
    let key = "/russet/health/v1/node-c";
    let mut record = fabric.get(key);
    record["at"] = json!("2026-01-01T00:00:00Z");
    fabric.put(key, &record.to_string());
    eventually(TIMEOUT, || {
        let (code, all, _) = states(&nodes[0]);
        code == 3 && all.contains(&"node-c no-sign".to_owned())
    });
    // Records of other clients are read with care.
    fabric.put("/russet/health/v1/node-b", "{\"schema\":1,\"node\":7}");
    fabric.put("/russet/health/v1/x", "[");
    let (_, all, _) = states(&nodes[0]);
    assert!(all.contains(&"node-b no-record".to_owned()), "{all:?}");
}

#[test]
#[ignore = "root: an etcd with the records of 200 agents; tool: etcd"]
fn the_records_of_two_hundred_agents_are_shown_and_a_node_that_all_miss_is_one_problem() {
    let mut fabric = Fabric::new();
    let node = fabric.node("node-0", &[]);
    let now = russet_model::time::rfc3339(std::time::SystemTime::now());
    let names: Vec<String> = (0..200).map(|n| format!("node-{n}")).collect();
    // Of nodes only the names are read.
    for chunk in names.chunks(100) {
        let nodes = chunk.iter().map(|name| (format!("{RESOURCES}/nodes/{name}"), "x".to_owned()));
        fabric.put_all(&nodes.collect::<Vec<_>>());
    }
    for name in &names {
        let record = json!({"schema": 1, "node": name, "version": "0.1.0", "at": now, "every_s": 3600, "ready": true, "endpoints": 3,
            "reachable": 16, "unreachable": ["node-7"]});
        fabric.put(&format!("/russet/health/v1/{name}"), &record.to_string());
    }
    let store = ["--store", "etcd:http://10.77.0.1:2379"];
    let (code, report) = status(&node, &[&["--cluster"], &store[..]].concat());
    assert_eq!((code, report["nodes"].as_array().unwrap().len()), (3, 200));
    assert_eq!(report["problems"].as_array().unwrap().len(), 1, "{report:#}");
}
