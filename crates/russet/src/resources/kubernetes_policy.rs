//! NetworkPolicy of Kubernetes, as `kubectl` applies it, and its staged form (policy.md section 1.2).

use russet_model::{KubernetesNetworkPolicySpec, Resource, StagedKubernetesNetworkPolicySpec};
use serde_json::Value;

use super::fields::Field;
use super::fields::Shape::{self, Any, Labels, List, Number, Object, Text, TextOrNumber};
use super::policy::check_meaning;
use super::{Definition, Problems, TableContext};

pub(super) const SELECTOR: Shape = Object(&[
    Field("matchLabels", Labels),
    Field(
        "matchExpressions",
        List(&Object(&[Field("key", Text), Field("operator", Text), Field("values", List(&Text))])),
    ),
]);
const PEER: Shape = Object(&[
    Field("podSelector", SELECTOR),
    Field("namespaceSelector", SELECTOR),
    Field("ipBlock", Object(&[Field("cidr", Text), Field("except", List(&Text))])),
]);
const PORT: Shape = Object(&[Field("protocol", Text), Field("port", TextOrNumber), Field("endPort", Number)]);

macro_rules! definitions {
    ($($spec:ident: $words:expr $(, $more:expr)*;)*) => {$(
        impl Definition for $spec {
            const WORDS: &'static [&'static str] = $words;
            const FIELDS: &'static [Field] = &[
                $($more,)*
                Field("podSelector", SELECTOR),
                Field("policyTypes", List(&Text)),
                Field("ingress", List(&Object(&[Field("from", List(&PEER)), Field("ports", List(&PORT))]))),
                Field("egress", List(&Object(&[Field("to", List(&PEER)), Field("ports", List(&PORT))]))),
            ];
            const STATUS: &'static [Field] = &[Field("conditions", List(&Any))];

            fn heading(wide: bool) -> &'static [&'static str] {
                if wide { &["NAME", "POD-SELECTOR"] } else { &["NAME"] }
            }

            fn row(policy: &Resource<Self>, wide: bool, _seen: &TableContext) -> Vec<String> {
                let selector = wide.then(|| shown(policy.spec.0.get("podSelector")));
                std::iter::once(policy.metadata.name.clone()).chain(selector).collect()
            }

            fn check(policy: &mut Resource<Self>, problems: &mut Problems) {
                let has_selector = policy.spec.0.get("podSelector").is_some_and(Value::is_object);
                problems.unless(has_selector, "spec.podSelector", "it is missing; {} selects all pods");
                check_meaning(policy, problems);
            }
        }
    )*};
}

definitions! {
    KubernetesNetworkPolicySpec: &["knp", "netpol", "netpols"];
    StagedKubernetesNetworkPolicySpec: &["sknp", "sknps"], Field("stagedAction", Text);
}

/// The labels of a selector as `kubectl` prints them, and its expressions as they are.
fn shown(selector: Option<&Value>) -> String {
    let part = |name: &str| selector.and_then(|selector| selector.get(name));
    let labels = part("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let labels = labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
    let expressions = part("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    let all: Vec<String> = labels.chain(expressions.map(Value::to_string)).collect();
    if all.is_empty() { "<none>".to_owned() } else { all.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn policies_that_kubernetes_refuses_are_refused_with_their_field() {
        let problems = |spec: Value| {
            let text = json!({ "metadata": { "name": "p", "namespace": "x" }, "spec": spec }).to_string();
            let mut policy = Resource::decode(text.as_bytes()).unwrap();
            let mut problems = Problems::default();
            KubernetesNetworkPolicySpec::check(&mut policy, &mut problems);
            problems.to_string()
        };
        let peer = json!([{ "podSelector": { "matchLabels": { "app": "api" } } }]);
        let ports = json!([{ "port": 80, "endPort": 90, "protocol": "TCP" }, { "port": "web" }]);
        let good = json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": peer, "ports": ports }] });
        assert_eq!(problems(good), "");
        for (spec, field) in [
            (json!({}), "spec.podSelector"),
            (json!({ "podSelector": {}, "policyTypes": ["Both"] }), "spec.policyTypes[0]"),
            (
                json!({ "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": { "cidr": "10.0.0" } }] }] }),
                "spec.ingress[0].from[0].ipBlock.cidr",
            ),
            (
                json!({ "podSelector": {}, "egress": [{ "ports": [{ "port": 80, "endPort": 79 }] }] }),
                "spec.egress[0].ports[0]",
            ),
        ] {
            let found = problems(spec.clone());
            assert!(found.starts_with(field), "{spec}: {found}");
        }
    }
}
