//! Names that other programs choose never reach nf_tables.

use russet_verdict::engine::Engine;
use russet_verdict::ir::Direction::Ingress;
use russet_verdict::translate::{Translator, built_in_tiers};
use russet_verdict::world::{Config, Update};
use serde_json::{Value, json};

use crate::world::*;

/// What a shell, nft or a terminal would obey.
const EVIL: &str = "evil\"; flush ruleset; add table ip evil # \n\u{202e}$(evil)";

/// A pod and policies whose every name is hostile.
fn documents() -> [Value; 4] {
    let name = json!({ "name": EVIL, "namespace": EVIL, "labels": { "pod": EVIL, EVIL: EVIL } });
    let port = json!({ "name": EVIL, "containerPort": 80 });
    let rule = json!({ "from": [{ "podSelector": { "matchLabels": { EVIL: EVIL } } }], "ports": [{ "port": EVIL }] });
    [
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": name,
            "spec": { "nodeName": "n1", "containers": [{ "name": EVIL, "ports": [port] }] },
            "status": { "phase": "Running", "podIP": "10.9.1.2", "podIPs": [{ "ip": "10.9.1.2" }] } }),
        json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": name,
            "spec": { "podSelector": {}, "ingress": [rule] } }),
        json!({ "apiVersion": "projectcalico.org/v3", "kind": "Tier", "metadata": { "name": EVIL }, "spec": { "order": 1 } }),
        json!({ "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": name,
            "spec": { "tier": EVIL, "order": 1, "selector": "all()", "types": ["Ingress"],
                "ingress": [{ "action": "Log" }, { "action": "Deny", "protocol": "TCP", "metadata": { "annotations": { EVIL: EVIL } } }] } }),
    ]
}

/// The rules of the table, but for the one that has the epoch; with their handles, so that a rule
/// that was written again is another one.
fn rules() -> Vec<Value> {
    let listing = russet_testkit::nft_json(&["list", "table", "inet", "russet-decisions"]);
    let all = listing["nftables"].as_array().unwrap().iter();
    all.map(|it| &it["rule"]).filter(|rule| !rule.is_null() && rule["chain"] != "epoch").cloned().collect()
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn hostile_names_change_no_rule_and_are_nowhere_in_the_ruleset() {
    on_a_node(|| {
        let mut policies = open();
        apply(&mut policies, &isolated(Ingress, "10.9.2.2"));
        let rules_before = rules();
        let mut engine = Engine::default();
        engine.apply(Update::Config(Config { node: "n1".into(), ..Config::default() }));
        built_in_tiers().into_iter().for_each(|tier| engine.apply(tier));
        let mut translator = Translator::default();
        for document in documents() {
            let translated = translator.put(&document);
            assert_ne!(translated.updates, [], "{:?} of {document}", translated.problems);
            translated.updates.into_iter().for_each(|update| engine.apply(wired(update)));
        }
        let delta = engine.flush();
        let denied = delta.defaults.iter().any(|((direction, address), word)| {
            (*direction, *address) == (Ingress, ip("10.9.1.2")) && word.is_some()
        });
        assert!(denied, "the policies are about the pod: {delta:?}");
        apply(&mut policies, &delta);
        assert!(!rules_before.is_empty());
        assert_eq!(rules(), rules_before);
        let listing = ruleset();
        assert!(!listing.contains("evil") && listing.is_ascii(), "{listing}");
        let server = listen(Some("a"), "10.9.1.2", 80);
        connect(Some("b"), "10.9.1.2", 80, false);
        drop(server);
    });
}
