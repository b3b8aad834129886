//! CHECK, GC and STATUS against the kernel, and the agent's reports on itself.

use std::process::Command;

use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::node::{TIMEOUT, TestNode};

#[test]
#[ignore = "root: makes network namespaces; tool: ip"]
fn check_detects_foreign_changes() {
    let mut node = TestNode::start(&[]);
    let pod = node.pod();
    let result = node.add(&pod).result();
    let check = || node.verb("CHECK", &pod, "eth0", json!({ "prevResult": result }));
    assert_eq!(check().status, 0, "{:?}", check());
    let inside = |args: &[&str]| {
        let all = ["-n", pod.netns_name.as_str()].iter().chain(args).copied().collect::<Vec<_>>();
        assert!(Command::new("ip").args(all).status().unwrap().success());
    };
    inside(&["link", "set", "eth0", "mtu", "1300"]);
    let error = check().error();
    assert!(error["details"].as_str().unwrap().contains("1300"), "{error}");
    inside(&["link", "set", "eth0", "mtu", &result["interfaces"][1]["mtu"].to_string()]);
    inside(&["-4", "route", "del", "default"]);
    assert!(check().error()["details"].as_str().unwrap().contains("0.0.0.0/0"));
    // A repeated ADD repairs it.
    assert_eq!(node.add(&pod).status, 0);
    assert_eq!(check().status, 0);
    assert_eq!(node.del(&pod).status, 0);
    assert_ne!(check().status, 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn gc_deletes_unlisted_attachments_and_keeps_the_rest() {
    let mut node = TestNode::start(&[]);
    let pods: Vec<_> = (0..3).map(|_| node.pod()).collect();
    for pod in &pods {
        assert_eq!(node.add(pod).status, 0);
    }
    let kept = json!([{ "containerID": pods[1].container, "ifname": "eth0" }]);
    let gc = |valid: Value| {
        let config = node.config(json!({ "cni.dev/valid-attachments": valid }));
        node.run(&[("CNI_COMMAND", "GC")], config.to_string().as_bytes())
    };
    for _ in 0..2 {
        assert_eq!(gc(kept.clone()).status, 0);
        eventually(TIMEOUT, || node.links().len() == 1);
    }
    // Without a list of valid attachments none is known to be stale.
    let refused = node.run(&[("CNI_COMMAND", "GC")], node.config(json!({})).to_string().as_bytes());
    assert!(refused.status != 0 && refused.stdout.contains("cni.dev/valid-attachments"), "{refused:?}");
    assert_eq!(node.links().len(), 1);
    assert_eq!(node.verb("CHECK", &pods[1], "eth0", json!({})).status, 0);
    assert_eq!(gc(json!([])).status, 0);
    eventually(TIMEOUT, || node.links().is_empty());
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces; tool: ping"]
fn pods_reach_each_other_while_the_agent_is_stopped_and_the_agent_reports_its_state() {
    let mut node = TestNode::start(&[]);
    let (one, two) = (node.pod(), node.pod());
    assert_eq!(node.add(&one).status, 0);
    let addresses = node.add(&two).addresses();
    assert!(node.get("/healthz").starts_with("HTTP/1.1 200"));
    let ready = node.get("/readyz?verbose");
    assert!(ready.starts_with("HTTP/1.1 200") && ready.contains("[+] programmed"), "{ready}");
    let metrics = node.get("/metrics");
    assert!(metrics.contains("russet_cni_requests_total{verb=\"ADD\",code=\"0\"} 2"), "{metrics}");
    node.stop_agent();
    assert!(addresses.iter().all(|address| one.pings(&[address])));
    // A pod can be deleted without an agent, and the next agent finds the current state.
    assert_eq!(node.del(&two).status, 0);
    node.start_agent();
    assert_eq!(node.verb("CHECK", &one, "eth0", json!({})).status, 0);
    assert_eq!(node.del(&one).status, 0);
    eventually(TIMEOUT, || node.links().is_empty());
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_second_interface_of_a_pod_has_addresses_of_its_own() {
    // calico-ipam.md section 9: the handle does not name the interface, the attribute does
    let mut node = TestNode::start(&[]);
    let pod = node.pod();
    let first = node.add(&pod).addresses();
    let second = node.verb("ADD", &pod, "eth1", json!({})).addresses();
    assert!(first.iter().all(|address| !second.contains(address)), "{first:?} {second:?}");
    assert_eq!(node.verb("DEL", &pod, "eth1", json!({})).status, 0);
    assert_eq!(node.verb("CHECK", &pod, "eth0", json!({})).status, 0);
    assert_eq!(node.add(&pod).addresses(), first);
    assert_eq!(node.del(&pod).status, 0);
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn the_agents_log_has_one_line_for_each_add_and_del_with_pod_addresses_and_time() {
    let mut node = TestNode::start(&[]);
    let pod = node.pod();
    let netns = pod.path();
    let request = |verb: &str| {
        let env = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", pod.container.as_str()),
            ("CNI_NETNS", netns.to_str().unwrap()),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web"),
        ];
        node.run(&env, node.config(json!({})).to_string().as_bytes())
    };
    let addresses = request("ADD").addresses().join(",");
    assert_eq!(request("DEL").status, 0);
    let log = node.log();
    for verb in ["ADD", "DEL"] {
        let is_its =
            |line: &&str| line.contains("request done") && line.contains(&format!("verb=\"{verb}\""));
        let lines: Vec<&str> = log.lines().filter(is_its).collect();
        assert_eq!(lines.len(), 1, "{log}");
        let words = [format!("addresses=\"{addresses}\""), "pod=\"shop/web\"".to_owned(), " ms=".to_owned()];
        assert!(
            words.iter().all(|word| lines[0].contains(word)) && lines[0].contains("INFO"),
            "{}",
            lines[0]
        );
    }
    node.stop_agent();
}
