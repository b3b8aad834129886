//! The table of decisions of a node whose agent is started again, and which other programs change.

use std::process::{Command, Stdio};

use russet_nft::monitor::{Event, Monitor, Object};
use russet_policy::decisions_table;
use russet_testkit::eventually;
use serde_json::json;

use crate::node::{TIMEOUT, TestNode, TestPod};

/// What the log says when decisions are written or found.
const IN_FORCE: &str = "policies are in force";

/// A node with two pods, of which the second one is reached by ICMP only.
struct Setup {
    node: TestNode,
    pods: [TestPod; 2],
    addresses: [String; 2],
}

// === impl Setup ===

impl Setup {
    fn new() -> Self {
        let mut node = TestNode::start(&[]);
        let pods = [node.pod(), node.pod()];
        let addresses = pods.each_ref().map(|pod| {
            let answer = node.add(pod);
            answer.addresses().into_iter().find(|address| address.contains('.')).unwrap()
        });
        let policy = json!({ "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy",
            "metadata": { "name": "icmp" }, "spec": { "selector": "all()", "types": ["Ingress"],
                "ingress": [{ "action": "Allow", "protocol": "ICMP" }] } });
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["apply", "-f", "-", "--root"]).arg(node.root());
        let answer = node.output(&mut command, policy.to_string());
        assert_eq!(answer.status, 0, "{answer:?}");
        let setup = Self { node, pods, addresses };
        eventually(TIMEOUT, || setup.decided().is_some_and(|text| text.contains(&setup.addresses[1])));
        setup
    }

    /// What is decided about each pod's ingress where nothing else is; none without the table.
    fn decided(&self) -> Option<String> {
        let mut command = Command::new("nft");
        command.args(["list", "map", "inet", "russet-decisions", "in4e"]);
        let answer = self.node.output(&mut command, "");
        (answer.status == 0).then_some(answer.stdout)
    }

    fn log_lines(&self, text: &str) -> usize {
        self.node.log().matches(text).count()
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: nft, ping"]
fn what_another_program_changes_in_the_decisions_is_undone_and_logged() {
    // policy.md P124
    let setup = Setup::new();
    let good = setup.decided();
    for damage in [
        ["delete", "table", "inet", "russet-decisions", ""],
        ["flush", "map", "inet", "russet-decisions", "in4e"],
    ] {
        let arguments: Vec<&str> = damage.into_iter().filter(|it| !it.is_empty()).collect();
        let logged = setup.log_lines("another program changed table inet russet-decisions");
        setup.node.inside("nft", &arguments);
        eventually(TIMEOUT, || setup.decided() == good);
        eventually(TIMEOUT, || {
            setup.log_lines("another program changed table inet russet-decisions") > logged
        });
        assert!(setup.pods[0].pings(&["-W", "1", &setup.addresses[1]]), "{damage:?}");
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: nft, ping"]
fn an_agent_that_is_started_again_writes_no_decision_and_no_packet_is_lost() {
    // policy.md P122
    let mut setup = Setup::new();
    let good = setup.decided();
    let mut monitor = setup.node.netns().run_in_thread(Monitor::open).unwrap().unwrap();
    let mut ping = Command::new("ip");
    ping.args(["netns", "exec", &setup.pods[0].netns_name, "ping", "-q", "-i", "0.01", "-c", "1000"]);
    let ping = ping.arg(&setup.addresses[1]).stdout(Stdio::piped()).spawn().unwrap();
    setup.node.kill_agent();
    let logged = setup.log_lines(IN_FORCE);
    setup.node.start_agent();
    eventually(TIMEOUT, || setup.log_lines(IN_FORCE) > logged);
    let said = ping.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.contains(" 0% packet loss"), "{said}");
    assert_eq!(setup.decided(), good);
    let is_decision = |event: &Event| match event {
        Event::Overrun => true,
        Event::Committed(commit) => {
            let mut changes = commit.changes.iter();
            // A new agent has connections judged again, and ends the sampling of flows: no decisions.
            changes.any(|change| {
                change.object == Object::Elements
                    && change.table == decisions_table()
                    && !["fresh", "sampled"].contains(&change.name.as_str())
            })
        }
    };
    let mut events = std::iter::from_fn(|| monitor.next(std::time::Duration::ZERO).unwrap());
    assert_eq!(events.find(is_decision), None);
}
