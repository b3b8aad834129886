//! One finding, for programs and for people.

use std::fmt;
use std::net::IpAddr;

use russet_addr::BlockCidr;
use russet_model::{Attribute, HandleId, Key};
use serde::{Deserialize, Serialize};

/// One finding. The JSON form is part of the report's schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Finding {
    /// A record does not match its key, or cannot be decoded; in a block, one of the five
    /// invariants is broken.
    Unreadable {
        /// The record.
        key: Key,
        /// Position and reason.
        reason: String,
    },
    /// Two blocks overlap.
    Overlap {
        /// The smaller one.
        block: BlockCidr,
        /// The larger one.
        other: BlockCidr,
    },
    /// Two overlapping blocks both have the address allocated.
    DoubleOwner {
        /// The address.
        address: IpAddr,
        /// The blocks.
        blocks: Vec<BlockCidr>,
        /// Its handle in each of them.
        handles: Vec<Option<String>>,
    },
    /// An interface of an endpoint, a node or this machine has an address of an enabled pool that
    /// is not allocated: the next ADD may get it, too.
    AllocationMissing {
        /// The address.
        address: IpAddr,
        /// The record or the interface that has it.
        named_by: String,
    },
    /// A pod's interface on this machine has an address that is allocated to another handle.
    AllocationForeign {
        /// The address.
        address: IpAddr,
        /// The interface that has it.
        named_by: String,
        /// The handle that it is allocated to.
        handle: String,
    },
    /// An allocated address without a record of an endpoint or a node, in a datastore whose pods
    /// have endpoints.
    EndpointMissing {
        /// The address.
        address: IpAddr,
        /// Its block.
        block: BlockCidr,
        /// The sequence number of its allocation.
        sequence_number: u64,
        /// Its owner.
        #[serde(flatten)]
        holder: Holder,
    },
    /// The handle of an address has no record: no DEL by handle reaches it.
    HandleMissing {
        /// The address.
        address: IpAddr,
        /// Its block.
        block: BlockCidr,
        /// The sequence number of its allocation.
        sequence_number: u64,
        /// A record of an endpoint or a node names the address, or might: then it is not leaked.
        may_be_used: bool,
        /// Its owner.
        #[serde(flatten)]
        holder: Holder,
    },
    /// A handle without an address in any block.
    HandleLeaked {
        /// The handle.
        handle: HandleId,
        /// The revision of its last write.
        revision: u64,
    },
    /// A handle's count differs from the block. Too high a count is harmless; too low a one causes
    /// a leak when it is released.
    HandleCount {
        /// The handle.
        handle: HandleId,
        /// The block, as the handle writes it.
        block: String,
        /// The handle's count.
        counted: u64,
        /// The number of addresses in the block.
        held: u64,
    },
    /// A confirmed affinity to a block that does not exist.
    BlockMissing {
        /// The owner of the affinity: `host:<node>` or `virtual:<owner>`.
        owner: String,
        /// The block.
        block: BlockCidr,
    },
    /// A confirmed affinity to a block that serves another owner.
    AffinityForeign {
        /// The owner of the affinity.
        owner: String,
        /// The block.
        block: BlockCidr,
        /// The owner that the block serves.
        serves: Option<String>,
    },
    /// A block serves an owner without an affinity record.
    AffinityMissing {
        /// The owner that the block serves.
        owner: String,
        /// The block.
        block: BlockCidr,
    },
    /// Addresses in use that are in no pool, not even a disabled one.
    OutsidePools {
        /// The block.
        block: BlockCidr,
        /// The number of its addresses.
        addresses: usize,
    },
}

/// The holder of an address, according to its attributes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Holder {
    /// The handle.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub handle: Option<String>,
    /// Its node.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// The pod's namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    /// The pod.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<String>,
}

// === impl Holder ===

impl Holder {
    /// The holder in an attribute.
    pub fn of(attribute: &Attribute) -> Self {
        let member = |name| attribute.get(name).map(str::to_owned);
        Self {
            handle: attribute.handle_id.as_deref().map(|handle| HandleId::sanitized(handle).to_owned()),
            node: member("node"),
            namespace: member("namespace"),
            pod: member("pod"),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "handle {}", self.handle.as_deref().unwrap_or("none"))?;
        if let Some(pod) = &self.pod {
            write!(f, ", pod {}/{pod}", self.namespace.as_deref().unwrap_or("-"))?;
        }
        match &self.node {
            Some(node) => write!(f, ", node {node}"),
            None => Ok(()),
        }
    }
}

// === impl Finding ===

impl Finding {
    /// The kind as in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::Overlap { .. } => "overlap",
            Self::DoubleOwner { .. } => "double-owner",
            Self::AllocationMissing { .. } => "allocation-missing",
            Self::AllocationForeign { .. } => "allocation-foreign",
            Self::EndpointMissing { .. } => "endpoint-missing",
            Self::HandleMissing { .. } => "handle-missing",
            Self::HandleLeaked { .. } => "handle-leaked",
            Self::HandleCount { .. } => "handle-count",
            Self::BlockMissing { .. } => "block-missing",
            Self::AffinityForeign { .. } => "affinity-foreign",
            Self::AffinityMissing { .. } => "affinity-missing",
            Self::OutsidePools { .. } => "outside-pools",
        }
    }

    /// Whether `release --from-report` can release it, if the report says that it is leaked.
    pub const fn can_be_released(&self) -> bool {
        self.is_leak() || matches!(self, Self::EndpointMissing { .. })
    }

    /// Whether it is certainly leaked.
    pub const fn is_leak(&self) -> bool {
        matches!(self, Self::HandleMissing { may_be_used: false, .. } | Self::HandleLeaked { .. })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |owner: &Option<String>| owner.clone().unwrap_or_else(|| "no owner".to_owned());
        match self {
            Self::Unreadable { key, reason } => write!(f, "{key}: {reason}"),
            Self::Overlap { block, other } => write!(f, "block {block} lies in block {other}"),
            Self::DoubleOwner { address, blocks, handles } => {
                write!(f, "{address} has {} owners:", blocks.len())?;
                let mut owners = blocks.iter().zip(handles);
                owners.try_for_each(|(block, handle)| write!(f, " {} in {block};", name(handle)))
            }
            Self::AllocationMissing { address, named_by } => {
                write!(f, "{address} is not allocated, but {named_by} has it")
            }
            Self::AllocationForeign { address, named_by, handle } => {
                write!(f, "{address} is allocated to handle {handle}, but {named_by} has it")
            }
            Self::EndpointMissing { address, holder, .. } => {
                write!(f, "{address}: no endpoint's or node's record names it ({holder})")
            }
            Self::HandleMissing { address, may_be_used, holder, .. } => {
                let leaked = if *may_be_used { "" } else { "; leaked: no record names it" };
                write!(f, "{address}: its handle has no record ({holder}){leaked}")
            }
            Self::HandleLeaked { handle, .. } => write!(f, "handle {handle} holds no address; leaked"),
            Self::HandleCount { handle, block, counted, held } => {
                write!(f, "handle {handle} counts {counted} of {block}, which holds {held}")
            }
            Self::BlockMissing { owner, block } => write!(f, "{owner} claims {block}, which does not exist"),
            Self::AffinityForeign { owner, block, serves } => {
                write!(f, "{owner} claims {block}, which serves {}", name(serves))
            }
            Self::AffinityMissing { owner, block } => {
                write!(f, "block {block} serves {owner}, who has no affinity to it")
            }
            Self::OutsidePools { block, addresses } => {
                write!(f, "block {block}: no pool holds its {addresses} addresses in use")
            }
        }
    }
}
