//! What policies mean, from their documents to verdicts: the rows of policy.md section 6.1.
//!
//! The world: namespaces x, y and z with pods a, b and c each, at 10.0.<1, 2, 3>.<1, 2, 3>; a pod of the
//! node's network; a host endpoint at 192.0.2.9; sets; and 198.51.100.1, which is nothing.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Translator, built_in_tiers};
use crate::evaluator::ask;
use crate::flow::Flow;
use crate::ir::Protocol;
use crate::snapshot::Snapshot;
use crate::world::{Config, Update};

const EXTERNAL: &str = "198.51.100.1";
const HOST: &str = "192.0.2.9";
const TCP: Protocol = Protocol::TCP;
const UDP: Protocol = Protocol::UDP;

fn pod(namespace: &str, name: &str, ip: &str, host_network: bool) -> Value {
    // Pods a call port 80 `web`, the others 8080; each has `dns` on UDP 53.
    let web = if name == "a" { 80 } else { 8080 };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": {"pod": name}},
        "spec": {"nodeName": "n1", "serviceAccountName": name, "hostNetwork": host_network, "containers": [{"ports": [
            {"name": "web", "containerPort": web}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": ip}]}})
}

fn calico(kind: &str, namespace: Option<&str>, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "projectcalico.org/v3", "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": {"set": name}}, "spec": spec})
}

/// The world without policies, and the documents.
fn world(documents: &[Value]) -> Snapshot {
    let mut all = vec![pod("x", "host-network", "192.0.2.1", true)];
    for (third, namespace) in (1..).zip(["x", "y", "z"]) {
        all.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {"ns": namespace}}}));
        for (fourth, name) in (1..).zip(["a", "b", "c"]) {
            all.push(json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": name, "namespace": namespace, "labels": {"account": name}}}));
            all.push(pod(namespace, name, &format!("10.0.{third}.{fourth}"), false));
        }
    }
    all.push(calico(
        "HostEndpoint",
        None,
        "h",
        json!({"node": "n9", "interfaceName": "eth0", "expectedIPs": [HOST]}),
    ));
    all.push(calico("GlobalNetworkSet", None, "outside", json!({"nets": ["203.0.113.0/24"]})));
    all.extend_from_slice(documents);
    let (mut snapshot, mut translator) = (Snapshot::default(), Translator::default());
    built_in_tiers().into_iter().for_each(|tier| snapshot.apply(tier));
    let cluster_nets = ["10.0.0.0/8".parse().unwrap()].into();
    snapshot.apply(Update::Config(Config { node: "n1".into(), cluster_nets, ..Config::default() }));
    for document in &all {
        let translated = translator.put(document);
        translated.updates.into_iter().for_each(|update| snapshot.apply(update));
    }
    snapshot
}

/// The address of `x/a`, or the text as it is.
fn address(end: &str) -> IpAddr {
    let place = |names: &str, name: &str| 1 + names.find(name).unwrap();
    match end.split_once('/') {
        Some((namespace, name)) => {
            format!("10.0.{}.{}", place("xyz", namespace), place("abc", name)).parse().unwrap()
        }
        None => end.parse().unwrap(),
    }
}

fn allowed(snapshot: &Snapshot, from: &str, to: &str, protocol: Protocol, port: u16) -> bool {
    let flow = Flow {
        source: address(from),
        destination: address(to),
        protocol,
        source_port: 40_000,
        destination_port: port,
    };
    ask(snapshot, &flow).allowed()
}

/// That with these documents, the flows to TCP 80 of the first list are allowed, those of the second not.
#[track_caller]
fn assert_tcp_80(documents: &[Value], open: &[(&str, &str)], closed: &[(&str, &str)]) {
    let world = world(documents);
    for (pairs, wanted) in [(open, true), (closed, false)] {
        for (from, to) in pairs {
            assert_eq!(allowed(&world, from, to, TCP, 80), wanted, "{from} to {to}");
        }
    }
}

/// The same with all flows to `x/a`, as ports and protocols.
#[track_caller]
fn assert_ports(documents: &[Value], from: &str, to: &str, cases: &[(Protocol, u16, bool)]) {
    let world = world(documents);
    for (protocol, port, wanted) in cases {
        assert_eq!(allowed(&world, from, to, *protocol, *port), *wanted, "{protocol:?} {port}");
    }
}

/// A NetworkPolicy in x on the pod a.
fn on_a(spec: Value) -> Value {
    named("p", spec)
}

fn named(name: &str, spec: Value) -> Value {
    let mut value = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "x"}, "spec": {"podSelector": {"matchLabels": {"pod": "a"}}}});
    value["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    value
}

fn from_peers(peers: Value) -> Value {
    on_a(json!({"ingress": [{"from": peers}]}))
}

fn cluster(name: &str, tier: &str, priority: u32, spec: Value) -> Value {
    let mut value = json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name}, "spec": {"tier": tier, "priority": priority,
            "subject": {"pods": {"namespaceSelector": {"matchLabels": {"ns": "x"}}, "podSelector": {"matchLabels": {"pod": "a"}}}}}});
    value["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    value
}

/// A ClusterNetworkPolicy on x/a that does this to what comes from all pods.
fn from_all(tier: &str, priority: u32, actions: &[&str]) -> Value {
    let rules: Vec<Value> =
        actions.iter().map(|action| json!({"action": action, "from": [{"namespaces": {}}]})).collect();
    cluster(&format!("c{priority}"), tier, priority, json!({"ingress": rules}))
}

#[test]
fn p02_to_p05_isolation_is_of_pods_and_directions() {
    assert_tcp_80(
        &[on_a(json!({"ingress": []}))],
        &[("x/a", "y/b"), ("y/b", "x/b")],
        &[("y/b", "x/a"), (EXTERNAL, "x/a")],
    );
    assert_tcp_80(
        &[on_a(json!({"policyTypes": ["Egress"]}))],
        &[("y/b", "x/a")],
        &[("x/a", "y/b"), ("x/a", EXTERNAL)],
    );
    assert_tcp_80(
        &[on_a(json!({"egress": [{"to": [{"podSelector": {}}]}]}))],
        &[("x/a", "x/b")],
        &[("x/b", "x/a"), ("x/a", "y/b")],
    );
    assert_tcp_80(
        &[named("deny", json!({})), on_a(json!({"ingress": [{}]}))],
        &[("y/b", "x/a"), (EXTERNAL, "x/a")],
        &[],
    );
}

#[test]
fn p06_to_p12_peers_of_network_policies() {
    let pods = |name: &str| json!({"matchLabels": {"pod": name}});
    let ns = |name: &str| json!({"matchLabels": {"ns": name}});
    assert_tcp_80(
        &[from_peers(json!([{"podSelector": pods("none")}]))],
        &[],
        &[("x/b", "x/a"), (EXTERNAL, "x/a")],
    );
    assert_tcp_80(&[from_peers(json!([{"podSelector": pods("b")}]))], &[("x/b", "x/a")], &[("y/b", "x/a")]);
    assert_tcp_80(
        &[from_peers(json!([{"podSelector": pods("b"), "namespaceSelector": ns("y")}]))],
        &[("y/b", "x/a")],
        &[("x/b", "x/a"), ("y/c", "x/a")],
    );
    assert_tcp_80(
        &[from_peers(json!([{"podSelector": pods("b")}, {"namespaceSelector": ns("y")}]))],
        &[("y/b", "x/a"), ("x/b", "x/a"), ("y/c", "x/a")],
        &[("z/b", "x/a")],
    );
    assert_tcp_80(
        &[from_peers(json!([{"namespaceSelector": {}}]))],
        &[("z/b", "x/a"), ("x/b", "x/a")],
        &[(EXTERNAL, "x/a"), (HOST, "x/a"), ("203.0.113.1", "x/a")],
    );
    assert_tcp_80(
        &[from_peers(json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "y"}}}]))],
        &[("y/b", "x/a")],
        &[("x/b", "x/a")],
    );
    let block = json!({"ipBlock": {"cidr": "10.0.0.0/16", "except": ["10.0.2.0/24"]}});
    assert_tcp_80(&[from_peers(json!([block]))], &[("x/b", "x/a")], &[("y/b", "x/a"), (EXTERNAL, "x/a")]);
    assert_tcp_80(
        &[from_peers(json!([block, {"ipBlock": {"cidr": "10.0.2.0/24"}}]))],
        &[("y/b", "x/a")],
        &[],
    );
}

#[test]
fn p14_to_p20_ports_of_network_policies() {
    let ports = |ports: Value| on_a(json!({"podSelector": {}, "ingress": [{"ports": ports}]}));
    let web = ports(json!([{"port": "web"}]));
    assert_ports(
        std::slice::from_ref(&web),
        "y/b",
        "x/a",
        &[(TCP, 80, true), (TCP, 8080, false), (UDP, 80, false)],
    );
    assert_ports(&[web], "y/b", "x/b", &[(TCP, 80, false), (TCP, 8080, true)]);
    assert_ports(
        &[ports(json!([{"port": "web", "protocol": "UDP"}]))],
        "y/b",
        "x/a",
        &[(TCP, 80, false), (UDP, 80, false)],
    );
    let egress = on_a(json!({"egress": [{"ports": [{"port": "web"}]}], "policyTypes": ["Egress"]}));
    assert_ports(std::slice::from_ref(&egress), "x/a", "y/b", &[(TCP, 80, false), (TCP, 8080, true)]);
    assert_ports(&[egress], "x/a", EXTERNAL, &[(TCP, 80, false), (TCP, 8080, false)]);
    assert_ports(
        &[ports(json!([{"port": 80, "endPort": 90}]))],
        "y/b",
        "x/a",
        &[(TCP, 79, false), (TCP, 80, true), (TCP, 90, true), (TCP, 91, false)],
    );
    assert_ports(&[ports(json!([{"protocol": "UDP"}]))], "y/b", "x/a", &[(UDP, 9, true), (TCP, 9, false)]);
    assert_ports(
        &[ports(json!([{"protocol": "SCTP", "port": 7777}]))],
        "y/b",
        "x/a",
        &[(Protocol::SCTP, 7777, true), (TCP, 7777, false)],
    );
    let from_y = from_peers(json!([{"namespaceSelector": {"matchLabels": {"ns": "y"}}}]));
    assert_ports(std::slice::from_ref(&from_y), "y/b", "x/a", &[(Protocol::ICMP, 8 << 8, true)]);
    assert_ports(&[from_y], "z/b", "x/a", &[(Protocol::ICMP, 8 << 8, false)]);
}

#[test]
fn p27_p28_p34_p36_p37_subjects_unions_and_what_cannot_be_read() {
    assert_tcp_80(
        &[on_a(json!({"podSelector": null}))],
        &[("y/b", "y/a"), ("y/b", "192.0.2.1")],
        &[("y/b", "x/c")],
    );
    let absent = json!({"matchExpressions": [{"key": "no", "operator": "DoesNotExist"},
        {"key": "no", "operator": "NotIn", "values": ["v"]}, {"key": "pod", "operator": "In", "values": ["b", "c"]}]});
    assert_tcp_80(
        &[from_peers(json!([{"podSelector": absent}]))],
        &[("x/b", "x/a"), ("x/c", "x/a")],
        &[("x/a", "x/a")],
    );
    assert_tcp_80(
        &[from_peers(json!([{"ipBlock": {"cidr": "bad"}}, {"podSelector": {}}]))],
        &[("x/b", "x/a")],
        &[("y/b", "x/a")],
    );
    let from = |name: &str, namespace: &str| {
        named(
            name,
            json!({"ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"ns": namespace}}}]}]}),
        )
    };
    assert_tcp_80(
        &[from("1", "x"), from("2", "y"), named("3", json!({}))],
        &[("x/b", "x/a"), ("y/b", "x/a")],
        &[("z/b", "x/a")],
    );
}

#[test]
fn p38_to_p44_tiers_of_cluster_network_policies() {
    // kubernetes.md K34
    let (deny, allow) = (on_a(json!({})), on_a(json!({"ingress": [{}]})));
    let pair = [("y/b", "x/a")];
    assert_tcp_80(&[from_all("Admin", 5, &["Accept"]), deny.clone()], &pair, &[(EXTERNAL, "x/a")]);
    assert_tcp_80(&[from_all("Admin", 5, &["Deny"]), allow.clone()], &[(EXTERNAL, "x/a")], &pair);
    assert_tcp_80(
        &[from_all("Admin", 5, &["Pass"]), from_all("Admin", 6, &["Deny"]), allow.clone()],
        &pair,
        &[],
    );
    assert_tcp_80(
        &[from_all("Admin", 5, &["Pass"]), from_all("Admin", 4, &["Deny"]), allow.clone()],
        &[],
        &pair,
    );
    assert_tcp_80(&[from_all("Baseline", 5, &["Deny"]), allow], &pair, &[]);
    assert_tcp_80(&[from_all("Baseline", 5, &["Accept"]), deny], &[], &pair);
    assert_tcp_80(
        &[from_all("Baseline", 5, &["Deny"]), on_a(json!({"policyTypes": ["Egress"], "egress": [{}]}))],
        &[("x/a", "y/b")],
        &pair,
    );
    assert_tcp_80(&[from_all("Admin", 5, &["Deny", "Accept"])], &[("y/b", "x/b")], &pair);
    assert_tcp_80(&[from_all("Admin", 5, &[])], &pair, &[]);
}

#[test]
fn p45_to_p50_rules_of_cluster_network_policies() {
    // kubernetes.md K34
    let egress = |rule: Value| cluster("c", "Admin", 1, json!({"egress": [rule]}));
    let all = egress(json!({"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]}));
    assert_tcp_80(
        std::slice::from_ref(&all),
        &[("y/b", "x/a")],
        &[("x/a", "y/b"), ("x/a", HOST), ("x/a", EXTERNAL)],
    );
    assert_ports(&[all], "x/a", EXTERNAL, &[(Protocol::ICMP, 8 << 8, false), (Protocol::SCTP, 1, false)]);
    let unknown = |action: &str| egress(json!({"action": action, "to": [{"future": {}}]}));
    let isolated = on_a(json!({"policyTypes": ["Egress"]}));
    assert_tcp_80(&[unknown("Accept"), isolated], &[], &[("x/a", "y/b")]);
    assert_tcp_80(&[unknown("Deny")], &[("x/b", "y/b")], &[("x/a", "y/b"), ("x/a", EXTERNAL)]);
    let web =
        json!({"action": "Deny", "to": [{"namespaces": {}}], "protocols": [{"destinationNamedPort": "web"}]});
    assert_ports(&[egress(web.clone())], "x/a", "y/a", &[(TCP, 80, false), (TCP, 8080, true)]);
    assert_ports(&[egress(web)], "x/a", "y/b", &[(TCP, 80, true), (TCP, 8080, false)]);
    let mut everyone = from_all("Admin", 1, &["Deny"]);
    everyone["spec"]["subject"] = json!({"namespaces": {}});
    assert_tcp_80(
        &[everyone],
        &[("y/b", "192.0.2.1"), ("y/b", HOST), ("192.0.2.1", "x/a")],
        &[("y/b", "z/c")],
    );
}

/// A Calico policy in x, or in no namespace, on the pod a of x, with one rule of ingress behind which nothing is
/// allowed.
fn ingress(is_global: bool, rule: Value) -> Value {
    let (kind, namespace) =
        if is_global { ("GlobalNetworkPolicy", None) } else { ("NetworkPolicy", Some("x")) };
    let selector = "pod == 'a' && projectcalico.org/namespace == 'x'";
    calico(kind, namespace, "p", json!({"selector": selector, "types": ["Ingress"], "ingress": [rule]}))
}

fn from(is_global: bool, source: Value) -> Value {
    ingress(is_global, json!({"action": "Allow", "source": source}))
}

#[test]
fn p62_to_p64_selectors_of_calico() {
    let not_b = json!({"notSelector": "pod == 'b'"});
    assert_tcp_80(
        &[from(false, not_b.clone())],
        &[("x/c", "x/a")],
        &[("x/b", "x/a"), ("y/c", "x/a"), (EXTERNAL, "x/a")],
    );
    assert_tcp_80(&[from(true, not_b)], &[("y/c", "x/a"), (EXTERNAL, "x/a")], &[("y/b", "x/a")]);
    let not_y = json!({"namespaceSelector": "ns != 'y'"});
    assert_tcp_80(
        &[from(true, not_y)],
        &[("x/b", "x/a"), (HOST, "x/a"), ("203.0.113.1", "x/a")],
        &[("y/b", "x/a"), (EXTERNAL, "x/a")],
    );
    assert_tcp_80(
        &[from(false, json!({"namespaceSelector": "global()"}))],
        &[(HOST, "x/a"), ("203.0.113.1", "x/a")],
        &[("x/b", "x/a")],
    );
    assert_tcp_80(&[from(false, json!({"namespaceSelector": "all()"}))], &[("y/b", "x/a")], &[(HOST, "x/a")]);
}

#[test]
fn p65_to_p71_matches_of_calicos_rules() {
    let rule = |rule: Value| {
        let mut allow = json!({"action": "Allow"});
        allow.as_object_mut().unwrap().extend(rule.as_object().unwrap().clone());
        [ingress(true, allow)]
    };
    let icmp = |kind: u16, code: u16| kind << 8 | code;
    assert_ports(
        &rule(json!({"notICMP": {"type": 8, "code": 0}})),
        "y/b",
        "x/a",
        &[
            (Protocol::ICMP, icmp(8, 0), false),
            (Protocol::ICMP, icmp(8, 1), true),
            (Protocol::ICMP, icmp(0, 0), true),
        ],
    );
    assert_ports(&rule(json!({"source": {"nets": ["fd00::/8"]}})), "y/b", "x/a", &[(TCP, 80, false)]);
    assert_ports(&rule(json!({"source": {"notNets": ["0.0.0.0/0"]}})), "y/b", "x/a", &[(TCP, 80, false)]);
    assert_ports(
        &rule(json!({"protocol": "ICMPv6"})),
        "y/b",
        "x/a",
        &[(Protocol::ICMPV6, icmp(128, 0), false)],
    );
    assert_ports(
        &rule(json!({"protocol": "TCP", "destination": {"ports": ["web", "90:91"]}})),
        "y/b",
        "x/a",
        &[(TCP, 80, true), (TCP, 90, true), (TCP, 92, false), (UDP, 90, false)],
    );
    assert_ports(
        &rule(json!({"protocol": "TCP", "source": {"ports": ["40000:40001"]}})),
        "y/b",
        "x/a",
        &[(TCP, 1, true)],
    );
    assert_ports(
        &rule(json!({"protocol": "TCP", "source": {"ports": [1]}})),
        "y/b",
        "x/a",
        &[(TCP, 1, false)],
    );
    assert_ports(
        &rule(json!({"protocol": "TCP", "destination": {"notPorts": [80]}})),
        "y/b",
        "x/a",
        &[(TCP, 80, false), (TCP, 81, true)],
    );
    assert_ports(&rule(json!({"notProtocol": "UDP"})), "y/b", "x/a", &[(TCP, 80, true), (UDP, 80, false)]);
}

#[test]
fn p72_to_p74_p77_services_and_service_accounts() {
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "s-1", "namespace": "x", "labels": {"kubernetes.io/service-name": "s"}},
        "endpoints": [{"addresses": ["10.0.2.2"], "conditions": {"ready": false}}], "ports": [{"port": 80}, {"port": null}]});
    let to_service = calico(
        "NetworkPolicy",
        Some("x"),
        "p",
        json!({"types": ["Egress"],
        "egress": [{"action": "Allow", "destination": {"services": {"name": "s"}}}]}),
    );
    assert_ports(&[slice, to_service], "x/a", "y/b", &[(TCP, 80, true), (TCP, 81, false), (UDP, 80, false)]);
    let headless = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "h-1", "namespace": "x", "labels": {"kubernetes.io/service-name": "h"}},
        "endpoints": [{"addresses": ["10.0.2.2"]}], "ports": null});
    let from_service = from(false, json!({"services": {"name": "h"}}));
    assert_tcp_80(&[headless, from_service], &[("y/b", "x/a")], &[("y/a", "x/a")]);
    let accounts = json!({"serviceAccounts": {"names": ["a", "b"], "selector": "account == 'b'"}});
    assert_tcp_80(&[from(false, accounts)], &[("x/b", "x/a")], &[("x/a", "x/a"), ("y/b", "x/a")]);
}

#[test]
fn p78_p79_p88_actions_that_end_nothing_and_rules_that_cannot_be_read() {
    assert_tcp_80(&[ingress(true, json!({"action": "Log"}))], &[], &[("y/b", "x/a")]);
    assert_tcp_80(&[ingress(true, json!({"action": "Pass"}))], &[("y/b", "x/a")], &[]);
    assert_tcp_80(
        &[ingress(true, json!({"action": "Allow", "http": {"methods": ["GET"]}}))],
        &[("y/b", "x/a")],
        &[],
    );
    assert_tcp_80(&[ingress(true, json!({"action": "Pass", "protocol": "tcp"}))], &[], &[("y/b", "x/a")]);
    assert_tcp_80(&[ingress(true, json!({"action": "Allow", "protocol": "tcp"}))], &[], &[("y/b", "x/a")]);
}

#[test]
fn p96_p97_egress_network_policies() {
    let object = |name: &str, egress: Value| {
        json!({"apiVersion": "network.openshift.io/v1", "kind": "EgressNetworkPolicy",
        "metadata": {"name": name, "namespace": "x"}, "spec": {"egress": egress}})
    };
    let id = |namespace: &str, id: u32| {
        json!({"apiVersion": "network.openshift.io/v1", "kind": "NetNamespace",
        "metadata": {"name": namespace}, "netid": id})
    };
    let rules = json!([{"type": "Allow", "to": {"cidrSelector": "198.51.100.0/24"}}, {"type": "Deny", "to": {"cidrSelector": "0.0.0.0/0"}}]);
    let one = object("e", rules.clone());
    let outside = ("x/a", "203.0.113.1");
    assert_tcp_80(
        std::slice::from_ref(&one),
        &[("x/a", EXTERNAL), ("x/a", "y/b"), ("y/a", "203.0.113.1")],
        &[outside],
    );
    assert_tcp_80(&[one.clone(), object("f", rules)], &[("x/a", "y/b")], &[("x/a", EXTERNAL)]);
    assert_tcp_80(
        &[one.clone(), id("x", 7), id("z", 7)],
        &[("x/a", "y/b"), ("y/a", EXTERNAL)],
        &[("x/a", EXTERNAL), ("z/a", EXTERNAL)],
    );
    assert_tcp_80(&[one.clone(), id("x", 0)], &[outside], &[]);
    assert_tcp_80(&[object("e", json!([]))], &[outside], &[]);
}
