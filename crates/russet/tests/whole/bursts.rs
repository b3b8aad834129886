//! Concurrent requests without an agent: each is a process, and they wait for each other only where
//! they share state.

use std::process::Child;

use russet_store::LOCK_FILE;
use russet_testkit::eventually;
use rustix::fs::{FlockOperation, flock};
use serde_json::json;

use crate::node::{Answer, PATH, TIMEOUT, TestNode, TestPod};

const PODS: usize = 8;

/// Starts a plugin's process with the program and arguments before it, and does not wait for its
/// end.
fn start(node: &TestNode, before: &[&str], verb: &str, pod: &TestPod) -> Child {
    let words = [before, &[env!("CARGO_BIN_EXE_russet")]].concat();
    let mut command = pod.call(words[0], verb, "/opt/cni/bin");
    node.spawn(command.args(&words[1..]).env("PATH", PATH), node.config(json!({})).to_string())
}

fn end(child: Child) -> Answer {
    child.wait_with_output().unwrap().into()
}

/// The lock of the node's store, as another request holds it until the file is dropped.
fn hold_store(node: &TestNode) -> std::fs::File {
    let file = std::fs::File::open(node.path("var/lib/russet").join(LOCK_FILE)).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    file
}

fn doomed(node: &TestNode) -> usize {
    node.links().iter().filter(|name| name.starts_with("rsx")).count()
}

/// Does to a pod's host end what a DEL does before it gives back addresses and deletes links.
fn leave_as_a_killed_del(node: &TestNode, pod: &TestPod) {
    let links: serde_json::Value = serde_json::from_str(&node.ip(&["-j", "link"])).unwrap();
    let is_of_pod = |link: &&serde_json::Value| {
        link["ifalias"].as_str().is_some_and(|alias| alias.contains(&pod.container))
    };
    let link = links.as_array().unwrap().iter().find(is_of_pod).expect("the pod has a host end");
    let (name, doomed_name) = (link["ifname"].as_str().unwrap(), format!("rsx{}", link["ifindex"]));
    node.ip(&["link", "set", name, "down"]);
    node.ip(&["link", "set", name, "name", &doomed_name, "group", "7273"]);
    assert_eq!(doomed(node), 1);
}

fn with_pods(node: &mut TestNode, count: usize) -> Vec<TestPod> {
    let pods: Vec<_> = (0..count).map(|_| node.pod()).collect();
    pods.iter().for_each(|pod| assert_eq!(node.add(pod).addresses().len(), 2));
    pods
}

#[test]
#[ignore = "root: makes network namespaces"]
fn concurrent_dels_delete_their_interfaces_while_another_request_has_the_store() {
    let mut node = TestNode::without_agent(&[]);
    let pods = with_pods(&mut node, PODS);
    let store = hold_store(&node);
    let mut dels: Vec<_> = pods.iter().map(|pod| start(&node, &[], "DEL", pod)).collect();
    eventually(TIMEOUT, || node.links().is_empty());
    for del in &mut dels {
        assert_eq!(
            del.try_wait().unwrap(),
            None,
            "a DEL without an agent answers when its addresses are free"
        );
    }
    drop(store);
    for del in dels {
        let answer = end(del);
        assert_eq!(answer.status, 0, "{answer:?}");
    }
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn leftovers_of_a_killed_del_are_removed_by_the_next_del_and_by_an_agents_start() {
    let mut node = TestNode::without_agent(&[]);
    let pods = with_pods(&mut node, 3);
    leave_as_a_killed_del(&node, &pods[0]);
    assert_eq!(node.del(&pods[1]).status, 0);
    assert_eq!(doomed(&node), 0, "the deletion of one pod's link takes along what a killed DEL left");
    // Its address is still held; the repeated DEL releases it.
    assert_eq!(node.del(&pods[0]).status, 0);
    leave_as_a_killed_del(&node, &pods[2]);
    assert_eq!(node.add(&pods[0]).addresses().len(), 2, "an ADD is not disturbed");
    node.start_agent();
    eventually(TIMEOUT, || doomed(&node) == 0);
    assert_eq!((node.del(&pods[0]).status, node.del(&pods[2]).status), (0, 0));
    eventually(TIMEOUT, || node.links().is_empty());
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn an_add_leaves_the_store_to_others_while_the_kernel_wires_its_interface() {
    let mut node = TestNode::without_agent(&[]);
    let first = node.pod();
    assert_eq!(node.add(&first).addresses().len(), 2);
    let lock = node.path("var/lib/russet").join(LOCK_FILE);
    std::fs::write(&lock, "").unwrap();
    let second = node.pod();
    // Its first message to the kernel takes three seconds.
    let slow = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=sendto",
        "-e",
        "inject=sendto:delay_enter=3000000:when=1",
    ];
    let add = start(&node, &slow, "ADD", &second);
    eventually(TIMEOUT, || {
        let file = std::fs::File::open(&lock).unwrap();
        // A holder of the lock writes its name into the file.
        let was_locked = !std::fs::read(&lock).unwrap().is_empty();
        let is_free = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        was_locked && is_free && node.links().len() == 1
    });
    let answer = end(add);
    assert_eq!(answer.addresses().len(), 2, "{answer:?}");
    assert_eq!((node.del(&first).status, node.del(&second).status), (0, 0));
    assert_eq!(node.allocated(), 0);
}
