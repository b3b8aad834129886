use proptest::prelude::*;
use serde_json::{Value, json};

use crate::translate::testing::almost;
use crate::translate::{Translator, document};
use crate::world::{EgressFirewall, EgressPeer, Update};

fn object(namespace: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "network.openshift.io/v1", "kind": "EgressNetworkPolicy",
           "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn net_namespace(name: &str, id: u32) -> Value {
    json!({"apiVersion": "network.openshift.io/v1", "kind": "NetNamespace", "metadata": {"name": name},
           "netname": name, "netid": id})
}

fn deny_all_external() -> Value {
    json!({"egress": [{"type": "Allow", "to": {"cidrSelector": "1.2.3.0/24"}}, {"type": "Deny", "to": {"cidrSelector": "0.0.0.0/0"}}]})
}

/// The rules of a firewall, as text.
fn rules(firewall: &EgressFirewall) -> Vec<String> {
    let text = |peer: &EgressPeer| match peer {
        EgressPeer::Net(net) => net.to_string(),
        EgressPeer::Name(name, _) => name.to_string(),
    };
    firewall.rules.iter().map(|(allow, peer)| format!("{allow} {}", text(peer))).collect()
}

fn rules_of(egress: Value) -> Vec<String> {
    match document(&object("x", "e", json!({"egress": egress}))).unwrap().updates.as_slice() {
        [Update::EgressFirewall(_, _, Some(firewall))] => rules(firewall),
        other => panic!("{other:?}"),
    }
}

/// The updates of an object: namespace, name and rules.
fn put(translator: &mut Translator, value: &Value) -> Vec<(String, String, Option<Vec<String>>)> {
    shown(translator.put(value).updates)
}

fn shown(updates: Vec<Update>) -> Vec<(String, String, Option<Vec<String>>)> {
    let one = |update| match update {
        Update::EgressFirewall(namespace, name, content) => {
            (namespace.to_string(), name.to_string(), content.map(|content| rules(&content)))
        }
        other => panic!("{other:?}"),
    };
    updates.into_iter().map(one).collect()
}

const DENIED: [&str; 2] = ["false 0.0.0.0/0", "false ::/0"];

#[test]
fn p96_rules_are_prefixes_and_names_in_their_order() {
    assert_eq!(rules_of(deny_all_external()["egress"].clone()), ["true 1.2.3.0/24", "false 0.0.0.0/0"]);
    assert_eq!(
        rules_of(json!([{"type": "Deny", "to": {"cidrSelector": "0.0.0.0/32"}},
        {"type": "Allow", "to": {"dnsName": "a.example."}}])),
        ["false 0.0.0.0/0", "true a.example"]
    );
}

#[test]
fn what_cannot_be_read_is_nothing_if_it_allows_and_denies_everything_otherwise() {
    for to in [
        json!({"cidrSelector": "x"}),
        json!({"cidrSelector": "::/0"}),
        json!({}),
        json!(null),
        json!({"dnsName": ""}),
        json!({"cidrSelector": "1.0.0.0/8", "dnsName": "a"}),
        json!({"other": 1}),
    ] {
        let good = json!({"type": "Allow", "to": {"cidrSelector": "1.0.0.0/8"}});
        assert_eq!(rules_of(json!([{"type": "Allow", "to": to}, good])), ["true 1.0.0.0/8"], "{to}");
        assert_eq!(rules_of(json!([{"type": "Deny", "to": to}])), DENIED, "{to}");
    }
    for kind in [json!("Allowed"), json!("xAllow"), json!(null), json!(1)] {
        assert_eq!(rules_of(json!([{"type": kind, "to": {"cidrSelector": "1.0.0.0/8"}}])), DENIED, "{kind}");
    }
    assert_eq!(rules_of(json!("x")), DENIED);
}

#[test]
fn p97_netid_0_ignores_the_object_and_a_shared_one_denies_every_namespace_that_has_it() {
    let mut all = Translator::default();
    let wanted = || Some(vec!["true 1.2.3.0/24".to_owned(), "false 0.0.0.0/0".to_owned()]);
    let denied = || Some(DENIED.map(str::to_owned).to_vec());
    let at = |namespace: &str, name: &str, rules| (namespace.to_owned(), name.to_owned(), rules);
    assert_eq!(put(&mut all, &object("x", "e", deny_all_external())), [at("x", "e", wanted())]);
    assert_eq!(put(&mut all, &net_namespace("x", 7)), []);
    assert_eq!(put(&mut all, &net_namespace("y", 7)), [at("x", "e", denied()), at("y", "x/e", denied())]);
    assert_eq!(put(&mut all, &net_namespace("y", 8)), [at("y", "x/e", None), at("x", "e", wanted())]);
    assert_eq!(put(&mut all, &net_namespace("x", 0)), [at("x", "e", None)]);
    assert_eq!(shown(all.remove(&net_namespace("x", 0)).updates), [at("x", "e", wanted())]);
    assert_eq!(put(&mut all, &object("x", "e", json!({"egress": []}))), [at("x", "e", None)]);
    assert_eq!(put(&mut all, &object("x", "f", deny_all_external())), [at("x", "f", wanted())]);
    assert_eq!(shown(all.remove(&object("x", "f", json!(null))).updates), [at("x", "f", None)]);
}

const MEMBERS: &[&str] = &["egress", "type", "to", "cidrSelector", "dnsName"];
const TEXTS: &[&str] = &["Allow", "Deny", "10.0.0.0/8", "a.b"];

proptest! {
    #[test]
    fn arbitrary_specs_never_end_the_process(spec in almost(MEMBERS, TEXTS)) {
        let _ = document(&object("x", "e", spec.clone()));
        let mut namespace = net_namespace("x", 1);
        namespace["netid"] = spec;
        let _ = document(&namespace);
    }
}
