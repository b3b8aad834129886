//! Calico's v3 resources, as etcd and `crd.projectcalico.org` hold them (policy.md sections 1.4,
//! 1.6, 1.7 and 1.9).

mod objects;
mod policy;
mod rule;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::read::Metadata;
use crate::ir::Problem;

pub(super) use objects::{
    felix_settings, host_endpoint, network_set, profile, set_id, tier, workload_endpoint,
};
pub(super) use policy::{policy, read as converted_policy, staged_action};

/// The annotation with the v3 metadata of an object that is a custom resource.
const METADATA: &str = "projectcalico.org/metadata";

/// The v3 metadata beside an object's own, if there is any that can be read.
fn carried(metadata: &Metadata<'_>) -> Option<Value> {
    serde_json::from_str(metadata.annotation(METADATA)?).ok()
}

/// The labels of an object; those of the carried metadata win.
fn labels(metadata: &Metadata<'_>) -> Result<BTreeMap<Arc<str>, Arc<str>>, Problem> {
    let mut labels = metadata.labels()?;
    if let Some(carried) = carried(metadata).as_ref().and_then(|carried| carried.get("labels")?.as_object()) {
        let texts =
            carried.iter().filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())));
        labels.extend(texts);
    }
    Ok(labels)
}

/// The name of a policy: that of the carried metadata, or the key's without the prefix that
/// releases up to 3.31 gave it.
fn shown_name(metadata: &Metadata<'_>, tier: &str) -> Arc<str> {
    let carried = carried(metadata);
    let carried = carried.as_ref().and_then(|carried| carried.get("name")?.as_str());
    let stripped = metadata.name.strip_prefix("default.").filter(|_| tier == super::DEFAULT_TIER);
    carried.filter(|name| !name.is_empty()).or(stripped).unwrap_or(metadata.name).into()
}

#[cfg(test)]
mod tests;
