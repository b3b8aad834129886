//! Resources as they are printed: YAML, JSON, and lists of them, which `apply` can read.

use russet_kube::yaml::{self, YamlError};
use russet_model::Resource;
use russet_store::Revision;
use serde_json::{Value, json};

use super::Definition;

pub struct Shown<S> {
    pub resource: Resource<S>,
    /// Its revision, which is its `resourceVersion` (calico-ipam.md section 1.8).
    pub revision: Revision,
}

/// A resource with its `resourceVersion`.
pub fn value<S: Definition>(shown: &Shown<S>) -> Value {
    let mut value = shown.resource.to_value();
    value["metadata"]["resourceVersion"] = shown.revision.0.to_string().into();
    value
}

/// Several resources of a kind in one object.
pub fn list_value<S: Definition>(shown: &[Shown<S>], revision: Revision) -> Value {
    let items: Vec<Value> = shown.iter().map(value).collect();
    let (version, kind) = S::KIND.document();
    json!({
        "kind": format!("{kind}List"),
        "apiVersion": version,
        "metadata": { "resourceVersion": revision.0.to_string() },
        "items": items,
    })
}

/// Removes members that are specific to this cluster from a resource or a list.
pub fn make_portable(value: &mut Value) {
    for item in value.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        make_portable(item);
    }
    let Some(members) = value.as_object_mut() else { return };
    members.shift_remove("status");
    if let Some(metadata) = members.get_mut("metadata").and_then(Value::as_object_mut) {
        for name in ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"] {
            metadata.shift_remove(name);
        }
    }
}

/// As YAML, with the newline at its end.
pub fn yaml(value: &Value) -> Result<String, YamlError> {
    yaml::to_string(value)
}
