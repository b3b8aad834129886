//! What decisions depend on besides policies, and how it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::{IfName, IpNet, NodeName};

use crate::felix::FelixSettings;
use crate::ir::{Policy, PolicyId, Profile, Protocol, ServiceId, Tier};

/// A change of one object. `None` deletes it.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// A policy.
    Policy(PolicyId, Option<Arc<Policy>>),
    /// A tier, by its name.
    Tier(Arc<str>, Option<Tier>),
    /// A profile, by its name.
    Profile(Arc<str>, Option<Arc<Profile>>),
    /// An endpoint.
    Endpoint(EndpointKey, Option<Arc<Endpoint>>),
    /// A network set.
    NetworkSet(SetId, Option<Arc<NetworkSet>>),
    /// The endpoints of a Service.
    Service(ServiceId, Option<Arc<Service>>),
    /// A node.
    Node(NodeName, Option<Arc<Node>>),
    /// The EgressNetworkPolicy of a namespace; the first text is the namespace's name, the second the object's.
    EgressFirewall(Arc<str>, Arc<str>, Option<Arc<EgressFirewall>>),
    /// A FelixConfiguration, by its name.
    Felix(Arc<str>, Option<Arc<FelixSettings>>),
    /// What the node is configured with.
    Config(Config),
}

/// An endpoint in the cluster: a pod's interface, another workload's, or a host's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey(pub Arc<str>);

/// What is known of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A pod, or a host's interface.
    pub kind: EndpointKind,
    /// Its namespace.
    pub namespace: Option<Arc<str>>,
    /// The name by which operators know it: the pod's.
    pub name: Arc<str>,
    /// The node that it is on.
    pub node: Arc<str>,
    /// Its addresses; a host endpoint's are those that it is expected to have.
    pub addresses: BTreeSet<IpAddr>,
    /// Its own labels; `projectcalico.org/namespace` and `projectcalico.org/orchestrator` are among them.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// The profiles from which it inherits, in order.
    pub profiles: Vec<Arc<str>>,
    /// Its named ports. A name may occur more than once.
    pub ports: Vec<NamedPort>,
    /// Its host end, if it is on this node.
    pub local: Option<IfName>,
    /// A number that grows with its creation time: of two endpoints with one address, the younger has it.
    pub age: u64,
}

/// The kinds of endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointKind {
    /// A pod or another workload.
    Workload,
    /// An interface of a node; `*` is all that are not of workloads.
    Host {
        /// The interface's name.
        interface: Arc<str>,
    },
}

/// A port that has a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedPort {
    /// Its name.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
}

/// The name of a network set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId {
    /// `None` for a GlobalNetworkSet.
    pub namespace: Option<Arc<str>>,
    /// Its name.
    pub name: Arc<str>,
}

/// A network set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkSet {
    /// Its prefixes, which may overlap each other and those of other sets.
    pub nets: BTreeSet<IpNet>,
    /// Its labels; `projectcalico.org/namespace` is among them.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// The profile of its namespace.
    pub profile: Option<Arc<str>>,
}

/// The endpoints of a Service, ready or not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// All addresses; one without a port has no entry in `endpoints`.
    pub addresses: BTreeSet<IpAddr>,
    /// Address, protocol and port of each endpoint.
    pub endpoints: BTreeSet<(IpAddr, Protocol, u16)>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// All addresses of its status.
    pub addresses: BTreeSet<IpAddr>,
    /// Its labels.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
}

/// OpenShift's EgressNetworkPolicy (policy.md section 1.10).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EgressFirewall {
    /// Its rules; the first match counts. `true` allows.
    pub rules: Vec<(bool, EgressPeer)>,
}

/// The destination of a rule of an EgressNetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EgressPeer {
    /// A prefix.
    Net(IpNet),
    /// The addresses to which a name resolves now; the caller resolves it again.
    Name(Arc<str>, BTreeSet<IpAddr>),
}

/// What becomes of packets of workloads to their own node once the egress policies of the workload allow
/// them (`defaultEndpointToHostAction`, policy.md section 1.8). The default is that of Calico's manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum EndpointToHost {
    /// They pass.
    #[default]
    Accept,
    /// They are dropped.
    Drop,
    /// Other rules of the node decide. Policies of its host endpoints do not: they are about the node's own
    /// interfaces.
    Return,
}

/// What the node is configured with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// This node's name.
    pub node: Arc<str>,
    /// This node's own addresses: they may always reach pods of this node.
    pub own_addresses: BTreeSet<IpAddr>,
    /// Pods and services; an EgressNetworkPolicy does not apply to them.
    pub cluster_nets: BTreeSet<IpNet>,
    /// What happens to an endpoint that no policy selects and that has no profile: allowed in Kubernetes' mode, denied in
    /// Calico's.
    pub allow_without_profile: bool,
}

// === impl EndpointToHost ===

impl EndpointToHost {
    /// The member of FelixConfiguration that says it.
    pub const MEMBER: &'static str = "defaultEndpointToHostAction";

    const EACH: [Self; 3] = [Self::Accept, Self::Drop, Self::Return];

    /// The value with a name, in whichever case, as Felix reads it.
    pub fn named(name: &str) -> Option<Self> {
        Self::EACH.into_iter().find(|it| it.name().eq_ignore_ascii_case(name))
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accept => "Accept",
            Self::Drop => "Drop",
            Self::Return => "Return",
        }
    }

    /// Whether a message of ICMPv6 passes whatever it is: those of multicast listeners and of neighbours,
    /// without which the pod loses its node.
    pub const fn spares(icmpv6_type: u8) -> bool {
        matches!(icmpv6_type, 130..=133 | 135 | 136)
    }
}
