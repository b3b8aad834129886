//! Inputs that are not programmed, with the reason. Made by the pure part; the agent shows them in
//! logs and metrics.

use std::fmt;
use std::net::IpAddr;

use russet_addr::{Family, IfName, IpNet, Mac, NodeName};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// What is not programmed.
    pub subject: Subject,
    /// The node whose claim it was; none for pools and for our own device.
    pub node: Option<NodeName>,
    pub reason: Reason,
}

/// What a refusal is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Pool(IpNet),
    /// A node's claim of a block.
    Block(IpNet),
    /// A node's borrowed address.
    Borrowed(IpAddr),
    /// A node's tunnel address.
    Tunnel(IpAddr),
    /// A node's address for probes.
    Probe(IpAddr),
    /// A node's own address.
    Node(IpNet),
    /// The MAC of a node's tunnel device.
    Mac(Mac),
    /// Our own tunnel device.
    Device(Family),
    /// The guard program of a pod's link.
    Guard(IfName),
}

/// Why something is not programmed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It is in no pool.
    OutsidePools,
    /// It covers addresses that can never be a pod's: loopback, link-local, multicast and the like.
    Reserved,
    /// It covers this address, which is a node's or must stay reachable.
    Covers(IpAddr),
    /// It is inside of this block, which is ours.
    InsideOurs(IpNet),
    /// It belongs to this node already.
    TakenBy(NodeName),
    /// An earlier pool has the same prefix.
    Twice,
    /// It is an address of the other family.
    WrongFamily,
    /// It is a group address or all zero.
    NotUnicast,
    /// The node has no usable address.
    NodeUnreachable,
    /// The node's address is not on our subnet, and the pool is not encapsulated.
    OtherSubnet(IpAddr),
    /// The node's tunnel address, or its own address, is missing or refused.
    NoTunnelEndpoint,
    /// Our own node has no usable address.
    OwnAddressMissing,
    /// Our own node object names this address, which the underlay interface does not have.
    OwnAddressNotLocal(IpAddr),
    /// Our own node has no usable tunnel address yet.
    OwnTunnelAddressMissing,
    /// The underlay's MTU leaves too little room for the tunnel.
    MtuTooSmall(u32),
    /// A link that is not a VXLAN device has the name of ours.
    NameTaken,
    /// It is the network of an address of our own node.
    Connected,
    /// It is not inside this network, which all nodes share.
    OutsideNetwork(IpNet),
    /// It belongs to our own node.
    Ours,
    /// A newer claim has it.
    Superseded,
    /// The node's address is behind a router, but the backend needs it on our link.
    OffLink(IpAddr),
    /// The node has this many others already, the maximum of one device.
    TooMany(usize),
    /// Russet does not support the pool's encapsulation.
    Unsupported,
    /// The link has a qdisc `ingress`, which occupies the place of `clsact`.
    NoPlace,
}

// === impl Refusal ===

impl Refusal {
    pub fn new(subject: Subject, node: Option<&NodeName>, reason: Reason) -> Self {
        Self { subject, node: node.cloned(), reason }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.subject)?;
        if let Some(node) = &self.node {
            write!(f, " of node {node}")?;
        }
        write!(f, " is not programmed: {}", self.reason)
    }
}

// === impl Subject ===

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Pool(net) => write!(f, "pool {net}"),
            Subject::Block(block) => write!(f, "block {block}"),
            Subject::Borrowed(address) => write!(f, "borrowed address {address}"),
            Subject::Tunnel(address) => write!(f, "tunnel address {address}"),
            Subject::Probe(address) => write!(f, "address {address} for probes"),
            Subject::Node(net) => write!(f, "address {net}"),
            Subject::Mac(mac) => write!(f, "tunnel MAC {mac}"),
            Subject::Device(family) => write!(f, "{family} tunnel device"),
            Subject::Guard(link) => write!(f, "guard of link {link}"),
        }
    }
}

// === impl Reason ===

impl Reason {
    /// The label of metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            Reason::OutsidePools => "outside_pools",
            Reason::Reserved => "reserved",
            Reason::Covers(_) => "covers",
            Reason::InsideOurs(_) => "inside_ours",
            Reason::TakenBy(_) => "taken",
            Reason::Twice => "twice",
            Reason::WrongFamily => "wrong_family",
            Reason::NotUnicast => "not_unicast",
            Reason::NodeUnreachable => "node_unreachable",
            Reason::OtherSubnet(_) => "other_subnet",
            Reason::NoTunnelEndpoint => "no_tunnel_endpoint",
            Reason::OwnAddressMissing => "own_address_missing",
            Reason::OwnAddressNotLocal(_) => "own_address_not_local",
            Reason::OwnTunnelAddressMissing => "own_tunnel_address_missing",
            Reason::MtuTooSmall(_) => "mtu_too_small",
            Reason::NameTaken => "name_taken",
            Reason::Connected => "connected",
            Reason::OutsideNetwork(_) => "outside_network",
            Reason::Ours => "ours",
            Reason::Superseded => "superseded",
            Reason::OffLink(_) => "off_link",
            Reason::TooMany(_) => "too_many",
            Reason::Unsupported => "unsupported",
            Reason::NoPlace => "no_place",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::OutsidePools => f.write_str("it lies in no pool"),
            Reason::Reserved => {
                f.write_str("it covers reserved addresses (loopback, link-local, multicast, ...)")
            }
            Reason::Covers(address) => write!(f, "it covers {address}, which must stay reachable"),
            Reason::InsideOurs(block) => write!(f, "it lies in our own block {block}"),
            Reason::TakenBy(node) => write!(f, "node {node} has it"),
            Reason::Twice => f.write_str("an earlier pool has the same prefix"),
            Reason::WrongFamily => f.write_str("it is of the other address family"),
            Reason::NotUnicast => f.write_str("it is not a unicast address"),
            Reason::NodeUnreachable => f.write_str("the node has no usable address"),
            Reason::OtherSubnet(node) => {
                write!(f, "node address {node} is not on our subnet and the pool is not encapsulated")
            }
            Reason::NoTunnelEndpoint => f.write_str("the node's tunnel endpoint is not known"),
            Reason::OwnAddressMissing => f.write_str("our own node has no usable address"),
            Reason::OwnAddressNotLocal(address) => {
                write!(f, "the underlay interface does not have {address}")
            }
            Reason::OwnTunnelAddressMissing => f.write_str("our own node has no usable tunnel address"),
            Reason::MtuTooSmall(mtu) => write!(f, "the underlay's MTU {mtu} leaves too little room"),
            Reason::Connected => f.write_str("it is the network of an address of this node"),
            Reason::OutsideNetwork(network) => write!(f, "it is not inside the network {network}"),
            Reason::Ours => f.write_str("it is our own node's"),
            Reason::Superseded => f.write_str("a newer claim has it"),
            Reason::OffLink(node) => write!(f, "node address {node} is not on our link"),
            Reason::TooMany(most) => write!(f, "the node has {most} others, which is the most"),
            Reason::NameTaken => f.write_str("a link that is not a VXLAN device has its name"),
            Reason::Unsupported => f.write_str("its encapsulation is not supported"),
            Reason::NoPlace => f.write_str("the link has qdisc ingress in place of clsact; recreate the pod"),
        }
    }
}
