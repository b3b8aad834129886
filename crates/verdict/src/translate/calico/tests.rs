use proptest::prelude::*;
use russet_addr::Family;
use serde_json::{Value, json};

use crate::felix::{FailsafePort, FelixSettings};
use crate::ir::{
    Action, Directions, Entity, HostUse, Icmp, Order, Policy, PolicyKind, Port, Protocol, Rule, StagedAction,
    TierDefault,
};
use crate::translate::testing::{almost, paths, pod_labels, policy, selects};
use crate::translate::{RULES_PER_POLICY_MAX, Translator, document};
use crate::world::{Endpoint, EndpointKind, EndpointToHost, NetworkSet, Update};

fn wrapped(kind: &str, metadata: Value, spec: Value) -> Value {
    let mut value =
        json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": "p"}, "spec": spec});
    value["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    value
}

/// A NetworkPolicy in the namespace `x`.
fn namespaced(spec: Value) -> std::sync::Arc<Policy> {
    policy(wrapped("NetworkPolicy", json!({"namespace": "x"}), spec))
}

fn global(spec: Value) -> std::sync::Arc<Policy> {
    policy(wrapped("GlobalNetworkPolicy", json!({}), spec))
}

/// The only rule of a GlobalNetworkPolicy's ingress.
fn rule(rule: Value) -> Rule {
    let policy = global(json!({"ingress": [rule], "types": ["Ingress"]}));
    let [rule] = policy.ingress.as_slice() else { panic!("{policy:?}") };
    rule.clone()
}

/// The source of a rule of a policy of the namespace `x`, or of no namespace.
fn source(is_global: bool, source: Value) -> Entity {
    let spec = json!({"ingress": [{"action": "Allow", "source": source}]});
    let policy = if is_global { global(spec) } else { namespaced(spec) };
    assert!(policy.problems.is_empty(), "{policy:?}");
    policy.ingress[0].source.clone()
}

fn is_deny_all(rule: &Rule) -> bool {
    *rule == Rule::any(Action::Deny, std::sync::Arc::clone(&rule.path))
}

/// That such a rule allows nothing, and denies everything if its action is another.
fn assert_closed(rule: Value) {
    for (action, closed) in [("Allow", 0), ("Log", 0), ("Deny", 1), ("Pass", 1)] {
        let mut rule = rule.clone();
        rule["action"] = action.into();
        let policy = global(json!({"ingress": [rule], "egress": [rule]}));
        for rules in [&policy.ingress, &policy.egress] {
            assert!(rules.len() == closed && rules.iter().all(is_deny_all), "{rule}: {policy:?}");
        }
        assert!(!policy.problems.is_empty());
    }
}

const HOST: [(&str, &str); 1] = [("role", "host")];

#[test]
fn a_policy_of_a_namespace_selects_there_and_a_global_one_everywhere() {
    let policy = namespaced(json!({"selector": "pod == 'a'", "order": -1.5, "tier": "t",
        "serviceAccountSelector": "has(projectcalico.org/name)"}));
    let [pod, service_account] = [pod_labels("x", "a").to_vec(), vec![("pcsa.projectcalico.org/name", "s")]];
    assert!(
        selects(&policy.subject, &[pod.clone(), service_account].concat()) && !selects(&policy.subject, &pod)
    );
    assert_eq!(
        (policy.order, &*policy.tier, policy.id.kind),
        (Order::new(Some(-1.5)), "t", PolicyKind::NetworkPolicy)
    );
    assert!(!selects(&namespaced(json!({})).subject, &pod_labels("y", "a")));
    let everywhere = global(json!({}));
    assert!(selects(&everywhere.subject, &HOST) && selects(&everywhere.subject, &pod_labels("x", "a")));
    let namespaces = global(json!({"namespaceSelector": "ns == 'y'"}));
    assert!(selects(&namespaces.subject, &pod_labels("y", "a")) && !selects(&namespaces.subject, &HOST));
    assert!(!selects(&global(json!({"namespaceSelector": "all()"})).subject, &HOST));
}

#[test]
fn all_of_a_global_policy_is_what_has_a_namespace_or_an_account_beside_a_selector_for_those() {
    let with = |member: &str, text: &str| global(json!({"selector": "all()", member: text})).subject.clone();
    let account = [("projectcalico.org/serviceaccount", "s")];
    assert!(!selects(&with("namespaceSelector", "ns != 'x'"), &HOST));
    assert!(selects(&with("namespaceSelector", "ns != 'x'"), &pod_labels("y", "a")));
    assert!(!selects(&with("serviceAccountSelector", "team != 'x'"), &HOST));
    assert!(selects(&with("serviceAccountSelector", "team != 'x'"), &account));
    let not_all = global(json!({"selector": "has(role)", "namespaceSelector": "ns != 'x'"}));
    assert!(selects(&not_all.subject, &HOST));
    // In a NetworkPolicy it is everything of the namespace.
    let own = namespaced(json!({"selector": "all()", "serviceAccountSelector": "all()"}));
    assert!(selects(&own.subject, &pod_labels("x", "a")));
}

#[test]
fn not_nets_of_one_family_confine_the_rule_to_it() {
    let without = |source: Value, destination: Value| {
        rule(
            json!({"action": "Deny", "source": {"notNets": source}, "destination": {"notNets": destination}}),
        )
    };
    assert_eq!(without(json!(["10.0.0.0/8", "192.0.2.1"]), json!([])).family, Some(Family::V4));
    assert_eq!(without(json!([]), json!(["fd00::/8"])).family, Some(Family::V6));
    assert_eq!(without(json!(["10.0.0.0/8", "fd00::/8"]), json!([])).family, None);
    let never = without(json!(["10.0.0.0/8"]), json!(["fd00::/8"]));
    assert_eq!(never.source.nets, Some(Vec::new()), "{never:?}");
    let beside = |nets: &str| {
        rule(json!({"action": "Deny", "source": {"nets": [nets], "notNets": ["10.1.0.0/16"]}})).family
    };
    assert_eq!((beside("10.0.0.0/8"), beside("fd00::/8")), (None, Some(Family::V4)));
}

#[test]
fn the_label_of_a_workloads_service_account_is_that_of_its_spec() {
    let document = json!({"apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
        "metadata": {"name": "n1-k8s-a-eth0", "namespace": "x", "labels": {"projectcalico.org/serviceaccount": "other"}},
        "spec": {"node": "n1", "pod": "a", "serviceAccountName": "s"}});
    let updates = crate::translate::document(&document).unwrap().updates;
    let [Update::Endpoint(_, Some(endpoint))] = &updates[..] else { panic!("{updates:?}") };
    assert_eq!(&*endpoint.labels["projectcalico.org/serviceaccount"], "s");
}

#[test]
fn types_follow_from_the_rules_unless_they_are_given() {
    let rules = json!([{"action": "Allow"}]);
    let directions = |spec| {
        let Directions { ingress, egress } = global(spec).directions;
        (ingress, egress)
    };
    assert_eq!(directions(json!({})), (true, false));
    assert_eq!(directions(json!({"egress": rules, "types": []})), (false, true));
    assert_eq!(directions(json!({"egress": rules, "ingress": rules})), (true, true));
    assert_eq!(directions(json!({"egress": rules, "types": ["Ingress"]})), (true, false));
    assert_eq!(directions(json!({"types": ["ingress"]})), (true, true), "what cannot be read is both");
    assert!(global(json!({"egress": rules, "types": ["Ingress"]})).egress.is_empty());
}

#[test]
fn p58_p93_staged_policies_say_what_they_propose() {
    for (action, found) in [
        (json!(null), StagedAction::Set),
        (json!("Set"), StagedAction::Set),
        (json!("Delete"), StagedAction::Delete),
        (json!("Learn"), StagedAction::Learn),
        (json!("Ignore"), StagedAction::Ignore),
        (json!("x"), StagedAction::Ignore),
    ] {
        for kind in ["StagedNetworkPolicy", "StagedGlobalNetworkPolicy", "StagedKubernetesNetworkPolicy"] {
            let policy = policy(wrapped(
                kind,
                json!({"namespace": "x"}),
                json!({"stagedAction": action, "ingress": []}),
            ));
            assert_eq!((policy.staged, policy.id.kind.name()), (Some(found), kind));
            assert_eq!(policy.id.namespace.is_none(), kind == "StagedGlobalNetworkPolicy");
        }
    }
    assert_eq!(global(json!({"stagedAction": "Delete"})).staged, None);
}

#[test]
fn p59_p90_the_name_in_the_key_decides_and_the_authors_name_is_shown() {
    // policy.md P90
    let shown = |name: &str, annotation: Option<&str>, tier: &str| {
        let annotations = annotation.map(|text| json!({"projectcalico.org/metadata": text}));
        let metadata = json!({"name": name, "namespace": "x", "annotations": annotations});
        let policy = policy(wrapped("NetworkPolicy", metadata, json!({"tier": tier})));
        assert_eq!(&*policy.id.name, name);
        assert_eq!(policy.id.sort_key(), format!("{name}/x/NetworkPolicy"));
        policy.name.to_string()
    };
    assert_eq!(shown("default.a", None, "default"), "a");
    assert_eq!(shown("default.a", None, ""), "a");
    assert_eq!(shown("default.a", None, "t"), "default.a");
    assert_eq!(shown("default.a", Some(r#"{"name":"default.a"}"#), "default"), "default.a");
    assert_eq!(shown("default.a", Some("no JSON"), "default"), "a");
    assert_eq!(shown("knp.default.a", Some(r#"{"name":"knp.default.a"}"#), "default"), "knp.default.a");
}

#[test]
fn p57_p60_p89_tiers_and_actions_are_read() {
    let tier = |spec: Value| match document(&wrapped("Tier", json!({}), spec)).unwrap().updates.remove(0) {
        Update::Tier(_, Some(tier)) => (tier.order, tier.default_action),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        tier(json!({"order": 1_000_000, "defaultAction": "Pass"})),
        (Order::new(Some(1e6)), TierDefault::Pass)
    );
    assert_eq!(tier(json!({})), (Order::LAST, TierDefault::Deny));
    assert_eq!(
        tier(json!({"order": 0.5, "defaultAction": "pass"})),
        (Order::new(Some(0.5)), TierDefault::Deny)
    );
    let actions = ["Allow", "Deny", "Log", "Pass"].map(|action| json!({"action": action}));
    let found: Vec<_> = global(json!({"ingress": actions})).ingress.iter().map(|rule| rule.action).collect();
    assert_eq!(found, [Action::Allow, Action::Deny, Action::Log, Action::Pass]);
}

#[test]
fn p62_a_negated_selector_in_a_namespaced_policy_is_confined_to_the_namespace() {
    let own = source(false, json!({"notSelector": "pod == 'a'"}));
    let confined = own.selector.unwrap();
    assert!(selects(&confined, &pod_labels("x", "b")) && !selects(&confined, &pod_labels("y", "b")));
    assert!(!selects(&confined, &[]), "an external address");
    assert!(selects(&own.not_selector.unwrap(), &pod_labels("x", "a")));
    let everywhere = source(true, json!({"notSelector": "pod == 'a'"}));
    assert!(everywhere.selector.is_none() && everywhere.not_selector.is_some());
}

#[test]
fn selectors_are_confined_to_the_policys_namespace_and_nets_are_not() {
    let own = source(false, json!({"selector": "pod == 'a'"})).selector.unwrap();
    assert!(selects(&own, &pod_labels("x", "a")) && !selects(&own, &pod_labels("y", "a")));
    let all = source(true, json!({"selector": "pod == 'a'"})).selector.unwrap();
    assert!(selects(&all, &pod_labels("y", "a")));
    assert_eq!(source(false, json!({"nets": ["10.0.0.0/8"]})).selector, None);
    assert!(source(false, json!({"nets": ["10.0.0.0/8"], "notSelector": "has(a)"})).selector.is_some());
    assert_eq!(source(false, json!({"selector": "", "namespaceSelector": ""})), Entity::default());
}

#[test]
fn p63_an_absent_label_of_a_namespace_is_not_equal() {
    let selector = source(true, json!({"namespaceSelector": "ns != 'x'"})).selector.unwrap();
    assert!(selects(&selector, &HOST) && selects(&selector, &pod_labels("y", "a")));
    assert!(!selects(&selector, &pod_labels("x", "a")));
    assert!(selects(&source(false, json!({"namespaceSelector": "!has(ns)"})).selector.unwrap(), &HOST));
}

#[test]
fn p64_global_is_what_is_in_no_namespace_and_stands_alone() {
    let selector = source(true, json!({"namespaceSelector": "global()"})).selector.unwrap();
    assert!(selects(&selector, &HOST) && !selects(&selector, &pod_labels("x", "a")));
    let all = source(true, json!({"namespaceSelector": "all()"})).selector.unwrap();
    assert!(!selects(&all, &HOST) && selects(&all, &pod_labels("x", "a")));
    assert_closed(json!({"source": {"namespaceSelector": "global() || ns == 'x'"}}));
    assert_closed(json!({"source": {"selector": "global()"}}));
}

#[test]
fn p65_p66_nets_of_both_families_are_kept_as_they_are() {
    let rule =
        rule(json!({"action": "Allow", "source": {"nets": ["10.0.0.0/8", "10.0.0.1"], "notNets": ["::/0"]}}));
    let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    assert_eq!(rule.source.nets, Some(nets(&["10.0.0.0/8", "10.0.0.1/32"])));
    assert_eq!(rule.source.not_nets, nets(&["::/0"]));
}

#[test]
fn p67_p68_icmp_is_of_one_family_and_its_messages_have_a_type() {
    let not = rule(json!({"action": "Allow", "notICMP": {"type": 8, "code": 0}}));
    assert_eq!((not.not_icmp, not.protocol), (Some(Icmp { kind: 8, code: Some(0) }), None));
    let v4 = rule(json!({"action": "Allow", "protocol": "ICMP", "icmp": {"type": 8}}));
    assert_eq!((v4.family, v4.icmp), (Some(Family::V4), Some(Icmp { kind: 8, code: None })));
    assert_eq!(rule(json!({"action": "Allow", "protocol": 58})).family, Some(Family::V6));
    let never = rule(json!({"action": "Allow", "protocol": "ICMPv6", "ipVersion": 4}));
    assert_eq!(never.source.nets, Some(vec![]));
    assert_closed(json!({"protocol": "ICMP", "icmp": {"code": 0}}));
    assert_closed(json!({"protocol": "ICMP", "icmp": {"type": 255}}));
    assert_closed(json!({"protocol": "TCP", "icmp": {"type": 8}}));
}

#[test]
fn p69_p70_p71_ports_are_numbers_ranges_and_names_on_both_sides() {
    let found = rule(json!({"action": "Deny", "protocol": "TCP", "notProtocol": "UDP",
        "source": {"ports": ["1000:2000", 1500], "notPorts": [1]}, "destination": {"ports": ["web", 80, "81"]}}));
    assert_eq!(found.source.ports, Some(vec![Port::Range(1000, 2000)]));
    assert_eq!(found.source.not_ports, [Port::Range(1, 1)]);
    assert_eq!(found.destination.ports, Some(vec![Port::Range(80, 81), Port::Named("web".into())]));
    assert_eq!(found.not_protocol, Some(Protocol::UDP));
    let named = rule(json!({"action": "Allow", "destination": {"ports": ["web"]}}));
    assert_eq!((named.protocol, named.destination.ports), (None, Some(vec![Port::Named("web".into())])));
}

#[test]
fn p73_a_service_is_of_the_policys_namespace_unless_it_says_another() {
    let service = |namespace: Option<&str>, is_global: bool| {
        let spec = json!({"egress": [{"action": "Allow", "destination": {"services": {"name": "s", "namespace": namespace}}}]});
        let policy = if is_global { global(spec) } else { namespaced(spec) };
        policy.egress.first().map(|rule| rule.destination.service.clone().unwrap().namespace.to_string())
    };
    assert_eq!(service(None, false).as_deref(), Some("x"));
    assert_eq!(service(Some("y"), false).as_deref(), Some("y"));
    assert_eq!(service(Some("y"), true).as_deref(), Some("y"));
    assert_eq!(service(None, true), None);
    let from = rule(
        json!({"action": "Allow", "protocol": "TCP", "source": {"services": {"name": "s", "namespace": "y"}, "ports": [1]}}),
    );
    assert!(from.source.service.is_some() && from.source.ports.is_some());
    assert_closed(
        json!({"source": {"services": {"name": "s", "namespace": "y"}, "selector": "all()"}, "destination": {"services": {"name": "s", "namespace": "y"}}}),
    );
}

#[test]
fn p77_names_and_labels_of_service_accounts_must_both_match() {
    let selector =
        source(false, json!({"serviceAccounts": {"names": ["a", "b"], "selector": "team == 't'"}}))
            .selector
            .unwrap();
    let labels = |namespace, name, team| {
        [
            ("projectcalico.org/namespace", namespace),
            ("projectcalico.org/serviceaccount", name),
            ("pcsa.team", team),
        ]
    };
    assert!(selects(&selector, &labels("x", "a", "t")));
    for other in [labels("x", "c", "t"), labels("x", "a", "u"), labels("y", "a", "t")] {
        assert!(!selects(&selector, &other));
    }
}

#[test]
fn empty_service_accounts_and_all_of_them_are_everything_as_in_go() {
    assert_eq!(source(false, json!({"serviceAccounts": {"names": [], "selector": ""}})), Entity::default());
    let all = source(false, json!({"serviceAccounts": {"selector": "all()"}})).selector.unwrap();
    assert_eq!(all.to_string(), r#"(projectcalico.org/namespace == "x" && all())"#);
}

#[test]
fn p79_http_is_not_enforced_and_reported() {
    let policy =
        global(json!({"ingress": [{"action": "Allow", "protocol": "TCP", "http": {"methods": ["GET"]}}]}));
    assert_eq!((policy.ingress.len(), paths(&policy)), (1, vec!["spec.ingress[0].http"]));
    assert!(policy.ingress[0].http && !rule(json!({"action": "Allow"})).http);
    let deny = global(json!({"ingress": [{"action": "Deny", "protocol": "TCP", "http": {}}]}));
    assert!(is_deny_all(&deny.ingress[0]));
}

#[test]
fn p88_what_calicoctl_refuses_is_read_closed() {
    for bad in [
        json!({"protocol": "TCP", "destination": {"ports": [0]}}),
        json!({"protocol": "TCP", "destination": {"ports": [65536]}}),
        json!({"protocol": "TCP", "destination": {"ports": ["90:80"]}}),
        json!({"destination": {"ports": [80]}}),
        json!({"protocol": "UDPLite", "destination": {"ports": [80]}}),
        json!({"protocol": "ICMP", "destination": {"notPorts": [80]}}),
        json!({"protocol": 0}),
        json!({"protocol": 256}),
        json!({"protocol": "tcp"}),
        json!({"notProtocol": "x"}),
        json!({"ipVersion": 5}),
        json!({"ipVersion": "4"}),
        json!({"future": true}),
        json!({"source": {"future": true}}),
        json!({"source": "x"}),
        json!({"source": {"nets": ["10.0.0.0/99"]}}),
        json!({"source": {"notNets": [1]}}),
        json!({"destination": {"selector": "a = b"}}),
        json!({"source": {"notSelector": 1}}),
        json!({"source": {"serviceAccounts": {"names": [1]}}}),
        json!({"source": {"serviceAccounts": []}}),
        json!({"notICMP": {}}),
        json!({"destination": {"services": {}}}),
    ] {
        assert_closed(bad);
    }
    for action in [json!("allow"), json!(null), json!(1)] {
        assert!(is_deny_all(&rule(json!({"action": action}))), "{action}");
    }
    assert!(is_deny_all(&global(json!({"ingress": {}})).ingress[0]));
}

#[test]
fn a_place_that_cannot_be_read_denies_the_subject_unless_there_is_a_good_form() {
    for spec in [
        json!({"order": "x"}),
        json!({"doNotTrack": true, "preDNAT": true}),
        json!({"applyOnForward": "yes"}),
    ] {
        let refused = document(&wrapped("GlobalNetworkPolicy", json!({}), spec)).unwrap_err();
        let instead = refused.instead.unwrap();
        assert!(is_deny_all(&instead.ingress[0]) && instead.order == Order::FIRST);
    }
    let bad = json!({"selector": "a = b", "ingress": [{"action": "Allow"}]});
    assert_eq!(document(&wrapped("GlobalNetworkPolicy", json!({}), bad.clone())).unwrap_err().instead, None);
    let isolated =
        document(&wrapped("NetworkPolicy", json!({"namespace": "x"}), bad)).unwrap_err().instead.unwrap();
    assert!(isolated.ingress.is_empty() && selects(&isolated.subject, &pod_labels("x", "b")));
    assert!(document(&wrapped("NetworkPolicy", json!({}), json!({}))).is_err(), "no namespace");
}

#[test]
fn uses_on_hosts_are_told_apart() {
    for (spec, wanted) in [
        (json!({}), HostUse::Normal),
        (json!({"applyOnForward": true}), HostUse::Forward),
        (json!({"doNotTrack": true, "applyOnForward": true}), HostUse::Untracked),
        (json!({"doNotTrack": true}), HostUse::Untracked),
        (json!({"preDNAT": true, "applyOnForward": true}), HostUse::PreDnat),
    ] {
        assert_eq!(global(spec).host_use, wanted);
    }
    let own = namespaced(json!({"doNotTrack": true}));
    assert_eq!((own.host_use, paths(&own)), (HostUse::Normal, vec!["spec.doNotTrack"]), "no such member");
    let policy =
        global(json!({"preDNAT": true, "egress": [{"action": "Allow"}], "ingress": [{"action": "Deny"}]}));
    assert!(!policy.directions.egress && policy.egress.is_empty() && policy.problems.len() == 1);
}

#[test]
fn too_many_rules_deny_everything() {
    let policy = global(json!({"ingress": vec![json!({"action": "Allow"}); RULES_PER_POLICY_MAX + 1]}));
    assert!(policy.ingress.len() == 1 && is_deny_all(&policy.ingress[0]));
}

fn object(kind: &str, metadata: Value, spec: Value) -> Update {
    document(&wrapped(kind, metadata, spec)).unwrap().updates.remove(0)
}

fn set(kind: &str, metadata: Value, spec: Value) -> NetworkSet {
    match object(kind, metadata, spec) {
        Update::NetworkSet(_, Some(set)) => (*set).clone(),
        other => panic!("{other:?}"),
    }
}

fn endpoint(kind: &str, metadata: Value, spec: Value) -> Endpoint {
    match object(kind, metadata, spec) {
        Update::Endpoint(_, Some(endpoint)) => (*endpoint).clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn p75_p76_network_sets_have_prefixes_and_labels() {
    let nets = json!({"nets": ["10.0.0.1/8", "10.0.0.0/16", "192.0.2.1", "bad"]});
    let own = set("NetworkSet", json!({"namespace": "x", "labels": {"a": "b"}}), nets.clone());
    assert_eq!(
        own.nets.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.0.0.0/8", "10.0.0.0/16", "192.0.2.1/32"]
    );
    assert_eq!((&*own.labels["projectcalico.org/namespace"], own.profile.as_deref()), ("x", Some("kns.x")));
    let annotation = r#"{"labels":{"a":"v3","b":"v3"}}"#;
    let metadata = json!({"labels": {"a": "object", "projectcalico.org/namespace": "x"},
        "annotations": {"projectcalico.org/metadata": annotation}});
    let global = set("GlobalNetworkSet", metadata, nets);
    let labels: Vec<_> = global.labels.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!((labels, global.profile), (vec![("a", "v3"), ("b", "v3")], None));
}

#[test]
fn host_and_workload_endpoints_are_read() {
    let host = endpoint(
        "HostEndpoint",
        json!({"labels": {"role": "db"}}),
        json!({"node": "n1", "interfaceName": "*",
        "expectedIPs": ["192.0.2.1"], "profiles": ["a"], "ports": [{"name": "ssh", "protocol": "TCP", "port": 22}]}),
    );
    assert_eq!(host.kind, EndpointKind::Host { interface: "*".into() });
    assert_eq!(
        (host.addresses.len(), host.profiles.len(), host.ports[0].port, host.namespace),
        (1, 1, 22, None)
    );
    let workload = endpoint(
        "WorkloadEndpoint",
        json!({"namespace": "x", "labels": {"pcns.a": "b", "c": "d"}}),
        json!({"node": "n1", "orchestrator": "k8s", "pod": "web", "ipNetworks": ["10.0.0.1/32"], "profiles": ["kns.x"],
            "ports": [{"name": "", "protocol": "TCP", "port": 1}, {"name": "web", "protocol": "UDP", "port": 80}]}),
    );
    assert_eq!((&*workload.name, workload.labels.len(), workload.ports.len()), ("web", 3, 1));
    assert_eq!(workload.ports[0].protocol, Protocol::UDP);
    assert!(document(&wrapped("HostEndpoint", json!({}), json!({}))).is_err(), "no node");
}

/// What a FelixConfiguration of the node n1 says, and what is wrong with it.
fn felix(spec: Value) -> (FelixSettings, Vec<String>) {
    let object = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "FelixConfiguration",
        "metadata": {"name": "node.n1"}, "spec": spec});
    let translated = Translator::default().put(&object);
    let problems = translated.problems.iter().map(|it| format!("{}: {}", it.path, it.text)).collect();
    match translated.updates.as_slice() {
        [Update::Felix(name, Some(settings))] if &**name == "node.n1" => {
            (FelixSettings::clone(settings), problems)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn failsafe_ports_are_read_as_felix_reads_them_and_a_list_that_cannot_be_read_counts_as_missing() {
    // policy.md section 1.8
    let read = |list: Value| {
        let (settings, problems) = felix(json!({"failsafeInboundHostPorts": list}));
        assert_eq!(settings.failsafe_outbound, None);
        (settings.failsafe_inbound, problems)
    };
    let port = |protocol, port, net: Option<&str>| FailsafePort {
        protocol,
        port,
        peers: net.map(|net| net.parse().unwrap()),
    };
    let list = json!([{"protocol": "tcp", "port": 22}, {"protocol": "UDP", "port": 68, "net": ""},
        {"port": 10250, "net": "10.1.2.3/8"}, {"protocol": "Sctp", "port": 1, "net": "fd00::1"}]);
    let wanted = vec![
        port(Protocol::TCP, 22, None),
        port(Protocol::UDP, 68, None),
        port(Protocol::TCP, 10250, Some("10.0.0.0/8")),
        port(Protocol::SCTP, 1, Some("fd00::1/128")),
    ];
    assert_eq!(read(list), (Some(wanted), Vec::new()));
    assert_eq!(read(json!([])), (Some(Vec::new()), Vec::new()));
    assert_eq!(read(json!(null)), (None, Vec::new()));
    for wrong in [
        json!("none"),
        json!({}),
        json!([22]),
        json!([{"port": 22}, {"protocol": "tcp"}]),
        json!([{"port": 0}]),
        json!([{"port": 65_536}]),
        json!([{"port": "22"}]),
        json!([{"port": 22, "protocol": 6}]),
        json!([{"port": 22, "protocol": "icmp"}]),
        json!([{"port": 22, "net": "10.0.0.0/33"}]),
        json!([{"port": 22, "net": 10}]),
        json!([{"port": 22, "ports": [23]}]),
        json!(vec![json!({"port": 22}); 257]),
    ] {
        let (ports, problems) = read(wrong.clone());
        assert_eq!((ports, problems.len()), (None, 1), "{wrong}");
        assert!(problems[0].starts_with("spec.failsafeInboundHostPorts"), "{problems:?}");
        assert!(problems[0].ends_with("; the list counts as missing"), "{problems:?}");
    }
}

#[test]
fn a_felix_configuration_says_what_becomes_of_packets_of_pods_to_their_node() {
    let read = |spec: Value| {
        let (settings, problems) = felix(spec);
        (settings.endpoint_to_host, problems.len())
    };
    let of = |value: Value| read(json!({"vxlanVNI": "no number", "defaultEndpointToHostAction": value}));
    for (name, action) in [
        ("Accept", EndpointToHost::Accept),
        ("DROP", EndpointToHost::Drop),
        ("return", EndpointToHost::Return),
    ] {
        assert_eq!(of(json!(name)), (Some(action), 0));
    }
    for unset in [json!({}), json!(null), json!([])] {
        assert_eq!(read(unset), (None, 0));
    }
    assert_eq!((of(json!("")), of(json!(null))), ((None, 0), (None, 0)));
    for wrong in [json!("Deny"), json!(true), json!(["Accept"])] {
        assert_eq!(of(wrong), (Some(EndpointToHost::Drop), 1));
    }
}

#[test]
fn profiles_have_rules_of_no_namespace() {
    let update = object(
        "Profile",
        json!({"name": "a"}),
        json!({"ingress": [{"action": "Allow", "source": {"selector": "has(a)"}}],
        "egress": [{"action": "Pass"}], "labelsToApply": {"a": ""}}),
    );
    let Update::Profile(_, Some(profile)) = update else { panic!("no profile") };
    assert_eq!(profile.ingress[0].source.selector.as_ref().unwrap().to_string(), "has(a)");
    assert_eq!((profile.egress[0].action, profile.labels.len()), (Action::Pass, 1));
}

const MEMBERS: &[&str] = &[
    "tier",
    "order",
    "selector",
    "types",
    "ingress",
    "egress",
    "action",
    "ipVersion",
    "protocol",
    "notProtocol",
    "icmp",
    "type",
    "code",
    "source",
    "destination",
    "nets",
    "notNets",
    "notSelector",
    "namespaceSelector",
    "ports",
    "serviceAccounts",
    "names",
    "services",
    "name",
    "namespace",
    "doNotTrack",
    "preDNAT",
    "stagedAction",
    "node",
    "expectedIPs",
    "labelsToApply",
];
const TEXTS: &[&str] =
    &["Allow", "Deny", "Pass", "Log", "TCP", "ICMP", "10.0.0.0/8", "80:90", "all()", "a == 'b'", "Ingress"];

proptest! {
    #[test]
    fn arbitrary_objects_never_end_the_process(spec in almost(MEMBERS, TEXTS)) {
        for kind in ["NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy",
            "StagedKubernetesNetworkPolicy", "Tier", "Profile", "NetworkSet", "GlobalNetworkSet", "HostEndpoint",
            "WorkloadEndpoint"]
        {
            let _ = document(&wrapped(kind, json!({"namespace": "x", "labels": spec, "annotations": spec}), spec.clone()));
        }
    }

    #[test]
    fn arbitrary_members_of_a_rule_never_widen_an_allowing_one_nor_narrow_a_denying_one(side in almost(MEMBERS, TEXTS)) {
        let read = |action: &str| global(json!({"ingress": [{"action": action, "source": side}]}));
        let says_nothing = side.is_null() || rule_without_conditions(&side);
        let open = read("Allow").ingress.iter().any(|rule| rule.source == Entity::default());
        prop_assert!(!open || says_nothing, "{:?}", side);
        prop_assert_eq!(read("Deny").ingress.len(), 1);
    }
}

/// Whether all members of a side are empty.
fn rule_without_conditions(side: &Value) -> bool {
    let empty = |value: &Value| {
        value.is_null()
            || value.as_str() == Some("")
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(|members| members.values().all(rule_without_conditions))
    };
    side.as_object().is_some_and(|members| members.values().all(empty)) || empty(side)
}

#[test]
fn directions_of_rules_are_where_services_may_stand() {
    let to = json!({"action": "Allow", "destination": {"services": {"name": "s", "namespace": "y"}}});
    let policy = global(json!({"ingress": [to], "egress": [to]}));
    assert_eq!((policy.ingress.len(), policy.egress.len()), (0, 1));
}
