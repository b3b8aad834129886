//! Policies in etcd, applied by `russet apply`, in force on the pods of two agents.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use russet_testkit::kubernetes::require_program;
use russet_testkit::{eventually, let_pass, succeeds};
use serde_json::{Value, json};

use crate::fabric::{Fabric, RESOURCES};
use crate::kubernetes::call;
use crate::node::{Answer, TIMEOUT, TestNode, TestPod};
use crate::pinging::Pinging;
use crate::reference_plugins;

/// Two nodes; the client is on the first, the other pods are on the second.
pub struct Setup {
    pub fabric: Fabric,
    pub one: TestNode,
    pub two: TestNode,
    pub client: Pod,
    pub other: Pod,
    pub server: Pod,
}

pub struct Pod {
    pod: TestPod,
    name: &'static str,
    address: String,
}

// === impl Setup ===

impl Setup {
    pub fn new() -> Self {
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
    pub fn apply(&self, documents: &[Value]) {
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
    pub fn expect(&self, client: bool, other: bool) {
        eventually(TIMEOUT, || self.client.reaches(&self.server) == client);
        eventually(TIMEOUT, || self.other.reaches(&self.server) == other);
        assert_eq!(self.client.reaches(&self.server), client, "{}", self.two.log());
    }

    /// What explain on the first node says of TCP port 80.
    fn explained(&self, from: &str, to: &str) -> Value {
        let answer = self.one.russet_inside(&["explain", from, to, "80", "--family", "4", "-o", "json"]);
        let found: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
        found["flows"][0].clone()
    }

    fn has_table(&self) -> bool {
        self.two.netns().with(|| succeeds("nft list table inet russet-decisions")).unwrap()
    }

    /// Has calicoctl do something with an object in the etcd.
    #[track_caller]
    fn calicoctl(&self, verb: &str, document: &Value) {
        let answer = self.try_calicoctl(&[verb, "-f", "-"], document);
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    /// Runs calicoctl on the etcd.
    pub fn try_calicoctl(&self, args: &[&str], document: &Value) -> Answer {
        let mut command = Command::new(require_program("calico", "calicoctl"));
        command.env("DATASTORE_TYPE", "etcdv3").env("ETCD_ENDPOINTS", "http://10.77.0.1:2379");
        command.args(args).arg("--allow-version-mismatch");
        self.one.output(&mut command, document.to_string())
    }

    /// Resources by their keys: their bytes as etcd has them, and the revision that wrote them.
    fn stored(&self, plurals: &[&str]) -> BTreeMap<String, (String, u64)> {
        let mut found = BTreeMap::new();
        for plural in plurals {
            let prefix = format!("{RESOURCES}/{plural}/");
            let text = self.fabric.etcdctl(&["get", "--prefix", &prefix, "-w", "json"]);
            let read: Value = serde_json::from_str(&text).unwrap();
            for record in read["kvs"].as_array().into_iter().flatten() {
                let [key, value] = ["key", "value"].map(|member| record[member].as_str().unwrap().to_owned());
                found.insert(key, (value, record["mod_revision"].as_u64().unwrap()));
            }
        }
        found
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

    pub fn reaches(&self, target: &Self) -> bool {
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

pub fn resource(kind: &str, name: &str, spec: Value) -> Value {
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
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, etcdctl, ping, nft"]
fn a_host_endpoint_of_etcd_guards_its_node_and_not_the_nodes_way_to_etcd_or_pods() {
    let mut setup = Setup::new();
    setup.expect(true, true);
    let has_table =
        |setup: &Setup| setup.two.netns().with(|| succeeds("nft list table inet russet-hosts")).unwrap();
    let reaches = |setup: &Setup| setup.one.netns().with(|| succeeds("ping -c 1 -W 1 10.77.0.12")).unwrap();
    assert!(!has_table(&setup) && reaches(&setup));
    let host = |node: &str, name: &str| {
        let mut host = resource("HostEndpoint", name, json!({ "node": node, "interfaceName": "*" }));
        host["metadata"]["labels"] = json!({ "host": node });
        host
    };
    // There is no policy.
    setup.apply(&[host("n2", "h2")]);
    eventually(TIMEOUT, || has_table(&setup) && !reaches(&setup));
    setup.expect(true, true);
    let named = |policies: &[&str], reason: &str| {
        reaches(&setup);
        let answer = setup.two.russet(&["flows", "--denied", "--pod", "10.77.0.11", "-o", "json"]);
        let report: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
        report["flows"].as_array().unwrap().iter().any(|flow| {
            let names =
                flow["policies"].as_array().unwrap().iter().map(|policy| policy["name"].as_str().unwrap());
            names.eq(policies.iter().copied()) && flow["reason"].as_str().unwrap().contains(reason)
        })
    };
    let nothing = "HostEndpoint h2 at eth0: no policy selects it; no rule of its profiles allows it";
    eventually(TIMEOUT, || named(&[], nothing));
    // It is named where it counts: for the node, and for pods once a policy is about what is forwarded.
    let notes = |setup: &Setup, from: &str, to: &str| setup.explained(from, to)["notes"].to_string();
    let named_host = "HostEndpoint h2 of node n2 (all interfaces)";
    let to_node = setup.explained("10.77.0.11", "10.77.0.12");
    let end = nothing.replace(" at eth0", "");
    assert_eq!((&to_node["verdict"], &to_node["directions"][1]["end"]), (&"denied".into(), &end.into()));
    assert!(!to_node["notes"].to_string().contains(named_host), "{to_node:#}");
    assert!(!notes(&setup, &setup.client.address, &setup.server.address).contains(named_host));
    let forwarded = resource(
        "GlobalNetworkPolicy",
        "forwarded",
        json!({ "selector": "has(host)", "applyOnForward": true, "ingress": [{ "action": "Allow" }] }),
    );
    setup.apply(std::slice::from_ref(&forwarded));
    assert!(notes(&setup, &setup.client.address, &setup.server.address).contains(named_host));
    setup.delete(&forwarded);
    eventually(TIMEOUT, || !reaches(&setup));
    // What the node hears from etcd still counts.
    let rule = json!([{ "action": "Allow", "protocol": "ICMP" }]);
    let policy = resource("GlobalNetworkPolicy", "ping", json!({ "selector": "has(host)", "ingress": rule }));
    setup.apply(std::slice::from_ref(&policy));
    eventually(TIMEOUT, || reaches(&setup));
    setup.delete(&policy);
    eventually(TIMEOUT, || !reaches(&setup));
    // Another program's change is undone, and what was in force stays so without an agent.
    setup.two.inside("nft", &["delete table inet russet-hosts"]);
    eventually(TIMEOUT, || has_table(&setup) && !reaches(&setup));
    setup.two.stop_agent();
    assert!(has_table(&setup) && !reaches(&setup));
    setup.apply(&[host("n9", "h9")]);
    setup.delete(&host("n2", "h2"));
    setup.two.start_agent();
    eventually(TIMEOUT, || !has_table(&setup) && reaches(&setup));
    setup.expect(true, true);
}

/// Objects for calicoctl, in order, and whether the client and the other pod reach the server with them.
fn objects_of_calicoctl(setup: &Setup) -> [(Value, [bool; 2]); 6] {
    let (client, other) = (format!("{}/32", setup.client.address), &setup.other.address);
    let rule = |action: &str, source: Value| json!({ "action": action, "source": source });
    let labelled = |mut object: Value, labels: Value| {
        object["metadata"]["labels"] = labels;
        object
    };
    let in_default = |mut object: Value| {
        object["metadata"]["namespace"] = "default".into();
        object
    };
    let rules = [
        rule("Allow", json!({ "selector": "set == 'ops'" })),
        rule("Allow", json!({ "selector": "role == 'machine'", "namespaceSelector": "global()" })),
    ];
    let policy = json!({ "selector": "role == 'server'", "ingress": rules });
    let open = json!([{ "action": "Allow" }]);
    let machine = json!({ "node": "n9", "interfaceName": "eth0", "expectedIPs": [other] });
    let bad = resource("GlobalNetworkSet", "bad", json!({ "nets": [client] }));
    let deny = [rule("Deny", json!({ "selector": "set == 'bad'" }))];
    let first = json!({ "order": 1, "selector": "role == 'server'", "types": ["Ingress"], "ingress": deny });
    [
        (in_default(resource("NetworkPolicy", "server", policy)), [false, false]),
        (in_default(set(&[&client])), [true, false]),
        (resource("Profile", "late", json!({ "ingress": open, "egress": open })), [true, false]),
        (labelled(resource("HostEndpoint", "machine", machine), json!({ "role": "machine" })), [true, true]),
        (labelled(bad, json!({ "set": "bad" })), [true, true]),
        (resource("GlobalNetworkPolicy", "first", first), [false, true]),
    ]
}

/// Records of kinds that calicoctl of the version here does not have, as later ones write them: a tier, whose policy
/// denies what the other pod sends, and staged policies that would deny everything.
fn records_of_later_versions() -> Vec<(String, Value)> {
    let spec = |more: Value| {
        let mut spec = json!({ "selector": "role == 'server'", "types": ["Ingress"] });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let deny = json!([{ "action": "Deny", "source": { "selector": "role == 'other'" }, "destination": {} }]);
    let mut policy = resource(
        "GlobalNetworkPolicy",
        "early",
        spec(json!({ "tier": "early", "order": 1, "ingress": deny })),
    );
    policy["metadata"]["labels"] = json!({ "projectcalico.org/tier": "early" });
    policy["metadata"]["annotations"] = json!({ "projectcalico.org/metadata": r#"{"name":"early"}"# });
    let staged = spec(json!({ "tier": "default", "stagedAction": "Set", "order": 0 }));
    let of_kubernetes = json!({ "podSelector": {}, "policyTypes": ["Ingress"], "stagedAction": "Set" });
    let mut tier = resource("Tier", "early", json!({ "order": 10, "defaultAction": "Pass" }));
    tier["status"] = json!({});
    let records = [
        ("tiers/early", tier),
        ("globalnetworkpolicies/early", policy),
        ("stagedglobalnetworkpolicies/soon", resource("StagedGlobalNetworkPolicy", "soon", staged.clone())),
        ("stagednetworkpolicies/default/soon", resource("StagedNetworkPolicy", "soon", staged)),
        (
            "stagedkubernetesnetworkpolicies/default/soon",
            resource("StagedKubernetesNetworkPolicy", "soon", of_kubernetes),
        ),
    ];
    records.map(|(name, value)| (format!("{RESOURCES}/{name}"), value)).into()
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: calico, calicoctl, etcd, etcdctl, ping, nft"]
fn objects_that_calicoctl_writes_are_in_force_and_their_bytes_stay() {
    // policy.md P87 and P94
    const POLICIES: [&str; 10] = [
        "globalnetworkpolicies",
        "globalnetworksets",
        "hostendpoints",
        "networkpolicies",
        "networksets",
        "profiles",
        "stagedglobalnetworkpolicies",
        "stagedkubernetesnetworkpolicies",
        "stagednetworkpolicies",
        "tiers",
    ];
    let setup = Setup::new();
    setup.expect(true, true);
    // Its profile comes later.
    let mut other = setup.other.record("n2");
    other["spec"]["profiles"] = json!(["late"]);
    setup.apply(&[setup.client.record("n1"), setup.server.record("n2"), other]);
    for (object, [client, other]) in objects_of_calicoctl(&setup) {
        let is_profile = object["kind"] == "Profile";
        if is_profile {
            eventually(TIMEOUT, || !setup.client.reaches(&setup.other));
        }
        setup.calicoctl("apply", &object);
        setup.expect(client, other);
        if is_profile {
            eventually(TIMEOUT, || setup.client.reaches(&setup.other));
        }
    }
    for (key, value) in records_of_later_versions() {
        setup.fabric.put(&key, &value.to_string());
    }
    setup.expect(false, false);
    let written = setup.stored(&POLICIES);
    assert_eq!(written.len(), POLICIES.len() + 1, "{written:?}");
    setup.calicoctl("delete", &resource("GlobalNetworkPolicy", "first", json!({})));
    setup.expect(true, false);
    setup.fabric.etcdctl(&["del", &format!("{RESOURCES}/globalnetworkpolicies/early")]);
    setup.expect(true, true);
    let left = setup.stored(&POLICIES);
    assert_eq!(left.len(), written.len() - 2, "{left:?}");
    assert!(left.iter().all(|(key, record)| written.get(key) == Some(record)), "{left:?}");
}

// policy.md P86
#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: calico, calicoctl, etcd, ping, nft"]
fn p86_a_felix_configuration_of_calicoctl_closes_nodes_to_their_own_pods_and_outlasts_the_agent() {
    const NODES: [&str; 2] = ["10.77.0.11", "10.77.0.12"];
    let felix = |name: &str, action: &str| {
        resource("FelixConfiguration", name, json!({ "defaultEndpointToHostAction": action }))
    };
    let mut setup = Setup::new();
    setup.expect(true, true);
    let own = |setup: &Setup| {
        let pings = |pod: &Pod, at| pod.pod.pings(&["-W", "1", at]);
        [pings(&setup.client, NODES[0]), pings(&setup.other, NODES[1])]
    };
    assert_eq!(own(&setup), [true, true], "nothing is said of it");
    setup.calicoctl("apply", &felix("default", "Drop"));
    eventually(TIMEOUT, || own(&setup) == [false, false]);
    assert!(setup.client.reaches(&setup.server) && !setup.has_table(), "policies decide nothing");
    let probe = format!("ping -c 1 -W 1 {}", setup.client.address);
    assert!(setup.one.netns().with(|| succeeds(&probe)).unwrap(), "a node reaches its own pods");
    let explain = |setup: &Setup| setup.one.russet_inside(&["explain", "default/client", NODES[0], "icmp"]);
    let answer = explain(&setup);
    let why = "defaultEndpointToHostAction of FelixConfiguration default is Drop";
    assert!(answer.status == 3 && answer.stdout.contains(why), "{answer:?}");

    setup.one.stop_agent();
    assert_eq!(own(&setup), [false, false]);
    let _agent = setup.one.spawn_agent();
    let_pass(Duration::from_secs(2));
    assert_eq!(own(&setup), [false, false]);
    setup.calicoctl("apply", &felix("node.n1", "Accept"));
    eventually(TIMEOUT, || own(&setup) == [true, false]);
    assert_eq!(explain(&setup).status, 0);
    setup.calicoctl("delete", &felix("default", "Drop"));
    eventually(TIMEOUT, || own(&setup) == [true, true]);
    let has_table =
        |node: &TestNode| node.netns().with(|| succeeds("nft list table inet russet-hosts")).unwrap();
    assert!(!has_table(&setup.one) && !has_table(&setup.two));
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

#[test]
#[ignore = "root: makes network namespaces; kernel: bridge, br_netfilter; tool: ping, nft"]
fn containers_behind_a_bridge_are_judged_and_explained_without_etcd_and_kubernetes() {
    // policy.md P126
    let mut node = TestNode::start(&[]);
    let bin = tempfile::tempdir().unwrap();
    for name in ["bridge", "host-local"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_russet"), bin.path().join(name)).unwrap();
    }
    let network = node.config(json!({ "name": "containers", "cniVersion": "1.0.0", "type": "bridge",
        "bridge": "cni0", "isGateway": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.206.0.0/24" }]] } }));
    let [client, server] = [node.pod(), node.pod()];
    for pod in [&client, &server] {
        let added = reference_plugins::call(&node, bin.path(), "bridge", "ADD", pod, &network);
        assert_eq!(added.status, 0, "{added:?}\n{}", node.log());
    }
    let reaches = || client.pings(&["-W", "1", "10.206.0.3"]);
    let judge = |value: u8| {
        node.inside("sysctl", &["-w", &format!("net.bridge.bridge-nf-call-iptables={value}")]);
    };
    let explain = || {
        let [from, to] = [&client, &server].map(|pod| format!("default/{}", pod.container));
        let answer = node.russet_inside(&["explain", &from, &to, "--family", "4", "-o", "json"]);
        let found: Value =
            serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
        (answer.status, found)
    };
    judge(1);
    eventually(TIMEOUT, reaches);
    let (status, found) = explain();
    assert_eq!((status, &found["verdict"]), (0, &json!("allowed")), "{found}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.args(["apply", "-f", "-", "--root"]).arg(node.root());
    let deny = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny-all", "namespace": "default" }, "spec": { "podSelector": {} } });
    assert_eq!(node.output(&mut command, deny.to_string()).status, 0);
    eventually(TIMEOUT, || !reaches());
    let (status, found) = explain();
    assert_eq!((status, &found["verdict"]), (3, &json!("denied")), "{found}");
    assert!(found["findings"].as_array().unwrap().is_empty(), "{found}");
    let kernel = found["kernel"].as_array().unwrap();
    assert!(!kernel.is_empty() && kernel.iter().all(|end| end["agrees"] == true), "{found}");

    // The bridge carries packets past the hooks that judge.
    judge(0);
    assert!(reaches());
    let text = explain().1["findings"].to_string();
    assert!(text.contains("bridge-nf-call-iptables is 0") && text.contains("ports of cni0"), "{text}");
}

/// A node with an embedded store, and pods whose traffic policies are about.
struct Alone {
    node: TestNode,
    pods: Vec<(TestPod, String)>,
}

// === impl Alone ===

impl Alone {
    fn new(pods: usize) -> Self {
        let mut alone = Self { node: TestNode::start(&[]), pods: Vec::new() };
        (0..pods).for_each(|_| alone.add());
        alone
    }

    fn add(&mut self) {
        let pod = self.node.pod();
        let answer = self.node.add(&pod);
        assert_eq!(answer.status, 0, "{answer:?}\n{}", self.node.log());
        let address = answer.addresses().into_iter().find(|address| address.contains('.')).unwrap();
        self.pods.push((pod, address));
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        self.pods[from].0.pings(&["-W", "1", &self.pods[to].1])
    }

    #[track_caller]
    fn run(&self, verb: &str, document: &Value) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args([verb, "-f", "-", "--root"]).arg(self.node.root());
        let answer = self.node.output(&mut command, document.to_string());
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    fn has_table(&self) -> bool {
        self.node.netns().with(|| succeeds("nft list table inet russet-decisions")).unwrap()
    }

    /// What explain says of two pods.
    fn explained(&self, from: usize, to: usize) -> Value {
        let [from, to] = [from, to].map(|at| format!("default/{}", self.pods[at].0.container));
        let answer = self.node.russet_inside(&["explain", &from, &to, "80", "--family", "4", "-o", "json"]);
        serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    }

    fn has_marker(&self) -> bool {
        self.node.path("var/lib/russet/policies-in-force").exists()
    }

    /// A policy under which the first pod alone reaches others.
    fn only_the_first(&self) -> Value {
        let source = json!({ "nets": [format!("{}/32", self.pods[0].1)] });
        let mut policy = resource(
            "NetworkPolicy",
            "only-the-first",
            json!({ "selector": "all()", "ingress": [{ "action": "Allow", "source": source }] }),
        );
        policy["metadata"]["namespace"] = "default".into();
        policy
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: ping, nft"]
fn the_last_policys_deletion_removes_the_table_and_the_mark_also_if_the_agent_ends_between() {
    let mut alone = Alone::new(3);
    let policy = alone.only_the_first();
    let is_enforced = |alone: &Alone| alone.has_table() && alone.has_marker() && !alone.reaches(1, 2);
    for _ in 0..2 {
        alone.run("apply", &policy);
        eventually(TIMEOUT, || is_enforced(&alone));
        assert!(alone.reaches(0, 2), "{}", alone.node.log());
        alone.run("delete", &policy);
        eventually(TIMEOUT, || !alone.has_table() && !alone.has_marker());
        eventually(TIMEOUT, || alone.reaches(1, 2));
    }
    // A pod that is attached now is not held, and a later policy is about it.
    alone.add();
    assert!(alone.reaches(1, 3) && alone.reaches(3, 2), "{}", alone.node.log());
    alone.run("apply", &policy);
    eventually(TIMEOUT, || is_enforced(&alone) && !alone.reaches(1, 3));
    assert!(alone.reaches(0, 3), "{}", alone.node.log());

    // The agent ends before the table is removed, or before the mark is.
    for ends_behind_the_mark in [true, false] {
        alone.node.kill_agent();
        alone.run("delete", &policy);
        let mark = alone.node.path("var/lib/russet/policies-in-force");
        match ends_behind_the_mark {
            true => std::fs::remove_file(mark).unwrap(),
            false => _ = alone.node.inside("nft", &["delete table inet russet-decisions"]),
        }
        alone.node.start_agent();
        eventually(TIMEOUT, || !alone.has_table() && !alone.has_marker() && alone.reaches(1, 2));
        alone.run("apply", &policy);
        eventually(TIMEOUT, || is_enforced(&alone));
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: ping, nft"]
fn rules_about_services_are_shown_and_explained_as_an_agent_without_services_enforces_them() {
    let alone = Alone::new(2);
    let services = json!({ "services": { "name": "db", "namespace": "default" } });
    let rules = json!([{ "action": "Deny", "destination": services }, { "action": "Allow" }]);
    let spec = json!({ "selector": "all()", "types": ["Egress"], "egress": rules });
    alone.run("apply", &resource("GlobalNetworkPolicy", "by-service", spec));
    eventually(TIMEOUT, || !alone.reaches(0, 1));
    let reason = "services are not known with this store: the rule denies everything in its direction";
    assert!(alone.node.log().contains(reason), "{}", alone.node.log());

    for words in [&["policy", "ls"][..], &["policy", "show", "by-service"]] {
        let answer = alone.node.russet_inside(words);
        let shown = format!("partly: spec.egress[0]: {reason}");
        assert!(answer.status == 3 && answer.stdout.contains(&shown), "{answer:?}");
    }
    let found = alone.explained(0, 1);
    assert_eq!((&found["verdict"], &found["findings"]), (&json!("denied"), &json!([])), "{found:#}");
    assert_eq!(found["kernel"][0]["agrees"], true, "{found:#}");
    assert!(found["flows"][0]["notes"].to_string().contains(reason), "{found:#}");
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: iptables, nft, ping"]
fn felix_takes_over_and_leaves_again_without_an_instant_that_is_open_or_cuts_what_is_allowed() {
    /// The agent waits for half a minute before it removes what Felix left.
    const REMOVAL: Duration = Duration::from_secs(90);
    let alone = Alone::new(3);
    let policy = alone.only_the_first();
    alone.run("apply", &policy);
    eventually(TIMEOUT, || alone.has_table() && !alone.reaches(1, 2));
    let (allowed, denied) = (
        Pinging::start(&alone.pods[0].0, &alone.pods[2].1),
        Pinging::begin(&alone.pods[1].0, &alone.pods[2].1, "0.01"),
    );
    let ready = |text: &str| alone.node.get("/readyz?verbose").contains(text);

    // It runs, and filters nothing yet.
    let felix = alone.node.decoy("calico-felix");
    eventually(TIMEOUT, || ready("its rules are not in force yet"));
    assert!(alone.has_table(), "{}", alone.node.log());
    let rules = format!(
        "*filter\n:cali-FORWARD - [0:0]\n-A FORWARD -m comment --comment \"cali:x\" -j cali-FORWARD\n-A cali-FORWARD -s {}/32 -j DROP\nCOMMIT\n",
        alone.pods[1].1
    );
    for flavour in ["nft", "legacy"] {
        let mut restore = Command::new(format!("iptables-{flavour}-restore"));
        let answer = alone.node.output(restore.arg("--noflush"), &rules);
        assert_eq!(answer.status, 0, "{answer:?}");
    }
    let own = format!(
        "table ip calico {{ chain filter-FORWARD {{ type filter hook forward priority 0; ip saddr {} drop; }}; }}",
        alone.pods[1].1
    );
    alone.node.inside("nft", &[&own]);
    eventually(TIMEOUT, || !alone.has_table() && !alone.has_marker());
    assert!(ready("NOT ENFORCED: Felix runs on this node"), "{}", alone.node.get("/readyz?verbose"));
    assert!(alone.node.log().contains("NOT ENFORCED: Felix runs on this node"), "{}", alone.node.log());
    let listed = alone.node.russet_inside(&["policy", "ls"]);
    assert!(
        listed.status == 3 && listed.stdout.contains("no: left to Felix, which runs on this node"),
        "{listed:?}"
    );
    let found = alone.explained(1, 2);
    assert_eq!((&found["verdict"], &found["kernel"]), (&json!("denied"), &json!([])), "{found:#}");
    assert!(!found["findings"].to_string().contains("drift"), "{found:#}");
    assert!(found["notes"].to_string().contains("Felix runs on this node and enforces"), "{found:#}");

    // It ends: its rules stay until long after this agent's are in force.
    drop(felix);
    eventually(TIMEOUT, || alone.has_table() && alone.has_marker());
    assert!(!ready("policies:"), "{}", alone.node.get("/readyz?verbose"));
    let leftovers = || {
        let saved =
            ["nft", "legacy"].map(|flavour| alone.node.inside(&format!("iptables-{flavour}-save"), &[]));
        saved.concat().contains("cali")
            || alone.node.netns().with(|| succeeds("nft list table ip calico")).unwrap()
    };
    assert!(leftovers(), "a Felix that is upgraded is away for a moment");
    eventually(REMOVAL, || !leftovers());
    denied.finish_unanswered();
    allowed.finish();
    alone.run("delete", &policy);
    eventually(TIMEOUT, || alone.reaches(1, 2));
}

/// Longer than a request or a watch waits for a silent store.
const SILENCE: Duration = Duration::from_secs(75);

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: etcd, nft, ping; takes two minutes"]
fn a_silent_store_changes_no_decision_and_lets_no_new_pod_start() {
    // policy.md P123
    let mut setup = Setup::new();
    let labelled = [setup.client.record("n1"), setup.other.record("n2"), setup.server.record("n2")];
    setup.apply(&labelled);
    let spec = json!({ "selector": "role == 'server'", "types": ["Ingress"],
        "ingress": [{ "action": "Allow", "source": { "selector": "role == 'client'" } }] });
    setup.apply(&[resource("GlobalNetworkPolicy", "clients", spec)]);
    setup.expect(true, false);

    setup.fabric.hold_etcd(true);
    let began = Instant::now();
    let late = setup.two.pod();
    let answer = call(&setup.two, "ADD", &late, "late");
    assert_eq!(answer.code(), 11, "{answer:?}");
    let links = russet_testkit::ip_json(&["-n", &late.netns_name, "link"]);
    assert_eq!(links.as_array().unwrap().len(), 1, "{links}");
    let unchanged = |setup: &Setup| {
        assert!(setup.client.reaches(&setup.server) && !setup.other.reaches(&setup.server));
    };
    while began.elapsed() < SILENCE {
        unchanged(&setup);
    }
    let doctor = setup.two.russet_inside(&["doctor"]);
    println!("{}", doctor.stdout);
    assert_eq!(doctor.status, 3, "{doctor:?}");

    // Also an agent that cannot read the policies keeps to them.
    setup.two.kill_agent();
    let agents = || setup.two.log().matches("agent started").count();
    let before = agents();
    let _agent = setup.two.spawn_agent();
    eventually(TIMEOUT, || agents() > before);
    let restarted = Instant::now();
    while restarted.elapsed() < Duration::from_secs(10) {
        unchanged(&setup);
    }
    setup.fabric.hold_etcd(false);
    eventually(TIMEOUT, || call(&setup.two, "ADD", &late, "late").status == 0);
    setup.expect(true, false);
    setup.delete(&resource("GlobalNetworkPolicy", "clients", json!({})));
    setup.expect(true, true);
}
