//! Tiers, network sets and host endpoints (policy.md section 1.4).

use russet_model::{GlobalNetworkSetSpec, HostEndpointSpec, NetworkSetSpec, Resource, TierSpec};
use russet_verdict::translate::built_in_tiers;
use russet_verdict::world::Update;
use serde_json::{Map, Value};

use super::fields::Field;
use super::fields::Shape::{Any, Decimal, List, Number, Object, Text, TextOrNumber};
use super::policy::check_meaning;
use super::{Definition, Problems, TableContext};

const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
/// The order that Calico's API gives a tier that names none: that of the tier `default`, which then comes before or
/// after it by name.
const DEFAULT_ORDER: u32 = 1_000_000;

impl Definition for TierSpec {
    const WORDS: &'static [&'static str] = &[];
    const FIELDS: &'static [Field] = &[Field("order", Decimal), Field("defaultAction", Text)];
    const STATUS: &'static [Field] = &[Field("conditions", List(&Any))];

    fn heading(_wide: bool) -> &'static [&'static str] {
        &["NAME", "ORDER", "DEFAULTACTION"]
    }

    fn row(tier: &Resource<Self>, _wide: bool, _seen: &TableContext) -> Vec<String> {
        let text = |name: &str| tier.spec.0.get(name).map(shown).unwrap_or_default();
        vec![tier.metadata.name.clone(), text("order"), text("defaultAction")]
    }

    fn check(tier: &mut Resource<Self>, problems: &mut Problems) {
        for (member, value) in [("defaultAction", Value::from("Deny")), ("order", DEFAULT_ORDER.into())] {
            let found = tier.spec.0.entry(member).or_insert(Value::Null);
            if found.is_null() {
                *found = value;
            }
        }
        let meaning = check_meaning(tier, problems);
        let own = built_in_tiers().into_iter().find(|it| names(it, &tier.metadata.name));
        if let Some(Update::Tier(_, Some(wanted))) = own
            && meaning.iter().any(|it| !matches!(it, Update::Tier(_, Some(found)) if *found == wanted))
        {
            problems.add("spec", "order and defaultAction of this tier cannot change");
        }
    }
}

/// Whether the tier is one that Calico creates in every cluster.
pub fn is_built_in_tier(name: &str) -> bool {
    built_in_tiers().iter().any(|it| names(it, name))
}

fn names(update: &Update, name: &str) -> bool {
    matches!(update, Update::Tier(it, _) if **it == *name)
}

macro_rules! network_sets {
    ($($spec:ident: $words:expr;)*) => {$(
        impl Definition for $spec {
            const WORDS: &'static [&'static str] = $words;
            const FIELDS: &'static [Field] = &[Field("nets", List(&Text))];
            const STATUS: &'static [Field] = &[];

            fn heading(wide: bool) -> &'static [&'static str] {
                if wide { &["NAME", "NETS"] } else { &["NAME"] }
            }

            fn row(set: &Resource<Self>, wide: bool, _seen: &TableContext) -> Vec<String> {
                let nets = wide.then(|| joined(&set.spec.0, "nets"));
                std::iter::once(set.metadata.name.clone()).chain(nets).collect()
            }

            fn check(set: &mut Resource<Self>, problems: &mut Problems) {
                let at = format!("metadata.labels.{NAMESPACE_LABEL}");
                let is_free = !set.metadata.labels.contains_key(NAMESPACE_LABEL);
                problems.unless(is_free, &at, "it follows from the namespace");
                check_meaning(set, problems);
            }
        }
    )*};
}

network_sets! {
    NetworkSetSpec: &["netset", "netsets"];
    GlobalNetworkSetSpec: &[];
}

impl Definition for HostEndpointSpec {
    const WORDS: &'static [&'static str] = &["hep", "heps"];
    const FIELDS: &'static [Field] = &[
        Field("node", Text),
        Field("interfaceName", Text),
        Field("expectedIPs", List(&Text)),
        Field("profiles", List(&Text)),
        Field(
            "ports",
            List(&Object(&[Field("name", Text), Field("protocol", TextOrNumber), Field("port", Number)])),
        ),
    ];
    const STATUS: &'static [Field] = &[];

    fn heading(wide: bool) -> &'static [&'static str] {
        if wide { &["NAME", "NODE", "INTERFACE", "IPS", "PROFILES"] } else { &["NAME", "NODE"] }
    }

    fn row(endpoint: &Resource<Self>, wide: bool, _seen: &TableContext) -> Vec<String> {
        let spec = &endpoint.spec.0;
        let text = |name: &str| spec.get(name).map(shown).unwrap_or_default();
        let mut row = vec![endpoint.metadata.name.clone(), text("node")];
        if wide {
            row.extend([text("interfaceName"), joined(spec, "expectedIPs"), joined(spec, "profiles")]);
        }
        row
    }

    fn check(endpoint: &mut Resource<Self>, problems: &mut Problems) {
        let has = |name: &str| endpoint.spec.0.get(name).is_some_and(|it| !it.is_null());
        problems.unless(
            has("interfaceName") || has("expectedIPs"),
            "spec",
            "interfaceName or expectedIPs is wanted",
        );
        check_meaning(endpoint, problems);
    }
}

fn joined(spec: &Map<String, Value>, name: &str) -> String {
    let list = spec.get(name).and_then(Value::as_array).into_iter().flatten();
    list.map(shown).collect::<Vec<_>>().join(",")
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problems<S: Definition>(metadata: Value, spec: Value) -> String {
        let text = json!({ "metadata": metadata, "spec": spec }).to_string();
        let mut problems = Problems::default();
        S::check(&mut Resource::decode(text.as_bytes()).unwrap(), &mut problems);
        problems.to_string()
    }

    #[test]
    fn tiers_of_every_cluster_keep_their_order_and_default_action() {
        let tier = |name: &str, spec| problems::<TierSpec>(json!({ "name": name }), spec);
        assert_eq!(tier("mine", json!({ "order": 1.5 })), "");
        assert_eq!(tier("default", json!({ "order": 1_000_000 })), "");
        assert_eq!(tier("kube-admin", json!({ "order": 1000, "defaultAction": "Pass" })), "");
        assert!(tier("default", json!({ "order": 1 })).starts_with("spec: "));
        assert!(tier("mine", json!({ "defaultAction": "Allow" })).starts_with("spec.defaultAction"));
    }

    #[test]
    fn p89_a_tier_without_an_order_is_stored_with_that_of_the_default_tier() {
        // policy.md P89
        for spec in [json!({}), json!({ "order": null, "defaultAction": null })] {
            let text = json!({ "metadata": { "name": "mine" }, "spec": spec }).to_string();
            let mut tier = Resource::<TierSpec>::decode(text.as_bytes()).unwrap();
            let mut problems = Problems::default();
            TierSpec::check(&mut tier, &mut problems);
            assert_eq!(problems.to_string(), "");
            assert_eq!(Value::from(tier.spec.0), json!({ "order": 1_000_000, "defaultAction": "Deny" }));
        }
    }

    #[test]
    fn peers_that_calicos_api_refuses_are_refused_with_their_field() {
        let set = json!({ "name": "s", "namespace": "x" });
        assert_eq!(problems::<NetworkSetSpec>(set.clone(), json!({ "nets": ["10.0.0.0/8", "fd00::1"] })), "");
        let bad = problems::<NetworkSetSpec>(set, json!({ "nets": ["10.0.0.0/8", "10.0.0"] }));
        assert!(bad.starts_with("spec.nets[1]"), "{bad}");
        let label = json!({ "name": "s", "labels": { NAMESPACE_LABEL: "x" } });
        assert!(problems::<GlobalNetworkSetSpec>(label, json!({})).starts_with("metadata.labels."));
        let host = |spec| problems::<HostEndpointSpec>(json!({ "name": "h" }), spec);
        assert_eq!(host(json!({ "node": "n1", "interfaceName": "*" })), "");
        assert!(host(json!({ "node": "n1" })).contains("expectedIPs"));
        assert!(host(json!({ "interfaceName": "*" })).starts_with("spec.node"));
    }
}
