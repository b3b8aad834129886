//! The demo as a user runs it: it works, reports correctly, and leaves nothing behind.

use std::process::{Command, Stdio};

use crate::host::{HostState, Russet, demo_turn};
use serde_json::Value;

/// Every ordered pair of pods and the outside host, on both families, answered.
pub fn assert_all_reached(report: &Value, nodes: usize, pods_per_node: usize) {
    let pods = nodes * pods_per_node;
    assert_eq!(report["nodes"].as_array().unwrap().len(), nodes);
    assert_eq!(report["pods"].as_array().unwrap().len(), pods);
    let pings = report["pings"].as_array().unwrap();
    assert_eq!(pings.len(), 2 * (pods * (pods - 1) + pods), "a pair or a family is missing");
    for ping in pings {
        assert_eq!(ping["ok"], true, "{ping}");
        assert!(ping["rtt_us"].as_u64().is_some(), "{ping}");
    }
}

fn assert_demo_reaches_all(args: &[&str], nodes: usize, pods: usize) {
    let _turn = demo_turn();
    let before = HostState::now();
    let report = Russet::demo(args).json();
    assert_all_reached(&report, nodes, pods);
    assert_eq!(HostState::now(), before);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn pods_on_three_nodes_reach_each_other_over_vxlan() {
    assert_demo_reaches_all(&[], 3, 2);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn pods_on_eight_nodes_reach_each_other() {
    assert_demo_reaches_all(&["--nodes", "8", "--pods", "4"], 8, 4);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn pods_reach_each_other_over_plain_routes() {
    assert_demo_reaches_all(&["--mode", "routed"], 3, 2);
}

#[test]
#[ignore = "root: becomes an ordinary user who makes a user namespace"]
fn an_ordinary_user_can_run_the_demo() {
    let _turn = demo_turn();
    let before = HostState::now();
    let report = Russet::demo(&[]).by_ordinary_user().json();
    assert_all_reached(&report, 3, 2);
    assert_eq!(HostState::now(), before);
}

#[test]
#[ignore = "root: makes network namespaces; tool: ping, ip"]
fn pings_from_outside_the_program_agree() {
    let _turn = demo_turn();
    let before = HostState::now();
    let report = Russet::demo(&["--keep"]).json();
    let pods = report["pods"].as_array().unwrap();
    for from in pods {
        for to in pods.iter().filter(|to| to["name"] != from["name"]) {
            for address in to["ips"].as_array().unwrap() {
                let netns = from["netns"].as_str().unwrap().rsplit('/').next().unwrap();
                let address = address.as_str().unwrap();
                let ping = ["netns", "exec", netns, "ping", "-c", "1", "-W", "2", address];
                let status = Command::new("ip").args(ping).stdout(Stdio::null()).status().unwrap();
                assert!(status.success(), "{netns} to {address}");
            }
        }
    }
    let refused = Russet::demo(&[]).output();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("russet demo --clean"));
    assert!(Russet::demo(&["--clean"]).output().status.success());
    assert_eq!(HostState::now(), before);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn ctrl_c_leaves_nothing() {
    let _turn = demo_turn();
    let before = HostState::now();
    // At different moments: after the first output (often, because that is a race), while agents
    // start, while pods are attached, while pings run.
    let first = std::iter::repeat_n("node namespaces", 20);
    for marker in first.chain(["agents", "pods, attached", "pings between"]) {
        let mut demo = Russet::demo(&["--nodes", "4", "--pods", "4"]).start();
        demo.wait_for_progress(marker);
        demo.signal(rustix::process::Signal::INT);
        let output = demo.finish();
        assert!(!output.status.success(), "interrupted at {marker:?}");
        assert_eq!(HostState::now(), before, "interrupted at {marker:?}");
    }
}

#[test]
#[ignore = "root: makes network namespaces"]
fn the_next_run_removes_a_killed_demos_leftovers() {
    let _turn = demo_turn();
    let before = HostState::now();
    for marker in ["agents", "pods, attached", "pings between"] {
        let mut demo = Russet::demo(&[]).start();
        demo.wait_for_progress(marker);
        demo.signal(rustix::process::Signal::KILL);
        demo.finish();
        let report = Russet::demo(&[]).json();
        assert_all_reached(&report, 3, 2);
        before.assert_returns(marker);
    }
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_second_demo_fails_at_once_and_names_the_reason() {
    let _turn = demo_turn();
    let mut first = Russet::demo(&[]).start();
    first.wait_for_progress("agents");
    let second = Russet::demo(&[]).output();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another demo is running"));
    assert!(first.finish().status.success());
}
