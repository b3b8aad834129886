//! The requests to the allocator, and their results.

use std::collections::BTreeMap;

use russet_addr::{Family, IfName, IpNet, NodeName};
use russet_model::{AddressUse, HandleId};

/// A request for a number of addresses of each family.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The node on which they are used.
    pub node: NodeName,
    /// The handle of the allocation.
    pub handle: HandleId,
    /// The attributes to store: `pod`, `namespace`, `interface`, `type`. `node` is always added,
    /// `timestamp` except for tunnels.
    pub attributes: BTreeMap<String, String>,
    /// Number of IPv4 addresses.
    pub v4: u32,
    /// Number of IPv6 addresses.
    pub v6: u32,
    /// The only IPv4 pools to use.
    pub pools4: Option<Vec<IpNet>>,
    /// The only IPv6 pools to use.
    pub pools6: Option<Vec<IpNet>>,
    /// The use of the addresses.
    pub use_: AddressUse,
    /// Labels of the pod's namespace.
    pub namespace_labels: BTreeMap<String, String>,
    /// A limit on the node's blocks that this request sets; 0 sets none.
    pub max_blocks: u64,
    /// Whether addresses of other nodes' blocks may be used, if the cluster's settings allow it.
    /// The caller must route such an address by itself: the block's route leads to its owner.
    pub borrow: bool,
    /// Whether a node without a record gets no address: its block would serve a node without an
    /// agent.
    pub registered_node: bool,
}

/// The assigned addresses, IPv4 before IPv6.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assigned {
    /// Each address with its block's prefix length.
    pub addresses: Vec<IpNet>,
    /// All of them were allocated before: nothing was written.
    pub existing: bool,
}

/// The result of a release.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Released {
    /// The released addresses.
    pub addresses: Vec<std::net::IpAddr>,
    /// Addresses that were free before.
    pub unallocated: Vec<std::net::IpAddr>,
    /// Records that cannot be decoded, each with the reason. They are left unchanged, with the
    /// addresses that only they have: `russet ipam check` reports them.
    pub unreadable: Vec<String>,
}

/// The attribute with the time of a request. It distinguishes the addresses that a request allocated
/// from those that an earlier one allocated for the same handle.
pub const TIMESTAMP: &str = "timestamp";

// === impl Request ===

impl Request {
    /// One IPv4 address for a pod; the fields can be changed for other requests.
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

    /// Adds the attributes that name the interface and the pod (namespace and name)
    /// (calico-ipam.md sections 1.4 and 9).
    #[must_use]
    pub fn with_owner(self, ifname: &IfName, pod: Option<(&str, &str)>) -> Self {
        let named = self.with("interface", ifname.as_str());
        match pod {
            Some((namespace, pod)) => named.with("namespace", namespace).with("pod", pod),
            None => named,
        }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.attributes.insert(name.to_owned(), value.into());
        self
    }

    /// Number of requested addresses of a family.
    pub const fn wanted(&self, family: Family) -> u32 {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    /// The requested pools of a family.
    pub fn pools(&self, family: Family) -> Option<&[IpNet]> {
        match family {
            Family::V4 => self.pools4.as_deref(),
            Family::V6 => self.pools6.as_deref(),
        }
    }
}
