//! Policies in etcd, applied by `russet apply`, in force on the pods of two agents.

use std::process::Command;
use std::time::Duration;

use russet_testkit::{eventually, let_pass, succeeds};
use serde_json::{Value, json};

use crate::fabric::{Fabric, RESOURCES};
use crate::kubernetes::call;
use crate::node::{Answer, TIMEOUT, TestNode, TestPod};

/// Two nodes; the client is on the first, the other pods are on the second.
struct Setup {
    fabric: Fabric,
    one: TestNode,
    two: TestNode,
    client: Pod,
    other: Pod,
    server: Pod,
}

struct Pod {
    pod: TestPod,
    name: &'static str,
    address: String,
}

// === impl Setup ===

impl Setup {
    fn new() -> Self {
        let mut fabric = Fabric::new();
        let (mut one, mut two) = (fabric.node("n1", &[]), fabric.node("n2", &[]));
        one.start_agent();
        two.start_agent();
        let client = Pod::on(&mut one, "client");
        let (other, server) = (Pod::on(&mut two, "other"), Pod::on(&mut two, "server"));
        Self { fabric, one, two, client, other, server }
    }

    fn run(&self, verb: &str, documents: &[Value]) -> Answer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args([verb, "-f", "-", "--root"]).arg(self.one.root());
        self.one.output(&mut command, Value::from(documents).to_string())
    }

    #[track_caller]
    fn apply(&self, documents: &[Value]) {
        let answer = self.run("apply", documents);
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    #[track_caller]
    fn delete(&self, document: &Value) {
        let answer = self.run("delete", std::slice::from_ref(document));
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    /// Waits until the client and the other pod reach the server, or do not.
    #[track_caller]
    fn expect(&self, client: bool, other: bool) {
        eventually(TIMEOUT, || self.client.reaches(&self.server) == client);
        eventually(TIMEOUT, || self.other.reaches(&self.server) == other);
        assert_eq!(self.client.reaches(&self.server), client, "{}", self.two.log());
    }

    fn has_table(&self) -> bool {
        self.two.netns().with(|| succeeds("nft list table inet russet-decisions")).unwrap()
    }
}

// === impl Pod ===

impl Pod {
    fn on(node: &mut TestNode, name: &'static str) -> Self {
        let pod = node.pod();
        let answer = call(node, "ADD", &pod, name);
        assert_eq!(answer.status, 0, "{answer:?}\n{}", node.log());
        let address = answer.addresses().into_iter().find(|address| address.contains('.')).unwrap();
        Self { pod, name, address }
    }

    fn reaches(&self, target: &Self) -> bool {
        self.pod.pings(&["-W", "1", &target.address])
    }

    /// Its workload endpoint, with the label `role`.
    fn record(&self, node: &str) -> Value {
        let name = self.name;
        json!({ "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
            "metadata": { "name": format!("{node}-k8s-{name}-eth0"), "namespace": "default", "labels": { "role": name } },
            "spec": { "orchestrator": "k8s", "node": node, "pod": name, "endpoint": "eth0",
                "ipNetworks": [format!("{}/32", self.address)], "profiles": ["projectcalico-default-allow"] } })
    }
}

fn resource(kind: &str, name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": { "name": name }, "spec": spec })
}

fn set(nets: &[&str]) -> Value {
    let mut set = resource("NetworkSet", "ops", json!({ "nets": nets }));
    set["metadata"]["labels"] = json!({ "set": "ops" });
    set
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, etcdctl, ping, nft"]
fn policies_of_etcd_are_in_force_on_two_nodes_and_outlast_agent_and_etcd() {
    // policy.md P02, P29, P123
    let mut setup = Setup::new();
    setup.expect(true, true);
    assert!(!setup.has_table(), "nothing is decided");

    // No record describes the pods yet.
    let deny = resource(
        "GlobalNetworkPolicy",
        "deny-all",
        json!({ "selector": "projectcalico.org/namespace == 'default'", "types": ["Ingress"] }),
    );
    setup.apply(std::slice::from_ref(&deny));
    setup.expect(false, false);

    // Labels come from records; a pod that starts now is closed from its first packet.
    setup.apply(&[setup.client.record("n1"), setup.server.record("n2")]);
    let allow = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "server", "namespace": "default" },
        "spec": { "podSelector": { "matchLabels": { "role": "server" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "role": "client" } } }] }] } });
    setup.apply(std::slice::from_ref(&allow));
    setup.expect(true, false);
    let late = Pod::on(&mut setup.two, "late");
    assert!(!setup.other.reaches(&late));

    // Addresses of a set.
    let rule = json!([{ "action": "Allow", "source": { "selector": "set == 'ops'" } }]);
    let of_set = json!({ "selector": "role == 'server'", "order": 5, "ingress": rule });
    setup.apply(&[set(&[&setup.other.address]), resource("NetworkPolicy", "of-set", of_set)]);
    setup.expect(true, true);
    setup.apply(&[set(&[])]);
    setup.expect(true, false);

    // A tier before all others denies, or leaves it to them.
    let first = |action: &str| {
        let rule = json!([{ "action": action, "source": { "selector": "role == 'client'" } }]);
        resource(
            "GlobalNetworkPolicy",
            "first",
            json!({ "tier": "first", "selector": "role == 'server'", "ingress": rule }),
        )
    };
    let tier = resource("Tier", "first", json!({ "order": 10, "defaultAction": "Pass" }));
    setup.apply(&[tier, first("Deny")]);
    setup.expect(false, false);
    setup.apply(&[first("Pass")]);
    setup.expect(true, false);

    // What is in force stays so without agent and etcd.
    setup.two.stop_agent();
    setup.fabric.kill_etcd();
    let _agent = setup.two.spawn_agent();
    let_pass(Duration::from_secs(2));
    setup.expect(true, false);
    setup.fabric.start_etcd();
    eventually(TIMEOUT, || setup.two.log().matches("policies are in force").count() == 2);
    setup.expect(true, false);

    setup.delete(&allow);
    setup.expect(false, false);
    setup.delete(&deny);
    setup.delete(&first("Pass"));
    eventually(TIMEOUT, || setup.server.reaches(&late));
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, etcdctl, ping, nft"]
fn a_policy_of_etcd_that_cannot_be_read_isolates_its_namespace() {
    // policy.md P88
    let setup = Setup::new();
    setup.expect(true, true);
    let key = |namespace: &str| format!("{RESOURCES}/networkpolicies/{namespace}/broken");
    // Of another namespace.
    setup.fabric.put(&key("elsewhere"), "no JSON");
    eventually(TIMEOUT, || setup.two.log().contains("a record cannot be read"));
    setup.expect(true, true);
    setup.fabric.put(&key("default"), "no JSON");
    setup.expect(false, false);
    setup.fabric.etcdctl(&["del", &key("default")]);
    setup.expect(true, true);
}

#[test]
#[ignore = "root: makes network namespaces; tool: ping, nft"]
fn policies_of_the_embedded_store_are_in_force_without_etcd_and_kubernetes() {
    let mut node = TestNode::start(&[]);
    let (client, server) = (node.pod(), node.pod());
    let address = |pod: &TestPod| {
        let answer = node.add(pod);
        assert_eq!(answer.status, 0, "{answer:?}\n{}", node.log());
        answer.addresses().into_iter().find(|address| address.contains('.')).unwrap()
    };
    let (_, server_address) = (address(&client), address(&server));
    let reaches = || client.pings(&["-W", "1", &server_address]);
    eventually(TIMEOUT, reaches);
    let run = |verb: &str, document: &Value| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args([verb, "-f", "-", "--root"]).arg(node.root());
        let answer = node.output(&mut command, document.to_string());
        assert_eq!(answer.status, 0, "{answer:?}");
    };
    // These containers are no pods of Kubernetes, and in the namespace that Calico gives such ones.
    let deny = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny-all", "namespace": "default" }, "spec": { "podSelector": {} } });
    run("apply", &deny);
    eventually(TIMEOUT, || !reaches());
    run("delete", &deny);
    eventually(TIMEOUT, reaches);
}
