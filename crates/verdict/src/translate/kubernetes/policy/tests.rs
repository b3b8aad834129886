use proptest::prelude::*;
use russet_addr::IpNet;
use serde_json::{Value, json};

use crate::ir::{Action, Directions, Order, Policy, PolicyKind, Port, Protocol};
use crate::translate::testing::{almost, paths, pod_labels, policy, selects};
use crate::translate::{RULES_PER_POLICY_MAX, document};

const A: &str = "a";

/// A policy `p` in the namespace `x` with this spec.
fn of(spec: Value) -> std::sync::Arc<Policy> {
    policy(wrapped(spec))
}

fn wrapped(spec: Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
           "metadata": {"name": "p", "namespace": "x"}, "spec": spec})
}

fn with_ports(ports: Value) -> std::sync::Arc<Policy> {
    of(json!({"podSelector": {}, "ingress": [{"ports": ports}]}))
}

fn directions(spec: Value) -> (bool, bool) {
    let Directions { ingress, egress } = of(spec).directions;
    (ingress, egress)
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn p02_p03_a_policy_without_rules_isolates_in_its_direction() {
    let policy = of(json!({"podSelector": {"matchLabels": {"pod": A}}, "policyTypes": ["Ingress"]}));
    assert_eq!(policy.directions, Directions { ingress: true, egress: false });
    assert!(policy.ingress.is_empty() && policy.egress.is_empty() && policy.problems.is_empty());
    assert!(selects(&policy.subject, &pod_labels("x", A)));
    assert!(!selects(&policy.subject, &pod_labels("x", "b")));
    assert!(!selects(&policy.subject, &pod_labels("y", A)), "another namespace");
    assert_eq!(
        (policy.id.kind, policy.order),
        (PolicyKind::KubernetesNetworkPolicy, Order::new(Some(1000.0)))
    );
    assert_eq!(
        policy.subject.to_string(),
        r#"((projectcalico.org/orchestrator == "k8s" && pod == "a") && projectcalico.org/namespace == "x")"#
    );
    assert_eq!(directions(json!({"podSelector": {}, "policyTypes": ["Egress"]})), (false, true));
}

#[test]
fn p04_without_types_egress_counts_if_it_has_rules() {
    assert_eq!(directions(json!({"egress": [{}]})), (true, true));
    assert_eq!(directions(json!({"egress": []})), (true, false));
    assert_eq!(directions(json!({"policyTypes": [], "egress": [{}]})), (true, true));
    assert_eq!(directions(json!({"policyTypes": null})), (true, false));
}

#[test]
fn rules_of_a_direction_that_is_not_listed_are_ignored() {
    let policy = of(json!({"policyTypes": ["Ingress"], "ingress": [{}], "egress": [{}]}));
    assert_eq!((policy.ingress.len(), policy.egress.len()), (1, 0));
}

#[test]
fn p05_an_empty_rule_allows_everything() {
    for rule in [json!({}), json!({"from": [], "ports": []}), json!({"from": null, "ports": null})] {
        let policy = of(json!({"ingress": [rule]}));
        let [rule] = policy.ingress.as_slice() else { panic!("{policy:?}") };
        assert_eq!(rule, &crate::ir::Rule::any(Action::Allow, "spec.ingress[0]"));
    }
}

#[test]
fn p06_p07_peers_that_are_given_never_become_all() {
    let policy = of(json!({"ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": "none"}}}]}]}));
    let [rule] = policy.ingress.as_slice() else { panic!("{policy:?}") };
    let selector = rule.source.selector.as_ref().unwrap();
    assert!(selects(selector, &pod_labels("x", "none")) && !selects(selector, &pod_labels("x", A)));

    let unreadable = of(json!({"ingress": [{"from": [{"ipBlock": {"cidr": "x"}}]}, {"from": "all"}]}));
    assert!(unreadable.ingress.is_empty());
    assert_eq!(paths(&unreadable), ["spec.ingress[0].from[0].ipBlock.cidr", "spec.ingress[1].from"]);
}

#[test]
fn p08_a_pod_selector_alone_is_of_the_policys_namespace() {
    let policy = of(json!({"ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": A}}}]}]}));
    let selector = policy.ingress[0].source.selector.as_ref().unwrap();
    assert!(selects(selector, &pod_labels("x", A)) && !selects(selector, &pod_labels("y", A)));
}

#[test]
fn p09_selectors_in_one_entry_are_joined_and_two_entries_are_alternatives() {
    let (pods, namespaces) = (json!({"matchLabels": {"pod": A}}), json!({"matchLabels": {"ns": "y"}}));
    let one = of(json!({"ingress": [{"from": [{"podSelector": pods, "namespaceSelector": namespaces}]}]}));
    let [rule] = one.ingress.as_slice() else { panic!("{one:?}") };
    let selector = rule.source.selector.as_ref().unwrap();
    assert!(selects(selector, &pod_labels("y", A)));
    assert!(!selects(selector, &pod_labels("x", A)) && !selects(selector, &pod_labels("y", "b")));
    assert_eq!(
        selector.to_string(),
        r#"(pcns.ns == "y" && (projectcalico.org/orchestrator == "k8s" && pod == "a"))"#
    );

    let two = of(json!({"ingress": [{"from": [{"podSelector": pods}, {"namespaceSelector": namespaces}]}]}));
    let selectors: Vec<_> = two.ingress.iter().map(|rule| rule.source.selector.as_ref().unwrap()).collect();
    assert!(selectors.len() == 2 && selects(selectors[0], &pod_labels("x", A)));
    assert!(selects(selectors[1], &pod_labels("y", "b")) && !selects(selectors[1], &pod_labels("x", "b")));
}

#[test]
fn p10_an_empty_namespace_selector_is_every_pod_and_nothing_else() {
    let policy = of(json!({"ingress": [{"from": [{"namespaceSelector": {}}]}]}));
    let selector = policy.ingress[0].source.selector.as_ref().unwrap();
    assert!(selects(selector, &pod_labels("z", A)));
    assert!(!selects(selector, &[]), "a host endpoint");
    assert!(!selects(selector, &[("projectcalico.org/namespace", "x")]), "a network set of a namespace");
}

#[test]
fn p11_p12_an_ip_block_is_a_prefix_without_its_exceptions() {
    let policy = of(json!({"ingress": [
        {"from": [{"ipBlock": {"cidr": "10.0.0.7/16", "except": ["10.0.1.0/24"]}}]},
        {"from": [{"ipBlock": {"cidr": "10.0.1.0/24"}}]}]}));
    let [first, second] = policy.ingress.as_slice() else { panic!("{policy:?}") };
    assert_eq!(first.source.nets, Some(nets(&["10.0.0.0/16"])));
    assert_eq!(first.source.not_nets, nets(&["10.0.1.0/24"]));
    assert_eq!((&second.source.nets, &second.source.not_nets), (&Some(nets(&["10.0.1.0/24"])), &vec![]));
}

#[test]
fn p14_p15_p16_named_ports_are_of_the_destination_and_of_one_protocol() {
    let ports = json!([{"port": "web", "protocol": "UDP"}]);
    let policy = of(
        json!({"ingress": [{"ports": ports, "from": [{"podSelector": {}}]}], "egress": [{"ports": ports}]}),
    );
    for rule in [&policy.ingress[0], &policy.egress[0]] {
        assert_eq!(rule.protocol, Some(Protocol::UDP));
        assert_eq!(rule.destination.ports, Some(vec![Port::Named("web".into())]));
        assert_eq!((rule.source.ports.as_ref(), &rule.destination.nets), (None, &None));
    }
}

#[test]
fn p17_p18_p19_p20_ports_are_numbers_ranges_protocols_or_everything() {
    let policy = with_ports(json!([{"port": 80, "endPort": 90}, {"port": 85}, {"port": 91}, {"port": 99},
        {"protocol": "UDP"}, {"protocol": "UDP", "port": 1}, {"protocol": "SCTP", "port": 7777}]));
    let found: Vec<_> =
        policy.ingress.iter().map(|rule| (rule.protocol, rule.destination.ports.clone())).collect();
    assert_eq!(
        found,
        [
            (Some(Protocol::TCP), Some(vec![Port::Range(80, 91), Port::Range(99, 99)])),
            (Some(Protocol::UDP), None),
            (Some(Protocol::SCTP), Some(vec![Port::Range(7777, 7777)])),
        ]
    );
    let all = of(json!({"ingress": [{"from": [{"podSelector": {}}]}]}));
    assert_eq!((all.ingress[0].protocol, &all.ingress[0].destination.ports), (None, &None));
}

#[test]
fn p28_every_operator_of_expressions_becomes_calicos() {
    let policy = of(json!({"podSelector": {"matchExpressions": [
        {"key": "a", "operator": "In", "values": ["2", "1"]}, {"key": "b", "operator": "NotIn", "values": ["x"]},
        {"key": "c", "operator": "Exists"}, {"key": "d", "operator": "DoesNotExist", "values": []}]}}));
    assert!(policy.problems.is_empty());
    let text = policy.subject.to_string();
    assert!(text.contains(r#"a in {"1", "2"} && b not in {"x"} && has(c) && !has(d)"#), "{text}");
    let pod = [
        ("projectcalico.org/orchestrator", "k8s"),
        ("projectcalico.org/namespace", "x"),
        ("a", "1"),
        ("c", ""),
    ];
    assert!(selects(&policy.subject, &pod), "b and d are absent");
}

#[test]
fn p34_what_cannot_be_read_allows_nothing_and_the_rest_counts() {
    let policy = of(json!({"ingress": [{"from": [
        {"ipBlock": {"cidr": "10.0.0.0/99"}}, {"podSelector": {}}, {}, {"other": {}}, null,
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["no"]}},
        {"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}},
        {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}},
        {"namespaceSelector": {"matchLabels": {"a": 1}}}]}]}));
    assert_eq!(policy.ingress.len(), 1, "{policy:?}");
    assert_eq!(&*policy.ingress[0].path, "spec.ingress[0].from[1]");
    assert_eq!(policy.problems.len(), 8, "{:?}", policy.problems);
    assert_eq!(policy.directions, Directions { ingress: true, egress: false });

    let ports = with_ports(json!([{"port": 0}, {"port": 65536}, {"port": 1.5}, {"port": 9, "endPort": 8},
        {"port": "a", "endPort": 8}, {"endPort": 8}, {"protocol": "tcp"}, {"port": "80"}, {"ports": 1}]));
    assert!(ports.ingress.is_empty() && ports.problems.len() == 9, "{ports:?}");
    let rules = of(json!({"ingress": [{"to": []}, 5, {"from": []}]}));
    assert_eq!((rules.ingress.len(), paths(&rules)), (1, vec!["spec.ingress[0].to", "spec.ingress[1]"]));
}

#[test]
fn a_subject_that_cannot_be_read_isolates_more_pods_and_allows_nothing() {
    let policy = of(json!({"podSelector": {"matchLabels": {"pod": A, "b c": "d"}}, "ingress": [{}]}));
    assert!(
        selects(&policy.subject, &pod_labels("x", A)) && !selects(&policy.subject, &pod_labels("x", "b"))
    );
    assert!(policy.ingress.is_empty() && policy.directions.ingress);
    assert_eq!(paths(&policy), ["spec.podSelector.matchLabels.b c"]);
}

#[test]
fn types_that_cannot_be_read_isolate_in_both_directions() {
    for types in [json!("Ingress"), json!(["Ingres"]), json!([1]), json!(["Ingress", "x"])] {
        assert_eq!(directions(json!({"policyTypes": types})), (true, true), "{types}");
    }
}

#[test]
fn p37_no_pod_selector_is_the_whole_namespace() {
    for spec in [json!({}), json!({"podSelector": null}), json!({"podSelector": {}})] {
        let policy = of(spec);
        assert!(
            selects(&policy.subject, &pod_labels("x", A)) && !selects(&policy.subject, &pod_labels("y", A))
        );
    }
}

#[test]
fn too_many_rules_deny_everything_in_the_policys_directions() {
    let rules = |count| json!({"ingress": vec![json!({}); count]});
    assert_eq!(of(rules(RULES_PER_POLICY_MAX)).ingress.len(), RULES_PER_POLICY_MAX);
    let refused = of(rules(RULES_PER_POLICY_MAX + 1));
    assert_eq!(refused.ingress.iter().map(|rule| rule.action).collect::<Vec<_>>(), [Action::Deny]);
    assert!(refused.egress.is_empty() && paths(&refused) == ["spec"]);
}

#[test]
fn an_object_without_a_name_or_namespace_is_refused() {
    for metadata in
        [json!({}), json!({"name": "p"}), json!({"namespace": "x"}), json!(null), json!({"name": 1})]
    {
        let value =
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata});
        assert!(document(&value).is_err(), "{metadata}");
    }
}

const MEMBERS: &[&str] = &[
    "podSelector",
    "policyTypes",
    "ingress",
    "egress",
    "from",
    "to",
    "ports",
    "port",
    "endPort",
    "protocol",
    "ipBlock",
    "cidr",
    "except",
    "namespaceSelector",
    "matchLabels",
    "matchExpressions",
    "key",
    "operator",
    "values",
];
const TEXTS: &[&str] =
    &["Ingress", "Egress", "TCP", "SCTP", "10.0.0.0/8", "::/0", "In", "NotIn", "Exists", "app", ""];

proptest! {
    #[test]
    fn arbitrary_specs_are_read_or_refused_and_never_allow_more_than_an_entry_says(spec in almost(MEMBERS, TEXTS)) {
        if let Ok(translated) = document(&wrapped(spec.clone())) {
            prop_assert_eq!(translated.updates.len(), 1);
        }
        // A rule whose only member is arbitrary is a rule for everything only if that is empty or missing.
        for member in ["from", "ports"] {
            let empty = spec.is_null() || spec.as_array().is_some_and(Vec::is_empty);
            let policy = of(json!({"ingress": [{member: spec}]}));
            let open = policy.ingress.iter().any(|rule| {
                rule.protocol.is_none() && rule.source == crate::ir::Entity::default()
            });
            prop_assert_eq!(open, empty, "{:?}", policy);
        }
    }
}
