//! Many concurrent requests, and what is left afterwards.

use std::collections::BTreeSet;

use russet_testkit::eventually;
use serde_json::json;

use crate::node::{TIMEOUT, TestNode, TestPod};

const ROUNDS: usize = 20;
const PODS: usize = 50;

#[test]
#[ignore = "root: makes network namespaces"]
fn fifty_concurrent_adds_and_dels_leave_nothing_twenty_times() {
    let mut node = TestNode::start(&[]);
    let pods: Vec<_> = (0..PODS).map(|_| node.pod()).collect();
    for round in 0..ROUNDS {
        let answers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = pods.iter().map(|pod| scope.spawn(|| node.add(pod))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let addresses: BTreeSet<String> = answers.iter().flat_map(|answer| answer.addresses()).collect();
        assert_eq!(addresses.len(), 2 * PODS, "round {round}: an address was given twice, or is missing");
        std::thread::scope(|scope| {
            for pod in &pods {
                scope.spawn(|| assert_eq!(node.del(pod).status, 0));
            }
        });
        eventually(TIMEOUT, || node.links().is_empty());
        assert_eq!(node.links(), Vec::<String>::new(), "round {round}");
    }
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn an_add_repeated_gives_the_same_address_and_a_del_may_be_repeated() {
    let mut node = TestNode::start(&[]);
    let pod = node.pod();
    let first = node.add(&pod).addresses();
    assert_eq!(node.add(&pod).addresses(), first);
    for _ in 0..3 {
        assert_eq!(node.del(&pod).status, 0);
    }
    eventually(TIMEOUT, || node.links().is_empty());
}

/// Whether a plugin without an agent is working on the pod.
fn works_directly(pod: &TestPod) -> bool {
    let container = format!("CNI_CONTAINERID={}", pod.container);
    let has = |path: std::path::PathBuf, word: &str| {
        let text = std::fs::read(path).unwrap_or_default();
        text.split(|byte| *byte == 0).any(|found| found == word.as_bytes())
    };
    let mut processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    processes.any(|path| has(path.join("cmdline"), "cni-direct") && has(path.join("environ"), &container))
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_request_that_waits_for_the_nodes_lock_is_passed_to_a_new_agent() {
    let mut node = TestNode::start(&[]);
    let (pod, socket) = (node.pod(), node.path("late.sock"));
    std::thread::scope(|scope| {
        // The agent has the lock, and does not seem to listen yet.
        let add = scope.spawn(|| node.verb("ADD", &pod, "eth0", json!({ "agent_socket": socket })));
        eventually(TIMEOUT, || works_directly(&pod));
        std::os::unix::fs::symlink(node.path("run/russet/cni.sock"), &socket).unwrap();
        assert_eq!(add.join().unwrap().addresses().len(), 2);
    });
    assert_eq!(node.allocated(), 2);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn an_agent_that_waits_takes_over_from_one_that_dies() {
    // kubernetes.md K92
    let mut node = TestNode::start(&[]);
    let (pod, late) = (node.pod(), node.pod());
    assert_eq!(node.add(&pod).status, 0);
    let _next = node.spawn_agent();
    node.kill_agent();
    eventually(TIMEOUT, || node.status().status == 0);
    assert_eq!(node.unfinished(), 0);
    assert_eq!(node.add(&late).status, 0);
    assert_eq!(node.verb("CHECK", &pod, "eth0", json!({ "prevResult": node.add(&pod).result() })).status, 0);
    for pod in [&pod, &late] {
        assert_eq!(node.del(pod).status, 0);
    }
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn pods_come_and_go_without_an_agent() {
    let mut node = TestNode::without_agent(&[]);
    let pods: Vec<_> = (0..8).map(|_| node.pod()).collect();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = pods.iter().map(|pod| scope.spawn(|| node.add(pod))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let addresses: BTreeSet<String> = answers.iter().flat_map(|answer| answer.addresses()).collect();
    assert_eq!(addresses.len(), 2 * pods.len());
    assert_eq!(node.status().code(), 50);
    for pod in &pods {
        assert_eq!(node.del(pod).status, 0);
    }
    assert_eq!(node.links(), Vec::<String>::new());
    assert_eq!(node.allocated(), 0);
}
