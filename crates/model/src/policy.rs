//! The resources of network policy: policies, tiers, sets and host endpoints (policy.md section 1.4).
//! They are stored as they were written; `russet_verdict::translate` says what they mean.

use serde_json::Value;

use crate::ResourceKind;
use crate::json::{DecodeError, Extra, Object};
use crate::profile::ProfileRule;
use crate::resource::{Spec, SpecMembers};

/// Calico's policies, enforced and staged: the same members in each.
macro_rules! calico_policies {
    ($($(#[$doc:meta])* $spec:ident $kind:ident $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct $spec(
            /// Its members.
            pub CalicoPolicy,
        );

        impl Spec for $spec {
            const KIND: ResourceKind = ResourceKind::$kind;
            const WHAT: &'static str = $what;

            fn from_members(members: SpecMembers) -> Result<Self, DecodeError> {
                CalicoPolicy::read(members).map(Self)
            }

            fn to_value(&self) -> Value {
                self.0.to_value()
            }
        }

        impl AsMut<CalicoPolicy> for $spec {
            fn as_mut(&mut self) -> &mut CalicoPolicy {
                &mut self.0
            }
        }
    )*};
}

/// Specs of which Russet changes nothing.
macro_rules! plain_specs {
    ($($(#[$doc:meta])* $spec:ident $kind:ident $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct $spec(
            /// Its members, unchanged.
            pub Extra,
        );

        impl Spec for $spec {
            const KIND: ResourceKind = ResourceKind::$kind;
            const WHAT: &'static str = $what;

            fn from_members(SpecMembers(fields): SpecMembers) -> Result<Self, DecodeError> {
                Ok(Self(fields.rest()))
            }

            fn to_value(&self) -> Value {
                Value::Object(self.0.clone())
            }
        }
    )*};
}

calico_policies! {
    /// The spec of a GlobalNetworkPolicy.
    GlobalNetworkPolicySpec GlobalNetworkPolicy "global network policy";
    /// The spec of a NetworkPolicy of Calico.
    NetworkPolicySpec NetworkPolicy "network policy";
    /// The spec of a StagedGlobalNetworkPolicy.
    StagedGlobalNetworkPolicySpec StagedGlobalNetworkPolicy "staged global network policy";
    /// The spec of a StagedNetworkPolicy.
    StagedNetworkPolicySpec StagedNetworkPolicy "staged network policy";
}

plain_specs! {
    /// The spec of a ClusterNetworkPolicy.
    ClusterNetworkPolicySpec ClusterNetworkPolicy "cluster network policy";
    /// The spec of a NetworkPolicy of Kubernetes.
    KubernetesNetworkPolicySpec KubernetesNetworkPolicy "Kubernetes network policy";
    /// The spec of a StagedKubernetesNetworkPolicy.
    StagedKubernetesNetworkPolicySpec StagedKubernetesNetworkPolicy "staged Kubernetes network policy";
    /// The spec of a Tier.
    TierSpec Tier "tier";
    /// The spec of a GlobalNetworkSet.
    GlobalNetworkSetSpec GlobalNetworkSet "global network set";
    /// The spec of a NetworkSet.
    NetworkSetSpec NetworkSet "network set";
    /// The spec of a HostEndpoint.
    HostEndpointSpec HostEndpoint "host endpoint";
}

/// The members of Calico's policies.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CalicoPolicy {
    /// The tier; empty is `default`.
    pub tier: String,
    /// The place in the tier, a number.
    pub order: Option<Value>,
    /// Rules for incoming packets; the first match counts.
    pub ingress: Vec<ProfileRule>,
    /// Rules for outgoing packets.
    pub egress: Vec<ProfileRule>,
    /// The endpoints to which it applies; empty is all.
    pub selector: String,
    /// `Ingress`, `Egress`.
    pub types: Vec<String>,
    /// Other members, unchanged.
    pub extra: Extra,
}

// === impl CalicoPolicy ===

impl CalicoPolicy {
    fn read(SpecMembers(mut fields): SpecMembers) -> Result<Self, DecodeError> {
        let (ingress, egress) =
            (ProfileRule::read_all(&mut fields, "ingress")?, ProfileRule::read_all(&mut fields, "egress")?);
        Ok(Self {
            tier: fields.string("tier")?.unwrap_or_default(),
            order: fields.value("order"),
            ingress,
            egress,
            selector: fields.string("selector")?.unwrap_or_default(),
            types: fields.strings("types")?,
            extra: fields.rest(),
        })
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put_string("tier", &self.tier)
            .put_some("order", self.order.clone())
            .put_some("ingress", ProfileRule::all_to_value(&self.ingress))
            .put_some("egress", ProfileRule::all_to_value(&self.egress))
            .put_string("selector", &self.selector)
            .put_list("types", &self.types)
            .finish(&self.extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resource;

    #[test]
    fn policies_are_written_as_calicoctl_writes_them() {
        // policy.md section 1.9
        for text in [
            r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.all","uid":"aa5b4223-3716-4835-8254-f264db93fa0c","creationTimestamp":"2026-11-24T00:08:13Z"},"spec":{"order":3,"ingress":[{"action":"Allow","source":{"namespaceSelector":"global()"},"destination":{}}],"types":["Ingress"],"doNotTrack":true,"applyOnForward":true,"namespaceSelector":"env != 'x'"}}"#,
            r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"db","uid":"u","creationTimestamp":"t"},"spec":{"tier":"default","order":-1.5,"egress":[{"action":"Pass","source":{},"destination":{}}],"selector":"app == 'db'","types":["Egress"]}}"#,
        ] {
            let policy = Resource::<GlobalNetworkPolicySpec>::decode(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(policy.encode()).unwrap(), text);
        }
    }

    #[test]
    fn a_policy_of_kubernetes_keeps_its_version_and_kind() {
        let text = r#"{"kind":"NetworkPolicy","apiVersion":"networking.k8s.io/v1","metadata":{"name":"p","namespace":"shop","uid":"u","creationTimestamp":"t"},"spec":{"podSelector":{}}}"#;
        let policy = Resource::<KubernetesNetworkPolicySpec>::decode(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(policy.encode()).unwrap(), text);
        assert!(
            Resource::<KubernetesNetworkPolicySpec>::decode(text.replace("NetworkPolicy", "Pod").as_bytes())
                .is_err()
        );
    }
}
