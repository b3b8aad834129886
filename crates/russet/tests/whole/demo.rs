//! The demo as a user runs it: it works, reports correctly, and leaves nothing behind.

use std::collections::BTreeSet;
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

/// Who reaches whom in one stage of a demo with policies, on each family, and whether the evaluator says
/// the same of all.
fn reached(stage: &Value) -> BTreeSet<(String, String, u64)> {
    let pairs = stage["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 2 * (6 * 5 + 6), "a pair or a family is missing");
    let text = |pair: &Value, member: &str| pair[member].as_str().unwrap().to_owned();
    let reached = pairs.iter().filter(|pair| pair["reached"] == true);
    reached.map(|pair| (text(pair, "from"), text(pair, "to"), pair["family"].as_u64().unwrap())).collect()
}

#[test]
#[ignore = "root: makes network namespaces"]
fn policies_of_a_demo_deny_all_and_then_let_clients_reach_servers() {
    let _turn = demo_turn();
    let before = HostState::now();
    let report = Russet::demo(&["--policy"]).json();
    assert_all_reached(&report, 3, 2);
    let stages = report["policy"]["stages"].as_array().unwrap();
    let [open, denied, allowed] = stages.as_slice() else { panic!("{report}") };
    assert_eq!(reached(open).len(), 72, "{open}");
    assert_eq!(reached(denied), BTreeSet::new());
    let mut wanted = BTreeSet::new();
    for (client, server) in [1, 2, 3].into_iter().flat_map(|from| [1, 2, 3].map(|to| (from, to))) {
        wanted.extend([4, 6].map(|family| (format!("n{client}-p1"), format!("n{server}-p2"), family)));
    }
    assert_eq!(reached(allowed), wanted);
    for pair in stages.iter().flat_map(|stage| stage["pairs"].as_array().unwrap()) {
        assert_eq!(pair["expected"], pair["reached"], "{pair}");
    }
    assert_eq!(HostState::now(), before);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn policies_of_a_demo_are_in_force_from_an_etcd_too() {
    let _turn = demo_turn();
    let report = Russet::demo(&["--policy", "--etcd", "spawn"]).json();
    let stages = report["policy"]["stages"].as_array().unwrap();
    let counts: Vec<usize> = stages.iter().map(|stage| reached(stage).len()).collect();
    assert_eq!(counts, [72, 0, 18], "{report}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, nft"]
fn a_demo_whose_packets_do_not_pass_as_the_policies_say_exits_with_3() {
    /// The drops come too late, or so early that plain pings are lost, only if this process has waited for
    /// the whole of two stages.
    const TRIES: usize = 10;
    let _turn = demo_turn();
    let dropped = "add table inet foreign; add chain inet foreign forward { type filter hook forward priority 0; }; add rule inet foreign forward meta l4proto { icmp, ipv6-icmp } drop";
    let outcome = || {
        let mut demo = Russet::demo(&["--policy"]).start();
        demo.wait_for_progress("policies: deny-all");
        let nft = Command::new("ip").args(["netns", "exec", "rsdemo-n2", "nft", dropped]).output().unwrap();
        (nft.status.success(), demo.finish().status.code())
    };
    let seen: Vec<_> = (0..TRIES).map(|_| outcome()).take_while(|seen| *seen != (true, Some(3))).collect();
    assert!(seen.len() < TRIES, "{seen:?}");
}

#[test]
#[ignore = "root: makes network namespaces, breaks a node in nine ways"]
fn a_demo_breaks_a_node_in_nine_ways_and_its_agent_notices_and_restores_each() {
    let _turn = demo_turn();
    let before = HostState::now();
    let report = Russet::demo(&["--break", "--nodes", "2", "--pods", "1"]).json();
    let faults = report["faults"]["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 9, "{report}");
    for fault in faults {
        let (sent, lost) = (fault["sent"].as_u64().unwrap(), fault["lost"].as_u64().unwrap());
        assert!(fault["recovered"] == true && lost < sent, "{fault}");
        let what = fault["noticed"]["what"].to_string();
        let (words, is_restored) = match fault["name"].as_str().unwrap() {
            "pod-route" | "node-route" => (" route ", true),
            "neighbours" => ("put ", true),
            "tunnel-down" | "tunnel-deleted" => ("tunnel device", true),
            "forwarding" => ("ip_forward", true),
            "tables" => ("russet", true),
            "tunnel-port" => ("demo-firewall", false),
            "agent-killed" => ("started again", false),
            other => panic!("{other}"),
        };
        assert!(what.contains(words), "{fault}");
        assert_eq!(fault["noticed"]["restored_ms"].is_number(), is_restored, "{fault}");
    }
    // The kernel names who deleted a route: the demo.
    assert!(faults[0]["noticed"]["who"].to_string().contains("russet"), "{report}");
    assert_eq!(HostState::now(), before);
}

#[test]
fn a_demo_that_could_not_show_what_it_is_for_is_refused() {
    for (args, reason) in [
        (&["--policy", "--fabric", "flannel"][..], "flannel enforces no policies"),
        (&["--policy", "--nodes", "32", "--pods", "3"], "at most 64 pods"),
        (&["--break", "--mode", "routed"], "needs the agent, its tunnels and two nodes"),
    ] {
        let output = Russet::demo(args).output();
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains(reason), "{output:?}");
    }
}
