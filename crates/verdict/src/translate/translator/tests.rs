use serde_json::{Value, json};

use super::Translator;
use crate::ir::{PolicyKind, Protocol};
use crate::translate::{built_in_tiers, document};
use crate::world::Update;

fn network_policy() -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "x"},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [
            {"from": [{"podSelector": {"matchLabels": {"role": "api"}}, "namespaceSelector": {"matchLabels": {"team": "a"}}}],
             "ports": [{"port": 5432}, {"port": "metrics"}]},
            {"from": [{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}]}})
}

/// What `calico-kube-controllers` writes to etcd for [`network_policy`] (calico-cni.md section 4P.6).
fn copy() -> Value {
    json!({"apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy",
        "metadata": {"name": "knp.default.p", "namespace": "x"},
        "spec": {"tier": "default", "order": 1000, "types": ["Ingress"],
            "selector": "projectcalico.org/orchestrator == 'k8s' && app == 'db'",
            "ingress": [
                {"action": "Allow", "protocol": "TCP", "destination": {"ports": [5432, "metrics"]},
                 "source": {"selector": "projectcalico.org/orchestrator == 'k8s' && role == 'api'",
                            "namespaceSelector": "team == 'a'"}},
                {"action": "Allow", "destination": {},
                 "source": {"selector": "projectcalico.org/orchestrator == 'k8s'"}},
                {"action": "Allow", "destination": {},
                 "source": {"nets": ["10.0.0.0/8"], "notNets": ["10.1.0.0/16"]}}]}})
}

/// The policies that updates put (true) and remove (false).
fn changes(updates: &[Update]) -> Vec<(PolicyKind, &str, bool)> {
    let each = updates.iter().map(|update| match update {
        Update::Policy(id, policy) => (id.kind, &*id.name, policy.is_some()),
        other => panic!("{other:?}"),
    });
    each.collect()
}

#[test]
fn a_copy_in_etcd_has_the_rules_of_its_network_policy() {
    let (own, copy) =
        (crate::translate::testing::policy(network_policy()), crate::translate::testing::policy(copy()));
    assert_eq!(
        (&own.subject, own.directions, own.order, &own.tier),
        (&copy.subject, copy.directions, copy.order, &copy.tier)
    );
    let without_paths = |rules: &[crate::ir::Rule]| {
        rules.iter().cloned().map(|rule| crate::ir::Rule { path: "".into(), ..rule }).collect::<Vec<_>>()
    };
    assert_eq!(without_paths(&own.ingress), without_paths(&copy.ingress));
    assert!(own.problems.is_empty() && copy.problems.is_empty());
}

#[test]
fn p92_a_network_policy_and_its_copy_count_once() {
    // policy.md P92
    use PolicyKind::{KubernetesNetworkPolicy as Own, NetworkPolicy as Copy};
    let mut all = Translator::default();
    assert_eq!(changes(&all.put(&copy()).updates), [(Copy, "knp.default.p", true)]);
    assert_eq!(
        changes(&all.put(&network_policy()).updates),
        [(Own, "p", true), (Copy, "knp.default.p", false)]
    );
    assert_eq!(changes(&all.put(&copy()).updates), []);
    let mut bad = copy();
    bad["spec"]["order"] = "first".into();
    let mut other = Translator::default();
    other.put(&network_policy());
    assert_eq!(changes(&other.put(&bad).updates), [], "a copy that cannot be read denies nothing");
    assert_eq!(
        changes(&all.remove(&network_policy()).updates),
        [(Copy, "knp.default.p", true), (Own, "p", false)]
    );
    assert_eq!(changes(&all.remove(&copy()).updates), [(Copy, "knp.default.p", false)]);
    assert_eq!(changes(&all.put(&network_policy()).updates), [(Own, "p", true)]);
}

#[test]
fn p54_the_last_good_form_of_a_policy_stays_when_it_becomes_malformed() {
    // policy.md P54; kubernetes.md K34
    let object = |tier: &str| {
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "c"}, "spec": {"tier": tier, "priority": 1, "subject": {"namespaces": {}}}})
    };
    let mut all = Translator::default();
    let first = all.put(&object("bad"));
    assert!(
        matches!(first.updates.as_slice(), [Update::Policy(_, Some(policy))] if policy.ingress.len() == 1)
    );
    assert_eq!(all.put(&object("Admin")).updates.len(), 1);
    let later = all.put(&object("bad"));
    assert_eq!((later.updates, later.problems.len()), (vec![], 1));
    assert_eq!(
        changes(&all.remove(&object("bad")).updates),
        [(PolicyKind::ClusterNetworkPolicy, "c", false)]
    );
    assert_eq!(all.put(&object("bad")).updates.len(), 1, "there is no good form any more");
}

#[test]
fn p43_equal_priorities_are_reported_and_names_decide() {
    // policy.md P43
    let object = |name: &str, priority: u32| {
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name}, "spec": {"tier": "Admin", "priority": priority, "subject": {"namespaces": {}}}})
    };
    let mut all = Translator::default();
    let mut put = |name: &str, priority| match all.put(&object(name, priority)).updates.remove(0) {
        Update::Policy(_, Some(policy)) => policy,
        other => panic!("{other:?}"),
    };
    let first = put("b", 1);
    let second = put("a", 1);
    assert_eq!((first.problems.len(), second.order == first.order), (0, true));
    assert_eq!(&*second.problems[0].path, "spec.priority");
    assert!(
        second.problems[0].text.contains("ClusterNetworkPolicy b")
            && second.id.sort_key() < first.id.sort_key()
    );
    assert!(put("a", 2).problems.is_empty() && put("a", 2).problems.is_empty());
    assert!(put("b", 1).problems.is_empty(), "the other has moved");
    all.remove(&object("a", 2));
    let moved = all.put(&object("b", 2)).updates.remove(0);
    assert!(matches!(moved, Update::Policy(_, Some(policy)) if policy.problems.is_empty()));
}

#[test]
fn p72_p74_slices_of_a_service_are_merged_whatever_is_ready_and_ports_without_number_are_skipped() {
    let slice = |name: &str, address: &str, service: &str| {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "x", "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [{"addresses": [address], "conditions": {"ready": false}}],
        "ports": [{"port": 80}, {"port": null, "protocol": "UDP"}, {"port": 53, "protocol": "UDP"}]})
    };
    let found = |updates: Vec<Update>| -> Vec<(String, Option<Vec<String>>)> {
        let one = |update| match update {
            Update::Service(id, content) => (
                id.name.to_string(),
                content.map(|content| {
                    content
                        .endpoints
                        .iter()
                        .map(|(ip, Protocol(protocol), port)| format!("{ip} {protocol} {port}"))
                        .collect()
                }),
            ),
            other => panic!("{other:?}"),
        };
        updates.into_iter().map(one).collect()
    };
    let texts = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    let (one, two) = (["10.0.0.1 6 80", "10.0.0.1 17 53"], ["10.0.0.2 6 80", "10.0.0.2 17 53"]);
    let both = [one, two].concat();
    let mut all = Translator::default();
    assert_eq!(found(all.put(&slice("s1", "10.0.0.1", "web")).updates), [("web".to_owned(), texts(&one))]);
    assert_eq!(found(all.put(&slice("s2", "10.0.0.2", "web")).updates), [("web".to_owned(), texts(&both))]);
    assert_eq!(
        found(all.put(&slice("s1", "10.0.0.1", "other")).updates),
        [("other".to_owned(), texts(&one)), ("web".to_owned(), texts(&two))]
    );
    assert_eq!(found(all.remove(&slice("s2", "", "web")).updates), [("web".to_owned(), None)]);
    assert_eq!(found(all.remove(&slice("s1", "", "web")).updates), [("other".to_owned(), None)]);
}

#[test]
fn lists_are_read_item_by_item_and_items_have_their_kind_from_the_list() {
    let item = json!({"metadata": {"name": "a"}});
    let list = json!({"apiVersion": "v1", "kind": "NamespaceList", "items": [item, {"metadata": {}}, item]});
    let translated = document(&list).unwrap();
    assert_eq!((translated.updates.len(), translated.problems.len()), (2, 1));
    let mixed = json!({"apiVersion": "v1", "kind": "List", "items": [network_policy(), copy(), item]});
    assert_eq!(document(&mixed).unwrap().problems.len(), 1);
    let mut nested = network_policy();
    for _ in 0..10 {
        nested = json!({"apiVersion": "v1", "kind": "List", "items": [nested]});
    }
    assert_eq!(document(&nested).unwrap().updates, []);
}

#[test]
fn every_object_can_be_removed_by_its_kind_and_names_alone() {
    let mut all = Translator::default();
    for (api, kind) in [
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("v1", "Namespace"),
        ("v1", "ServiceAccount"),
        ("v1", "Pod"),
        ("v1", "Node"),
        ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"),
        ("projectcalico.org/v3", "NetworkPolicy"),
        ("crd.projectcalico.org/v1", "GlobalNetworkPolicy"),
        ("projectcalico.org/v3", "StagedNetworkPolicy"),
        ("projectcalico.org/v3", "StagedGlobalNetworkPolicy"),
        ("projectcalico.org/v3", "StagedKubernetesNetworkPolicy"),
        ("projectcalico.org/v3", "Tier"),
        ("projectcalico.org/v3", "Profile"),
        ("projectcalico.org/v3", "NetworkSet"),
        ("projectcalico.org/v3", "GlobalNetworkSet"),
        ("projectcalico.org/v3", "HostEndpoint"),
        ("crd.projectcalico.org/v1", "FelixConfiguration"),
        ("projectcalico.org/v3", "WorkloadEndpoint"),
    ] {
        let removed = all
            .remove(&json!({"apiVersion": api, "kind": kind, "metadata": {"name": "a", "namespace": "b"}}));
        assert_eq!((removed.updates.len(), removed.problems.len()), (1, 0), "{kind}");
    }
    for value in
        [json!({}), json!(null), json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}})]
    {
        assert_eq!(all.remove(&value).problems.len(), 1);
    }
}

#[test]
fn the_built_in_tiers_are_in_the_order_of_the_pipeline() {
    let orders = built_in_tiers().map(|update| match update {
        Update::Tier(name, Some(tier)) => (tier.order, name),
        other => panic!("{other:?}"),
    });
    assert!(orders.is_sorted());
    assert_eq!(orders.map(|(_, name)| name.to_string()), ["kube-admin", "default", "kube-baseline"]);
}
