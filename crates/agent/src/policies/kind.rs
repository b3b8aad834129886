//! The kinds of objects that decide, and which of them an agent watches.

use russet_model::ResourceKind;

/// A kind of objects of the Kubernetes API, or of records of the agent's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    NetworkPolicies,
    ClusterNetworkPolicies,
    Namespaces,
    ServiceAccounts,
    Pods,
    Nodes,
    EndpointSlices,
    /// Calico's resources.
    Records(ResourceKind),
}

/// What policies depend on besides themselves, as far as it has to be watched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wants {
    /// Endpoints, their profiles, tiers and sets: there is a policy, or a host endpoint of this node.
    pub peers: bool,
    /// A policy names nodes.
    pub nodes: bool,
    /// A policy names Services.
    pub services: bool,
}

/// Where the agent's store is, which says what describes the cluster's endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In the Kubernetes API: pods, with the profiles of their namespaces and service accounts.
    Kubernetes,
    /// Elsewhere: workload endpoints and profiles, as Calico has them in etcd.
    Records,
}

use Kind::Records;
use ResourceKind::{
    ClusterNetworkPolicy, FelixConfiguration, GlobalNetworkPolicy, GlobalNetworkSet, HostEndpoint,
    KubernetesNetworkPolicy, NetworkPolicy, NetworkSet, Profile, StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy, StagedNetworkPolicy, Tier, WorkloadEndpoint,
};

// === impl Wants ===

impl Wants {
    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self {
            peers: self.peers || other.peers,
            nodes: self.nodes || other.nodes,
            services: self.services || other.services,
        }
    }

    /// Whether they have anything in common.
    pub fn meets(self, other: Self) -> bool {
        self.peers && other.peers || self.nodes && other.nodes || self.services && other.services
    }

    /// Whether objects of this kind have to be watched. Some always are.
    pub fn covers(self, kind: Kind) -> bool {
        match kind {
            Kind::Nodes => self.nodes,
            Kind::EndpointSlices => self.services,
            kind => self.peers || kind.is_always_watched(),
        }
    }
}

// === impl Source ===

impl Source {
    /// What is watched.
    pub const fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Kubernetes => &[
                Kind::NetworkPolicies,
                Kind::ClusterNetworkPolicies,
                Records(GlobalNetworkPolicy),
                Records(NetworkPolicy),
                Records(Tier),
                Records(GlobalNetworkSet),
                Records(NetworkSet),
                Records(HostEndpoint),
                Records(FelixConfiguration),
                Kind::Namespaces,
                Kind::ServiceAccounts,
                Kind::Pods,
                Kind::Nodes,
                Kind::EndpointSlices,
                Records(StagedGlobalNetworkPolicy),
                Records(StagedNetworkPolicy),
                Records(StagedKubernetesNetworkPolicy),
            ],
            Self::Records => &[
                Records(GlobalNetworkPolicy),
                Records(NetworkPolicy),
                Records(KubernetesNetworkPolicy),
                Records(ClusterNetworkPolicy),
                Records(Tier),
                Records(GlobalNetworkSet),
                Records(NetworkSet),
                Records(HostEndpoint),
                Records(FelixConfiguration),
                Records(Profile),
                Records(WorkloadEndpoint),
                Records(StagedGlobalNetworkPolicy),
                Records(StagedNetworkPolicy),
                Records(StagedKubernetesNetworkPolicy),
            ],
        }
    }
}

// === impl Kind ===

impl Kind {
    /// The group and version of its API, and its plural.
    pub const fn resource(self) -> (&'static str, &'static str) {
        match self {
            Self::NetworkPolicies => ("networking.k8s.io/v1", "networkpolicies"),
            Self::ClusterNetworkPolicies => ("policy.networking.k8s.io/v1alpha2", "clusternetworkpolicies"),
            Self::Namespaces => ("v1", "namespaces"),
            Self::ServiceAccounts => ("v1", "serviceaccounts"),
            Self::Pods => ("v1", "pods"),
            Self::Nodes => ("v1", "nodes"),
            Self::EndpointSlices => ("discovery.k8s.io/v1", "endpointslices"),
            Self::Records(kind) => (kind.document().0, kind.plural()),
        }
    }

    /// The `kind` of its objects, which lists leave out.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NetworkPolicies => "NetworkPolicy",
            Self::ClusterNetworkPolicies => "ClusterNetworkPolicy",
            Self::Namespaces => "Namespace",
            Self::ServiceAccounts => "ServiceAccount",
            Self::Pods => "Pod",
            Self::Nodes => "Node",
            Self::EndpointSlices => "EndpointSlice",
            Self::Records(kind) => kind.document().1,
        }
    }

    /// Whether a cluster may lack its definition.
    pub const fn is_optional(self) -> bool {
        matches!(self, Self::ClusterNetworkPolicies)
    }

    /// Whether its objects are staged policies, which decide nothing.
    pub const fn is_staged(self) -> bool {
        matches!(
            self,
            Self::Records(StagedGlobalNetworkPolicy | StagedNetworkPolicy | StagedKubernetesNetworkPolicy)
        )
    }

    /// Whether its objects are watched always: policies, and what denies without one: host endpoints, and
    /// Felix's settings, which may close the node to its pods.
    pub const fn is_always_watched(self) -> bool {
        self.is_policy() || matches!(self, Self::Records(HostEndpoint | FelixConfiguration))
    }

    /// Whether its objects are policies; the others are needed only if there is one.
    pub const fn is_policy(self) -> bool {
        matches!(
            self,
            Self::NetworkPolicies
                | Self::ClusterNetworkPolicies
                | Self::Records(
                    GlobalNetworkPolicy | NetworkPolicy | KubernetesNetworkPolicy | ClusterNetworkPolicy
                )
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_policies_are_watched_in_every_store_and_no_decision_waits_for_them() {
        let staged = [StagedGlobalNetworkPolicy, StagedNetworkPolicy, StagedKubernetesNetworkPolicy];
        for source in [Source::Kubernetes, Source::Records] {
            for kind in staged.map(Records) {
                assert!(source.kinds().contains(&kind), "{source:?}, {kind:?}");
                assert!(kind.is_staged() && !kind.is_always_watched(), "{kind:?}");
            }
        }
    }
}
