//! Calico's own resources. In the newer group their objects are what etcd has; in the older one the
//! object only carries them: Calico's metadata is in an annotation (kubernetes.md section 1.4).

use russet_model::{API_VERSION, Key, ResourceKind};
use serde_json::{Map, Value, json};

use super::{ConvertError, Converted, METADATA, encoded, name_of, text, wrong};
use crate::Group;
use crate::companion::Companion;
use crate::names::converted_uid;

type Object = Map<String, Value>;

/// Labels and annotations with these in their names are also on the object itself.
const ON_THE_OBJECT: [&str; 2] = ["projectcalico.org/", "operator.tigera.io/"];
/// Members of metadata whose value comes from the object, or that records never have.
const OF_THE_OBJECT: [&str; 8] =
    ["name", "namespace", "uid", "resourceVersion", "selfLink", "managedFields", "labels", "annotations"];
/// The prefix of the names of policies' objects before Calico 3.32.
const OLD_POLICY: &str = "default.";

/// The record of a resource.
pub(super) fn to_record(kind: ResourceKind, group: Group, object: &Value) -> Result<Converted, ConvertError> {
    let carried = match group {
        Group::V1 => carried(object)?,
        Group::V3 => Object::new(),
    };
    let name = record_name(kind, object, &carried)?;
    let namespace = text(object, "/metadata/namespace").filter(|_| kind.namespaced());
    let key = Key::resource(kind, namespace, name).map_err(wrong)?;
    let mut metadata = Object::new();
    metadata.insert("name".to_owned(), json!(name));
    if let Some(namespace) = namespace {
        metadata.insert("namespace".to_owned(), json!(namespace));
    }
    if let Some(uid) = text(object, "/metadata/uid") {
        let shown = if group == Group::V1 { converted_uid(uid) } else { None };
        metadata.insert("uid".to_owned(), json!(shown.unwrap_or_else(|| uid.to_owned())));
    }
    let of_object = object.get("metadata").and_then(Value::as_object);
    let creation = carried.get("creationTimestamp").filter(|time| !time.is_null());
    let creation = creation.or_else(|| of_object?.get("creationTimestamp")).cloned().unwrap_or(Value::Null);
    metadata.insert("creationTimestamp".to_owned(), creation);
    if let Some(deletion) = of_object.and_then(|all| all.get("deletionTimestamp")) {
        metadata.insert("deletionTimestamp".to_owned(), deletion.clone());
    }
    for member in ["labels", "annotations"] {
        let mut merged = of_object.and_then(|all| all.get(member)?.as_object().cloned()).unwrap_or_default();
        merged.remove(METADATA);
        merged.extend(carried.get(member).and_then(Value::as_object).cloned().unwrap_or_default());
        if !merged.is_empty() {
            metadata.insert(member.to_owned(), Value::Object(merged));
        }
    }
    let rest = if group == Group::V1 { Some(&carried) } else { of_object };
    for (name, member) in rest.into_iter().flatten() {
        if !OF_THE_OBJECT.contains(&name.as_str()) && name != "generation" && !metadata.contains_key(name) {
            metadata.insert(name.clone(), member.clone());
        }
    }
    let mut value = Object::new();
    value.insert("kind".to_owned(), json!(kind.kind()));
    value.insert("apiVersion".to_owned(), json!(API_VERSION));
    value.insert("metadata".to_owned(), Value::Object(metadata));
    let others = object.as_object().into_iter().flatten();
    for (name, member) in
        others.filter(|(name, _)| !matches!(name.as_str(), "kind" | "apiVersion" | "metadata"))
    {
        value.insert(name.clone(), member.clone());
    }
    value.entry("spec").or_insert_with(|| json!({}));
    Ok(Converted { key, value: Some(encoded(&Value::Object(value))) })
}

/// The object of a record, without its identity.
pub(super) fn to_object(
    kind: ResourceKind,
    mut value: Object,
    companion: Option<&Companion>,
    group: Group,
) -> Result<Object, ConvertError> {
    if is_policy(kind) && group == Group::V1 {
        return Err(ConvertError(format!("{} are not written to {group} yet", kind.plural())));
    }
    for name in ["kind", "apiVersion"] {
        value.remove(name);
    }
    let Some(Value::Object(mut given)) = value.remove("metadata") else {
        return Err(ConvertError("the value has no metadata".to_owned()));
    };
    for name in ["name", "namespace", "resourceVersion", "selfLink"] {
        given.remove(name);
    }
    let known = companion.map(|companion| &companion.metadata);
    let metadata = match group {
        Group::V1 => carrier(&given, known),
        Group::V3 => {
            given.remove("uid");
            given.retain(|name, member| !(name == "creationTimestamp" && member.is_null()));
            given
        }
    };
    value.insert("metadata".to_owned(), Value::Object(metadata));
    Ok(value)
}

/// The metadata of an object that carries Calico's. Of what the object had, the owners, the
/// finalizers and all labels and annotations that the record still has stay on it.
fn carrier(given: &Object, known: Option<&Object>) -> Object {
    let mut metadata = Object::new();
    for name in ["finalizers", "ownerReferences"] {
        if let Some(member) = known.and_then(|known| known.get(name)) {
            metadata.insert(name.to_owned(), member.clone());
        }
    }
    for member in ["labels", "annotations"] {
        let had = known.and_then(|known| known.get(member)?.as_object());
        let is_kept = |name: &str| {
            ON_THE_OBJECT.iter().any(|part| name.contains(part))
                || had.is_some_and(|had| had.contains_key(name))
        };
        let all = given.get(member).and_then(Value::as_object).into_iter().flatten();
        let kept: Object = all
            .filter(|(name, _)| is_kept(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !kept.is_empty() {
            metadata.insert(member.to_owned(), Value::Object(kept));
        }
    }
    let mut carried = given.clone();
    carried.entry("creationTimestamp").or_insert(Value::Null);
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(METADATA.to_owned(), json!(Value::Object(carried).to_string()));
    }
    metadata
}

/// Calico's metadata from the annotation.
fn carried(object: &Value) -> Result<Object, ConvertError> {
    let annotation = object.pointer("/metadata/annotations").and_then(|all| all.get(METADATA)?.as_str());
    match annotation {
        None => Ok(Object::new()),
        Some(text) => {
            serde_json::from_str(text).map_err(|error| wrong(format!("annotation {METADATA}: {error}")))
        }
    }
}

/// The name of a resource: that of its object, except of old policies.
fn record_name<'a>(
    kind: ResourceKind,
    object: &'a Value,
    carried: &'a Object,
) -> Result<&'a str, ConvertError> {
    let name = name_of(object)?;
    if !is_policy(kind) {
        return Ok(name);
    }
    let in_default_tier = matches!(text(object, "/spec/tier"), None | Some("default"));
    let cut = name.strip_prefix(OLD_POLICY).filter(|_| in_default_tier).unwrap_or(name);
    Ok(carried.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()).unwrap_or(cut))
}

/// The other object that may have the record of this one: before Calico 3.32 the object of policy `p`
/// was `default.p`, and both may exist.
pub(crate) fn other_name(kind: ResourceKind, group: Group, object: &Value) -> Option<String> {
    let name = text(object, "/metadata/name").filter(|_| is_policy(kind) && group == Group::V1)?;
    Some(name.strip_prefix(OLD_POLICY).map_or_else(|| format!("{OLD_POLICY}{name}"), str::to_owned))
}

/// Whether it is a policy in a tier, whose object had its tier's name in its own.
fn is_policy(kind: ResourceKind) -> bool {
    use ResourceKind::{GlobalNetworkPolicy, NetworkPolicy, StagedGlobalNetworkPolicy, StagedNetworkPolicy};
    matches!(kind, GlobalNetworkPolicy | NetworkPolicy | StagedGlobalNetworkPolicy | StagedNetworkPolicy)
}
