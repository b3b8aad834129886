//! Calico's policies, enforced and staged (policy.md section 1.4).

use std::collections::BTreeSet;

use russet_model::{
    CalicoPolicy, GlobalNetworkPolicySpec, NetworkPolicySpec, Resource, Spec, StagedGlobalNetworkPolicySpec,
    StagedNetworkPolicySpec,
};
use russet_verdict::translate::{DEFAULT_TIER, document};
use russet_verdict::world::Update;
use serde_json::{Value, json};

use super::fields::Field;
use super::fields::Shape::{Any, Decimal, Flag, List, Text};
use super::profile::{RULE, check_rules};
use super::{Definition, Problems, TableContext, check};

/// What Calico's API writes into every policy.
const TIER_LABEL: &str = "projectcalico.org/tier";
const METADATA_ANNOTATION: &str = "projectcalico.org/metadata";

/// The members that all kinds have, and those of this one.
macro_rules! members {
    ($($more:expr),*) => {
        &[
            Field("tier", Text),
            Field("order", Decimal),
            Field("selector", Text),
            Field("types", List(&Text)),
            Field("ingress", List(&RULE)),
            Field("egress", List(&RULE)),
            Field("serviceAccountSelector", Text),
            Field("performanceHints", List(&Text)),
            $($more),*
        ]
    };
}

macro_rules! definitions {
    ($($spec:ident: $words:expr, $fields:expr;)*) => {$(
        impl Definition for $spec {
            const WORDS: &'static [&'static str] = $words;
            const FIELDS: &'static [Field] = $fields;
            const STATUS: &'static [Field] = &[Field("conditions", List(&Any))];

            fn heading(wide: bool) -> &'static [&'static str] {
                heading(wide)
            }

            fn row(policy: &Resource<Self>, wide: bool, _seen: &TableContext) -> Vec<String> {
                row(&policy.metadata.name, &policy.spec.0, wide)
            }

            fn check(policy: &mut Resource<Self>, problems: &mut Problems) {
                check_policy(policy, problems);
            }
        }
    )*};
}

definitions! {
    NetworkPolicySpec: &["np", "policy", "policies", "pol", "pols"], members!();
    GlobalNetworkPolicySpec: &["gnp", "gnps"], members!(
        Field("namespaceSelector", Text),
        Field("doNotTrack", Flag),
        Field("preDNAT", Flag),
        Field("applyOnForward", Flag)
    );
    StagedNetworkPolicySpec: &["snp", "snps"], members!(Field("stagedAction", Text));
    StagedGlobalNetworkPolicySpec: &["sgnp", "sgnps"], members!(
        Field("namespaceSelector", Text),
        Field("doNotTrack", Flag),
        Field("preDNAT", Flag),
        Field("applyOnForward", Flag),
        Field("stagedAction", Text)
    );
}

fn heading(wide: bool) -> &'static [&'static str] {
    if wide { &["NAME", "TIER", "ORDER", "SELECTOR"] } else { &["NAME", "TIER"] }
}

fn row(name: &str, policy: &CalicoPolicy, wide: bool) -> Vec<String> {
    let tier = if policy.tier.is_empty() { DEFAULT_TIER } else { &policy.tier };
    let mut row = vec![name.to_owned(), tier.to_owned()];
    if wide {
        row.extend([
            policy.order.as_ref().map(Value::to_string).unwrap_or_default(),
            policy.selector.clone(),
        ]);
    }
    row
}

/// Fills in what Calico's API fills in, and reports what it refuses.
fn check_policy<S: Definition + AsMut<CalicoPolicy>>(resource: &mut Resource<S>, problems: &mut Problems) {
    let policy = resource.spec.as_mut();
    if policy.tier.is_empty() {
        policy.tier = DEFAULT_TIER.to_owned();
    }
    if policy.types.is_empty() {
        let is_egress = !policy.egress.is_empty();
        let types = [("Ingress", !policy.ingress.is_empty() || !is_egress), ("Egress", is_egress)];
        policy.types = types.into_iter().filter(|(_, is)| *is).map(|(name, _)| name.to_owned()).collect();
    }
    problems.unless(check::is_name(&policy.tier), "spec.tier", "it is no name of a tier");
    let different: BTreeSet<&String> = policy.types.iter().collect();
    problems.unless(different.len() == policy.types.len(), "spec.types", "each type is wanted once");
    check_rules(&policy.ingress, &policy.egress, problems);
    let is_set = |name: &str| policy.extra.get(name).and_then(Value::as_bool) == Some(true);
    for name in ["doNotTrack", "preDNAT"].into_iter().filter(|name| is_set(name)) {
        problems.unless(is_set("applyOnForward"), &format!("spec.{name}"), "it needs applyOnForward");
    }
    let tier = policy.tier.clone();
    resource.metadata.labels.insert(TIER_LABEL.to_owned(), tier);
    let metadata = json!({ "name": resource.metadata.name }).to_string();
    resource.metadata.annotations.insert(METADATA_ANNOTATION.to_owned(), metadata);
    check_meaning(resource, problems);
}

/// Reports everything that an agent would not enforce as it is written. Not beside other problems,
/// because it would repeat them. Returns what the resource means.
pub fn check_meaning<S: Spec>(resource: &Resource<S>, problems: &mut Problems) -> Vec<Update> {
    if !problems.is_empty() {
        return Vec::new();
    }
    match document(&resource.to_value()) {
        Err(refused) => {
            problems.add(&refused.problem.path, &refused.problem.text);
            Vec::new()
        }
        Ok(translated) => {
            let of_policies = translated.updates.iter().filter_map(|update| match update {
                Update::Policy(_, Some(policy)) => Some(&policy.problems),
                _ => None,
            });
            for problem in translated.problems.iter().chain(of_policies.flatten()) {
                problems.add(&problem.path, &problem.text);
            }
            translated.updates
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(spec: Value) -> (Resource<GlobalNetworkPolicySpec>, String) {
        let text = json!({ "kind": "GlobalNetworkPolicy", "metadata": { "name": "p" }, "spec": spec });
        let mut policy = Resource::decode(text.to_string().as_bytes()).unwrap();
        let mut problems = Problems::default();
        GlobalNetworkPolicySpec::check(&mut policy, &mut problems);
        (policy, problems.to_string())
    }

    #[test]
    fn what_calicos_api_fills_in_is_filled_in() {
        // policy.md section 1.9
        for (spec, types) in [
            (json!({}), vec!["Ingress"]),
            (json!({ "egress": [{ "action": "Allow" }] }), vec!["Egress"]),
            (
                json!({ "ingress": [{ "action": "Allow" }], "egress": [{ "action": "Deny" }] }),
                vec!["Ingress", "Egress"],
            ),
            (json!({ "types": ["Egress"] }), vec!["Egress"]),
        ] {
            let (policy, problems) = policy(spec);
            assert_eq!(problems, "");
            let CalicoPolicy { tier, types: filled, .. } = policy.spec.0;
            assert_eq!((tier.as_str(), filled.iter().map(String::as_str).collect()), ("default", types));
            assert_eq!(policy.metadata.labels[TIER_LABEL], "default");
            assert_eq!(policy.metadata.annotations[METADATA_ANNOTATION], r#"{"name":"p"}"#);
        }
    }

    #[test]
    fn what_would_not_be_enforced_as_written_is_refused_with_its_field() {
        for (spec, field) in [
            (json!({ "selector": "a = b" }), "spec.selector"),
            (json!({ "namespaceSelector": "a ==" }), "spec.namespaceSelector"),
            (json!({ "order": "1" }), "spec.order"),
            (json!({ "tier": "A" }), "spec.tier"),
            (json!({ "types": ["Ingress", "Ingress"] }), "spec.types"),
            (json!({ "types": ["Both"] }), "spec.types[0]"),
            (json!({ "doNotTrack": true }), "spec.doNotTrack"),
            (json!({ "doNotTrack": true, "preDNAT": true, "applyOnForward": true }), "spec.preDNAT"),
            (json!({ "ingress": [{ "action": "allow" }] }), "spec.ingress[0].action"),
            (json!({ "ingress": [{ "action": "Allow", "source": { "ports": [80] } }] }), "spec.ingress[0]"),
            (
                json!({ "ingress": [{ "action": "Allow", "icmp": { "code": 1 }, "protocol": "ICMP" }] }),
                "spec.ingress[0]",
            ),
            (
                json!({ "ingress": [{ "action": "Allow", "http": { "methods": ["GET"] } }] }),
                "spec.ingress[0]",
            ),
            (
                json!({ "egress": [{ "action": "Allow", "source": { "services": { "name": "x" } } }] }),
                "spec.egress[0]",
            ),
        ] {
            let (_, problems) = policy(spec.clone());
            assert!(problems.starts_with(field), "{spec}: {problems}");
        }
    }
}
