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

/// Elements of the patch keep their order, and so do those that only the target has; an element of the patch that is new comes before the others.
fn merge_list(target: &mut Value, elements: &[Value], key: &str) {
    let old = match target.take() {
        Value::Array(old) => old,
        _ => Vec::new(),
    };
    let place = |element: &Value| old.iter().position(|known| known[key] == element[key]);
    let patched = elements.iter().map(|element| match place(element) {
        Some(place) => {
            let mut known = old[place].clone();
            merge(&mut known, element, true);
            known
        }
        None => element.clone(),
    });
    let mut others =
        old.iter().filter(|known| elements.iter().all(|element| element[key] != known[key])).peekable();
    let mut merged = Vec::new();
    for element in patched {
        while let Some(other) = others.next_if(|other| place(other) < place(&element)) {
            merged.push(other.clone());
        }
        merged.push(element);
    }
    merged.extend(others.cloned());
    *target = Value::Array(merged);
}

/// Applies one operation of a JSON patch (RFC 6902); none if it cannot be applied. `move` and `copy` are not sent by our clients.
pub(crate) fn apply_operation(target: &mut Value, operation: &Value) -> Option<()> {
    let (path, value) = (operation["path"].as_str()?, &operation["value"]);
    if operation["op"] == "test" {
        return (target.pointer(path)? == value).then_some(());
    }
    let (parent, last) = path.rsplit_once('/')?;
    let last = last.replace("~1", "/").replace("~0", "~");
    match (operation["op"].as_str()?, target.pointer_mut(parent)?) {
        ("remove", Value::Object(members)) => members.shift_remove(&last).map(drop),
        ("remove", Value::Array(elements)) => {
            let at = last.parse::<usize>().ok().filter(|at| *at < elements.len())?;
            elements.remove(at);
            Some(())
        }
        ("replace", Value::Object(members)) => members.get_mut(&last).map(|member| *member = value.clone()),
        ("add", Value::Object(members)) => {
            members.insert(last, value.clone());
            Some(())
        }
        _ => None,
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

    #[test]
    fn operations_change_members_and_a_test_refuses() {
        let mut node = json!({ "spec": { "taints": [{ "key": "a" }, { "key": "b" }] }, "metadata": { "annotations": {} } });
        let remove = json!({ "op": "remove", "path": "/spec/taints/1" });
        assert_eq!(
            apply_operation(
                &mut node,
                &json!({ "op": "test", "path": "/spec/taints/1", "value": { "key": "a" } })
            ),
            None
        );
        assert!(
            apply_operation(&mut node, &remove).is_some() && apply_operation(&mut node, &remove).is_none()
        );
        let add = json!({ "op": "add", "path": "/metadata/annotations/x~1y", "value": "z" });
        apply_operation(&mut node, &add).unwrap();
        assert_eq!(
            node,
            json!({ "spec": { "taints": [{ "key": "a" }] }, "metadata": { "annotations": { "x/y": "z" } } })
        );
    }
}
