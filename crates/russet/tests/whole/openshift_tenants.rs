//! Two tenants on three nodes: agents in place of openshift-sdn on one etcd, Russet's version of
//! its thin plugin, and `russet netnamespace` while every pod sends to every other. Packets that
//! arrive are checked against the time when they were sent.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use russet_testkit::cross_traffic::{self, Arrival, CrossTraffic};
use russet_testkit::{eventually, eventually_some};
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::{TestNode, TestPod};

/// A pod with its address and its number among all.
pub struct Attached {
    pub pod: TestPod,
    pub address: Ipv4Addr,
}

const NODES: u8 = 3;
const TIMEOUT: Duration = Duration::from_secs(60);
const ETCD: &str = "etcd:http://10.77.0.1:2379";

pub fn agent_args() -> Vec<&'static str> {
    let pods = ["--openshift-cluster-network", "10.128.0.0/14"];
    let services = ["--openshift-service-network", "172.30.0.0/16"];
    [&["--interface", "eth0", "--openshift"][..], &pods, &services].concat()
}

/// Runs a verb of the thin plugin, which is the executable under its name.
fn verb(node: &TestNode, verb: &str, pod: &TestPod, namespace: &str) -> crate::node::Answer {
    let args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={}",
        pod.container, pod.container
    );
    let config =
        node.config(json!({ "cniVersion": "0.3.1", "name": "openshift-sdn", "type": "openshift-sdn" }));
    let mut command = pod.call(env!("CARGO_BIN_EXE_russet"), verb, "/opt/cni/bin");
    node.output(command.arg0("openshift-sdn").env("CNI_ARGS", args), config.to_string())
}

#[track_caller]
pub fn attach(node: &mut TestNode, namespace: &str) -> Attached {
    let pod = node.pod();
    // kubelet repeats an ADD, too, while the server of the plugin starts.
    let answer = eventually_some(TIMEOUT, || {
        let answer = verb(node, "ADD", &pod, namespace);
        (!answer.stdout.contains("not (yet?) available")).then_some(answer)
    });
    assert_eq!(answer.status, 0, "{answer:?}\n{}", node.log());
    let address = answer.result()["ips"][0]["address"].as_str().unwrap().to_owned();
    Attached { pod, address: address.split('/').next().unwrap().parse().unwrap() }
}

/// Runs a verb of `russet netnamespace` and returns the network ID.
#[track_caller]
pub fn netnamespace(node: &TestNode, args: &[&str]) -> u64 {
    let all = [&["netnamespace"], args, &["-o", "json", "--store", ETCD]].concat();
    let answer = node.russet_inside(&all);
    assert_eq!(answer.status, 0, "{answer:?}");
    let shown: Value = serde_json::from_str(&answer.stdout).unwrap();
    shown["netid"].as_u64().unwrap()
}

/// The network IDs in a node's verdicts of its pods, in order.
fn verdict_netids(node: &TestNode) -> Vec<u64> {
    let list = ["-j", "list", "map", "ip", "russet-sdn", "netids"];
    let output = node.netns().with(|| Command::new("nft").args(list).output().unwrap()).unwrap();
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    let all = shown["nftables"].as_array().cloned().unwrap_or_default();
    let elements = all.iter().find_map(|entry| entry["map"]["elem"].as_array()).cloned().unwrap_or_default();
    let mut ids: Vec<u64> = elements.iter().map(|pair| pair[1].as_u64().unwrap() & 0x00ff_ffff).collect();
    ids.sort_unstable();
    ids
}

/// Every pod sends to every other.
pub fn cross_traffic(pods: &[Attached]) -> CrossTraffic {
    CrossTraffic::start(pods.iter().map(|attached| (attached.pod.netns_name.as_str(), attached.address)))
}

/// Even pods are blue, odd ones red.
pub fn across(from: u8, to: u8) -> bool {
    from % 2 != to % 2
}

/// All pairs of so many pods that may talk.
pub fn pairs(pods: u8, open: bool) -> BTreeSet<(u8, u8)> {
    cross_traffic::pairs(pods, |from, to| open || !across(from, to))
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, nft, etcd"]
fn two_tenants_on_three_nodes_change_under_traffic_and_nothing_crosses_while_isolated() {
    // cni-runtime.md section 6.2, row 51
    let mut fabric = Fabric::new();
    let args = agent_args();
    let mut nodes: Vec<TestNode> = (1..=NODES).map(|n| fabric.node(&format!("node-{n}"), &args)).collect();
    let blue = netnamespace(&nodes[0], &["create", "blue"]);
    netnamespace(&nodes[0], &["create", "red"]);
    nodes.iter_mut().for_each(TestNode::start_agent);
    let pods: Vec<Attached> =
        nodes.iter_mut().flat_map(|node| [attach(node, "blue"), attach(node, "red")]).collect();
    let traffic = cross_traffic(&pods);
    let mut isolated = Vec::new();
    let rounds =
        [("isolate", false), ("join", true), ("isolate", false), ("global", true), ("isolate", false)];
    for (round, (action, open)) in rounds.into_iter().chain(rounds).enumerate() {
        let other: &[&str] = if action == "join" { &["blue"] } else { &[] };
        // In the second half one agent learns of every change only when it is started again.
        let stopped = round >= rounds.len();
        if stopped {
            nodes[1].stop_agent();
        }
        let red = netnamespace(&nodes[1], &[&[action, "red"], other].concat());
        if stopped {
            nodes[1].start_agent();
        }
        let mut wanted = vec![blue, red];
        wanted.sort_unstable();
        eventually(TIMEOUT, || nodes.iter().all(|node| verdict_netids(node) == wanted));
        let since = traffic.now();
        traffic.flows(&pairs(NODES * 2, open), since);
        if !open {
            isolated.push(since..=traffic.now());
        }
    }
    let arrivals = traffic.end();
    let crossed = |arrival: &&Arrival| across(arrival.from, arrival.to);
    let while_isolated = |arrival: &&Arrival| isolated.iter().any(|time| time.contains(&arrival.sent_ns));
    let wrong: Vec<&Arrival> = arrivals.iter().filter(crossed).filter(while_isolated).take(10).collect();
    assert!(wrong.is_empty(), "crossed while isolated: {wrong:?}");
    println!(
        "{} packets arrived, {} of them across",
        arrivals.len(),
        arrivals.iter().filter(crossed).count()
    );
    for (index, pod) in pods.iter().enumerate() {
        let namespace = if across(0, u8::try_from(index).unwrap()) { "red" } else { "blue" };
        let answer = verb(&nodes[index / 2], "DEL", &pod.pod, namespace);
        assert_eq!(answer.status, 0, "{answer:?}");
    }
    assert!(nodes.iter().all(|node| verdict_netids(node).is_empty()), "no entry is left");
}
