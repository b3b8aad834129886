//! Applies patches like an API server: JSON merge patches (RFC 7396), and strategic ones, which
//! merge some lists by a key.

use serde_json::{Map, Value};

/// Lists that are merged, with the member that identifies an element (core/v1, `patchMergeKey`).
const MERGE_KEYS: [(&str, &str); 4] =
    [("conditions", "type"), ("addresses", "type"), ("podIPs", "ip"), ("containers", "name")];

pub(crate) fn merge(target: &mut Value, patch: &Value, strategic: bool) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (name, value) in members {
        match value {
            Value::Null => {
                target.as_object_mut().map(|object| object.shift_remove(name));
            }
            Value::Array(elements) if strategic => match MERGE_KEYS.iter().find(|(list, _)| list == name) {
                Some((_, key)) => merge_list(&mut target[name], elements, key),
                None => target[name] = value.clone(),
            },
            _ => merge(&mut target[name], value, strategic),
        }
    }
}

fn merge_list(target: &mut Value, elements: &[Value], key: &str) {
    if !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    for element in elements {
        let Some(list) = target.as_array_mut() else { return };
        match list.iter_mut().find(|known| known[key] == element[key]) {
            Some(known) => merge(known, element, true),
            None => list.push(element.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn merged(mut target: Value, patch: Value, strategic: bool) -> Value {
        merge(&mut target, &patch, strategic);
        target
    }

    #[test]
    fn maps_are_merged_and_null_removes() {
        let target = json!({ "a": { "b": 1, "c": 2 }, "d": [1] });
        let patch = json!({ "a": { "b": null, "e": 3 }, "d": [2], "f": { "g": null } });
        assert_eq!(merged(target, patch, false), json!({ "a": { "c": 2, "e": 3 }, "d": [2], "f": {} }));
    }

    #[test]
    fn conditions_are_merged_by_type_in_strategic_patches_only() {
        let target = json!({ "conditions": [{ "type": "Ready", "status": "True" }, { "type": "X", "status": "True", "reason": "r" }] });
        let patch = json!({ "conditions": [{ "type": "X", "status": "False" }, { "type": "Y" }] });
        assert_eq!(
            merged(target.clone(), patch.clone(), true),
            json!({ "conditions": [{ "type": "Ready", "status": "True" }, { "type": "X", "status": "False", "reason": "r" }, { "type": "Y" }] })
        );
        assert_eq!(merged(target, patch.clone(), false), patch);
    }
}
