//! ClusterNetworkPolicies and FelixConfigurations that `russet apply` stores, in force on a node with an embedded
//! store: no Kubernetes, and no Calico.

use std::process::Command;

use russet_testkit::{eventually, succeeds};
use serde_json::{Value, json};

use crate::flows::{Setup, resource};
use crate::node::{Answer, TIMEOUT};

/// A policy of the cluster about all pods. Each of its rules is about all pods, too.
fn cluster_policy(name: &str, tier: &str, action: &str) -> Value {
    let rule = json!({ "name": "all", "action": action, "from": [{ "namespaces": {} }] });
    json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": name },
        "spec": { "tier": tier, "priority": 7, "subject": { "namespaces": {} }, "ingress": [rule] } })
}

fn delete(setup: &Setup, kind: &str, name: &str) {
    let answer = setup.node.russet(&["delete", kind, name]);
    assert_eq!(answer.status, 0, "{answer:?}");
}

fn printed(answer: &Answer) -> Value {
    serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

/// The policies that `policy ls` lists, with its exit code.
fn listed(setup: &Setup) -> (i32, Vec<Value>) {
    let answer = setup.node.russet_inside(&["policy", "ls", "-o", "json"]);
    (answer.status, printed(&answer)["policies"].as_array().unwrap().clone())
}

#[test]
#[ignore = "root: makes network namespaces; tool: ping, nft"]
fn a_cluster_network_policy_of_the_embedded_store_is_in_force_before_and_behind_other_policies() {
    // policy.md P38 to P41
    let setup = Setup::new();
    // One that is no document is about nothing.
    let key = "/calico/resources/v3/projectcalico.org/kubernetesclusternetworkpolicies/broken";
    setup.node.store_put(key, "no JSON");
    eventually(TIMEOUT, || setup.node.log().contains("a record cannot be read"));
    assert!(setup.ping(0, 1));
    let netpol = |rules: Value| {
        json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": "np", "namespace": "default" },
            "spec": { "podSelector": {}, "policyTypes": ["Ingress"], "ingress": rules } })
    };
    setup.apply(&cluster_policy("all", "Admin", "Deny"));
    eventually(TIMEOUT, || !setup.ping(0, 1));
    let (status, policies) = listed(&setup);
    let shown = |name: &str| policies[0][name].clone();
    assert_eq!((status, policies.len()), (0, 1), "{policies:#?}");
    assert_eq!(
        [shown("kind"), shown("tier"), shown("order"), shown("pods"), shown("enforced")],
        [json!("ClusterNetworkPolicy"), json!("kube-admin"), json!(7.0), json!(2), json!("yes")]
    );
    let ends = [0, 1].map(|pod| format!("default/{}", setup.pods[pod].container));
    let explained = setup.node.russet_inside(&["explain", &ends[0], &ends[1], "icmp"]);
    assert!(explained.status == 3 && explained.stdout.contains("ClusterNetworkPolicy all"), "{explained:?}");
    let shown = setup.node.russet_inside(&["policy", "show", "all"]);
    assert!(shown.status == 0 && shown.stdout.contains("spec.ingress[0] Deny"), "{shown:?}");

    // It goes before the others, and leaves to them what it passes.
    setup.apply(&netpol(json!([{}])));
    eventually(TIMEOUT, || listed(&setup).1.len() == 2);
    assert!(!setup.ping(0, 1));
    setup.apply(&cluster_policy("all", "Admin", "Pass"));
    eventually(TIMEOUT, || setup.ping(0, 1));
    setup.apply(&netpol(json!([])));
    eventually(TIMEOUT, || !setup.ping(0, 1));
    setup.apply(&cluster_policy("all", "Admin", "Accept"));
    eventually(TIMEOUT, || setup.ping(0, 1));
    delete(&setup, "cnp", "all");
    eventually(TIMEOUT, || !setup.ping(0, 1));

    // One of the other tier is asked only where none of the others isolates.
    setup.apply(&cluster_policy("base", "Baseline", "Accept"));
    eventually(TIMEOUT, || listed(&setup).1.len() == 2);
    assert!(!setup.ping(0, 1));
    setup.apply(&cluster_policy("base", "Baseline", "Deny"));
    setup.apply(&netpol(json!([{}])));
    eventually(TIMEOUT, || setup.ping(0, 1));
    let answer = setup.node.russet(&["delete", "netpol", "np"]);
    assert_eq!(answer.status, 0, "{answer:?}");
    eventually(TIMEOUT, || !setup.ping(0, 1));
    delete(&setup, "clusternetworkpolicy", "base");
    eventually(TIMEOUT, || setup.ping(0, 1));
    eventually(TIMEOUT, || {
        !setup.node.netns().with(|| succeeds("nft list table inet russet-decisions")).unwrap()
    });
}

#[test]
#[ignore = "root: makes network namespaces; tool: ping, nft"]
fn a_cluster_network_policy_that_names_nodes_says_that_they_are_not_known_with_this_store() {
    let setup = Setup::new();
    let mut policy = cluster_policy("by-node", "Admin", "Accept");
    let rule = json!({ "action": "Deny", "to": [{ "nodes": { "matchLabels": { "rack": "7" } } }] });
    policy["spec"]["egress"] = json!([rule]);
    policy["spec"]["ingress"] = json!([]);
    setup.apply(&policy);
    eventually(TIMEOUT, || !setup.ping(0, 1));
    let (status, policies) = listed(&setup);
    let why =
        "spec.egress[0]: nodes are not known with this store: the rule denies everything in its direction";
    assert_eq!((status, &policies[0]["reasons"]), (3, &json!([why])), "{policies:#?}");
    assert!(setup.node.log().contains("nodes are not known with this store"), "{}", setup.node.log());
}

#[test]
fn cluster_policies_and_felix_configurations_are_applied_printed_and_deleted() {
    let root = tempfile::tempdir().unwrap();
    let russet = |args: &[&str], input: &str| {
        use std::io::Write as _;
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(args).arg("--root").arg(root.path());
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let apply = |documents: Value| russet(&["apply", "-f", "-"], &documents.to_string());
    let ports = json!([{ "protocol": "tcp", "port": 22, "net": "10.0.0.0/8" }]);
    let felix = resource(
        "FelixConfiguration",
        "default",
        json!({ "failsafeInboundHostPorts": ports, "failsafeOutboundHostPorts": [], "bpfEnabled": false }),
    );
    let both = json!([cluster_policy("all", "Admin", "Deny"), felix]);
    let (status, done, error) = apply(both.clone());
    assert_eq!(
        (status, done.as_str()),
        (Some(0), "ClusterNetworkPolicy/all created\nFelixConfiguration/default created\n"),
        "{error}"
    );
    assert_eq!(apply(both).1.matches(" unchanged\n").count(), 2);
    assert_eq!(russet(&["get", "cnp"], "").1, "NAME  TIER   PRIORITY\nall   Admin  7\n");
    let wide = russet(&["get", "felixconfig", "-o", "wide"], "").1;
    assert!(wide.ends_with("default                    tcp:22:10.0.0.0/8  none\n"), "{wide}");
    // What is printed can be applied.
    let (_, yaml, _) = russet(&["get", "clusternetworkpolicies", "-o", "yaml"], "");
    assert!(yaml.contains("kind: ClusterNetworkPolicyList"), "{yaml}");
    assert_eq!(russet(&["apply", "-f", "-"], &yaml).1, "ClusterNetworkPolicy/all unchanged\n");
    let (_, yaml, _) = russet(&["get", "felixconfigurations", "default", "-o", "yaml"], "");
    assert!(yaml.contains("failsafeOutboundHostPorts: []"), "{yaml}");
    let dump: Value = serde_json::from_str(&russet(&["store", "dump"], "").1).unwrap();
    let keys: Vec<&str> =
        dump["records"].as_array().unwrap().iter().map(|record| record["key"].as_str().unwrap()).collect();
    let resources = "/calico/resources/v3/projectcalico.org";
    for key in ["felixconfigurations/default", "kubernetesclusternetworkpolicies/all"] {
        assert!(keys.contains(&format!("{resources}/{key}").as_str()), "{keys:?}");
    }

    let mut namespaced = cluster_policy("bad", "Admin", "Deny");
    namespaced["metadata"]["namespace"] = "x".into();
    let mut old = cluster_policy("bad", "Admin", "Deny");
    old["apiVersion"] = "policy.networking.k8s.io/v1alpha1".into();
    for (document, why) in [
        (cluster_policy("bad", "default", "Deny"), "spec.tier: Admin or Baseline is wanted"),
        (cluster_policy("bad", "Admin", "Allow"), "spec.ingress[0].action: Accept, Deny or Pass is wanted"),
        (namespaced, "metadata.namespace: a ClusterNetworkPolicy has no namespace"),
        (old, "apiVersion: policy.networking.k8s.io/v1alpha2 is wanted"),
        (
            resource("FelixConfiguration", "x", json!({ "failsafeInboundHostPorts": [{ "port": 99_999 }] })),
            "port: a number from 1 to 65535 is wanted",
        ),
        (resource("FelixConfiguration", "x", json!({ "vxlanPort": -1 })), "vxlanPort"),
    ] {
        let (status, done, error) = apply(document.clone());
        assert!(status == Some(1) && done.is_empty() && error.contains(why), "{document}: {error}");
    }
    assert_eq!(russet(&["delete", "cnp", "all"], "").1, "ClusterNetworkPolicy/all deleted\n");
    assert_eq!(russet(&["delete", "felixconfig", "default"], "").1, "FelixConfiguration/default deleted\n");
}

#[test]
#[ignore = "root: makes network namespaces; tool: ping, nft"]
fn a_felix_configuration_of_the_embedded_store_changes_failsafe_ports_and_closes_the_node_to_its_pods() {
    // policy.md section 1.8, P86
    let setup = Setup::new();
    // Nothing while there is no such table.
    let nft = |what: &str| {
        let output = setup.node.netns().with(|| Command::new("nft").arg(what).output()).unwrap().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let of = |spec: Value| resource("FelixConfiguration", "default", spec);
    setup.apply(&of(json!({ "defaultEndpointToHostAction": "Drop" })));
    eventually(TIMEOUT, || nft("list map inet russet-hosts endpoint-to-host").contains("goto not-to-node"));
    let host = resource("HostEndpoint", "h", json!({ "node": "node-a", "interfaceName": "*" }));
    setup.apply(&host);
    eventually(TIMEOUT, || nft("list set inet russet-hosts failsafe-in").contains("tcp . 6443"));
    let inbound =
        json!([{ "protocol": "tcp", "port": 22, "net": "10.0.0.0/8" }, { "protocol": "udp", "port": 68 }]);
    setup.apply(&of(json!({ "failsafeInboundHostPorts": inbound, "failsafeOutboundHostPorts": [] })));
    eventually(TIMEOUT, || {
        let listed = nft("list set inet russet-hosts failsafe-in-for4");
        listed.contains("tcp . 22 . 10.0.0.0/8")
    });
    let listed = nft("list set inet russet-hosts failsafe-in");
    assert!(listed.contains("udp . 68") && !listed.contains("tcp"), "{listed}");
    assert!(!nft("list set inet russet-hosts failsafe-out").contains("elements"));
    assert!(nft("list map inet russet-hosts endpoint-to-host").contains("goto may-to-node"));
    delete(&setup, "felixconfiguration", "default");
    eventually(TIMEOUT, || nft("list set inet russet-hosts failsafe-out").contains("udp . 53"));
}
