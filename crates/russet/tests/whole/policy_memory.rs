//! How much memory an agent needs among many pods and policies in etcd.
//!
//! `RUSSET_PODS` says how many of each, `RUSSET_COMMAND` which executable the agent is, and `RUSSET_MEASURED` into which file goes what was measured:
//! `cargo xtask bench policy` compares it with the goal.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::TestNode;

/// How many the suite makes.
const PODS: usize = 1_000;
const NAMESPACES: usize = 100;
/// Applications in a namespace.
const APPLICATIONS: usize = 20;
/// Documents of one `russet apply`.
const CHUNK: usize = 1_000;
/// policy.md section 6.4: an agent among 10,000 policies and as many pods.
const GOAL_BYTES: u64 = 80_000_000;
/// For a debug build on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);

/// A pod of namespace `number % NAMESPACES`. The first of each namespace is on the node of the test.
fn endpoint(number: usize) -> Value {
    let (namespace, node) =
        (format!("ns-{}", number % NAMESPACES), if number < NAMESPACES { "n1" } else { "n2" });
    let address = format!("10.{}.{}.{}/32", 100 + number / 65_536, number / 256 % 256, number % 256);
    json!({ "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
        "metadata": { "name": format!("{node}-k8s-pod--{number}-eth0"), "namespace": namespace,
            "labels": { "app": format!("app-{}", number / NAMESPACES % APPLICATIONS) } },
        "spec": { "orchestrator": "k8s", "node": node, "pod": format!("pod-{number}"), "endpoint": "eth0",
            "ipNetworks": [address], "profiles": [format!("kns.{namespace}")] } })
}

/// A policy that selects an application, and allows another one, namespaces with a label and a network.
fn policy(number: usize) -> Value {
    let application = |offset: usize| format!("app-{}", (number / NAMESPACES + offset) % APPLICATIONS);
    let from = json!([{ "podSelector": { "matchLabels": { "app": application(1) } } },
        { "namespaceSelector": { "matchLabels": { "colour": "red" } } },
        { "ipBlock": { "cidr": format!("192.{}.{}.0/24", number / 256 % 256, number % 256) } }]);
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": format!("policy-{number}"), "namespace": format!("ns-{}", number % NAMESPACES) },
        "spec": { "podSelector": { "matchLabels": { "app": application(0) } },
            "ingress": [{ "from": from, "ports": [{ "protocol": "TCP", "port": 80 + number % 100 }] }] } })
}

fn apply(node: &TestNode, command: &PathBuf, documents: &[Value]) {
    for chunk in documents.chunks(CHUNK) {
        let mut apply = Command::new(command);
        apply.args(["apply", "-f", "-", "--root"]).arg(node.root());
        let answer = node.output(&mut apply, Value::from(chunk).to_string());
        assert_eq!(answer.status, 0, "{answer:?}");
    }
}

/// A line of /proc/PID/status; its `kB` are 1,024 bytes.
fn bytes(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, etcdctl"]
fn an_agent_among_many_pods_and_policies_stays_small() {
    let wanted = std::env::var("RUSSET_PODS").map_or(PODS, |count| count.parse().unwrap());
    let command = std::env::var_os("RUSSET_COMMAND");
    let command = command.map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_russet")), PathBuf::from);
    let mut fabric = Fabric::new();
    let mut node = fabric.node("n1", &[]);
    node.start_agent_by(Command::new(&command));
    let before = std::fs::read_to_string(format!("/proc/{}/status", node.agent_pid())).unwrap();
    apply(&node, &command, &(0..wanted).map(endpoint).collect::<Vec<_>>());
    let began = Instant::now();
    apply(&node, &command, &(0..wanted).map(policy).collect::<Vec<_>>());
    let in_force = format!("russet_policy_policies {wanted}");
    eventually(DEADLINE, || node.get("/metrics").lines().any(|line| line == in_force));
    let in_force_s = began.elapsed().as_secs_f64();
    println!("{wanted} policies were applied and in force after {in_force_s:.1} s");
    let after = std::fs::read_to_string(format!("/proc/{}/status", node.agent_pid())).unwrap();
    for (when, status) in [("before", &before), ("after", &after)] {
        let of = |field| bytes(status, field) as f64 / 1e6;
        println!(
            "{when}: RSS {:.1} MB, of it anonymous {:.1} MB; at most {:.1} MB",
            of("VmRSS:"),
            of("RssAnon:"),
            of("VmHWM:")
        );
    }
    if let Some(file) = std::env::var_os("RUSSET_MEASURED") {
        let mb = |field| bytes(&after, field) as f64 / 1e6;
        let measured = json!({ "rss_mb": mb("VmRSS:"), "most_mb": mb("VmHWM:"), "in_force_s": in_force_s });
        return std::fs::write(file, measured.to_string()).unwrap();
    }
    assert!(bytes(&after, "VmRSS:") <= GOAL_BYTES, "{after}");
}
