//! Profiles, which Calico derives from namespaces and service accounts (kubernetes.md section 1.9).

use russet_model::{API_VERSION, Key};
use serde_json::{Map, Value, json};

use super::{ConvertError, Converted, encoded, name_of, text, wrong};
use crate::names::converted_uid;
use crate::place::{OF_NAMESPACE, OF_SERVICE_ACCOUNT};

/// The profile of a namespace: it allows everything, and gives its labels to the pods.
pub(super) fn of_namespace(object: &Value) -> Result<Converted, ConvertError> {
    let name = name_of(object)?;
    let allow = json!([{ "action": "Allow", "source": {}, "destination": {} }]);
    let spec = json!({ "ingress": allow, "egress": allow, "labelsToApply": labels(object, "pcns.", name) });
    profile(&format!("{OF_NAMESPACE}{name}"), object, spec)
}

/// The profile of a service account: labels only.
pub(super) fn of_service_account(object: &Value) -> Result<Converted, ConvertError> {
    let name = name_of(object)?;
    let namespace = text(object, "/metadata/namespace").unwrap_or_default();
    let spec = json!({ "labelsToApply": labels(object, "pcsa.", name) });
    profile(&format!("{OF_SERVICE_ACCOUNT}{namespace}.{name}"), object, spec)
}

fn labels(object: &Value, prefix: &str, name: &str) -> Map<String, Value> {
    let of_object = object.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
    let mut labels: Map<String, Value> =
        of_object.map(|(name, value)| (format!("{prefix}{name}"), value.clone())).collect();
    labels.insert(format!("{prefix}projectcalico.org/name"), json!(name));
    labels
}

fn profile(name: &str, object: &Value, spec: Value) -> Result<Converted, ConvertError> {
    let key = Key::profile(name).map_err(wrong)?;
    let uid = text(object, "/metadata/uid").map(|uid| converted_uid(uid).unwrap_or_else(|| uid.to_owned()));
    let metadata =
        json!({ "name": name, "uid": uid, "creationTimestamp": text(object, "/metadata/creationTimestamp") });
    let value = json!({ "kind": "Profile", "apiVersion": API_VERSION, "metadata": metadata, "spec": spec });
    Ok(Converted { key, value: Some(encoded(&value)) })
}
