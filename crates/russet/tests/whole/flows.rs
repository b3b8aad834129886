//! `russet flows`: which flows a node's policies denied, named as `russet explain` names them.

use std::process::Command;

use russet_testkit::{Process, eventually, eventually_some};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::node::{Answer, TIMEOUT, TestNode, TestPod};

/// A node whose first container reaches the second one, as far as policies allow it.
pub struct Setup {
    pub node: TestNode,
    pub pods: [TestPod; 2],
    pub addresses: [String; 2],
}

// === impl Setup ===

impl Setup {
    pub fn new() -> Self {
        let mut node = TestNode::start(&[]);
        let pods = [node.pod(), node.pod()];
        let addresses = pods.each_ref().map(|pod| {
            let answer = node.add(pod);
            answer.addresses().into_iter().find(|address| address.contains('.')).unwrap()
        });
        let setup = Self { node, pods, addresses };
        eventually(TIMEOUT, || setup.ping(0, 1));
        setup
    }

    pub fn ping(&self, from: usize, to: usize) -> bool {
        self.pods[from].pings(&["-W", "1", &self.addresses[to]])
    }

    fn name(&self, pod: usize) -> String {
        format!("default/{}", self.pods[pod].container)
    }

    pub fn apply(&self, document: &Value) {
        let answer = self.try_apply(document);
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    pub fn try_apply(&self, document: &Value) -> Answer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["apply", "-f", "-", "--root"]).arg(self.node.root());
        self.node.output(&mut command, document.to_string())
    }

    fn flows(&self, arguments: &[&str]) -> Vec<Value> {
        let answer = self.node.russet(&[&["flows", "-o", "json"], arguments].concat());
        let report: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
        assert_eq!((answer.status, &report["unread"], &report["missed"]), (0, &Value::Null, &0.into()));
        report["flows"].as_array().unwrap().clone()
    }

    /// The first flow for which a test holds, while the first container pings the second one in vain.
    fn denied(&self, test: impl Fn(&Value) -> bool) -> Value {
        let from = self.name(0);
        eventually_some(TIMEOUT, || {
            assert!(!self.ping(0, 1));
            self.flows(&["--denied", "--pod", &from]).into_iter().find(&test)
        })
    }

    /// What `russet explain` says of the second container's ingress.
    fn explained(&self) -> Value {
        let (from, to) = (self.name(0), self.name(1));
        let answer = self.node.russet_inside(&["explain", &from, &to, "icmp", "-o", "json"]);
        let found: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
        assert_eq!((answer.status, &found["verdict"]), (3, &"denied".into()), "{found:#}");
        found["flows"][0]["directions"][1].clone()
    }
}

pub fn resource(kind: &str, name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": { "name": name }, "spec": spec })
}

fn deny_all() -> Value {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny-all", "namespace": "default" }, "spec": { "podSelector": {} } })
}

/// `russet flows --follow`, and the file to which it writes.
fn followed(node: &TestNode) -> (Process, NamedTempFile) {
    let file = NamedTempFile::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.args(["flows", "-f", "-o", "json", "--root"]).arg(node.root());
    command.stdout(file.reopen().unwrap());
    (Process::start(&mut command), file)
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nfnetlink_log; tool: ping"]
fn a_denied_flow_is_named_as_explain_names_it_and_counted() {
    // policy.md P132
    let setup = Setup::new();
    assert_eq!(setup.flows(&[]), Vec::<Value>::new());
    setup.apply(&deny_all());
    eventually(TIMEOUT, || !setup.ping(0, 1));
    let is_decided = |flow: &Value| flow["policies"].as_array().is_some_and(|all| !all.is_empty());
    let flow = setup.denied(is_decided);
    let expected = json!([{ "kind": "KubernetesNetworkPolicy", "namespace": "default", "name": "deny-all" }]);
    assert_eq!(
        (&flow["verdict"], &flow["direction"], &flow["proto"], &flow["icmp"], &flow["policies"]),
        (&"denied".into(), &"ingress".into(), &"icmp".into(), &"8/0".into(), &expected),
        "{flow:#}"
    );
    let [from, to] = [0, 1].map(|pod| json!({ "name": setup.name(pod), "address": setup.addresses[pod] }));
    assert_eq!((&flow["source"], &flow["destination"]), (&from, &to), "{flow:#}");
    let explained = setup.explained();
    assert_eq!(explained["end"], flow["reason"], "{explained:#}");
    assert_eq!(explained["steps"][0]["policy"], flow["policies"][0], "{explained:#}");

    // A rule that decides, before the other policy.
    let rule = json!({ "selector": "all()", "order": 5, "types": ["Ingress"], "ingress": [
        { "action": "Allow", "protocol": "TCP" }, { "action": "Deny" }] });
    setup.apply(&resource("GlobalNetworkPolicy", "first", rule));
    let flow = setup.denied(|flow| flow["rule"].is_string());
    let explained = setup.explained();
    let last = explained["steps"].as_array().unwrap().last().unwrap();
    assert_eq!((&explained["end"], &last["path"]), (&flow["reason"], &flow["rule"]), "{explained:#}");
    let name = flow["policies"][0]["name"].as_str().unwrap();
    assert!(!setup.flows(&["--policy", name]).is_empty());
    assert!(setup.flows(&["--policy", "none"]).is_empty() && setup.flows(&["--last", "0"]).is_empty());

    // What a staged policy would do.
    let allow =
        json!({ "selector": "all()", "order": 1, "types": ["Ingress"], "ingress": [{ "action": "Allow" }] });
    setup.apply(&resource("StagedGlobalNetworkPolicy", "soon", allow));
    let flow = setup.denied(|flow| !flow["pending"].is_null());
    assert_eq!(flow["pending"]["verdict"], "allowed", "{flow:#}");
    assert_eq!(flow["pending"]["policies"][0]["kind"], "StagedGlobalNetworkPolicy", "{flow:#}");
    let soon = flow["pending"]["policies"][0]["name"].as_str().unwrap();
    for counter in [
        "russet_policy_denied_flows_total{policy=\"KubernetesNetworkPolicy default/deny-all\"}".to_owned(),
        format!("russet_policy_denied_flows_total{{policy=\"GlobalNetworkPolicy {name}\"}}"),
        format!(
            "russet_policy_pending_flows_total{{policy=\"StagedGlobalNetworkPolicy {soon}\",verdict=\"allowed\"}}"
        ),
        "russet_policy_denied_packets_total".to_owned(),
    ] {
        eventually(TIMEOUT, || {
            let metrics = setup.node.get("/metrics");
            let value =
                metrics.lines().find_map(|line| line.strip_prefix(&counter)?.trim().parse::<f64>().ok());
            value.is_some_and(|value| value >= 1.0)
        });
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nfnetlink_log; tool: ping"]
fn flows_are_followed_and_without_an_agent_or_policies_there_is_an_error() {
    let mut setup = Setup::new();
    setup.apply(&deny_all());
    eventually(TIMEOUT, || !setup.ping(0, 1));
    let (process, file) = followed(&setup.node);
    let next_from = |name: String, test: &dyn Fn(&Value) -> bool| {
        eventually_some(TIMEOUT, || {
            let text = std::fs::read_to_string(file.path()).unwrap();
            // The last line may not be complete.
            let mut flows = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            flows.find(|flow| flow["source"]["name"] == name.as_str() && test(flow))
        })
    };
    let denied = |flow: &Value| flow["verdict"] == "denied";
    next_from(setup.name(0), &denied);
    assert!(!setup.ping(1, 0));
    let flow = next_from(setup.name(1), &denied);
    assert_eq!(flow["destination"]["name"], setup.name(0).as_str(), "{flow:#}");
    // Flows that pass are seen while they are followed, at each end of a pod that policies keep from others.
    let from = format!("{}/32", setup.addresses[1]);
    setup.apply(&json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "allow-one", "namespace": "default" },
        "spec": { "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": { "cidr": from } }] }] } }));
    eventually(TIMEOUT, || setup.ping(1, 0));
    for (direction, policy) in [("egress", Value::Null), ("ingress", "allow-one".into())] {
        let flow = next_from(setup.name(1), &|flow| !denied(flow) && flow["direction"] == direction);
        assert_eq!((&flow["icmp"], &flow["policies"][0]["name"]), (&"8/0".into(), &policy), "{flow:#}");
    }
    drop(process);

    // Text, and filters.
    let text = setup.node.russet(&["flows", "--pod", &setup.name(1)]);
    assert!(text.stdout.contains(" DENIED ingress  ") && text.stdout.contains(" icmp/8/0"), "{text:?}");
    assert!(text.stdout.contains("[KubernetesNetworkPolicy default/deny-all]"), "{text:?}");
    assert_eq!(setup.node.russet(&["flows", "--last", "501"]).status, 2);

    setup.node.stop_agent();
    let answer = setup.node.russet(&["flows"]);
    assert_eq!((answer.status, answer.stdout.as_str()), (1, ""), "{answer:?}");
    assert!(answer.stderr.contains("no agent runs at "), "{answer:?}");
    let node = TestNode::start(&["--policies", "off"]);
    let answer = node.russet(&["flows", "-f"]);
    assert_eq!(answer.status, 1, "{answer:?}");
    assert!(answer.stderr.contains("this agent enforces no policies"), "{answer:?}");
    let ready = node.get("/readyz?verbose");
    assert!(ready.contains("policies: NOT ENFORCED: this agent's setting is policies = \"off\""), "{ready}");
}
