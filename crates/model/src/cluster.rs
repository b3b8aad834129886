//! The cluster's information: whether its datastore may be used (calico-cni.md section 2.1, step 9).

use serde_json::Value;

use crate::ResourceKind;
use crate::json::{DecodeError, Extra, Object};
use crate::resource::{Resource, Spec, SpecMembers};

/// The cluster's information with its envelope; there is one, called
/// [`ClusterInformationSpec::NAME`].
pub type ClusterInformation = Resource<ClusterInformationSpec>;

/// The information.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClusterInformationSpec {
    /// Random, 32 hexadecimal digits.
    pub cluster_guid: String,
    /// `k8s,bgp,kubeadm`, ...
    pub cluster_type: String,
    /// The release of Calico that wrote it.
    pub calico_version: String,
    /// False while an upgrade has the datastore locked.
    pub datastore_ready: Option<bool>,
    /// Members that we do not know.
    pub extra: Extra,
}

// === impl ClusterInformationSpec ===

impl ClusterInformationSpec {
    /// The name of the only one.
    pub const NAME: &'static str = "default";
}

impl Spec for ClusterInformationSpec {
    const KIND: ResourceKind = ResourceKind::ClusterInformation;
    const WHAT: &'static str = "cluster information";

    fn from_members(SpecMembers(mut fields): SpecMembers) -> Result<Self, DecodeError> {
        let mut text = |name| fields.string(name).map(Option::unwrap_or_default);
        let (cluster_guid, cluster_type) = (text("clusterGUID")?, text("clusterType")?);
        let calico_version = text("calicoVersion")?;
        let datastore_ready = fields.boolean("datastoreReady")?;
        Ok(Self { cluster_guid, cluster_type, calico_version, datastore_ready, extra: fields.rest() })
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put_string("clusterGUID", &self.cluster_guid)
            .put_string("clusterType", &self.cluster_type)
            .put_string("calicoVersion", &self.calico_version)
            .put_some("datastoreReady", self.datastore_ready)
            .finish(&self.extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_information_survives_a_round_trip_byte_for_byte() {
        // calico-ipam.md section 1.8
        let text = r#"{"kind":"ClusterInformation","apiVersion":"projectcalico.org/v3","metadata":{"name":"default","uid":"u","creationTimestamp":"2026-01-02T03:00:00Z"},"spec":{"clusterGUID":"ba5e","clusterType":"k8s,bgp","calicoVersion":"v3.32.1","datastoreReady":true,"variant":"Calico"}}"#;
        let information = ClusterInformation::decode(text.as_bytes()).unwrap();
        assert_eq!(information.spec.datastore_ready, Some(true));
        assert_eq!(String::from_utf8(information.encode()).unwrap(), text);
    }
}
