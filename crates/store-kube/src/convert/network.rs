//! OpenShift's networks: the record is the object, with all members, except what the API server keeps
//! about its own writes (kubernetes.md section 6.2).

use russet_addr::NodeName;
use russet_model::Key;
use russet_model::openshift::{
    ClusterNetwork, Namespace, clusternetwork_key, hostsubnet_key, netnamespace_key,
};
use serde_json::{Value, json};

use super::{ConvertError, Converted, encoded, name_of, wrong};
use crate::Group;
use crate::place::{Collection, Network};

/// Members of metadata that change with every write, and say nothing.
const OF_THE_SERVER: [&str; 4] = ["resourceVersion", "generation", "managedFields", "selfLink"];

/// The record of a network.
pub(super) fn to_record(kind: Network, object: &Value) -> Result<Converted, ConvertError> {
    let key = key(kind, name_of(object)?)?;
    let mut record = object.clone();
    if let Some(members) = record.as_object_mut() {
        // Items of lists may lack both.
        members.entry("apiVersion").or_insert_with(|| json!("network.openshift.io/v1"));
        members.entry("kind").or_insert_with(|| json!(Collection::Openshift(kind).names(Group::V1).0));
    }
    if let Some(metadata) = record.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|name, _| !OF_THE_SERVER.contains(&name.as_str()));
    }
    Ok(Converted { key, value: Some(encoded(&record)) })
}

fn key(kind: Network, name: &str) -> Result<Key, ConvertError> {
    match kind {
        Network::Namespace => Namespace::new(name).map(|name| netnamespace_key(&name)).map_err(wrong),
        Network::Host => NodeName::new(name).map(|name| hostsubnet_key(&name)).map_err(wrong),
        Network::Cluster if name == ClusterNetwork::DEFAULT => Ok(clusternetwork_key()),
        Network::Cluster => Err(wrong("OpenShift uses the name default only")),
    }
}
