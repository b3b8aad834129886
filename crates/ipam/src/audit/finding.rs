//! One thing that is wrong, as programs read it and as people do.

use std::fmt;
use std::net::IpAddr;

use russet_addr::BlockCidr;
use russet_model::{Attribute, HandleId, Key};
use serde::{Deserialize, Serialize};

/// One thing that is wrong. The JSON form is part of the report's schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Finding {
    /// A record is not what its key says; of a block, one of the five invariants is broken.
    Unreadable {
        /// The record.
        key: Key,
        /// Where and why.
        reason: String,
    },
    /// Two blocks share addresses.
    Overlap {
        /// The smaller.
        block: BlockCidr,
        /// The larger.
        other: BlockCidr,
    },
    /// Two blocks that overlap both gave the address away.
    DoubleOwner {
        /// The address.
        address: IpAddr,
        /// The blocks.
        blocks: Vec<BlockCidr>,
        /// Whose it is in each of them.
        handles: Vec<Option<String>>,
    },
    /// An endpoint's, a node's or this machine's interface has an address of an enabled pool that no block has allocated: the next ADD may be given it, too.
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
    /// An address is allocated that no endpoint's and no node's record names, in a datastore whose pods have endpoints.
    EndpointMissing {
        /// The address.
        address: IpAddr,
        /// Its block.
        block: BlockCidr,
        /// Under which number it was taken.
        sequence_number: u64,
        /// Whose it is.
        #[serde(flatten)]
        holder: Holder,
    },
    /// An address's handle has no record: no DEL by handle reaches it.
    HandleMissing {
        /// The address.
        address: IpAddr,
        /// Its block.
        block: BlockCidr,
        /// Under which number it was taken.
        sequence_number: u64,
        /// An endpoint's or a node's record names the address, or might: then it is no leak.
        may_be_used: bool,
        /// Whose it is.
        #[serde(flatten)]
        holder: Holder,
    },
    /// A handle of which no block holds an address.
    HandleLeaked {
        /// The handle.
        handle: HandleId,
        /// When its record was last written.
        revision: u64,
    },
    /// A handle counts something else than a block holds. More is harmless; less is a leak to be, once it is released.
    HandleCount {
        /// The handle.
        handle: HandleId,
        /// The block, as it stands in the handle.
        block: String,
        /// What the handle says.
        counted: u64,
        /// What the block says.
        held: u64,
    },
    /// A confirmed claim to a block that is not there.
    BlockMissing {
        /// Who claims: `host:<node>` or `virtual:<owner>`.
        owner: String,
        /// The block.
        block: BlockCidr,
    },
    /// A confirmed claim to a block that serves somebody else.
    AffinityForeign {
        /// Who claims.
        owner: String,
        /// The block.
        block: BlockCidr,
        /// Whom the block serves.
        serves: Option<String>,
    },
    /// A block serves somebody who has no record of that.
    AffinityMissing {
        /// Whom the block serves.
        owner: String,
        /// The block.
        block: BlockCidr,
    },
    /// Addresses in use that no pool holds, not even a disabled one.
    OutsidePools {
        /// The block.
        block: BlockCidr,
        /// How many of its addresses.
        addresses: usize,
    },
}

/// Who has an address, by what is stored beside it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Holder {
    /// The handle.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub handle: Option<String>,
    /// The node on which it lives.
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
    /// The holder that an attribute names.
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
    /// Its name, as in JSON.
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

    /// Whether `release --from-report` can give it back, if the report says that it is leaked.
    pub const fn can_be_released(&self) -> bool {
        self.is_leak() || matches!(self, Self::EndpointMissing { .. })
    }

    /// Whether it is leaked for certain.
    pub const fn is_leak(&self) -> bool {
        matches!(self, Self::HandleMissing { may_be_used: false, .. } | Self::HandleLeaked { .. })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |owner: &Option<String>| owner.clone().unwrap_or_else(|| "nobody".to_owned());
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
                let leaked = if *may_be_used { "" } else { "; leaked: nobody's record names it" };
                write!(f, "{address}: its handle has no record ({holder}){leaked}")
            }
            Self::HandleLeaked { handle, .. } => write!(f, "handle {handle} holds no address; leaked"),
            Self::HandleCount { handle, block, counted, held } => {
                write!(f, "handle {handle} counts {counted} of {block}, which holds {held}")
            }
            Self::BlockMissing { owner, block } => write!(f, "{owner} claims {block}, which is not there"),
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
