//! Why no address was assigned or released: each error names the limit that was hit and the remedy.

use std::net::IpAddr;

use russet_addr::{BlockCidr, Family, IpNet, NodeName};
use russet_model::{DecodeError, HandleId, Key, SelectorError};
use russet_store::StoreError;

/// A failure of the allocator.
#[derive(Debug, Clone, thiserror::Error)]
pub enum IpamError {
    /// Every address of every pool that may serve the request is allocated.
    #[error(
        "Assigned {assigned} out of {wanted} requested {family} addresses; No IPs available in pools: [{}]: all {blocks} blocks are taken and full; add a pool or release addresses",
        list(pools)
    )]
    PoolExhausted {
        family: Family,
        pools: Vec<IpNet>,
        /// Number of their blocks.
        blocks: u64,
        /// Number of addresses that were found (and released).
        assigned: u32,
        /// Number of requested addresses.
        wanted: u32,
    },
    /// The node's own blocks are full and it may not claim another one.
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
    /// Other nodes' blocks have free addresses, but may not be used.
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
    /// New blocks may not be claimed.
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
    /// A requested pool does not exist or is disabled.
    #[error("the given pool {pool} does not exist, or is not enabled")]
    PoolMissing {
        /// The pool.
        pool: IpNet,
    },
    /// A pool of the wrong family was requested.
    #[error("pool {pool} was given for {family} addresses")]
    PoolFamily {
        /// The pool.
        pool: IpNet,
        /// The family of the requested addresses.
        family: Family,
    },
    /// Pools select nodes by labels, and the node's record with the labels does not exist.
    #[error(
        "node {node} has no record at {key}, and pool {pool} selects nodes by label; start the agent there or create the record"
    )]
    NodeMissing {
        /// The node.
        node: NodeName,
        /// The key of its missing record.
        key: Key,
        /// The pool.
        pool: String,
    },
    /// The node of a request for registered nodes only has no record.
    #[error("node {node} is not registered: there is no {key}")]
    NodeUnknown {
        /// The node.
        node: NodeName,
        /// The key of its missing record.
        key: Key,
    },
    /// A pool's selector is invalid.
    #[error("pool {pool}: {source}")]
    Selector {
        /// The pool.
        pool: String,
        source: SelectorError,
    },
    /// No enabled pool holds the address.
    #[error("address {address} is not in a configured pool")]
    NotInPool {
        /// The address.
        address: IpAddr,
    },
    /// The address is allocated.
    #[error("address {address} is already assigned{}", holder.as_ref().map(|h| format!(" to {h:.80}")).unwrap_or_default())]
    AlreadyAssigned {
        /// The address.
        address: IpAddr,
        /// Its handle.
        holder: Option<String>,
    },
    /// The address's block serves another node, and strict affinity is on.
    #[error("Block host affinity does not match: {block} serves {}", owner.as_deref().unwrap_or("no node"))]
    ForeignBlock {
        /// The block.
        block: BlockCidr,
        /// The owner that it serves.
        owner: Option<String>,
    },
    /// A release had another sequence number than the allocation: the address was released and
    /// allocated again.
    #[error("address {address}: the given sequence number is {expected}, the stored one {found}")]
    BadSequence {
        /// The address.
        address: IpAddr,
        /// The sequence number in the request.
        expected: u64,
        /// The stored one.
        found: u64,
    },
    /// A release had another handle than the allocation.
    #[error("address {address}: the given handle is {expected}, the stored one {:.80}", found.as_deref().unwrap_or("none"))]
    BadHandle {
        /// The address.
        address: IpAddr,
        /// The handle in the request.
        expected: HandleId,
        /// The stored one.
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
    /// A pool overlaps an existing one.
    #[error("pool {pool} overlaps pool {other} ({name})")]
    PoolOverlap {
        /// The new one.
        pool: IpNet,
        /// The existing pool's prefix.
        other: IpNet,
        /// The existing pool's name.
        name: String,
    },
    /// Other writers changed the record in each attempt.
    #[error("{operation} {key}: other writers were faster {tries} times; try again")]
    Contended {
        /// The operation.
        operation: &'static str,
        /// The record.
        key: Key,
        /// Number of attempts.
        tries: u32,
    },
    /// The request's deadline passed before the record could be written.
    #[error("{operation} {key}: out of time after {tries} tries; try again")]
    Late {
        /// The operation.
        operation: &'static str,
        /// The record.
        key: Key,
        /// Number of attempts.
        tries: u32,
    },
    /// A record cannot be decoded. It is left unchanged.
    #[error("{key} is corrupt: {source}; repair or delete it")]
    Corrupt {
        /// The record.
        key: Key,
        source: DecodeError,
    },
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The store failed.
    #[error("{operation}: {source}")]
    Store {
        /// The operation and its subject.
        operation: String,
        /// The store's error.
        source: StoreError,
    },
}

// === impl IpamError ===

impl IpamError {
    /// Whether the same request may succeed later without a change by an operator.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Contended { .. } | Self::Late { .. } => true,
            Self::Store { source, .. } => {
                source.retryable() || source.outcome_unknown() || source.lost_race()
            }
            _ => false,
        }
    }

    /// Whether the node has run out of addresses, as opposed to an error.
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
