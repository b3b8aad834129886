//! The addresses of a handle (calico-ipam.md section 3.9), which a repeated ADD gets again.

use std::net::IpAddr;

use russet_addr::{BlockCidr, Family, IpNet, NodeName};
use russet_model::{Attribute, Block, DecodeError, HandleId, Prefix};

use super::{Allocator, readable};
use crate::{IpamError, ReleaseOptions, Request, TIMESTAMP};

/// One address of a handle.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    pub address: IpAddr,
    pub block: BlockCidr,
    /// The attributes that are stored with it.
    pub attribute: Attribute,
    /// The sequence number of its allocation, which guards a release.
    pub sequence_number: u64,
}

// === impl Held ===

impl Held {
    /// Releases this allocation for `handle`, but no later one of the same address.
    fn guarded(&self, handle: &HandleId) -> ReleaseOptions {
        let (address, sequence_number) = (self.address, Some(self.sequence_number));
        ReleaseOptions { address, handle: Some(handle.clone()), sequence_number }
    }
}

// === impl Allocator ===

impl Allocator {
    /// The addresses of a handle, block by block. Blocks that cannot be decoded are skipped.
    pub async fn ips_by_handle(&self, handle: &HandleId) -> Result<Vec<Held>, IpamError> {
        let Some(stored) = self.handle(handle).await? else { return Ok(Vec::new()) };
        self.held_in(handle, stored.value.blocks()).await
    }

    /// The same for a release: if the handle's record cannot be decoded, all blocks are searched.
    pub async fn ips_to_free(&self, handle: &HandleId) -> Result<Vec<Held>, IpamError> {
        let traces = self.traces(handle).await?;
        self.held_in(handle, traces.blocks).await
    }

    /// Releases allocations of a handle. One that was released meanwhile and allocated again is an
    /// error and stays.
    pub async fn release_held(
        &self,
        handle: &HandleId,
        held: impl IntoIterator<Item = Held>,
    ) -> Result<(), IpamError> {
        let options: Vec<ReleaseOptions> = held.into_iter().map(|held| held.guarded(handle)).collect();
        if options.is_empty() {
            return Ok(());
        }
        self.release_ips(&options).await.map(drop)
    }

    /// Releases what the request with the attribute [`TIMESTAMP`] `timestamp` allocated for the
    /// handle; allocations of other requests stay.
    pub async fn release_of_request(&self, handle: &HandleId, timestamp: &str) -> Result<(), IpamError> {
        let held = self.ips_by_handle(handle).await?;
        let of_request = |held: &Held| held.attribute.get(TIMESTAMP) == Some(timestamp);
        self.release_held(handle, held.into_iter().filter(of_request)).await
    }

    async fn held_in(
        &self,
        handle: &HandleId,
        blocks: impl IntoIterator<Item = BlockCidr>,
    ) -> Result<Vec<Held>, IpamError> {
        let mut held = Vec::new();
        for cidr in blocks {
            let block = match self.repaired_block(cidr).await {
                Ok(Some(block)) => block.value,
                Ok(None) => continue,
                Err(error @ IpamError::Corrupt { .. }) => {
                    russet_store::refused(
                        "a block of a handle is passed over",
                        cidr,
                        format!("{error} ({handle})"),
                    );
                    continue;
                }
                Err(error) => return Err(error),
            };
            held.extend(block.ordinals_of(handle).filter_map(|ordinal| held_at(&block, ordinal)));
        }
        Ok(held)
    }

    /// Every address that was allocated for a node, including borrowed ones, whether its handle has
    /// a record or not. For GC: [`release_ips`](Self::release_ips), guarded by handle and sequence
    /// number, also releases what no handle reaches.
    pub async fn held_by_node(&self, node: &NodeName) -> Result<Vec<Held>, IpamError> {
        let records = self.records(&Prefix::blocks(None)).await?;
        let mut held = Vec::new();
        for block in records.iter().filter_map(|record| readable(record, decode_repaired)) {
            let ours = (0..block.cidr.size()).filter_map(|ordinal| held_at(&block, ordinal));
            held.extend(ours.filter(|held| held.attribute.get("node") == Some(node.as_str())));
        }
        Ok(held)
    }

    /// The addresses that the request's handle and interface have already, at most the requested
    /// number of each family.
    pub(super) async fn existing(&self, request: &Request) -> Result<Vec<IpNet>, IpamError> {
        let held = self.ips_by_handle(&request.handle).await?;
        let mut found = Vec::new();
        for family in Family::BOTH {
            let ours = held.iter().filter(|held| held.block.family() == family && is_same(held, request));
            let nets = ours.filter_map(|held| with_block_prefix(held.block, held.address));
            found.extend(nets.take(request.wanted(family) as usize));
        }
        Ok(found)
    }
}

/// Decodes a block for reading.
pub(super) fn decode_repaired(bytes: &[u8]) -> Result<Block, DecodeError> {
    Block::decode_repaired(bytes).map(|(block, _)| block)
}

pub(super) fn held_at(block: &Block, ordinal: usize) -> Option<Held> {
    Some(Held {
        address: block.cidr.address(ordinal)?,
        block: block.cidr,
        attribute: block.attribute(ordinal)?.clone(),
        sequence_number: block.sequence_number_of(ordinal),
    })
}

/// Whether an address was allocated for the same interface of the same container on the same node.
fn is_same(held: &Held, request: &Request) -> bool {
    let same = |name: &str| held.attribute.get(name) == request.attributes.get(name).map(String::as_str);
    let same_node = held.attribute.get("node").is_none_or(|node| node == request.node.as_str());
    same("interface") && same("pod") && same("namespace") && same_node
}

/// The address with its block's prefix length, as peers print it.
pub(super) fn with_block_prefix(block: BlockCidr, address: IpAddr) -> Option<IpNet> {
    IpNet::new(address, block.net().prefix_len()).ok()
}
