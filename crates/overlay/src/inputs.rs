//! The inputs of the overlay: nodes, pools, affinities and the underlay. The agent fills them from
//! the store (see `convert`) and from the host. No value is trusted until `vet` has checked it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{BlockCidr, Family, IpNet, Mac, NodeName};
use russet_model::AffinityState;

use crate::observe::ROUTE_PROTOCOL;
use crate::vxlan::{PORT, VNI};

/// The protocol of Felix's routes to other nodes. Felix deletes all routes of this protocol that it
/// does not know (calico-cni.md section 4.1).
const FELIX_PROTOCOL: u8 = 80;
/// The protocol of BIRD's routes, which BIRD leaves behind when it ends.
const BIRD_PROTOCOL: u8 = 12;

/// All inputs of `desired`. They must be complete: whatever they do not contain is removed from the
/// kernel, so the overlay must not run before the store's first full answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    /// Our own name.
    pub node: NodeName,
    /// The conventions by which objects in the kernel are marked.
    pub dialect: Dialect,
    /// The parameters that all nodes' tunnels share.
    pub tunnel: Tunnel,
    /// What else may send encapsulated packets.
    pub senders: TunnelSenders,
    /// The interface that leads to the other nodes.
    pub underlay: Underlay,
    /// All nodes, ourselves among them.
    pub nodes: BTreeMap<NodeName, Node>,
    /// All pools, including disabled ones: disabling stops allocation only, and the pods that a
    /// disabled pool still holds must stay reachable.
    pub pools: Vec<Pool>,
    /// The owners of blocks.
    pub affinities: Vec<Affinity>,
    /// Pods' addresses that live on another node than their block's; may be empty.
    pub borrowed: Vec<Borrowed>,
    /// Addresses of our own pods, which no peer may claim; may be empty.
    pub own_pods: BTreeSet<IpAddr>,
    /// Further addresses that no peer's claim may cover: the default gateway, the store's endpoints; may be empty.
    pub protected: BTreeSet<IpAddr>,
    /// The addresses that we hold only for probes by other nodes, by family.
    pub probes: [Option<IpAddr>; 2],
}

/// The conventions by which routes are marked, and so whose leftover routes are adopted
/// (calico-cni.md section 4.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Russet's own protocol number, which no other program uses.
    #[default]
    Native,
    /// Felix's, for nodes on which Russet replaces Felix: Felix finds and removes our routes when
    /// it returns, and we do the same with routes that Felix and BIRD left.
    Calico,
}

/// The parameters that all nodes' tunnels share; Calico's FelixConfiguration can change them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// VXLAN network identifier.
    pub vni: u32,
    /// UDP port.
    pub port: u16,
    /// MTU of the IPv4 and of the IPv6 device in bytes; none means the underlay's minus the outer
    /// headers.
    pub mtu: [Option<u32>; 2],
}

/// What may send encapsulated packets besides the nodes; Calico's FelixConfiguration can allow it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TunnelSenders {
    /// Pods may send to the tunnel's port.
    pub pods_vxlan: bool,
    /// Pods may send IP in IP and GRE to nodes.
    pub pods_ipip: bool,
    /// Machines that are no nodes and may send to the tunnel's port.
    pub external: Vec<IpNet>,
}

/// The local interface that leads to the other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    pub ifindex: u32,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its addresses, each with its prefix.
    pub addresses: Vec<IpNet>,
}

/// A node, as its node object describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Its IPv4 part.
    pub v4: Addresses,
    /// Its IPv6 part.
    pub v6: Addresses,
}

/// One family's addresses of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The address at which the node is reached, with the prefix of its subnet.
    pub underlay: Option<IpNet>,
    /// The address of its tunnel device.
    pub tunnel: Option<IpAddr>,
    /// The MAC of its tunnel device, if it is not the computed one.
    pub mac: Option<Mac>,
    /// The address at which it says it answers probes, without a tunnel device. Checked by those who probe it.
    pub probe: Option<IpAddr>,
}

/// A pool of pod addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its prefix.
    pub cidr: IpNet,
    /// How its blocks are reached.
    pub encapsulation: Encapsulation,
    /// Whether traffic that leaves the pools takes the node's address.
    pub nat_outgoing: bool,
}

/// How the blocks of a pool are reached from other nodes (calico-cni.md section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Encapsulation {
    /// Plain routes to nodes on our own subnet.
    None,
    /// Always through the tunnel.
    Vxlan,
    /// Plain routes to nodes on our own subnet, through the tunnel to all others.
    VxlanCrossSubnet,
    /// IP in IP, which Russet does not support: such a pool is reported and gets no routes.
    Ipip,
}

/// A node's claim of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Affinity {
    pub block: BlockCidr,
    pub node: NodeName,
    /// State of the claim: a pending one owns nothing, one being released owns until another node
    /// claims the block.
    pub state: AffinityState,
}

/// A pod's address on another node than the owner of its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Borrowed {
    /// The pod's address.
    pub address: IpAddr,
    /// Where the pod is.
    pub node: NodeName,
}

// === impl Dialect ===

impl Dialect {
    pub const fn route_protocol(self) -> u8 {
        match self {
            Self::Native => ROUTE_PROTOCOL,
            Self::Calico => FELIX_PROTOCOL,
        }
    }

    /// Protocols of which all overlay routes are reconciled.
    pub(crate) const fn owned_protocols(self) -> &'static [u8] {
        match self {
            Self::Native => &[ROUTE_PROTOCOL],
            Self::Calico => &[FELIX_PROTOCOL, ROUTE_PROTOCOL],
        }
    }

    /// Protocols of routes that ours replace for the same destination, and that otherwise stay.
    pub(crate) const fn yielding_protocols(self) -> &'static [u8] {
        match self {
            Self::Native => &[],
            Self::Calico => &[BIRD_PROTOCOL],
        }
    }
}

// === impl Tunnel ===

impl Default for Tunnel {
    fn default() -> Self {
        Self { vni: VNI, port: PORT, mtu: [None, None] }
    }
}

// === impl Node ===

impl Node {
    pub const fn of(&self, family: Family) -> &Addresses {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

// === impl Encapsulation ===

impl Encapsulation {
    /// Whether a pool of this kind needs a tunnel device.
    pub const fn needs_tunnel(self) -> bool {
        matches!(self, Encapsulation::Vxlan | Encapsulation::VxlanCrossSubnet)
    }
}
