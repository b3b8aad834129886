//! DEL from any state, STATUS with the reason of a failure, and attachments that no runtime knows
//! (cni-runtime.md sections 1.5 and 6.2, rows 62 and 63).

use std::process::{Command, Stdio};

use russet_linux::{NetNs, process};
use russet_testkit::{Process, eventually};
use serde_json::{Value, json};

use crate::node::{StoreProcess, TIMEOUT, TestNode, TestPod};
use crate::repair;

/// The host ends that have verdicts.
fn verdicts(node: &TestNode) -> Vec<String> {
    let list = || {
        let output =
            Command::new("nft").args(["-j", "list", "map", "inet", "russet-policy", "to-pods"]).output();
        let text = output.unwrap().stdout;
        serde_json::from_slice::<Value>(&text).unwrap_or_default()
    };
    let list = node.netns().with(list).unwrap();
    let maps = list["nftables"].as_array().cloned().unwrap_or_default();
    let elements = maps.iter().filter_map(|it| it["map"]["elem"].as_array()).flatten();
    elements.map(|pair| pair[0].as_str().unwrap().to_owned()).collect()
}

fn host_end(result: &Value) -> String {
    result["interfaces"][0]["name"].as_str().unwrap().to_owned()
}

/// DEL twice, as containerd does; the second time it no longer knows the namespace.
fn del_twice(node: &TestNode, pod: &TestPod) {
    let env = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", pod.container.as_str()), ("CNI_IFNAME", "eth0")];
    let without_netns = || node.run(&env, node.config(json!({})).to_string().as_bytes());
    for answer in [node.del(pod), without_netns()] {
        assert_eq!(answer.status, 0, "{answer:?}");
    }
}

fn nothing_is_left(node: &TestNode) {
    eventually(TIMEOUT, || node.links().is_empty());
    assert_eq!(verdicts(node), Vec::<String>::new());
}

#[test]
#[ignore = "root: makes network namespaces; tools: ip, nft"]
fn del_succeeds_from_any_state_and_leaves_nothing() {
    let mut node = TestNode::start(&[]);
    // Before any ADD.
    let never = node.pod();
    del_twice(&node, &never);
    // Its namespace was deleted, and the veth with it.
    let gone = node.pod();
    let host = host_end(&node.add(&gone).result());
    assert_eq!(verdicts(&node), [host]);
    NetNs::delete_named(&gone.netns_name).unwrap();
    eventually(TIMEOUT, || node.links().is_empty());
    del_twice(&node, &gone);
    nothing_is_left(&node);
    // The agent was just restarted; one pod is complete, the other half-built: a link with an
    // owner, and nothing else yet.
    let (whole, half) = (node.pod(), node.pod());
    assert_eq!(node.add(&whole).status, 0);
    let host = host_end(&node.add(&half).result());
    let down = || Command::new("ip").args(["link", "set", &host, "down"]).status().unwrap();
    assert!(node.netns().with(down).unwrap().success());
    node.stop_agent();
    let flush = || Command::new("nft").args(["flush", "ruleset"]).status().unwrap();
    assert!(node.netns().with(flush).unwrap().success());
    node.start_agent();
    del_twice(&node, &whole);
    del_twice(&node, &half);
    nothing_is_left(&node);
    // Without an agent, by the plugin alone.
    let (attached, without) = (node.pod(), node.pod());
    assert_eq!(node.add(&attached).status, 0);
    node.stop_agent();
    let host = host_end(&node.add(&without).result());
    assert!(verdicts(&node).contains(&host) && verdicts(&node).len() == 2);
    del_twice(&node, &never);
    for pod in [&attached, &without] {
        del_twice(&node, pod);
    }
    nothing_is_left(&node);
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn status_fails_only_if_pods_are_affected() {
    // Row 62: no agent, no interface programmed, and the store lost without and with pods.
    let owner = tempfile::tempdir().unwrap();
    let serve = || StoreProcess::start(owner.path());
    let store = format!("unix:{}", owner.path().join("var/lib/russet/store.sock").display());
    let mut node = TestNode::without_agent(&["--store", &store]);
    assert_eq!(node.status().code(), 50);
    let running = serve();
    node.start_agent();
    drop(running);
    eventually(TIMEOUT, || node.status().status != 0);
    assert_eq!(node.status().code(), 50, "no pod suffers");
    let running = serve();
    eventually(TIMEOUT, || node.status().status == 0);
    let pod = node.pod();
    assert_eq!(node.add(&pod).status, 0);
    drop(running);
    eventually(TIMEOUT, || node.status().status != 0);
    assert_eq!(node.status().code(), 51);
    let _running = serve();
    eventually(TIMEOUT, || node.status().status == 0);
    assert_eq!(node.del(&pod).status, 0);
}

#[test]
#[ignore = "root: makes network namespaces; tools: bash, ip, nft, sleep"]
fn attachments_that_no_runtime_knows_are_removed_without_gc() {
    let mut node = TestNode::start(&repair::args("10.232.7.0/26", "1s"));
    let [known, inhabited, dead] = [node.pod(), node.pod(), node.pod()];
    // Other tests' interfaces and processes have small numbers, too: these must be unique.
    let numbers = "for i in {1..40}; do ip link add br0 type bridge; ip link del br0; done";
    let burn = || Command::new("bash").args(["-c", numbers]).status().unwrap();
    assert!(NetNs::open(dead.path()).unwrap().with(burn).unwrap().success());
    let ends = [&known, &inhabited, &dead].map(|pod| host_end(&node.add(pod).result()));
    let mut sleep = Command::new("sleep");
    sleep.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    process::in_netns(&mut sleep, &NetNs::open(inhabited.path()).unwrap()).unwrap();
    let _sleep = Process::start(&mut sleep);
    // While no cache has the network, nothing proves that an attachment is stale.
    let repairs = || node.log().matches("a stale attachment was removed").count();
    let network = node.config(json!({}))["name"].as_str().unwrap().to_owned();
    let results = node.path("var/lib/cni/results");
    std::fs::create_dir_all(&results).unwrap();
    assert_eq!((repairs(), node.links().len()), (0, 3));
    let cached = json!({
        "kind": "cniCacheV1", "containerId": known.container, "ifName": "eth0", "networkName": network, "result": {},
    });
    std::fs::write(results.join(format!("{network}-{}-eth0", known.container)), cached.to_string()).unwrap();
    eventually(TIMEOUT, || !node.links().contains(&ends[2]) && repairs() == 1);
    // Its address is released, once two more checks found it without its interface.
    eventually(TIMEOUT, || node.allocated() == 2);
    let mut left = verdicts(&node);
    left.sort();
    let mut expected = ends[..2].to_vec();
    expected.sort();
    assert_eq!(left, expected);
    for pod in [&known, &inhabited] {
        assert_eq!(node.verb("CHECK", pod, "eth0", json!({})).status, 0);
    }
}
