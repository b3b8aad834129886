//! What the tests of translators share.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use russet_model::Selector;
use serde_json::{Map, Value};

use super::document;
use crate::ir::Policy;
use crate::world::Update;

/// The policy of a document that is one.
pub fn policy(value: Value) -> Arc<Policy> {
    let translated = document(&value).unwrap_or_else(|problem| panic!("{problem:?} of {value}"));
    match translated.updates.as_slice() {
        [Update::Policy(id, Some(policy))] if *id == policy.id => Arc::clone(policy),
        other => panic!("{other:?} of {value}"),
    }
}

/// Whether something with these labels is selected.
pub fn selects(selector: &Selector, labels: &[(&str, &str)]) -> bool {
    selector.matches_with(&|wanted| labels.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value))
}

/// A pod's effective labels: its namespace, that namespace's label `ns` and its own label `pod`.
pub fn pod_labels<'a>(namespace: &'a str, pod: &'a str) -> [(&'a str, &'a str); 4] {
    [
        ("projectcalico.org/orchestrator", "k8s"),
        ("projectcalico.org/namespace", namespace),
        ("pcns.ns", namespace),
        ("pod", pod),
    ]
}

/// Paths of the problems.
pub fn paths(policy: &Policy) -> Vec<&str> {
    policy.problems.iter().map(|problem| &*problem.path).collect()
}

/// Arbitrary JSON whose members have these names, often with values that are almost right.
pub fn almost(
    members: &'static [&'static str],
    texts: &'static [&'static str],
) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..70_000_u32).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        select(texts).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(7, 60, 5, move |inner| {
        let member = prop_oneof![9 => select(members).prop_map(str::to_owned), 1 => ".{0,8}"];
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::Array),
            vec((member, inner), 0..6).prop_map(|pairs| Value::Object(Map::from_iter(pairs))),
        ]
    })
}
