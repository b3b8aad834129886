//! The kinds of resources that the verbs know, and the definition of each. A new kind is one more
//! file beside this one and one more line in each list here.

use std::time::SystemTime;

use russet_model::{Resource, ResourceKind, Spec};

use super::Problems;
use super::fields::Field;
use crate::cli::unknown::instead_of_kind;

/// A kind of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// IPPool.
    Pool,
    /// IPReservation.
    Reservation,
    Node,
    Profile,
    /// WorkloadEndpoint.
    Endpoint,
    GlobalNetworkPolicy,
    /// NetworkPolicy of Calico.
    NetworkPolicy,
    /// NetworkPolicy of Kubernetes.
    KubernetesNetworkPolicy,
    ClusterNetworkPolicy,
    StagedGlobalNetworkPolicy,
    StagedNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    Tier,
    GlobalNetworkSet,
    NetworkSet,
    HostEndpoint,
    FelixConfiguration,
}

/// Data for a table besides the stored resource.
#[derive(Debug, Clone)]
pub struct TableContext {
    /// The time to which ages are measured.
    pub now: SystemTime,
    /// The node on which the table is printed, and the state of its agent.
    pub this_node: Option<(String, AgentState)>,
}

/// The state of a node's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentState {
    /// Pods can start.
    Ready,
    /// The agent runs, and pods cannot start.
    NotReady,
    /// No process listens at its socket.
    NotRunning,
}

/// The definition of a kind.
pub trait Definition: Spec {
    /// Its names on the command line besides kind and plural, as in calicoctl.
    const WORDS: &'static [&'static str];
    /// The members of its spec.
    const FIELDS: &'static [Field];
    /// The members of its status; `apply` does not change them.
    const STATUS: &'static [Field];

    /// The heading of its table; more columns when `wide`.
    fn heading(wide: bool) -> &'static [&'static str];

    fn row(resource: &Resource<Self>, wide: bool, seen: &TableContext) -> Vec<String>;

    /// Fills in defaults, and reports what Calico's API would refuse.
    fn check(resource: &mut Resource<Self>, problems: &mut Problems);

    /// The same for a change of a stored resource: copies members to `new` that a file need not
    /// repeat.
    fn check_change(_old: &Resource<Self>, _new: &mut Resource<Self>, _problems: &mut Problems) {}
}

/// Calls a function that is generic over the spec with the spec of a kind.
macro_rules! each_kind {
    ($kind:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        match $kind {
            $crate::resources::Kind::Pool => $function::<russet_model::IpPoolSpec>($($argument),*),
            $crate::resources::Kind::Reservation => $function::<russet_model::IpReservationSpec>($($argument),*),
            $crate::resources::Kind::Node => $function::<russet_model::NodeSpec>($($argument),*),
            $crate::resources::Kind::Profile => $function::<russet_model::ProfileSpec>($($argument),*),
            $crate::resources::Kind::Endpoint => $function::<russet_model::WorkloadEndpointSpec>($($argument),*),
            $crate::resources::Kind::GlobalNetworkPolicy => {
                $function::<russet_model::GlobalNetworkPolicySpec>($($argument),*)
            }
            $crate::resources::Kind::NetworkPolicy => {
                $function::<russet_model::NetworkPolicySpec>($($argument),*)
            }
            $crate::resources::Kind::KubernetesNetworkPolicy => {
                $function::<russet_model::KubernetesNetworkPolicySpec>($($argument),*)
            }
            $crate::resources::Kind::ClusterNetworkPolicy => {
                $function::<russet_model::ClusterNetworkPolicySpec>($($argument),*)
            }
            $crate::resources::Kind::StagedGlobalNetworkPolicy => {
                $function::<russet_model::StagedGlobalNetworkPolicySpec>($($argument),*)
            }
            $crate::resources::Kind::StagedNetworkPolicy => {
                $function::<russet_model::StagedNetworkPolicySpec>($($argument),*)
            }
            $crate::resources::Kind::StagedKubernetesNetworkPolicy => {
                $function::<russet_model::StagedKubernetesNetworkPolicySpec>($($argument),*)
            }
            $crate::resources::Kind::Tier => {
                $function::<russet_model::TierSpec>($($argument),*)
            }
            $crate::resources::Kind::GlobalNetworkSet => {
                $function::<russet_model::GlobalNetworkSetSpec>($($argument),*)
            }
            $crate::resources::Kind::NetworkSet => {
                $function::<russet_model::NetworkSetSpec>($($argument),*)
            }
            $crate::resources::Kind::HostEndpoint => {
                $function::<russet_model::HostEndpointSpec>($($argument),*)
            }
            $crate::resources::Kind::FelixConfiguration => {
                $function::<russet_model::FelixConfigurationSpec>($($argument),*)
            }
        }
    };
}
pub(crate) use each_kind;

// === impl TableContext ===

#[cfg(test)]
impl TableContext {
    /// The context of a table that is not printed on a node of the cluster.
    pub fn elsewhere() -> Self {
        Self { now: SystemTime::UNIX_EPOCH, this_node: None }
    }
}

// === impl Kind ===

impl Kind {
    pub const ALL: [Self; 17] = [
        Self::Pool,
        Self::Reservation,
        Self::Node,
        Self::Profile,
        Self::Endpoint,
        Self::GlobalNetworkPolicy,
        Self::NetworkPolicy,
        Self::KubernetesNetworkPolicy,
        Self::ClusterNetworkPolicy,
        Self::StagedGlobalNetworkPolicy,
        Self::StagedNetworkPolicy,
        Self::StagedKubernetesNetworkPolicy,
        Self::Tier,
        Self::GlobalNetworkSet,
        Self::NetworkSet,
        Self::HostEndpoint,
        Self::FelixConfiguration,
    ];

    /// Its name in keys and files.
    pub fn resource(self) -> ResourceKind {
        fn of<S: Definition>() -> ResourceKind {
            S::KIND
        }
        each_kind!(self, of())
    }

    /// The kinds whose documents have this `kind`; they differ in `apiVersion`.
    pub fn named(name: &str) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |kind| kind.resource().document().1 == name)
    }

    /// Every name of it on the command line.
    fn words(self) -> Vec<String> {
        fn of<S: Definition>() -> &'static [&'static str] {
            S::WORDS
        }
        let resource = self.resource();
        let own = [resource.kind().to_lowercase(), resource.plural().to_owned()];
        own.into_iter().chain(each_kind!(self, of()).iter().map(|word| (*word).to_owned())).collect()
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = text.to_lowercase();
        let found = Self::ALL.into_iter().find(|kind| kind.words().contains(&wanted));
        found.ok_or_else(|| {
            if let Some(instead) = instead_of_kind(&wanted) {
                return instead.to_owned();
            }
            let known = Self::ALL.map(|kind| kind.resource().plural()).join(", ");
            format!("there are {known}; and shorter words for them, as pool, node, wep")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calicoctls_names_of_kinds_are_accepted() {
        for (word, kind) in [
            ("ippool", Kind::Pool),
            ("IPPools", Kind::Pool),
            ("pool", Kind::Pool),
            ("ipreservations", Kind::Reservation),
            ("nodes", Kind::Node),
            ("profile", Kind::Profile),
            ("wep", Kind::Endpoint),
            ("workloadendpoints", Kind::Endpoint),
            ("gnp", Kind::GlobalNetworkPolicy),
            ("networkPolicy", Kind::NetworkPolicy),
            ("policies", Kind::NetworkPolicy),
            ("netpol", Kind::KubernetesNetworkPolicy),
            ("clusternetworkpolicy", Kind::ClusterNetworkPolicy),
            ("clusterNetworkPolicies", Kind::ClusterNetworkPolicy),
            ("cnp", Kind::ClusterNetworkPolicy),
            ("felixconfig", Kind::FelixConfiguration),
            ("felixconfigurations", Kind::FelixConfiguration),
            ("tier", Kind::Tier),
            ("netsets", Kind::NetworkSet),
            ("hep", Kind::HostEndpoint),
        ] {
            assert_eq!(word.parse(), Ok(kind), "{word}");
        }
        assert!("gadget".parse::<Kind>().unwrap_err().contains("ippools"));
        assert!("bgppeer".parse::<Kind>().unwrap_err().contains("BGP"));
    }

    #[test]
    fn names_of_kinds_are_unique() {
        let mut words: Vec<String> = Kind::ALL.into_iter().flat_map(Kind::words).collect();
        let all = words.len();
        words.sort();
        words.dedup();
        assert_eq!(words.len(), all);
    }
}
