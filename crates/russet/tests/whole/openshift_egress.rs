//! OpenShift's EgressNetworkPolicies in `russet explain` and `russet policy`, on a node whose agent enforces them.

use std::process::Command;

use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::{TIMEOUT, TestNode};
use crate::openshift_tenants::{Attached, agent_args, attach, netnamespace};

const STORE: &str = "etcd:http://10.77.0.1:2379";
const OUTSIDE: &str = "8.8.8.8";
const ALLOWED: &str = "203.0.113.9";

/// A node with a pod in the namespace `blue`, and another namespace `red`.
struct Setup {
    node: TestNode,
    pod: Attached,
    _fabric: Fabric,
}

fn rules(rules: Value) -> Value {
    json!({ "spec": { "egress": rules } })
}

/// Only 203.0.113.0/24 is allowed.
fn few() -> Value {
    rules(json!([
        { "type": "Allow", "to": { "cidrSelector": "203.0.113.0/24" } },
        { "type": "Deny", "to": { "cidrSelector": "0.0.0.0/0" } },
    ]))
}

fn texts(found: &Value) -> Vec<&str> {
    found.as_array().unwrap().iter().map(|it| it["text"].as_str().unwrap()).collect()
}

// === impl Setup ===

impl Setup {
    fn new() -> Self {
        let mut fabric = Fabric::new();
        let mut node = fabric.node("node-1", &agent_args());
        netnamespace(&node, &["create", "blue"]);
        netnamespace(&node, &["create", "red"]);
        node.start_agent();
        let pod = attach(&mut node, "blue");
        Self { node, pod, _fabric: fabric }
    }

    fn put(&self, name: &str, policy: &Value) {
        let key = format!("/russet/openshift/v1/egressnetworkpolicies/blue/{name}");
        let answer = self.node.russet_inside(&["store", "put", &key, &policy.to_string(), "--store", STORE]);
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    /// `russet explain` of a connection of the pod to an address.
    fn explain(&self, address: &str) -> (i32, Value) {
        let pod = format!("blue/{}", self.pod.pod.container);
        let answer = self.node.russet_inside(&["explain", &pod, address, "443", "-o", "json"]);
        let found = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
        (answer.status, found)
    }

    /// Waits until the policies deny or allow an address, and the kernel agrees. Returns the reason and the findings.
    #[track_caller]
    fn decided(&self, address: &str, verdict: &str) -> (String, Vec<String>) {
        let mut last = Value::Null;
        eventually(TIMEOUT, || {
            last = self.explain(address).1;
            let kernel = &last["kernel"][0];
            last["verdict"] == verdict
                && kernel["agrees"] == true
                && kernel["allowed"] == (verdict == "allowed")
        });
        let egress = &last["flows"][0]["directions"][0];
        let findings = texts(&last["findings"]).into_iter().map(str::to_owned).collect();
        (egress["end"].as_str().unwrap_or_else(|| panic!("{last:#}")).to_owned(), findings)
    }

    /// The row of a policy in `russet policy ls`: whether it is enforced, and why not.
    fn listed(&self, name: &str) -> (i32, Value) {
        let answer = self.node.russet_inside(&["policy", "ls", "-o", "json"]);
        let found: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
        let row = found["policies"].as_array().unwrap().iter().find(|row| row["name"] == name).cloned();
        (answer.status, row.unwrap_or_else(|| panic!("{found:#}")))
    }

    fn nft(&self, arguments: &[&str]) {
        let status =
            self.node.netns().with(|| Command::new("nft").args(arguments).status().unwrap()).unwrap();
        assert!(status.success(), "{arguments:?}");
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, nft, etcd"]
fn explain_names_the_egress_network_policy_that_denies_and_compares_the_kernel() {
    // policy.md P96
    let setup = Setup::new();
    let (_, found) = setup.explain(OUTSIDE);
    assert_eq!(found["verdict"], "allowed", "{found:#}");
    let path = texts_of(&found["path"]).join("\n");
    assert!(path.contains("is on this node, behind") && path.contains("with network ID"), "{found:#}");
    assert_eq!(texts(&found["findings"]).iter().filter(|text| text.contains("no interface")).count(), 0);
    setup.put("few", &few());
    let (reason, findings) = setup.decided(OUTSIDE, "denied");
    assert_eq!(reason, "spec.egress[1] of EgressNetworkPolicy few");
    assert!(findings.iter().all(|text| !text.contains("EgressNetworkPolic")), "{findings:?}");
    assert_eq!(setup.explain(OUTSIDE).0, 3);
    assert_eq!(setup.decided(ALLOWED, "allowed").0, "spec.egress[0] of EgressNetworkPolicy few");
    // What is in the cluster is not asked about.
    let (_, found) = setup.explain("172.30.0.10");
    assert_eq!((&found["verdict"], &found["kernel"]), (&"allowed".into(), &json!([])), "{found:#}");

    let (status, row) = setup.listed("few");
    let cells = ["kind", "namespace", "enforced", "pods", "pods_here"].map(|member| row[member].clone());
    assert_eq!(
        cells,
        [json!("EgressNetworkPolicy"), json!("blue"), json!("yes"), json!(1), json!(1)],
        "{row:#}"
    );
    assert_eq!(status, 0);
    let shown = setup.node.russet_inside(&["policy", "show", "blue/few"]);
    assert!(
        shown.stdout.contains("egress: 2 rules\n  Allow to 203.0.113.0/24\n  Deny to 0.0.0.0/0\n"),
        "{shown:?}"
    );
    // It changes no pair of pods.
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    let mut document = rules(json!([{ "type": "Deny", "to": { "cidrSelector": "192.0.2.0/24" } }]));
    document["apiVersion"] = "network.openshift.io/v1".into();
    document["kind"] = "EgressNetworkPolicy".into();
    document["metadata"] = json!({ "name": "few", "namespace": "blue" });
    std::fs::write(file.path(), document.to_string()).unwrap();
    let answer = setup.node.russet_inside(&["policy", "what-if", file.path().to_str().unwrap()]);
    assert!(answer.stdout.contains("note: EgressNetworkPolicies would change"), "{answer:?}");
    assert_eq!(answer.status, 0, "{answer:?}");

    // Without an agent, what another program changes stays, and is found.
    let mut setup = setup;
    setup.node.stop_agent();
    setup.nft(&["flush", "map", "ip", "russet-sdn", "egress"]);
    let (status, found) = setup.explain(ALLOWED);
    assert_eq!(
        (status, &found["verdict"], &found["kernel"][0]["agrees"]),
        (3, &"allowed".into(), &false.into())
    );
    assert!(
        texts(&found["findings"]).iter().any(|it| it.contains("the kernel denies 203.0.113.9")),
        "{found:#}"
    );
    setup.nft(&["delete", "table", "ip", "russet-sdn"]);
    let (_, found) = setup.explain(ALLOWED);
    let missing = "not enforced here: table ip russet-sdn is not in this node's kernel";
    assert!(texts(&found["findings"]).iter().any(|it| it.contains(missing)), "{found:#}");
    assert_eq!(setup.listed("few").1["enforced"], "no");
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, nft, etcd"]
fn explain_says_why_everything_outside_of_the_cluster_is_denied() {
    // policy.md P97
    let setup = Setup::new();
    let expect = |reason: &str, finding: &str| {
        let (end, findings) = setup.decided(ALLOWED, "denied");
        assert_eq!(end, reason);
        assert!(findings.iter().any(|it| it.contains(finding)), "{findings:?}");
    };
    setup.put("few", &few());
    setup.put("more", &few());
    expect(
        "the namespace has several EgressNetworkPolicies, so nothing outside the cluster is allowed",
        "namespace blue has several EgressNetworkPolicies: everything outside of the cluster is denied to it",
    );
    let (status, row) = setup.listed("more");
    assert_eq!((status, &row["enforced"]), (3, &"partly".into()), "{row:#}");
    // One without rules does not count.
    setup.put("more", &rules(json!([])));
    setup.decided(ALLOWED, "allowed");

    netnamespace(&setup.node, &["join", "red", "blue"]);
    expect("spec.egress[0] of EgressNetworkPolicy few", "and blue, one of them, has an EgressNetworkPolicy");
    netnamespace(&setup.node, &["isolate", "red"]);
    setup.decided(ALLOWED, "allowed");

    let unreadable = json!([{ "type": "deny", "to": { "cidrSelector": "192.0.2.0/24" } }]);
    setup.put("few", &rules(unreadable));
    expect("spec.egress[0] of EgressNetworkPolicy few", "Allow or Deny is wanted; everything is denied");
    assert_eq!(setup.listed("few").1["enforced"], "partly");
    setup.put("few", &json!({ "spec": 7 }));
    expect("spec.egress[0] of EgressNetworkPolicy few", "spec is no object; everything is denied");

    // The node has no server that could be asked.
    let named = json!([{ "type": "Deny", "to": { "dnsName": "www.example.com" } }]);
    setup.put("few", &rules(named));
    expect("spec.egress[0] of EgressNetworkPolicy few", "www.example.com has no address");

    netnamespace(&setup.node, &["global", "blue"]);
    setup.decided(ALLOWED, "allowed");
    assert_eq!(setup.listed("few").1["enforced"], "no");
}

fn texts_of(found: &Value) -> Vec<&str> {
    found.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
}
