//! Bad input: the right CNI error code, a message with the limit and the remedy, no leftovers.

use russet_testkit::eventually;
use serde_json::json;

use crate::node::{TIMEOUT, TestNode, TestPod};

/// The request is refused with `code`, the message contains all of `words`, and the node is
/// unchanged.
fn assert_refused(node: &TestNode, env: &[(&str, &str)], stdin: &[u8], code: u64, words: &[&str]) {
    let answer = node.run(env, stdin);
    let error = answer.error();
    let text =
        format!("{} {}", error["msg"].as_str().unwrap(), error["details"].as_str().unwrap_or_default());
    assert_eq!(error["code"], code, "{env:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
    assert_eq!(node.links(), Vec::<String>::new(), "{text}");
}

fn env_of(pod: &TestPod) -> [(&'static str, String); 4] {
    [
        ("CNI_COMMAND", "ADD".to_owned()),
        ("CNI_CONTAINERID", pod.container.clone()),
        ("CNI_NETNS", pod.path().display().to_string()),
        ("CNI_IFNAME", "eth0".to_owned()),
    ]
}

#[test]
#[ignore = "root: makes network namespaces"]
fn hostile_requests_are_refused_with_a_reason() {
    let mut node = TestNode::start(&[]);
    let pod = node.pod();
    let good = env_of(&pod);
    let config = |extra| node.config(extra).to_string().into_bytes();
    let with = |key: &'static str, value: &str| -> Vec<(&str, String)> {
        let mut env: Vec<_> = good.iter().map(|(k, v)| (*k, v.clone())).filter(|(k, _)| *k != key).collect();
        env.push((key, value.to_owned()));
        env
    };
    let refused = |env: Vec<(&str, String)>, stdin: &[u8], code, words: &[&str]| {
        let env: Vec<_> = env.iter().map(|(key, value)| (*key, value.as_str())).collect();
        assert_refused(&node, &env, stdin, code, words);
    };
    let env = || good.to_vec();
    let whole = config(json!({}));
    refused(env(), &whole[..whole.len() / 2], 6, &[]);
    let huge = config(json!({ "padding": "x".repeat(10 << 20) }));
    refused(env(), &huge, 5, &["1048576"]);
    refused(with("CNI_ARGS", "K8S_POD_NAME=a\u{1b}[2Jb\n;IgnoreUnknown=1"), &whole, 4, &["CNI_ARGS"]);
    refused(with("CNI_CONTAINERID", "../../etc"), &whole, 4, &["../../etc"]);
    refused(env(), &config(json!({ "name": "../x" })), 7, &["network name"]);
    refused(with("CNI_IFNAME", "a234567890123456"), &whole, 4, &["15"]);
    refused(with("CNI_IFNAME", "../eth0"), &whole, 4, &["../eth0"]);
    refused(with("CNI_NETNS", "/run/netns/rstest-no-such"), &whole, 4, &["CNI_NETNS"]);
    refused(with("CNI_NETNS", "/etc/passwd"), &whole, 4, &["CNI_NETNS"]);
    refused(with("CNI_NETNS", "/proc/self/ns/mnt"), &whole, 4, &["CNI_NETNS"]);
    refused(env(), &config(json!({ "ipv4_pools": ["10.0.0.0/33"] })), 7, &["ipv4_pools", "10.0.0.0/33"]);
    refused(env(), &config(json!({ "ipv4_pools": ["10.99.0.0/16"] })), 7, &["10.99.0.0/16"]);
    refused(env(), &config(json!({ "mtu": 40 })), 7, &["mtu"]);
    refused(env(), &config(json!({ "ipam": { "type": "host-local" } })), 2, &["host-local"]);
    refused(env(), &config(json!({ "cniVersion": "9.9.9" })), 1, &["9.9.9"]);
    // Afterwards the node still works, and has nothing of the refused requests.
    assert_eq!(node.add(&pod).addresses().len(), 2);
    assert_eq!(node.del(&pod).status, 0);
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn the_nodes_own_namespace_is_refused_before_any_work() {
    // cni-runtime.md section 6.2, item 24
    let node = TestNode::start(&[]);
    let own = format!("/proc/{}/ns/net", node.agent_pid());
    let env = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", own.as_str()),
        ("CNI_IFNAME", "eth0"),
    ];
    assert_refused(&node, &env, node.config(json!({})).to_string().as_bytes(), 8, &["namespace"]);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn an_exhausted_pool_is_named_and_the_add_is_undone() {
    let mut node = TestNode::start(&["--ipv4-pool", "10.77.0.0/26", "--ipv6-pool", "fd77::/121"]);
    let mut pods = Vec::new();
    // One block of 64 addresses, less those of the node's tunnel.
    let error = loop {
        let pod = node.pod();
        let answer = node.add(&pod);
        if answer.status != 0 {
            assert!(pods.len() >= 60, "only {} addresses: {answer:?}", pods.len());
            break answer.error();
        }
        pods.push(pod);
    };
    assert_eq!(error["code"], 100, "{error}");
    assert!(error.to_string().contains("10.77.0.0/26"), "{error}");
    // One release, one assignment.
    let last = pods.pop().unwrap();
    assert_eq!(node.del(&last).status, 0);
    assert_eq!(node.add(&last).addresses().len(), 2);
    pods.push(last);
    for pod in &pods {
        assert_eq!(node.del(pod).status, 0);
    }
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_corrupt_block_is_named_and_left_alone() {
    let mut node = TestNode::start(&["--ipv4-pool", "10.77.0.0/26", "--ipv6-pool", "none"]);
    let pod = node.pod();
    assert_eq!(node.add(&pod).addresses().len(), 1);
    assert_eq!(node.del(&pod).status, 0);
    node.stop_agent();
    let key = "/calico/ipam/v2/assignment/ipv4/block/10.77.0.0-26";
    node.store_put(key, "{\"cidr\":\"10.77.0.0/26\",\"allocations\":[0]");
    node.start_agent();
    let answer = node.add(&pod);
    assert_eq!(answer.code(), 102, "{answer:?}");
    assert!(answer.stdout.contains(key), "{answer:?}");
    node.stop_agent();
    assert!(node.store_get(key).contains("\\\"allocations\\\":[0]"), "{}", node.store_get(key));
}

#[test]
#[ignore = "root: makes network namespaces"]
fn pods_of_a_corrupt_block_can_be_deleted_and_the_block_is_reported_unchanged() {
    let mut node = TestNode::start(&["--ipv4-pool", "10.77.0.0/26", "--ipv6-pool", "fd77::/121"]);
    let pod = node.pod();
    assert_eq!(node.add(&pod).addresses().len(), 2);
    node.stop_agent();
    let key = "/calico/ipam/v2/assignment/ipv4/block/10.77.0.0-26";
    node.store_put(key, "{\"cidr\":\"10.77.0.0/26\",\"allocations\":[0]");
    node.start_agent();
    // A repeated DEL gets the same answer.
    for _ in 0..2 {
        let answer = node.del(&pod);
        assert_eq!(answer.status, 0, "{answer:?}");
    }
    // Detached interfaces are deleted in the background, under names of their own.
    assert!(node.links().iter().all(|link| link.starts_with("rsx")), "{:?}", node.links());
    let log = node.log();
    let errors = log.lines().filter(|line| line.contains("ERROR") || line.contains("error"));
    assert!(errors.into_iter().any(|line| line.contains(key) && line.contains("corrupt")), "{log}");
    node.stop_agent();
    assert!(node.store_get(key).contains("\\\"allocations\\\":[0]"), "{}", node.store_get(key));
    // The other family's address is free, and nothing else of the pod is left.
    let others = node.store_get("/calico/ipam/v2/assignment/ipv6/");
    assert!(!others.contains(&pod.container), "{others}");
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_pod_of_a_block_that_breaks_a_harmless_invariant_is_deleted_and_the_block_is_whole_again() {
    // calico-ipam.md section 1.3, invariants 3 and 4
    let mut node = TestNode::start(&["--ipv4-pool", "10.77.0.0/26", "--ipv6-pool", "none"]);
    let pod = node.pod();
    assert_eq!(node.add(&pod).addresses().len(), 1);
    node.stop_agent();
    let key = "/calico/ipam/v2/assignment/ipv4/block/10.77.0.0-26";
    let dump: serde_json::Value = serde_json::from_str(&node.store_get(key)).unwrap();
    let mut block = dump["records"][0]["value"].clone();
    block["attributes"].as_array_mut().unwrap().push(json!({ "handle_id": "nobodys" }));
    let free = block["unallocated"].as_array_mut().unwrap();
    let twice = free[5].clone();
    free.insert(0, twice);
    node.store_put(key, &block.to_string());
    node.start_agent();
    let answer = node.del(&pod);
    assert_eq!(answer.status, 0, "{answer:?}");
    // The address is released after the answer; only then the block is written.
    eventually(TIMEOUT, || node.unfinished() == 0);
    let other = node.pod();
    assert_eq!(node.add(&other).addresses().len(), 1);
    assert_eq!(node.del(&other).status, 0);
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
    assert!(!node.store_get(key).contains("nobodys"), "{}", node.store_get(key));
}

#[test]
#[ignore = "root: mounts a small tmpfs"]
fn a_full_disk_is_a_temporary_error() {
    let mut node = TestNode::without_agent(&[]);
    let state = node.path("var/lib/russet");
    std::fs::create_dir_all(&state).unwrap();
    let _disk = crate::host::SmallDisk::mount(&state, 4 << 20);
    node.start_agent();
    let pod = node.pod();
    let filler = state.join("filler");
    crate::host::fill_disk(&filler);
    // The store's file has free pages; records of decreasing size fill it completely.
    for bytes in [64 << 10, 16 << 10, 4 << 10, 1 << 10, 64] {
        let value = format!("\"{}\"", "x".repeat(bytes));
        let mut number = 0;
        while node.try_store_put(&format!("/filler/{bytes}/{number}"), &value) {
            number += 1;
            assert!(number < 1000, "the disk never was full");
        }
    }
    let answer = node.add(&pod);
    assert_eq!(answer.code(), 104, "{answer:?}");
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(node.add(&pod).addresses().len(), 2);
}
