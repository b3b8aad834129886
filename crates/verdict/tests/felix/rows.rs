//! Rows of policy.md section 6.1 that ask for Calico's own code: what they expect, what Felix answers and what Russet answers are the same.
//!
//! The world: pods a, b and c of the namespace red at 10.0.0.1 to 10.0.0.3, c of blue at 10.0.1.3, a host endpoint at
//! 192.0.2.9, a GlobalNetworkSet with 203.0.113.0/24, and 198.51.100.1, which is nothing.

use std::net::IpAddr;

use russet_verdict::flow::Flow;
use russet_verdict::ir::{Direction, Protocol};
use serde_json::{Value, json};

use super::judge;
use super::peer::{Answer, Felix, NODE, Probe};
use super::states::{address, object};

const PODS: [(&str, &str, &str, &str); 4] = [
    ("red/a", "red", "a", "10.0.0.1"),
    ("red/b", "red", "b", "10.0.0.2"),
    ("red/c", "red", "c", "10.0.0.3"),
    ("blue/c", "blue", "c", "10.0.1.3"),
];
const OTHERS: [(&str, &str); 3] =
    [("host", "192.0.2.9"), ("set", "203.0.113.1"), ("external", "198.51.100.1")];
const HTTP: (Protocol, u16) = (Protocol::TCP, 80);

fn pod((_, namespace, name, ip): (&str, &str, &str, &str)) -> Value {
    let labels = json!({"pod": name, "projectcalico.org/namespace": namespace, "projectcalico.org/orchestrator": "k8s"});
    object(
        "WorkloadEndpoint",
        json!({"name": format!("{NODE}-k8s-{name}-eth0"), "namespace": namespace, "labels": labels}),
        json!({"node": NODE, "orchestrator": "k8s", "pod": name, "endpoint": "eth0", "interfaceName": format!("cali{namespace}{name}"),
            "ipNetworks": [format!("{ip}/32")], "profiles": [format!("kns.{namespace}")]}),
    )
}

/// The world, with these documents instead of those of the same name.
fn world(documents: &[Value]) -> Vec<Value> {
    let mut all: Vec<Value> = PODS.iter().map(|it| pod(*it)).collect();
    for namespace in ["red", "blue"] {
        let allow = json!([{"action": "Allow"}]);
        let labels = json!({"pcns.env": namespace, "pcns.projectcalico.org/name": namespace});
        let spec = json!({"ingress": allow, "egress": allow, "labelsToApply": labels});
        all.push(object("Profile", json!({"name": format!("kns.{namespace}")}), spec));
    }
    let host = json!({"node": NODE, "interfaceName": "eth0", "expectedIPs": ["192.0.2.9"]});
    all.push(object("HostEndpoint", json!({"name": "eth", "labels": {"role": "host"}}), host));
    let nets = json!({"nets": ["203.0.113.0/24"]});
    all.push(object("GlobalNetworkSet", json!({"name": "set", "labels": {"role": "set"}}), nets));
    let is_replaced = |it: &Value| {
        documents.iter().any(|other| ["kind", "metadata"].iter().all(|member| it[member] == other[member]))
    };
    all.retain(|it| !is_replaced(it));
    all.extend(documents.iter().cloned());
    all
}

/// Whether a flow between two ends passes: egress of the first, if it is a pod, and ingress of the second.
fn probes(from: &str, to: &str, (protocol, port): (Protocol, u16)) -> Vec<Probe> {
    let at = |name: &str| -> IpAddr {
        let pods = PODS.iter().map(|(name, .., ip)| (*name, *ip));
        address(pods.chain(OTHERS).find(|(known, _)| *known == name).unwrap().1)
    };
    let (source, destination) = (at(from), at(to));
    let source_port = if protocol.has_ports() { 40_000 } else { 0 };
    let flow = Flow { source, destination, protocol, source_port, destination_port: port };
    let of = |name: &str, direction| {
        let (end, ..) = PODS.iter().find(|(known, ..)| *known == name)?;
        Some(Probe { end, stage: None, direction, flow })
    };
    of(from, Direction::Egress).into_iter().chain(of(to, Direction::Ingress)).collect()
}

/// A flow, and whether it is allowed.
type Line<'a> = (&'a str, &'a str, (Protocol, u16), bool);

#[track_caller]
fn check(felix: &mut Felix, row: &str, documents: &[Value], lines: &[Line<'_>]) {
    let all = world(documents);
    let snapshot = judge::snapshot(&all);
    for (from, to, what, wanted) in lines {
        let probes = probes(from, to, *what);
        let is_allowed = |answers: Vec<Answer>| answers.iter().all(|answer| *answer == Answer::Allowed);
        let theirs = is_allowed(judge::felix_answers(felix, &all, &probes).unwrap());
        assert_eq!(theirs, *wanted, "{row}: {from} -> {to} {what:?}: Felix");
        assert_eq!(
            is_allowed(judge::answers(&snapshot, &probes)),
            *wanted,
            "{row}: {from} -> {to} {what:?}: Russet"
        );
    }
}

/// A policy on the pod a of red, for ingress.
fn on_a(namespace: Option<&str>, name: &str, order: Option<f64>, rules: Value) -> Value {
    let kind = if namespace.is_some() { "NetworkPolicy" } else { "GlobalNetworkPolicy" };
    let mut metadata = json!({"name": name});
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    let selector = "pod == 'a' && projectcalico.org/namespace == 'red'";
    object(
        kind,
        metadata,
        json!({"order": order, "selector": selector, "types": ["Ingress"], "ingress": rules}),
    )
}

fn from(namespace: Option<&str>, source: Value) -> Value {
    on_a(namespace, "p", Some(1.0), json!([{"action": "Allow", "source": source}]))
}

// policy.md P55
#[test]
#[ignore = "tool: felix-verdict of `cargo xtask kubernetes`"]
fn p55_felix_agrees_with_the_truth_table() {
    let mut felix = Felix::start();
    let first = |rules: Value| on_a(None, "first", Some(10.0), rules);
    let second = |rules: Value| on_a(None, "second", Some(20.0), rules);
    let all = |action: &str| json!([{"action": action}]);
    let other = json!([{"action": "Allow", "source": {"nets": ["192.0.2.0/24"]}}]);
    let unknown = {
        let mut pod = pod(PODS[0]);
        pod["spec"]["profiles"] = json!(["unknown", "kns.red"]);
        pod
    };
    for (row, documents, allowed) in [
        ("no policy", vec![], true),
        ("no rule matches", vec![first(other.clone())], false),
        ("no rule matches, then allow", vec![first(other), second(all("Allow"))], true),
        ("deny, then allow", vec![first(all("Deny")), second(all("Allow"))], false),
        ("allow, then deny", vec![first(all("Allow")), second(all("Deny"))], true),
        ("pass, then deny", vec![first(all("Pass")), second(all("Deny"))], true),
        ("no rules at all", vec![first(json!([]))], false),
        ("the first profile is unknown", vec![unknown.clone()], false),
        ("the first profile is unknown, but a policy allows", vec![unknown, first(all("Allow"))], true),
        ("log, then nothing", vec![first(all("Log"))], false),
    ] {
        check(&mut felix, row, &documents, &[("blue/c", "red/a", HTTP, allowed)]);
    }
}

// policy.md P56
#[test]
#[ignore = "tool: felix-verdict of `cargo xtask kubernetes`"]
fn p56_felix_agrees_about_orders_ties_and_missing_orders() {
    let mut felix = Felix::start();
    let policy = |name: &str, order, action: &str| on_a(None, name, order, json!([{"action": action}]));
    for (row, first, second) in [
        ("a number", policy("two", Some(1.5), "Deny"), policy("one", Some(2.0), "Allow")),
        ("a negative one", policy("two", Some(-3.0), "Deny"), policy("one", Some(-2.5), "Allow")),
        ("none is last", policy("two", Some(1e9), "Deny"), policy("one", None, "Allow")),
        ("a tie", policy("one", Some(1.0), "Deny"), policy("two", Some(1.0), "Allow")),
        ("a tie of none", policy("one", None, "Deny"), policy("two", None, "Allow")),
    ] {
        for documents in [vec![first.clone(), second.clone()], vec![second, first]] {
            check(&mut felix, row, &documents, &[("blue/c", "red/a", HTTP, false)]);
        }
    }
}

// policy.md P62
#[test]
#[ignore = "tool: felix-verdict of `cargo xtask kubernetes`"]
fn p62_felix_agrees_about_a_not_selector_alone() {
    let mut felix = Felix::start();
    let not_b = json!({"notSelector": "pod == 'b'"});
    let own = [("red/c", "red/a", HTTP, true), ("red/b", "red/a", HTTP, false)];
    check(&mut felix, "own namespace", &[from(Some("red"), not_b.clone())], &own);
    let others = ["blue/c", "external", "set", "host"];
    let lines = others.map(|source| (source, "red/a", HTTP, false));
    check(&mut felix, "NetworkPolicy", &[from(Some("red"), not_b.clone())], &lines);
    let lines = others.map(|source| (source, "red/a", HTTP, true));
    check(&mut felix, "GlobalNetworkPolicy", &[from(None, not_b)], &lines);
}

// policy.md P63 and P64
#[test]
#[ignore = "tool: felix-verdict of `cargo xtask kubernetes`"]
fn p63_p64_felix_agrees_about_selectors_of_namespaces() {
    let mut felix = Felix::start();
    let not_blue = [
        ("red/b", "red/a", HTTP, true),
        ("host", "red/a", HTTP, true),
        ("set", "red/a", HTTP, true),
        ("blue/c", "red/a", HTTP, false),
        ("external", "red/a", HTTP, false),
    ];
    let global = not_blue.map(|(source, to, what, allowed)| (source, to, what, allowed && source != "red/b"));
    for namespace in [None, Some("red")] {
        let policy = |selector: &str| from(namespace, json!({"namespaceSelector": selector}));
        check(&mut felix, "P63", &[policy("env != 'blue'")], &not_blue);
        check(&mut felix, "P64", &[policy("global()")], &global);
        let all = [("blue/c", "red/a", HTTP, true), ("host", "red/a", HTTP, false)];
        check(&mut felix, "all()", &[policy("all()")], &all);
    }
}

// policy.md P67
#[test]
#[ignore = "tool: felix-verdict of `cargo xtask kubernetes`"]
fn p67_felix_agrees_about_an_icmp_message_that_must_not_be() {
    let mut felix = Felix::start();
    let rule = json!([{"action": "Allow", "protocol": "ICMP", "notICMP": {"type": 8, "code": 0}}]);
    let message = |kind: u16, code: u16| (Protocol::ICMP, kind << 8 | code);
    let lines = [(8, 0, false), (8, 1, true), (0, 0, true)]
        .map(|(kind, code, allowed)| ("blue/c", "red/a", message(kind, code), allowed));
    check(&mut felix, "P67", &[on_a(None, "p", Some(1.0), rule)], &lines);
}

/// A policy of red for egress of its pods to the Service `s`.
fn to_service(namespace: Option<&str>) -> Value {
    let mut service = json!({"name": "s"});
    if let Some(namespace) = namespace {
        service["namespace"] = namespace.into();
    }
    let rules = json!([{"action": "Allow", "destination": {"services": service}}]);
    let spec = json!({"selector": "pod == 'a'", "types": ["Egress"], "egress": rules});
    object("NetworkPolicy", json!({"name": "p", "namespace": "red"}), spec)
}

fn slice() -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "s-1", "namespace": "red", "labels": {"kubernetes.io/service-name": "s"}},
        "endpoints": [{"addresses": ["10.0.1.3"], "conditions": {"ready": false}}],
        "ports": [{"name": "p", "protocol": "TCP", "port": 80}]})
}

// policy.md P72
#[test]
#[ignore = "tool: felix-verdict of `cargo xtask kubernetes`"]
fn p72_felix_agrees_about_an_endpoint_of_a_service_that_is_not_ready() {
    let lines = [
        ("red/a", "blue/c", HTTP, true),
        ("red/a", "blue/c", (Protocol::TCP, 81), false),
        ("red/a", "blue/c", (Protocol::UDP, 80), false),
        ("red/a", "red/b", HTTP, false),
    ];
    check(&mut Felix::start(), "P72", &[slice(), to_service(Some("red"))], &lines);
}

// policy.md P73
#[test]
#[ignore = "tool: felix-verdict of `cargo xtask kubernetes`"]
fn p73_felix_never_matches_a_service_without_a_namespace_and_russet_takes_the_policys() {
    let all = world(&[slice(), to_service(None)]);
    let probes = &probes("red/a", "blue/c", HTTP)[..1];
    assert_eq!(judge::felix_answers(&mut Felix::start(), &all, probes).unwrap(), [Answer::Denied]);
    assert_eq!(judge::answers(&judge::snapshot(&all), probes), [Answer::Allowed]);
}

// calico-cni.md section 2.2.2: the label `projectcalico.org/serviceaccount`
#[test]
#[ignore = "tool: felix-verdict of `cargo xtask kubernetes`"]
fn felix_agrees_about_a_service_account_that_only_the_spec_names() {
    let mut pod = pod(PODS[1]);
    pod["spec"]["serviceAccountName"] = "builder".into();
    let policy = from(Some("red"), json!({"serviceAccounts": {"names": ["builder"]}}));
    let lines = [("red/b", "red/a", HTTP, true), ("red/c", "red/a", HTTP, false)];
    check(&mut Felix::start(), "account", &[pod, policy], &lines);
}
