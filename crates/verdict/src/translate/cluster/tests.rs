use proptest::prelude::*;
use serde_json::{Value, json};

use crate::ir::{Action, Order, Policy, PolicyKind, Port, Protocol, Rule};
use crate::translate::testing::{almost, paths, pod_labels, policy, selects};
use crate::translate::{ADMIN_TIER, BASELINE_TIER, document};

fn wrapped(spec: Value) -> Value {
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
           "metadata": {"name": "c"}, "spec": spec})
}

/// A policy of the tier Admin on all pods with these rules.
fn with(ingress: Value, egress: Value) -> std::sync::Arc<Policy> {
    policy(wrapped(json!({"tier": "Admin", "priority": 5, "subject": {"namespaces": {}},
                          "ingress": ingress, "egress": egress})))
}

fn ingress(rule: Value) -> std::sync::Arc<Policy> {
    with(json!([rule]), json!([]))
}

fn egress(rule: Value) -> std::sync::Arc<Policy> {
    with(json!([]), json!([rule]))
}

fn actions(rules: &[Rule]) -> Vec<Action> {
    rules.iter().map(|rule| rule.action).collect()
}

/// Whether the rules are one that denies everything.
fn deny_all(rules: &[Rule]) -> bool {
    rules.len() == 1
        && rules.iter().all(|rule| *rule == Rule::any(Action::Deny, std::sync::Arc::clone(&rule.path)))
}

#[test]
fn p38_to_p42_tiers_and_priorities_are_those_of_calico() {
    for (tier, name) in [("Admin", ADMIN_TIER), ("Baseline", BASELINE_TIER)] {
        let spec = json!({"tier": tier, "priority": 7, "subject": {"namespaces": {}},
            "ingress": [{"action": "Pass", "from": [{"namespaces": {}}]}]});
        let policy = policy(wrapped(spec));
        assert_eq!((&*policy.tier, policy.order), (name, Order::new(Some(7.0))));
        assert_eq!((policy.id.kind, &policy.id.namespace), (PolicyKind::ClusterNetworkPolicy, &None));
        assert_eq!(actions(&policy.ingress), [Action::Pass]);
    }
}

#[test]
fn p44_rules_keep_their_order_and_their_actions() {
    let policy = with(
        json!([{"action": "Deny", "from": [{"namespaces": {}}]},
        {"action": "Accept", "from": [{"pods": {"podSelector": {"matchLabels": {"pod": "a"}}}}, {"namespaces": {}}]}]),
        json!([]),
    );
    assert_eq!(actions(&policy.ingress), [Action::Deny, Action::Allow, Action::Allow]);
    let selector = policy.ingress[1].source.selector.as_ref().unwrap();
    assert!(selects(selector, &pod_labels("y", "a")) && !selects(selector, &pod_labels("y", "b")));
}

#[test]
fn p45_p46_networks_without_protocols_are_all_traffic() {
    let policy = egress(json!({"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "10.0.0.1/8"]}]}));
    let [rule] = policy.egress.as_slice() else { panic!("{policy:?}") };
    assert_eq!(
        rule.destination.nets,
        Some(vec!["0.0.0.0/0".parse().unwrap(), "10.0.0.0/8".parse().unwrap()])
    );
    assert_eq!((rule.protocol, &rule.destination.ports), (None, &None));
}

#[test]
fn nodes_are_selected_by_their_own_labels() {
    let policy = egress(json!({"action": "Accept", "to": [{"nodes": {"matchLabels": {"role": "cp"}}}],
        "protocols": [{"tcp": {"destinationPort": {"number": 6443}}}]}));
    let rule = &policy.egress[0];
    assert!(selects(rule.destination.nodes.as_ref().unwrap(), &[("role", "cp")]));
    assert_eq!(
        (rule.protocol, &rule.destination.ports),
        (Some(Protocol::TCP), &Some(vec![Port::Range(6443, 6443)]))
    );
}

#[test]
fn p47_unknown_peers_match_nothing_when_accepted_and_everything_otherwise() {
    for peer in [
        json!({"future": {}}),
        json!({}),
        json!(null),
        json!({"namespaces": {}, "pods": {}}),
        json!({"networks": ["10.0.0.0/8"]}),
        json!({"namespaces": {"matchLabels": {"a b": "c"}}}),
    ] {
        let accept = ingress(json!({"action": "Accept", "from": [peer, {"namespaces": {}}]}));
        assert_eq!((accept.ingress.len(), accept.problems.len()), (1, 1), "{peer}");
        for action in ["Deny", "Pass"] {
            let policy = ingress(json!({"action": action, "from": [{"namespaces": {}}, peer]}));
            assert!(deny_all(&policy.ingress), "{peer}: {policy:?}");
        }
    }
    for rule in [json!({"action": "accept", "from": [{"namespaces": {}}]}), json!({}), json!(1)] {
        assert!(deny_all(&ingress(rule).ingress));
    }
    assert!(ingress(json!({"action": "Accept", "from": []})).ingress.is_empty(), "an empty list is no peer");
    assert!(deny_all(&with(json!("x"), json!([])).ingress));
}

#[test]
fn p48_a_range_of_one_port_cannot_be_read() {
    let protocols =
        |start: u16, end: u16| json!([{"udp": {"destinationPort": {"range": {"start": start, "end": end}}}}]);
    let rule = |action, protocols| {
        ingress(json!({"action": action, "from": [{"namespaces": {}}], "protocols": protocols}))
    };
    assert_eq!(
        rule("Accept", protocols(80, 81)).ingress[0].destination.ports,
        Some(vec![Port::Range(80, 81)])
    );
    assert!(rule("Accept", protocols(80, 80)).ingress.is_empty());
    assert!(deny_all(&rule("Deny", protocols(80, 80)).ingress));
    for entry in [
        json!({"tcp": {}}),
        json!({"icmp": {}}),
        json!({}),
        json!({"tcp": {"destinationPort": {"number": 0}}}),
        json!({"tcp": {"destinationPort": {"number": 1}, "sourcePort": {}}}),
    ] {
        assert!(rule("Accept", json!([entry])).ingress.is_empty(), "{entry}");
        assert!(deny_all(&rule("Pass", json!([entry])).ingress), "{entry}");
    }
}

#[test]
fn p49_named_ports_are_of_any_protocol_and_only_of_pods() {
    let protocols = json!([{"destinationNamedPort": "web"}]);
    let pods = egress(json!({"action": "Accept", "to": [{"namespaces": {}}], "protocols": protocols}));
    let rule = &pods.egress[0];
    assert_eq!((rule.protocol, &rule.destination.ports), (None, &Some(vec![Port::Named("web".into())])));
    let nets = json!([{"networks": ["10.0.0.0/8"]}, {"namespaces": {}}]);
    let accept = egress(json!({"action": "Accept", "to": nets, "protocols": protocols}));
    assert!(accept.egress.len() == 1 && accept.egress[0].destination.nets.is_none(), "{accept:?}");
    assert!(deny_all(&egress(json!({"action": "Deny", "to": nets, "protocols": protocols})).egress));
}

#[test]
fn p50_subjects_are_pods_only() {
    let policy = ingress(json!({"action": "Deny", "from": [{"namespaces": {}}]}));
    assert!(selects(&policy.subject, &pod_labels("x", "a")));
    assert!(!selects(&policy.subject, &[("some", "host endpoint")]));
    let pods = json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"pod": "a"}}}});
    let policy = self::policy(wrapped(json!({"tier": "Admin", "priority": 0, "subject": pods})));
    assert!(
        selects(&policy.subject, &pod_labels("x", "a")) && !selects(&policy.subject, &pod_labels("x", "b"))
    );
    assert!(policy.ingress.is_empty() && policy.egress.is_empty(), "no rules, no effect");
}

#[test]
fn domain_names_are_refused_by_name() {
    let policy = egress(json!({"action": "Accept", "to": [{"domainNames": ["*.a.b"]}]}));
    assert!(policy.egress.is_empty());
    assert_eq!(paths(&policy), ["spec.egress[0].to[0].domainNames"]);
    assert!(policy.problems[0].text.contains("not enforced"));
}

#[test]
fn what_is_wholly_bad_denies_its_subject_if_that_can_be_read() {
    let subject = json!({"namespaces": {}});
    for spec in [
        json!({"tier": "admin", "priority": 1, "subject": subject}),
        json!({"tier": "Admin", "subject": subject}),
        json!({"tier": "Admin", "priority": 1001, "subject": subject}),
        json!({"tier": "Admin", "priority": 1, "subject": subject, "future": 1}),
    ] {
        let refused = document(&wrapped(spec)).unwrap_err();
        let instead = refused.instead.unwrap();
        assert!(deny_all(&instead.ingress) && deny_all(&instead.egress) && instead.order == Order::FIRST);
    }
    for subject in [json!(null), json!({}), json!({"namespaces": {}, "pods": {}}), json!({"namespaces": 1})] {
        let refused =
            document(&wrapped(json!({"tier": "Admin", "priority": 1, "subject": subject}))).unwrap_err();
        assert_eq!(refused.instead, None, "{subject}");
    }
}

fn predecessor(kind: &str, spec: Value) -> std::sync::Arc<Policy> {
    policy(
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "c"}, "spec": spec}),
    )
}

#[test]
fn predecessors_are_read_as_cluster_network_policies() {
    let rules = |allow: &str, ports: &str, ports_value: Value| {
        json!([
        {"action": allow, "from": [{"namespaces": {}}], ports: ports_value}, {"action": "Deny", "from": [{"namespaces": {}}]}])
    };
    let new = with(
        rules(
            "Accept",
            "protocols",
            json!([{"tcp": {"destinationPort": {"number": 80}}},
        {"udp": {"destinationPort": {"range": {"start": 1, "end": 9}}}}, {"destinationNamedPort": "web"}]),
        ),
        json!([]),
    );
    let old = rules(
        "Allow",
        "ports",
        json!([{"portNumber": {"protocol": "TCP", "port": 80}},
        {"portRange": {"protocol": "UDP", "start": 1, "end": 9}}, {"namedPort": "web"}]),
    );
    let found = predecessor(
        "AdminNetworkPolicy",
        json!({"priority": 5, "subject": {"namespaces": {}}, "ingress": old}),
    );
    assert_eq!(
        (&found.ingress, &found.tier, found.order, &found.subject),
        (&new.ingress, &new.tier, new.order, &new.subject)
    );
    assert_eq!((found.id.kind, new.ingress.len()), (PolicyKind::AdminNetworkPolicy, 4));
    let baseline =
        predecessor("BaselineAdminNetworkPolicy", json!({"subject": {"namespaces": {}}, "ingress": old}));
    assert_eq!((&baseline.ingress, &*baseline.tier), (&new.ingress, BASELINE_TIER));
}

#[test]
fn what_predecessors_do_not_have_is_closed() {
    let first = |kind: &str, rule: Value| {
        predecessor(kind, json!({"priority": 5, "subject": {"namespaces": {}}, "ingress": [rule]}))
            .ingress
            .clone()
    };
    let from = json!([{"namespaces": {}}]);
    assert!(deny_all(&first("AdminNetworkPolicy", json!({"action": "Accept", "from": from}))));
    assert!(deny_all(&first("BaselineAdminNetworkPolicy", json!({"action": "Pass", "from": from}))));
    assert!(
        first("AdminNetworkPolicy", json!({"action": "Allow", "from": from, "protocols": []})).is_empty()
    );
    for port in [
        json!({"portNumber": {"protocol": "ICMP", "port": 8}}),
        json!({}),
        json!({"portNumber": {"port": 8, "x": 1}}),
        json!({"portRange": {"start": 8}}),
        json!({"portNumber": 8}),
        json!({"tcp": {"destinationPort": {"number": 8}}}),
    ] {
        let rule = |action: &str| json!({"action": action, "from": from, "ports": [port]});
        assert!(first("AdminNetworkPolicy", rule("Allow")).is_empty(), "{port}");
        assert!(deny_all(&first("AdminNetworkPolicy", rule("Deny"))), "{port}");
    }
}

const MEMBERS: &[&str] = &[
    "tier",
    "priority",
    "subject",
    "ingress",
    "egress",
    "from",
    "to",
    "protocols",
    "action",
    "name",
    "namespaces",
    "pods",
    "networks",
    "nodes",
    "tcp",
    "udp",
    "destinationPort",
    "number",
    "range",
    "start",
    "end",
    "destinationNamedPort",
    "namespaceSelector",
    "podSelector",
    "matchLabels",
];
const TEXTS: &[&str] = &["Admin", "Baseline", "Accept", "Deny", "Pass", "10.0.0.0/8", "web", "app"];

proptest! {
    #[test]
    fn arbitrary_peers_never_widen_an_accepting_rule_nor_narrow_a_denying_one(spec in almost(MEMBERS, TEXTS)) {
        let _ = document(&wrapped(spec.clone()));
        let mut old = wrapped(spec.clone());
        (old["apiVersion"], old["kind"]) = ("policy.networking.k8s.io/v1alpha1".into(), "AdminNetworkPolicy".into());
        let _ = document(&old);
        let rule = |action: &str| egress(json!({"action": action, "to": [spec], "protocols": [spec]}));
        let any = |rule: &Rule| rule.destination == crate::ir::Entity::default();
        prop_assert!(!rule("Accept").egress.iter().any(any));
        prop_assert!(!rule("Deny").egress.is_empty());
    }
}
