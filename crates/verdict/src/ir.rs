//! The intermediate form of policies: tiers of policies of rules (policy.md section 1.1).
//!
//! A rule is a conjunction: all its members must match. What an API writes as a list of
//! alternatives with several members (the peers of a NetworkPolicy) becomes several rules. Selectors
//! are over *effective labels* (calico-cni.md section 4P.4): an endpoint's own labels,
//! `projectcalico.org/namespace`, `projectcalico.org/orchestrator`, and what its profiles add
//! (`pcns.` of its namespace, `pcsa.` of its service account).

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use russet_addr::{Family, IpNet};
use russet_model::Selector;

/// A policy in force, or a staged one.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Which object it comes from.
    pub id: PolicyId,
    /// The name that its author gave it, for display. The key of its record may have a prefix.
    pub name: Arc<str>,
    /// The tier; one that does not exist is after all others, and its default action is Deny.
    pub tier: Arc<str>,
    /// The place in the tier.
    pub order: Order,
    /// The endpoints to which it applies.
    pub subject: Selector,
    /// The directions in which it counts.
    pub directions: Directions,
    /// What would become of the enforced policy of the same name; `None` is an enforced one.
    pub staged: Option<StagedAction>,
    /// Where it applies to host endpoints.
    pub host_use: HostUse,
    /// Rules for packets to the subject; the first match counts.
    pub ingress: Vec<Rule>,
    /// Rules for packets from the subject.
    pub egress: Vec<Rule>,
    /// What could not be read, or is not enforced.
    pub problems: Vec<Problem>,
}

/// The object that a policy comes from. Policies of equal order sort by the text
/// `name/namespace/kind`, which [`PolicyId::sort_key`] returns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId {
    /// Its kind.
    pub kind: PolicyKind,
    /// `None` for objects of the cluster.
    pub namespace: Option<Arc<str>>,
    /// The name in the key of its record, which decides among equal orders.
    pub name: Arc<str>,
}

/// The kinds of policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// `networking.k8s.io/v1` NetworkPolicy.
    KubernetesNetworkPolicy,
    /// `policy.networking.k8s.io` ClusterNetworkPolicy.
    ClusterNetworkPolicy,
    /// Its predecessor for the tier Admin.
    AdminNetworkPolicy,
    /// Its predecessor for the tier Baseline.
    BaselineAdminNetworkPolicy,
    /// Calico's NetworkPolicy.
    NetworkPolicy,
    /// Calico's GlobalNetworkPolicy.
    GlobalNetworkPolicy,
    /// Calico's StagedNetworkPolicy.
    StagedNetworkPolicy,
    /// Calico's StagedGlobalNetworkPolicy.
    StagedGlobalNetworkPolicy,
    /// Calico's StagedKubernetesNetworkPolicy.
    StagedKubernetesNetworkPolicy,
}

/// A place in a list: a number, which may be negative or fractional; none is after all numbers.
#[derive(Debug, Clone, Copy)]
pub struct Order(Option<f64>);

/// The directions of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Directions {
    /// To the subject.
    pub ingress: bool,
    /// From the subject.
    pub egress: bool,
}

/// A direction, seen from the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// To the endpoint.
    Ingress,
    /// From the endpoint.
    Egress,
}

/// What a staged policy proposes (policy.md section 1.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StagedAction {
    /// Replaces or joins the enforced ones.
    Set,
    /// Removes the enforced policy of the same tier and name.
    Delete,
    /// Observes only.
    Learn,
    /// Is skipped.
    Ignore,
}

/// Where a policy applies to a host endpoint (policy.md section 1.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostUse {
    /// Traffic of the node's own processes.
    #[default]
    Normal,
    /// That, and forwarded traffic (`applyOnForward`).
    Forward,
    /// All packets, before connection tracking (`doNotTrack`).
    Untracked,
    /// Packets that come in, before their destination is translated (`preDNAT`).
    PreDnat,
}

/// A rule: its action is taken if everything in it matches.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What is done.
    pub action: Action,
    /// The family of the packet.
    pub family: Option<Family>,
    /// The protocol.
    pub protocol: Option<Protocol>,
    /// Not this protocol.
    pub not_protocol: Option<Protocol>,
    /// Only this ICMP message.
    pub icmp: Option<Icmp>,
    /// Not this ICMP message.
    pub not_icmp: Option<Icmp>,
    /// The source.
    pub source: Entity,
    /// The destination.
    pub destination: Entity,
    /// It also asks for methods or paths of HTTP, which nothing here looks at: its other members decide.
    pub http: bool,
    /// Where it stands in its object, such as `spec.ingress[2]`, for explanations.
    pub path: Arc<str>,
}

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Permits the flow in this direction.
    Allow,
    /// Forbids it.
    Deny,
    /// Goes on at the next tier; in the last one, at the profiles.
    Pass,
    /// Writes a log entry and goes on at the next rule.
    Log,
}

/// A protocol by its number in IP headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

/// An ICMP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Icmp {
    /// Its type.
    pub kind: u8,
    /// Its code; `None` is any.
    pub code: Option<u8>,
}

/// One side of a rule. Every member that is there must match.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Entity {
    /// The address is in one of these prefixes. `Some` of an empty list matches nothing.
    pub nets: Option<Vec<IpNet>>,
    /// The address is in none of these.
    pub not_nets: Vec<IpNet>,
    /// The address is of an endpoint or set whose effective labels match this, and not
    /// `not_selector`.
    pub selector: Option<Selector>,
    /// Alone: the address is of no endpoint or set that matches this.
    pub not_selector: Option<Selector>,
    /// The address is a node's, and the node's labels match this.
    pub nodes: Option<Selector>,
    /// The address, and for destinations protocol and port, are of an endpoint of this service.
    pub service: Option<ServiceId>,
    /// The port is one of these. `Some` of an empty list matches nothing.
    pub ports: Option<Vec<Port>>,
    /// The port is none of these.
    pub not_ports: Vec<Port>,
}

/// A range of ports, or the name of ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// From the first to the last, both included.
    Range(u16, u16),
    /// A port that the endpoint with the packet's address names so, with the packet's protocol. If the entity
    /// has a selector, only endpoints that match it count.
    Named(Arc<str>),
}

/// A Kubernetes Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// A tier.
#[derive(Debug, Clone, PartialEq)]
pub struct Tier {
    /// The place among the tiers; ties sort by name.
    pub order: Order,
    /// What happens to a packet of an endpoint that policies of the tier select, if none of their
    /// rules matches.
    pub default_action: TierDefault,
}

/// What happens at the end of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TierDefault {
    /// The packet is denied.
    #[default]
    Deny,
    /// The next tier decides.
    Pass,
}

/// Rules and labels that endpoints inherit by naming it. Namespaces are the profiles `kns.NAME`,
/// service accounts `ksa.NAMESPACE.NAME`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Profile {
    /// Rules for packets to the endpoint.
    pub ingress: Vec<Rule>,
    /// Rules for packets from the endpoint.
    pub egress: Vec<Rule>,
    /// Labels that its endpoints have unless their own say otherwise.
    pub labels: std::collections::BTreeMap<Arc<str>, Arc<str>>,
}

/// Something in an object that cannot be read or is not enforced. What is done instead never
/// permits more than the object says, except for [`Rule::http`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The member, such as `spec.ingress[0].from[1].ipBlock.cidr`.
    pub path: Arc<str>,
    /// What is wrong, and what is done.
    pub text: Arc<str>,
}

// === impl Policy ===

impl Policy {
    /// Its rules of a direction.
    pub fn rules(&self, direction: Direction) -> &[Rule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

// === impl Profile ===

impl Profile {
    /// Its rules of a direction.
    pub fn rules(&self, direction: Direction) -> &[Rule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

// === impl Directions ===

impl Directions {
    /// Whether a direction is among them.
    pub fn has(self, direction: Direction) -> bool {
        match direction {
            Direction::Ingress => self.ingress,
            Direction::Egress => self.egress,
        }
    }
}

// === impl PolicyId ===

impl PolicyId {
    /// The text by which policies of equal order sort.
    pub fn sort_key(&self) -> String {
        format!("{}/{}/{}", self.name, self.namespace.as_deref().unwrap_or(""), self.kind.name())
    }
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind.name())?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

// === impl PolicyKind ===

impl PolicyKind {
    /// The name of the kind, as Felix and `kubectl` write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::KubernetesNetworkPolicy => "KubernetesNetworkPolicy",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Self::AdminNetworkPolicy => "AdminNetworkPolicy",
            Self::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::GlobalNetworkPolicy => "GlobalNetworkPolicy",
            Self::StagedNetworkPolicy => "StagedNetworkPolicy",
            Self::StagedGlobalNetworkPolicy => "StagedGlobalNetworkPolicy",
            Self::StagedKubernetesNetworkPolicy => "StagedKubernetesNetworkPolicy",
        }
    }

    /// The kind of the policy that a staged one replaces or removes; an enforced kind itself.
    pub fn enforced(self) -> Self {
        match self {
            Self::StagedNetworkPolicy => Self::NetworkPolicy,
            Self::StagedGlobalNetworkPolicy => Self::GlobalNetworkPolicy,
            Self::StagedKubernetesNetworkPolicy => Self::KubernetesNetworkPolicy,
            kind => kind,
        }
    }
}

// === impl Rule ===

impl Rule {
    /// A rule that every packet matches.
    pub fn any(action: Action, path: impl Into<Arc<str>>) -> Self {
        Self {
            action,
            family: None,
            protocol: None,
            not_protocol: None,
            icmp: None,
            not_icmp: None,
            source: Entity::default(),
            destination: Entity::default(),
            http: false,
            path: path.into(),
        }
    }
}

// === impl Order ===

impl Order {
    /// The place of what has no number: after everything that has one.
    pub const LAST: Self = Self(None);
    /// The place before all numbers.
    pub const FIRST: Self = Self(Some(f64::NEG_INFINITY));

    /// A place; what is not a number is the last one.
    pub fn new(number: Option<f64>) -> Self {
        Self(number.filter(|number| !number.is_nan()))
    }

    /// The number; none is after all numbers.
    pub fn number(self) -> Option<f64> {
        self.0
    }
}

impl PartialEq for Order {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Order {}

impl PartialOrd for Order {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Order {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.0, other.0) {
            // Adding zero makes -0 equal to 0.
            (Some(a), Some(b)) => (a + 0.0).total_cmp(&(b + 0.0)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        }
    }
}

// === impl Protocol ===

impl Protocol {
    /// ICMP.
    pub const ICMP: Self = Self(1);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// ICMP of IPv6.
    pub const ICMPV6: Self = Self(58);
    /// SCTP.
    pub const SCTP: Self = Self(132);
    /// UDP-Lite.
    pub const UDPLITE: Self = Self(136);

    /// Whether its headers begin with a source and a destination port.
    pub fn has_ports(self) -> bool {
        matches!(self, Self::TCP | Self::UDP | Self::SCTP | Self::UDPLITE)
    }
}
