//! The only kind of write: a strategic merge patch of annotations and conditions, sent to an
//! object's `status` subresource.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::Condition;

/// The changes of a patch. Everything else stays as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatusPatch {
    /// The expected uid; if it differs, the error is [`Replaced`](crate::KubeError::Replaced).
    pub uid: Option<String>,
    /// The expected revision; if it differs, the error is [`Conflict`](crate::KubeError::Conflict).
    pub resource_version: Option<String>,
    /// Annotations to set, byte for byte, or with `None` to remove.
    pub annotations: BTreeMap<String, Option<String>>,
    /// Conditions to set; the server merges them by type.
    pub conditions: Vec<Condition>,
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, Option<String>>,
}

#[derive(Serialize)]
struct Status<'a> {
    conditions: &'a [Condition],
}

// === impl StatusPatch ===

impl StatusPatch {
    /// A patch that sets these annotations, unconditionally.
    pub fn of_annotations<K: Into<String>, V: Into<String>>(
        annotations: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let annotations = annotations.into_iter().map(|(key, value)| (key.into(), Some(value.into())));
        Self { annotations: annotations.collect(), ..Self::default() }
    }

    /// A patch that sets one condition.
    pub fn of_condition(condition: Condition) -> Self {
        Self { conditions: vec![condition], ..Self::default() }
    }

    /// Applies only if the object has this uid.
    #[must_use]
    pub fn with_uid(mut self, uid: impl Into<String>) -> Self {
        self.uid = Some(uid.into());
        self
    }

    /// Applies only if the object has this revision.
    #[must_use]
    pub fn with_resource_version(mut self, version: impl Into<String>) -> Self {
        self.resource_version = Some(version.into());
        self
    }

    /// The JSON to send.
    pub fn to_json(&self) -> String {
        let metadata = Metadata {
            uid: self.uid.as_deref(),
            resource_version: self.resource_version.as_deref(),
            annotations: &self.annotations,
        };
        let conditions = self.conditions.as_slice();
        let status = (!conditions.is_empty()).then_some(Status { conditions });
        // Only maps with text keys and text values, which JSON can always encode.
        serde_json::to_string(&Body { metadata, status }).unwrap_or_default()
    }
}

// === impl Metadata ===

impl Metadata<'_> {
    fn is_empty(&self) -> bool {
        self.uid.is_none() && self.resource_version.is_none() && self.annotations.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_addresses_are_patched_as_calico_does_it() {
        // calico-cni.md section 2.2.4
        let patch = StatusPatch::of_annotations([
            ("cni.projectcalico.org/podIP", "10.65.7.13/32"),
            ("cni.projectcalico.org/containerID", "4be1"),
        ])
        .with_uid("0d3f");
        assert_eq!(
            patch.to_json(),
            r#"{"metadata":{"uid":"0d3f","annotations":{"cni.projectcalico.org/containerID":"4be1","cni.projectcalico.org/podIP":"10.65.7.13/32"}}}"#
        );
        let emptied = StatusPatch::of_annotations([("cni.projectcalico.org/podIP", "")])
            .with_uid("0d3f")
            .with_resource_version("41");
        assert_eq!(
            emptied.to_json(),
            r#"{"metadata":{"uid":"0d3f","resourceVersion":"41","annotations":{"cni.projectcalico.org/podIP":""}}}"#
        );
    }

    #[test]
    fn flannels_condition_and_an_empty_patch_have_no_metadata() {
        // flannel.md section 5.2, steps 5 and 6
        let condition = Condition {
            kind: "NetworkUnavailable".to_owned(),
            status: "False".to_owned(),
            reason: "FlannelIsUp".to_owned(),
            last_heartbeat_time: Some("2026-01-02T03:04:05Z".to_owned()),
            ..Condition::default()
        };
        assert_eq!(
            StatusPatch::of_condition(condition).to_json(),
            r#"{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"FlannelIsUp","lastHeartbeatTime":"2026-01-02T03:04:05Z"}]}}"#
        );
        assert_eq!(StatusPatch::default().to_json(), "{}");
    }

    #[test]
    fn an_annotation_is_removed_by_null() {
        let patch = StatusPatch { annotations: [("a".to_owned(), None)].into(), ..StatusPatch::default() };
        assert_eq!(patch.to_json(), r#"{"metadata":{"annotations":{"a":null}}}"#);
    }
}
