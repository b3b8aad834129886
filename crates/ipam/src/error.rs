//! Why no address was given or taken back: each error names the limit that was hit and what to do about it.

use std::net::IpAddr;

use russet_addr::{BlockCidr, Family, IpNet, NodeName};
use russet_model::{DecodeError, HandleId, Key, SelectorError};
use russet_store::StoreError;

/// A failure of the allocator.
#[derive(Debug, Clone, thiserror::Error)]
pub enum IpamError {
    /// Every address of every pool that may serve the request is taken.
    #[error(
        "Assigned {assigned} out of {wanted} requested {family} addresses; No IPs available in pools: [{}]: all {blocks} blocks are taken and full; add a pool or release addresses",
        list(pools)
    )]
    PoolExhausted {
        /// Which family.
        family: Family,
        /// The pools.
        pools: Vec<IpNet>,
        /// How many blocks they have together.
        blocks: u64,
        /// How many addresses were found (and given back).
        assigned: u32,
        /// How many were wanted.
        wanted: u32,
    },
    /// The node's own blocks are full and it may claim no further one.
    #[error(
        "cannot allocate new block due to per host block limit: node {node} has {limit} {family} blocks, all full; raise maxBlocksPerHost or the pool's block size"
    )]
    BlockLimit {
        /// The node.
        node: NodeName,
        /// Which family.
        family: Family,
        /// The limit.
        limit: u64,
    },
    /// Other nodes' blocks have room, but may not be used.
    #[error(
        "No more free affine blocks and strict affinity enabled: node {node} has no free {family} address in pools [{}]; add a pool or switch strict affinity off",
        list(pools)
    )]
    StrictAffinity {
        /// The node.
        node: NodeName,
        /// Which family.
        family: Family,
        /// The pools.
        pools: Vec<IpNet>,
    },
    /// New blocks may not be claimed at all.
    #[error(
        "failed to find or claim a block: node {node} has no free {family} address in its blocks, and auto_allocate_blocks is off in the IPAM config"
    )]
    AutoAllocateOff {
        /// The node.
        node: NodeName,
        /// Which family.
        family: Family,
    },
    /// No pool serves this node, namespace and use.
    #[error("no configured {family} pool for node {node}: {reason}")]
    NoPool {
        /// The node.
        node: NodeName,
        /// Which family.
        family: Family,
        /// What was missing: any pool, one that selects the node, one for this use.
        reason: String,
    },
    /// A pool that was asked for is not there or is disabled.
    #[error("the given pool {pool} does not exist, or is not enabled")]
    PoolMissing {
        /// The pool.
        pool: IpNet,
    },
    /// A pool of the wrong family was asked for.
    #[error("pool {pool} was given for {family} addresses")]
    PoolFamily {
        /// The pool.
        pool: IpNet,
        /// What it was given for.
        family: Family,
    },
    /// Pools select nodes by labels, and the node's record, which holds them, is not there.
    #[error(
        "node {node} has no record at {key}, and pool {pool} selects nodes by label; start the agent there or create the record"
    )]
    NodeMissing {
        /// The node.
        node: NodeName,
        /// Where its record should be.
        key: Key,
        /// The pool.
        pool: String,
    },
    /// The node of a request that is for registered nodes only has no record.
    #[error("node {node} is not registered: there is no {key}")]
    NodeUnknown {
        /// The node.
        node: NodeName,
        /// Where its record should be.
        key: Key,
    },
    /// A pool's selector cannot be read.
    #[error("pool {pool}: {source}")]
    Selector {
        /// The pool.
        pool: String,
        /// What is wrong with it.
        source: SelectorError,
    },
    /// No enabled pool holds the address.
    #[error("address {address} is not in a configured pool")]
    NotInPool {
        /// The address.
        address: IpAddr,
    },
    /// The address is taken.
    #[error("address {address} is already assigned{}", holder.as_ref().map(|h| format!(" to {h:.80}")).unwrap_or_default())]
    AlreadyAssigned {
        /// The address.
        address: IpAddr,
        /// Whose it is.
        holder: Option<String>,
    },
    /// The address's block serves another node, and strict affinity is on.
    #[error("Block host affinity does not match: {block} serves {}", owner.as_deref().unwrap_or("nobody"))]
    ForeignBlock {
        /// The block.
        block: BlockCidr,
        /// Whom it serves.
        owner: Option<String>,
    },
    /// A release named another sequence number than the address was taken under: it was released and taken again.
    #[error("address {address}: sequence number {expected} was named, {found} is stored")]
    BadSequence {
        /// The address.
        address: IpAddr,
        /// What was named.
        expected: u64,
        /// What is stored.
        found: u64,
    },
    /// A release named another handle than the address has.
    #[error("address {address}: handle {expected} was named, {:.80} is stored", found.as_deref().unwrap_or("none"))]
    BadHandle {
        /// The address.
        address: IpAddr,
        /// What was named.
        expected: HandleId,
        /// What is stored.
        found: Option<String>,
    },
    /// The block still has addresses in use.
    #[error("block {block} is not empty")]
    NotEmpty {
        /// The block.
        block: BlockCidr,
    },
    /// The node has no affinity to the block.
    #[error("node {node} has no affinity to block {block}")]
    NoAffinity {
        /// The node.
        node: NodeName,
        /// The block.
        block: BlockCidr,
    },
    /// A pool overlaps one that is there.
    #[error("pool {pool} overlaps pool {other} ({name})")]
    PoolOverlap {
        /// The new one.
        pool: IpNet,
        /// The other's addresses.
        other: IpNet,
        /// The other's name.
        name: String,
    },
    /// Others wrote the record each time we tried.
    #[error("{operation} {key}: others were faster {tries} times; try again")]
    Contended {
        /// What was being done.
        operation: &'static str,
        /// The record.
        key: Key,
        /// How often we tried.
        tries: u32,
    },
    /// The request's time was over before others let us write the record.
    #[error("{operation} {key}: out of time after {tries} tries; try again")]
    Late {
        /// What was being done.
        operation: &'static str,
        /// The record.
        key: Key,
        /// How often we tried.
        tries: u32,
    },
    /// A record cannot be read. It is left alone.
    #[error("{key} is corrupt: {source}; repair or delete it")]
    Corrupt {
        /// The record.
        key: Key,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// The request contradicts itself.
    #[error("{0}")]
    Invalid(String),
    /// The store did not do as asked.
    #[error("{operation}: {source}")]
    Store {
        /// What was being done, and to what.
        operation: String,
        /// What the store said.
        source: StoreError,
    },
}

// === impl IpamError ===

impl IpamError {
    /// Whether the same request may succeed later without anybody changing anything.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Contended { .. } | Self::Late { .. } => true,
            Self::Store { source, .. } => {
                source.retryable() || source.outcome_unknown() || source.lost_race()
            }
            _ => false,
        }
    }

    /// Whether the node ran out of addresses, rather than anything being broken.
    pub fn exhausted(&self) -> bool {
        matches!(
            self,
            Self::PoolExhausted { .. }
                | Self::BlockLimit { .. }
                | Self::StrictAffinity { .. }
                | Self::AutoAllocateOff { .. }
        )
    }

    pub(crate) fn store(operation: impl Into<String>, source: impl Into<StoreError>) -> Self {
        Self::Store { operation: operation.into(), source: source.into() }
    }
}

fn list(pools: &[IpNet]) -> String {
    pools.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
