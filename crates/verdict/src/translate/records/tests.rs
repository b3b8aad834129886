use proptest::prelude::*;
use serde_json::{Value, json};

use crate::ir::{Action, Policy, PolicyKind, Rule, StagedAction};
use crate::translate::testing::{almost, policy};
use crate::translate::{Translated, Translator};
use crate::world::Update;

fn record(key: &str, value: Value) -> Translated {
    Translator::default().record(key, Some(&value)).unwrap_or_else(|| panic!("{key} is not known"))
}

fn policy_of(key: &str, value: Value) -> Policy {
    match record(key, value).updates.as_slice() {
        [Update::Policy(id, Some(policy))] if *id == policy.id => (**policy).clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn p91_a_v1_policy_is_its_v3_twin() {
    // policy.md P91
    let twin = policy(
        json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "db"},
        "spec": {"tier": "t", "order": 100, "selector": "app == \"db\"", "types": ["Ingress", "Egress"], "applyOnForward": true,
            "ingress": [
                {"action": "Allow", "protocol": "TCP", "source": {"selector": "app == \"web\"", "notNets": ["10.9.0.0/16"]},
                 "destination": {"ports": [5432, "8000:8080"]}},
                {"action": "Deny", "protocol": "ICMPv6", "icmp": {"type": 128, "code": 0}, "notICMP": {"type": 8},
                 "source": {"nets": ["fd00::/8"], "notSelector": "has(a)"}},
                {"action": "Allow", "source": {"services": {"name": "s", "namespace": "n"}}}],
            "egress": [{"action": "Pass"}, {"action": "Log", "notProtocol": 6}]}}),
    );
    let value = json!({"order": 100, "selector": "app == \"db\"", "types": [], "apply_on_forward": true, "untracked": false,
        "inbound_rules": [
            {"action": "allow", "protocol": "tcp", "src_selector": "app == \"web\"", "!src_net": "10.9.0.0/16",
             "dst_ports": [5432, "8000:8080"], "orig_src_selector": "x"},
            {"action": "deny", "protocol": "icmpv6", "icmp_type": 128, "icmp_code": 0, "!icmp_type": 8,
             "src_nets": ["fd00::/8"], "!src_selector": "has(a)"},
            {"action": "allow", "src_service": "s", "src_service_ns": "n"}],
        "outbound_rules": [{"action": "next-tier"}, {"action": "log", "!protocol": 6, "log_prefix": "x"}]});
    assert_eq!(policy_of("/calico/v1/policy/tier/t/policy/db", value.clone()), *twin);
    let mut with_tier = value;
    with_tier["tier"] = "t".into();
    assert_eq!(policy_of("/calico/v1/policy/GlobalNetworkPolicy//db", with_tier), *twin);
}

#[test]
fn p90_prefixes_of_legacy_names_say_the_kind() {
    // policy.md P90
    for (name, kind, namespace, shown) in [
        ("a", PolicyKind::GlobalNetworkPolicy, None, "a"),
        ("x%2fa", PolicyKind::NetworkPolicy, Some("x"), "a"),
        ("x%2fknp.default.a", PolicyKind::NetworkPolicy, Some("x"), "knp.default.a"),
        ("staged:a", PolicyKind::StagedGlobalNetworkPolicy, None, "a"),
        ("x%2fstaged:a", PolicyKind::StagedNetworkPolicy, Some("x"), "a"),
        ("x%2fstaged:knp.default.a", PolicyKind::StagedKubernetesNetworkPolicy, Some("x"), "knp.default.a"),
    ] {
        let policy = policy_of(
            &format!("/calico/v1/policy/tier/default/policy/{name}"),
            json!({"staged_action": "Learn"}),
        );
        assert_eq!((policy.id.kind, policy.id.namespace.as_deref(), &*policy.name), (kind, namespace, shown));
        assert_eq!(policy.staged, (kind != kind.enforced()).then_some(StagedAction::Learn));
        assert!(policy.directions.ingress && policy.directions.egress, "no types are both");
    }
    let own = policy_of(
        "/calico/v1/policy/NetworkPolicy/x/a",
        json!({"selector": "pod == 'a'", "types": ["egress"]}),
    );
    assert_eq!(own.subject.to_string(), "pod == \"a\"", "it is confined by its own text alone");
    assert!(own.directions.egress && !own.directions.ingress);
}

#[test]
fn p88_a_v1_rule_that_cannot_be_converted_is_closed() {
    let rules = json!([{"action": "allow", "src_sa": "x"}, {"action": "deny", "src_sa": "x"}, {"action": "maybe"}, 1,
        {"action": "allow", "src_selector": 1}]);
    let policy = policy_of(
        "/calico/v1/policy/tier/t/policy/a",
        json!({"inbound_rules": rules, "outbound_rules": "x"}),
    );
    let deny = |path: &str| Rule::any(Action::Deny, path);
    assert_eq!(policy.ingress, [deny("spec.ingress[1]"), deny("spec.ingress[2]"), deny("spec.ingress[3]")]);
    assert_eq!(policy.egress, [deny("spec.egress")]);
    assert_eq!(policy.problems.len(), 6);
}

#[test]
fn p91_a_profile_of_several_records_is_assembled_and_is_its_v3_twin() {
    // policy.md P91
    let mut all = Translator::default();
    let key = |part: &str| format!("/calico/v1/policy/profile/kns.x/{part}");
    let profile = |translated: Option<Translated>| match translated.unwrap().updates.as_slice() {
        [Update::Profile(name, profile)] if &**name == "kns.x" => profile.clone(),
        other => panic!("{other:?}"),
    };
    let only_labels = profile(all.record(&key("labels"), Some(&json!({"pcns.a": "b"})))).unwrap();
    assert_eq!(
        (only_labels.ingress[0].action, only_labels.labels.len()),
        (Action::Deny, 1),
        "no rules are unknown ones"
    );
    let rules = json!({"inbound_rules": [{"action": "allow", "src_tag": "t"}], "outbound_rules": [{"action": "allow"}]});
    let both = profile(all.record(&key("rules"), Some(&rules))).unwrap();
    assert_eq!((both.ingress.len(), both.egress[0].action, both.labels.len()), (1, Action::Allow, 1));
    let twin = json!({"spec": {"ingress": [{"action": "Allow", "source": {"selector": "has(t)"}}],
        "egress": [{"action": "Allow"}], "labelsToApply": {"pcns.a": "b"}}});
    let twin =
        Translator::default().record("/calico/resources/v3/projectcalico.org/profiles/kns.x", Some(&twin));
    assert_eq!(profile(twin), Some(both));
    assert!(profile(all.record(&key("labels"), None)).unwrap().labels.is_empty());
    assert_eq!(profile(all.record(&key("rules"), None)), None);
}

#[test]
fn p91_tiers_sets_and_host_endpoints_of_v1_are_their_v3_twins_and_are_removed() {
    // policy.md P91
    let tier = record("/calico/v1/policy/tier/t/metadata", json!({"order": 5, "default_action": "Pass"}));
    let wanted = record(
        "/calico/resources/v3/projectcalico.org/tiers/t",
        json!({"spec": {"order": 5, "defaultAction": "Pass"}}),
    );
    assert_eq!(tier, wanted);
    for (key, v3, namespace) in
        [("netset/s", "globalnetworksets/s", None), ("netset/x/s", "networksets/x/s", Some("x"))]
    {
        let set = record(&format!("/calico/v1/{key}"), json!({"nets": ["10.0.0.0/8"], "labels": {"a": "b"}}));
        let value = json!({"metadata": {"name": "other", "namespace": namespace, "labels": {"a": "b"}}, "spec": {"nets": ["10.0.0.0/8"]}});
        assert_eq!(set, record(&format!("/calico/resources/v3/projectcalico.org/{v3}"), value));
    }
    let host = record(
        "/calico/v1/host/n1/endpoint/eth0",
        json!({"name": "eth0", "expected_ipv4_addrs": ["192.0.2.1"],
        "expected_ipv6_addrs": ["2001:db8::1"], "labels": {"a": "b"}, "profile_ids": ["p"],
        "ports": [{"name": "ssh", "protocol": "tcp", "port": 22}]}),
    );
    let [Update::Endpoint(key, Some(endpoint))] = host.updates.as_slice() else { panic!("{host:?}") };
    assert_eq!((&*key.0, endpoint.addresses.len(), endpoint.ports[0].port), ("host/n1/eth0", 2, 22));
    let twin = record(
        "/calico/resources/v3/projectcalico.org/hostendpoints/eth0",
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"node": "n1", "interfaceName": "eth0",
            "expectedIPs": ["192.0.2.1", "2001:db8::1"], "profiles": ["p"],
            "ports": [{"name": "ssh", "protocol": "TCP", "port": 22}]}}),
    );
    // The key has the node in v1 only: there a name is of one node.
    assert!(
        matches!(twin.updates.as_slice(), [Update::Endpoint(_, Some(twin))] if twin == endpoint),
        "{twin:?}"
    );
    for key in [
        "/calico/v1/policy/tier/t/metadata",
        "/calico/v1/policy/tier/t/policy/a",
        "/calico/v1/netset/s",
        "/calico/v1/netset/x/s",
        "/calico/v1/host/n1/endpoint/eth0",
        "/calico/v1/policy/NetworkPolicy/x/a",
        "/calico/resources/v3/projectcalico.org/networkpolicies/x/a",
        "/calico/resources/v3/projectcalico.org/tiers/t",
    ] {
        let removed = Translator::default().record(key, None).unwrap();
        assert_eq!((removed.updates.len(), removed.problems.len()), (1, 0), "{key}");
    }
    for key in [
        "/calico/v1/host/n1/metadata",
        "/calico/ipam/v2/config",
        "/calico/resources/v3/projectcalico.org/nodes/n",
        "",
    ] {
        assert!(Translator::default().record(key, None).is_none(), "{key}");
    }
}

#[test]
fn p90_the_key_of_a_v3_record_names_it() {
    // policy.md P90
    let value = json!({"metadata": {"name": "renamed", "namespace": "y"}, "spec": {}});
    let policy = policy_of("/calico/resources/v3/projectcalico.org/networkpolicies/x/default.a", value);
    assert_eq!(
        (&*policy.id.name, policy.id.namespace.as_deref(), &*policy.name),
        ("default.a", Some("x"), "a")
    );
}

/// What `calicoctl apply` 3.28.5 wrote to etcd 3.6, byte for byte.
const OF_CALICOCTL: [(&str, &str); 5] = [
    (
        "globalnetworkpolicies/default.all",
        r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.all","uid":"aa5b4223-3716-4835-8254-f264db93fa0c","creationTimestamp":"2026-11-24T00:08:13Z"},"spec":{"order":3,"ingress":[{"action":"Allow","source":{"namespaceSelector":"global()"},"destination":{}}],"types":["Ingress"],"doNotTrack":true,"applyOnForward":true,"namespaceSelector":"env != 'x'"}}"#,
    ),
    (
        "networkpolicies/x/default.db",
        r#"{"kind":"NetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.db","namespace":"x","uid":"b7c1bdcb-5a8c-49d5-a233-de864a261b45","creationTimestamp":"2026-11-24T00:08:13Z"},"spec":{"order":-1.5,"ingress":[{"action":"Allow","protocol":"TCP","source":{"selector":"role == 'api'","namespaceSelector":"team == 'a'","notNets":["10.9.0.0/16"]},"destination":{"ports":[5432,"8000:8080","web"]}},{"action":"Deny","protocol":"ICMP","icmp":{"type":8,"code":0},"source":{"notSelector":"has(a)"},"destination":{}},{"action":"Allow","source":{"serviceAccounts":{"names":["s"],"selector":"x == 'y'"}},"destination":{}},{"action":"Log","ipVersion":6,"notProtocol":17,"notICMP":{"type":3},"source":{},"destination":{}},{"action":"Allow","protocol":"TCP","source":{},"destination":{},"http":{"methods":["GET"],"paths":[{"prefix":"/a"}]}}],"egress":[{"action":"Allow","source":{},"destination":{"services":{"name":"svc","namespace":"true"}}},{"action":"Pass","source":{},"destination":{}}],"selector":"app == 'db'","types":["Ingress","Egress"],"serviceAccountSelector":"team == 't'"}}"#,
    ),
    (
        "hostendpoints/h",
        r#"{"kind":"HostEndpoint","apiVersion":"projectcalico.org/v3","metadata":{"name":"h","uid":"347446f6-589c-4202-93fb-1a0dffcdd5b1","creationTimestamp":"2026-11-24T00:08:13Z","labels":{"role":"host"}},"spec":{"node":"n1","interfaceName":"eth0","expectedIPs":["192.0.2.9"],"profiles":["p"],"ports":[{"name":"ssh","protocol":"TCP","port":22}]}}"#,
    ),
    (
        "networksets/x/s",
        r#"{"kind":"NetworkSet","apiVersion":"projectcalico.org/v3","metadata":{"name":"s","namespace":"x","uid":"cbe53ed1-5d9e-4a62-902d-ff054418bf73","creationTimestamp":"2026-11-24T00:08:13Z","labels":{"set":"a"}},"spec":{"nets":["10.0.0.0/8","192.0.2.1"]}}"#,
    ),
    (
        "profiles/p",
        r#"{"kind":"Profile","apiVersion":"projectcalico.org/v3","metadata":{"name":"p","uid":"046c5165-0b81-4183-a19a-1b1c852ca3e3","creationTimestamp":"2026-11-24T00:08:13Z"},"spec":{"ingress":[{"action":"Allow","source":{"selector":"has(p)"},"destination":{}}],"egress":[{"action":"Allow","source":{},"destination":{}}],"labelsToApply":{"p":""}}}"#,
    ),
];

#[test]
fn p87_records_of_calicoctl_are_read_without_problems() {
    let mut all = Translator::default();
    let mut found = OF_CALICOCTL.map(|(key, value)| {
        let key = format!("/calico/resources/v3/projectcalico.org/{key}");
        let mut translated = all.record(&key, Some(&serde_json::from_str(value).unwrap())).unwrap();
        assert_eq!((translated.updates.len(), &translated.problems), (1, &vec![]), "{key}");
        translated.updates.remove(0)
    });
    let [Update::Policy(_, Some(global)), Update::Policy(_, Some(db)), host, set, profile] = &mut found
    else {
        panic!("{found:?}")
    };
    assert_eq!((&*global.name, global.subject.to_string().as_str()), ("all", "pcns.env != \"x\""));
    assert_eq!((&*db.name, db.order, db.problems.len()), ("db", crate::ir::Order::new(Some(-1.5)), 1));
    assert_eq!(
        db.subject.to_string(),
        r#"(app == "db" && projectcalico.org/namespace == "x" && pcsa.team == "t")"#
    );
    let actions: Vec<Action> = db.ingress.iter().map(|rule| rule.action).collect();
    assert_eq!(actions, [Action::Allow, Action::Deny, Action::Allow, Action::Log, Action::Allow]);
    assert_eq!(db.egress.len(), 2);
    assert!(matches!(host, Update::Endpoint(_, Some(host)) if host.ports.len() == 1 && host.age > 0));
    assert!(matches!(set, Update::NetworkSet(_, Some(set)) if set.nets.len() == 2));
    assert!(matches!(profile, Update::Profile(_, Some(profile)) if profile.labels.len() == 1));
}

const MEMBERS: &[&str] = &[
    "tier",
    "order",
    "selector",
    "types",
    "inbound_rules",
    "outbound_rules",
    "action",
    "src_selector",
    "!src_selector",
    "src_net",
    "src_nets",
    "dst_ports",
    "!dst_ports",
    "protocol",
    "icmp_type",
    "labels",
    "nets",
    "ports",
    "expected_ipv4_addrs",
    "untracked",
];
const TEXTS: &[&str] = &["allow", "deny", "next-tier", "tcp", "10.0.0.0/8", "has(a)", "ingress", "80:90"];

proptest! {
    #[test]
    fn arbitrary_records_never_end_the_process(value in almost(MEMBERS, TEXTS), key in "[a-z%/]{0,20}") {
        for key in ["policy/tier/t/metadata", "policy/tier/t/policy/x%2fa", "policy/profile/p/rules", "policy/profile/p/labels",
            "policy/profile/p/tags", "policy/NetworkPolicy/x/a", "netset/s", "host/n/endpoint/e", &key]
        {
            let _ = Translator::default().record(&format!("/calico/v1/{key}"), Some(&value));
        }
        let _ = Translator::default().record("/calico/resources/v3/projectcalico.org/networkpolicies/x/a", Some(&value));
    }

    #[test]
    fn no_member_of_a_v1_rule_gets_lost(member in almost(MEMBERS, TEXTS), name in prop::sample::select(MEMBERS)) {
        let says_nothing = member.is_null() || member == json!("") || member == json!([]) || name == "action";
        let mut rule = json!({"action": "allow"});
        rule[name] = member;
        let policy = policy_of("/calico/v1/policy/tier/t/policy/a", json!({"inbound_rules": [rule]}));
        let open = policy.ingress.iter().any(|found| *found == Rule::any(Action::Allow, "spec.ingress[0]"));
        prop_assert!(!open || says_nothing, "{} became {:?}", rule, policy);
    }
}
