//! How operators name the ends of a flow and its port.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use russet_addr::Family;

use crate::flow::Flow;
use crate::ir::{Policy, Protocol, ServiceId};
use crate::snapshot::Snapshot;
use crate::world::{Endpoint, EndpointKind};

/// The protocols that have names.
pub(super) const PROTOCOLS: [(&str, Protocol); 6] = [
    ("tcp", Protocol::TCP),
    ("udp", Protocol::UDP),
    ("sctp", Protocol::SCTP),
    ("icmp", Protocol::ICMP),
    ("icmpv6", Protocol::ICMPV6),
    ("udplite", Protocol::UDPLITE),
];
/// The source port of a question: the first of the dynamic range, which hardly any rule names.
const SOURCE_PORT: u16 = 49152;
/// An echo request: type * 256 + code.
const ECHO_REQUEST: u16 = 8 << 8;
/// An echo request of IPv6.
const ECHO_REQUEST_V6: u16 = 128 << 8;

/// One end of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// An address.
    Address(IpAddr),
    /// A pod, by namespace and name.
    Pod(String, String),
    /// A node.
    Node(String),
    /// Every endpoint of a Service.
    Service(ServiceId),
    /// An address that is of nothing known.
    World,
}

/// Why a peer cannot be asked about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// It is none of the forms.
    #[error("{0:?} is no NAMESPACE/POD, address, node:NAME, service:NAMESPACE/NAME or `world`")]
    Form(String),
    /// Nothing has the name.
    #[error("{0} does not exist, or has no address")]
    Unknown(Peer),
}

/// What is asked of two ends: a protocol and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probe {
    /// The protocol; ICMP is that of the family asked.
    pub protocol: Protocol,
    /// The destination port.
    pub port: u16,
}

/// Why a text is no probe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no PORT, PORT/PROTOCOL or protocol (tcp, udp, sctp with a port; icmp; a number)")]
pub struct ProbeError(String);

/// A policy, as an operator names it.
pub(super) fn policy(policy: &Policy) -> String {
    let namespace = policy.id.namespace.as_deref().map(|it| format!("{it}/")).unwrap_or_default();
    format!("{} {namespace}{}", policy.id.kind.name(), policy.name)
}

/// An endpoint, as an operator names it.
pub(super) fn endpoint(endpoint: &Endpoint) -> String {
    match (&endpoint.kind, &endpoint.namespace) {
        (EndpointKind::Host { .. }, _) => format!("host endpoint {}", endpoint.name),
        (_, Some(namespace)) => format!("{namespace}/{}", endpoint.name),
        (_, None) => endpoint.name.to_string(),
    }
}

/// What an address is: a pod, a node, or itself.
pub(super) fn at(snapshot: &Snapshot, address: IpAddr) -> String {
    if let Some((_, found)) = snapshot.workload_at(address) {
        return endpoint(found);
    }
    let node = snapshot.nodes.iter().find(|(_, node)| node.addresses.contains(&address));
    node.map_or_else(|| address.to_string(), |(name, _)| format!("node:{name}"))
}

// === impl Peer ===

impl FromStr for Peer {
    type Err = PeerError;

    fn from_str(text: &str) -> Result<Self, PeerError> {
        let form = || PeerError::Form(text.to_owned());
        let pair = |text: &str| -> Result<(String, String), PeerError> {
            let (namespace, name) = text.split_once('/').ok_or_else(form)?;
            let fits = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
            fits.then(|| (namespace.to_owned(), name.to_owned())).ok_or_else(form)
        };
        if text == "world" {
            Ok(Self::World)
        } else if let Some(node) = text.strip_prefix("node:") {
            Ok(Self::Node(node.to_owned()))
        } else if let Some(service) = text.strip_prefix("service:") {
            let (namespace, name) = pair(service)?;
            Ok(Self::Service(ServiceId { namespace: namespace.into(), name: name.into() }))
        } else if let Ok(address) = text.parse() {
            Ok(Self::Address(address))
        } else {
            pair(text).map(|(namespace, name)| Self::Pod(namespace, name))
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Pod(namespace, name) => write!(f, "{namespace}/{name}"),
            Self::Node(name) => write!(f, "node:{name}"),
            Self::Service(id) => write!(f, "service:{}/{}", id.namespace, id.name),
            Self::World => f.write_str("world"),
        }
    }
}

impl Peer {
    /// Its addresses, in order.
    pub fn addresses(&self, snapshot: &Snapshot) -> Result<Vec<IpAddr>, PeerError> {
        let mut found: Vec<IpAddr> = match self {
            Self::Address(address) => vec![*address],
            Self::Pod(namespace, name) => {
                let is = |it: &&std::sync::Arc<Endpoint>| {
                    it.namespace.as_deref() == Some(namespace) && *it.name == **name
                };
                snapshot.endpoints.values().filter(is).flat_map(|it| it.addresses.clone()).collect()
            }
            Self::Node(name) => {
                let is = |(it, _): &(&russet_addr::NodeName, _)| it.as_str() == name;
                snapshot.nodes.iter().filter(is).flat_map(|(_, node)| node.addresses.clone()).collect()
            }
            Self::Service(id) => {
                let service = snapshot.services.get(id).into_iter();
                service.flat_map(|it| it.addresses.clone()).collect()
            }
            Self::World => Family::BOTH.into_iter().filter_map(|family| outside(snapshot, family)).collect(),
        };
        found.dedup();
        if found.is_empty() { Err(PeerError::Unknown(self.clone())) } else { Ok(found) }
    }
}

/// An address for documentation that is of no endpoint, set or node.
fn outside(snapshot: &Snapshot, family: Family) -> Option<IpAddr> {
    let candidate = |last: u16| -> IpAddr {
        match family {
            Family::V4 => [203, 0, 113, last.to_be_bytes()[1]].into(),
            Family::V6 => [0x2001, 0xdb8, 0, 0, 0, 0, 0, last].into(),
        }
    };
    let is_known = |address: &IpAddr| {
        snapshot.endpoints_at(*address).next().is_some()
            || snapshot.sets_at(*address).next().is_some()
            || snapshot.nodes.values().any(|node| node.addresses.contains(address))
    };
    // All may be in a set that contains every address.
    let mut candidates = (1..=254).map(candidate);
    candidates.find(|address| !is_known(address)).or_else(|| Some(candidate(1)))
}

// === impl Probe ===

impl FromStr for Probe {
    type Err = ProbeError;

    fn from_str(text: &str) -> Result<Self, ProbeError> {
        let error = || ProbeError(text.to_owned());
        let protocol = |name: &str| {
            let known = PROTOCOLS.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
            known.map(|(_, protocol)| *protocol).or_else(|| name.parse().ok().map(Protocol)).ok_or_else(error)
        };
        let (port, protocol) = match text.split_once('/') {
            // Both orders are written: 80/tcp, tcp/80.
            Some((first, second)) => match first.parse::<u16>() {
                Ok(port) => (port, protocol(second)?),
                Err(_) => (second.parse().map_err(|_| error())?, protocol(first)?),
            },
            None => match text.parse::<u16>() {
                Ok(port) => (port, Protocol::TCP),
                Err(_) => (0, protocol(text)?),
            },
        };
        let fits = protocol.has_ports() == (port != 0);
        fits.then_some(Self { protocol, port }).ok_or_else(error)
    }
}

impl Probe {
    /// The flow with which this is asked; `None` if the addresses are of two families.
    pub fn flow(self, source: IpAddr, destination: IpAddr) -> Option<Flow> {
        let is_ping = matches!(self.protocol, Protocol::ICMP | Protocol::ICMPV6);
        let (protocol, destination_port) = match Family::of(source) {
            Family::V4 if is_ping => (Protocol::ICMP, ECHO_REQUEST),
            Family::V6 if is_ping => (Protocol::ICMPV6, ECHO_REQUEST_V6),
            _ => (self.protocol, self.port),
        };
        let source_port = if protocol.has_ports() { SOURCE_PORT } else { 0 };
        let same = Family::of(source) == Family::of(destination);
        same.then_some(Flow { source, destination, protocol, source_port, destination_port })
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::protocol_name(self.protocol))?;
        if self.protocol.has_ports() { write!(f, "/{}", self.port) } else { Ok(()) }
    }
}
