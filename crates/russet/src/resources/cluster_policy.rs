//! ClusterNetworkPolicy, as `kubectl` applies it (policy.md section 1.3).

use russet_model::{ClusterNetworkPolicySpec, Resource};
use serde_json::Value;

use super::fields::Field;
use super::fields::Shape::{self, Any, List, Number, Object, Text};
use super::kubernetes_policy::SELECTOR;
use super::policy::check_meaning;
use super::{Definition, Problems, TableContext};

/// The API's limit of the rules of a direction, of the peers of a rule and of its protocols.
const LIST_MAX: usize = 25;

const PODS: Shape = Object(&[Field("namespaceSelector", SELECTOR), Field("podSelector", SELECTOR)]);
const PORT: Shape = Object(&[
    Field("number", Number),
    Field("range", Object(&[Field("start", Number), Field("end", Number)])),
]);
const OF_PORT: Shape = Object(&[Field("destinationPort", PORT)]);
const PROTOCOLS: Shape = List(&Object(&[
    Field("tcp", OF_PORT),
    Field("udp", OF_PORT),
    Field("sctp", OF_PORT),
    Field("destinationNamedPort", Text),
]));
const FROM: Shape = List(&Object(&[Field("namespaces", SELECTOR), Field("pods", PODS)]));
const TO: Shape = List(&Object(&[
    Field("namespaces", SELECTOR),
    Field("pods", PODS),
    Field("networks", List(&Text)),
    Field("nodes", SELECTOR),
    Field("domainNames", List(&Text)),
]));

impl Definition for ClusterNetworkPolicySpec {
    const WORDS: &'static [&'static str] = &["clusternetworkpolicies", "cnp", "cnps"];
    const FIELDS: &'static [Field] = &[
        Field("tier", Text),
        Field("priority", Number),
        Field("subject", Object(&[Field("namespaces", SELECTOR), Field("pods", PODS)])),
        Field(
            "ingress",
            List(&Object(&[
                Field("name", Text),
                Field("action", Text),
                Field("from", FROM),
                Field("protocols", PROTOCOLS),
            ])),
        ),
        Field(
            "egress",
            List(&Object(&[
                Field("name", Text),
                Field("action", Text),
                Field("to", TO),
                Field("protocols", PROTOCOLS),
            ])),
        ),
    ];
    const STATUS: &'static [Field] = &[Field("conditions", List(&Any))];

    fn heading(_wide: bool) -> &'static [&'static str] {
        &["NAME", "TIER", "PRIORITY"]
    }

    fn row(policy: &Resource<Self>, _wide: bool, _seen: &TableContext) -> Vec<String> {
        let text = |name: &str| match policy.spec.0.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        vec![policy.metadata.name.clone(), text("tier"), text("priority")]
    }

    fn check(policy: &mut Resource<Self>, problems: &mut Problems) {
        for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
            let rules_at = format!("spec.{rules}");
            let rules = items(policy.spec.0.get(rules));
            check_length(rules, &rules_at, problems);
            for (index, rule) in rules.iter().enumerate() {
                for list in [peers, "protocols"] {
                    check_length(items(rule.get(list)), &format!("{rules_at}[{index}].{list}"), problems);
                }
            }
        }
        check_meaning(policy, problems);
    }
}

fn items(list: Option<&Value>) -> &[Value] {
    list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn check_length(list: &[Value], at: &str, problems: &mut Problems) {
    problems.unless(
        list.len() <= LIST_MAX,
        at,
        &format!("it has {} entries, and {LIST_MAX} are allowed", list.len()),
    );
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resources::fields;

    fn problems(spec: Value) -> String {
        let document = json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": { "name": "p" }, "spec": spec });
        let mut problems = Problems::default();
        let spec = ClusterNetworkPolicySpec::FIELDS;
        fields::check(document.as_object().unwrap(), spec, ClusterNetworkPolicySpec::STATUS, &mut problems);
        let mut policy = Resource::decode(document.to_string().as_bytes()).unwrap();
        ClusterNetworkPolicySpec::check(&mut policy, &mut problems);
        problems.to_string()
    }

    fn spec(member: &str, value: Value) -> Value {
        let mut spec = json!({ "tier": "Admin", "priority": 5, "subject": { "namespaces": {} } });
        spec[member] = value;
        spec
    }

    #[test]
    fn policies_that_the_api_refuses_or_no_agent_enforces_are_refused_with_their_field() {
        let all = json!([{ "namespaces": {} }]);
        let ports = json!([{ "tcp": { "destinationPort": { "number": 80 } } }, { "destinationNamedPort": "web" },
            { "udp": { "destinationPort": { "range": { "start": 1, "end": 9 } } } }]);
        let rule = json!({ "name": "r", "action": "Accept", "from": all, "protocols": ports });
        assert_eq!(problems(spec("ingress", json!([rule]))), "");
        let to = json!([{ "action": "Deny", "to": [{ "networks": ["10.0.0.0/8"] }] }]);
        assert_eq!(problems(spec("egress", to)), "");
        let to = |peer: Value| spec("egress", json!([{ "action": "Deny", "to": [peer] }]));
        let many = |count| json!(vec![json!({ "namespaces": {} }); count]);
        assert_eq!(problems(spec("ingress", json!([{ "action": "Deny", "from": many(25) }]))), "");
        for (spec, field) in [
            (json!({}), "spec.subject"),
            (spec("tier", json!("default")), "spec.tier"),
            (spec("tier", json!(null)), "spec.tier"),
            (spec("priority", json!(1001)), "spec.priority"),
            (spec("priority", json!(-1)), "spec.priority"),
            (spec("subject", json!({ "namespaces": {}, "pods": {} })), "spec.subject"),
            (
                spec(
                    "subject",
                    json!({ "pods": { "podSelector": { "matchExpressions": [{ "key": "a", "operator": "Is" }] } } }),
                ),
                "spec.subject",
            ),
            (spec("ingress", json!([{ "action": "Allow", "from": all }])), "spec.ingress[0].action"),
            (spec("ingress", json!([{ "action": "Deny" }])), "spec.ingress[0].from"),
            (spec("ingress", json!([{ "action": "Deny", "from": many(26) }])), "spec.ingress[0].from"),
            (spec("ingress", json!(vec![json!({ "action": "Deny", "from": all }); 26])), "spec.ingress"),
            (
                spec("ingress", json!([{ "action": "Deny", "from": [{ "networks": ["10.0.0.0/8"] }] }])),
                "spec.ingress[0].from[0].networks",
            ),
            (to(json!({ "networks": ["10.0.0.0/33"] })), "spec.egress[0].to[0].networks[0]"),
            (to(json!({ "domainNames": ["example.com"] })), "spec.egress[0].to[0].domainNames"),
            (to(json!({ "namespaces": {}, "nodes": {} })), "spec.egress[0].to[0]"),
            (spec("egres", json!([])), "spec.egres: there is no such field; did you mean egress?"),
        ] {
            let found = problems(spec.clone());
            assert!(found.starts_with(field), "{spec}: {found}");
        }
    }
}
