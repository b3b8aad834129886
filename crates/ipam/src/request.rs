//! What callers ask of the allocator, and what they get.

use std::collections::BTreeMap;

use russet_addr::{Family, IpNet, NodeName};
use russet_model::{AddressUse, HandleId};

/// Addresses wanted, by how many of each family.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The node on which they will live.
    pub node: NodeName,
    /// Under which they are held.
    pub handle: HandleId,
    /// What is stored beside them: `pod`, `namespace`, `interface`, `type`. `node` is always added, `timestamp` unless it is a tunnel's.
    pub attributes: BTreeMap<String, String>,
    /// How many IPv4 addresses.
    pub v4: u32,
    /// How many IPv6 addresses.
    pub v6: u32,
    /// The only IPv4 pools to take them from.
    pub pools4: Option<Vec<IpNet>>,
    /// The only IPv6 pools to take them from.
    pub pools6: Option<Vec<IpNet>>,
    /// What they are for.
    pub use_: AddressUse,
    /// Labels of the pod's namespace.
    pub namespace_labels: BTreeMap<String, String>,
    /// A limit on the node's blocks that this request sets; 0 sets none.
    pub max_blocks: u64,
    /// Whether addresses of other nodes' blocks will do, where the cluster's settings allow it. Whoever borrows must have the address
    /// routed by itself: the block's route leads to its owner.
    pub borrow: bool,
    /// Whether a node without a record gets no address: its block would serve a node that no agent runs on.
    pub registered_node: bool,
}

/// Addresses given, in the order v4, v6.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assigned {
    /// Each address with its block's prefix length.
    pub addresses: Vec<IpNet>,
    /// All of them were held already: nothing was written.
    pub existing: bool,
}

/// Addresses taken back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Released {
    /// The addresses that are free now.
    pub addresses: Vec<std::net::IpAddr>,
    /// Addresses that were free before.
    pub unallocated: Vec<std::net::IpAddr>,
    /// Records that cannot be read, each with the reason. They stay as they are, and so does what only they know of: `russet ipam check` names them.
    pub unreadable: Vec<String>,
}

// === impl Request ===

impl Request {
    /// One IPv4 address for a pod. Change the fields for anything else.
    pub fn pod(node: NodeName, handle: HandleId) -> Self {
        Self {
            node,
            handle,
            attributes: BTreeMap::new(),
            v4: 1,
            v6: 0,
            pools4: None,
            pools6: None,
            use_: AddressUse::Workload,
            namespace_labels: BTreeMap::new(),
            max_blocks: 0,
            borrow: true,
            registered_node: false,
        }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.attributes.insert(name.to_owned(), value.into());
        self
    }

    /// How many addresses of a family are wanted.
    pub const fn wanted(&self, family: Family) -> u32 {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    /// The pools of a family that were asked for.
    pub fn pools(&self, family: Family) -> Option<&[IpNet]> {
        match family {
            Family::V4 => self.pools4.as_deref(),
            Family::V6 => self.pools6.as_deref(),
        }
    }
}
