//! Converts objects to records, whose values have the form that they have in etcd, and back
//! (kubernetes.md sections 1.4 to 1.9 and 6.2). Members that we do not know are kept: those of a spec in the
//! record, those of metadata beside it.

mod ipam;
mod network;
mod node;
mod pod;
mod profile;
mod resource;

use russet_model::Key;
use serde_json::{Map, Value, json};

use crate::Group;
use crate::companion::Companion;
use crate::place::{Collection, ObjectPlace};

pub(crate) use ipam::is_labelled;
pub(crate) use node::patch as node_patch;
pub(crate) use pod::{
    deletion as pod_deletion, key as pod_key, patch as pod_patch, sandbox as pod_sandbox, uid as pod_uid,
};
pub(crate) use resource::other_name;

/// The annotation in which Calico's metadata travels on objects of the older group.
pub(crate) const METADATA: &str = "projectcalico.org/metadata";

/// How objects are read.
#[derive(Debug, Clone)]
pub(crate) struct Form {
    pub(crate) group: Group,
    /// The prefix of pods' interfaces.
    pub(crate) interface_prefix: String,
}

/// An object as a record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Converted {
    pub(crate) key: Key,
    /// None: a peer has marked it as deleted, which ends the record.
    pub(crate) value: Option<Vec<u8>>,
}

/// An object of the API that has no valid record, or a record that no object can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConvertError(pub(crate) String);

/// Converts an object; none if it never has a record, such as a pod without a node.
pub(crate) fn to_record(
    collection: Collection,
    form: &Form,
    object: &Value,
) -> Result<Option<Converted>, ConvertError> {
    match collection {
        Collection::Blocks => ipam::block(object).map(Some),
        Collection::Affinities => ipam::affinity(object).map(Some),
        Collection::Handles => ipam::handle(object).map(Some),
        Collection::IpamConfig => ipam::config(object).map(Some),
        Collection::Custom(kind) => resource::to_record(kind, form.group, object).map(Some),
        Collection::Openshift(kind) => network::to_record(kind, object).map(Some),
        Collection::Nodes => node::to_record(object).map(Some),
        Collection::Pods => pod::to_record(object, &form.interface_prefix),
        Collection::Namespaces => profile::of_namespace(object).map(Some),
        Collection::ServiceAccounts => profile::of_service_account(object).map(Some),
    }
}

/// The object that holds a record, for POST without a companion and for PUT with one. Only for
/// Calico's own resources.
pub(crate) fn to_object(
    place: &ObjectPlace,
    key: &Key,
    value: &[u8],
    companion: Option<&Companion>,
    group: Group,
) -> Result<Value, ConvertError> {
    let value: Value = serde_json::from_slice(value)
        .map_err(|error| ConvertError(format!("the value is not JSON: {error}")))?;
    let Value::Object(value) = value else {
        return Err(ConvertError("the value is no JSON object".to_owned()));
    };
    let mut object = match place.collection {
        Collection::Custom(kind) => resource::to_object(kind, value, companion, group)?,
        _ => ipam::to_object(place.collection, key, value, companion, group)?,
    };
    let (name, version) = group.parts();
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    let mut identity = Map::new();
    identity.insert("name".to_owned(), json!(place.name));
    if let Some(namespace) = &place.namespace {
        identity.insert("namespace".to_owned(), json!(namespace));
    }
    if let Some(companion) = companion {
        identity.insert("uid".to_owned(), json!(companion.uid));
        identity.insert("resourceVersion".to_owned(), json!(companion.revision.0.to_string()));
    }
    if let Some(members) = metadata.as_object_mut() {
        identity.append(members);
    }
    let mut whole = Map::new();
    whole.insert("apiVersion".to_owned(), json!(format!("{name}/{version}")));
    whole.insert("kind".to_owned(), json!(place.collection.names(group).0));
    whole.insert("metadata".to_owned(), Value::Object(identity));
    object.remove("metadata");
    whole.append(&mut object);
    Ok(Value::Object(whole))
}

/// A member of an object by its JSON pointer.
fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn name_of(object: &Value) -> Result<&str, ConvertError> {
    text(object, "/metadata/name").ok_or_else(|| ConvertError("it has no name".to_owned()))
}

/// An error as the reason of a failed conversion.
fn wrong(error: impl std::fmt::Display) -> ConvertError {
    ConvertError(error.to_string())
}

fn encoded(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

// === impl ConvertError ===

impl std::fmt::Display for ConvertError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConvertError {}

#[cfg(test)]
mod tests;
