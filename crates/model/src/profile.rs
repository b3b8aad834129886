//! Profiles: rules and labels that endpoints inherit by naming them (calico-cni.md sections 2.3 and
//! 2.7). The `calico` plugin creates one for each network without Kubernetes policies.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::ResourceKind;
use crate::json::{DecodeError, Extra, Fields, Object};
use crate::resource::{Resource, Spec, SpecMembers};

/// A profile with its envelope.
pub type Profile = Resource<ProfileSpec>;

/// The content of a profile's record.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProfileSpec {
    /// Rules for incoming packets; the first match counts.
    pub ingress: Vec<ProfileRule>,
    /// Rules for outgoing packets.
    pub egress: Vec<ProfileRule>,
    /// Labels of every endpoint that has the profile.
    pub labels_to_apply: BTreeMap<String, String>,
    /// Members that we do not know.
    pub extra: Extra,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProfileRule {
    /// `Allow`, `Deny`, `Log` or `Pass`.
    pub action: String,
    /// The source.
    pub source: RuleSide,
    /// The destination.
    pub destination: RuleSide,
    /// Protocols and everything else, unchanged.
    pub extra: Extra,
}

/// One side of a rule. All releases up to 3.31 write an empty one, newer ones omit it; both are
/// decoded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RuleSide {
    /// The endpoints; empty is all.
    pub selector: String,
    /// Nets, ports and everything else, unchanged.
    pub extra: Extra,
}

// === impl ProfileSpec ===

impl ProfileSpec {
    /// The profile that a network gives its endpoints: outgoing packets are allowed, incoming ones
    /// from endpoints with the same profile. With Kubernetes, whose pods all have the same rights,
    /// from all.
    pub fn of_network(network: &str, only_from_network: bool) -> Self {
        let selector = if only_from_network { format!("has({network})") } else { String::new() };
        Self {
            ingress: vec![ProfileRule::allow_from(selector)],
            egress: vec![ProfileRule::allow_from(String::new())],
            labels_to_apply: BTreeMap::from([(network.to_owned(), String::new())]),
            extra: Extra::new(),
        }
    }
}

impl Spec for ProfileSpec {
    const KIND: ResourceKind = ResourceKind::Profile;
    const WHAT: &'static str = "profile";

    fn from_members(SpecMembers(mut fields): SpecMembers) -> Result<Self, DecodeError> {
        let (ingress, egress) =
            (ProfileRule::read_all(&mut fields, "ingress")?, ProfileRule::read_all(&mut fields, "egress")?);
        let labels_to_apply = fields.string_map("labelsToApply")?.unwrap_or_default();
        Ok(Self { ingress, egress, labels_to_apply, extra: fields.rest() })
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put_some("ingress", ProfileRule::all_to_value(&self.ingress))
            .put_some("egress", ProfileRule::all_to_value(&self.egress))
            .put_map("labelsToApply", &self.labels_to_apply)
            .finish(&self.extra)
    }
}

// === impl ProfileRule ===

impl ProfileRule {
    fn allow_from(selector: String) -> Self {
        let source = RuleSide { selector, extra: Extra::new() };
        Self { action: "Allow".to_owned(), source, ..Self::default() }
    }

    /// The rules of a list of a spec.
    pub(crate) fn read_all(fields: &mut Fields, name: &str) -> Result<Vec<Self>, DecodeError> {
        fields.objects(name)?.unwrap_or_default().into_iter().map(Self::read).collect()
    }

    /// None without rules, because Go leaves out an empty list.
    pub(crate) fn all_to_value(rules: &[Self]) -> Option<Vec<Value>> {
        (!rules.is_empty()).then(|| rules.iter().map(Self::to_value).collect())
    }

    fn read(mut fields: Fields) -> Result<Self, DecodeError> {
        let action = fields.string("action")?.unwrap_or_default();
        let mut side = |name| fields.object(name)?.map_or_else(|| Ok(RuleSide::default()), RuleSide::read);
        let (source, destination) = (side("source")?, side("destination")?);
        Ok(Self { action, source, destination, extra: fields.rest() })
    }

    pub(crate) fn to_value(&self) -> Value {
        Object::default()
            .put("action", self.action.as_str())
            .put("source", self.source.to_value())
            .put("destination", self.destination.to_value())
            .finish(&self.extra)
    }
}

// === impl RuleSide ===

impl RuleSide {
    fn read(mut fields: Fields) -> Result<Self, DecodeError> {
        let selector = fields.string("selector")?.unwrap_or_default();
        Ok(Self { selector, extra: fields.rest() })
    }

    fn to_value(&self) -> Value {
        Object::default().put_string("selector", &self.selector).finish(&self.extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_of_a_network_is_calicos_byte_for_byte() {
        // calico-cni.md section 2.3
        let mut profile = Profile::new("net1", ProfileSpec::of_network("net1", true));
        profile.metadata.uid = Some("u".to_owned());
        profile.metadata.creation_timestamp = Some("2026-08-22T10:00:00Z".to_owned());
        let text = r#"{"kind":"Profile","apiVersion":"projectcalico.org/v3","metadata":{"name":"net1","uid":"u","creationTimestamp":"2026-08-22T10:00:00Z"},"spec":{"ingress":[{"action":"Allow","source":{"selector":"has(net1)"},"destination":{}}],"egress":[{"action":"Allow","source":{},"destination":{}}],"labelsToApply":{"net1":""}}}"#;
        assert_eq!(String::from_utf8(profile.encode()).unwrap(), text);
        assert_eq!(Profile::decode(text.as_bytes()).unwrap(), profile);
    }

    #[test]
    fn rules_without_sides_are_read_as_newer_releases_write_them() {
        // calico-cni.md section 2.3
        let text = r#"{"kind":"Profile","metadata":{"name":"p"},"spec":{"ingress":[{"action":"Deny","protocol":"UDP"}]}}"#;
        let rule = &Profile::decode(text.as_bytes()).unwrap().spec.ingress[0];
        assert_eq!((rule.action.as_str(), &rule.source), ("Deny", &RuleSide::default()));
        assert_eq!(rule.extra["protocol"], "UDP");
    }

    #[test]
    fn with_kubernetes_everybody_may_come_in() {
        let spec = ProfileSpec::of_network("net1", false);
        assert_eq!(spec.ingress, spec.egress);
    }
}
