//! The operations on a block (calico-ipam.md sections 3.1 and 3.2). Pure: a block in, a block out,
//! nothing stored.
//!
//! Every operation that changes a block increments its sequence number, as peers do when they write
//! it; an allocation is recorded with the number before that. Where releases of Calico differ,
//! these are the correct ones of 3.33.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use russet_addr::{BlockCidr, IfName, IpNet, NodeName};
use russet_model::{Attribute, Block, Extra, HandleId, time};

use crate::IpamError;

/// Prefixes whose addresses are only assigned on explicit request.
#[derive(Debug, Clone, Default)]
pub struct Reserved(pub Vec<IpNet>);

/// One address to release, with optional guards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseOptions {
    /// The address.
    pub address: IpAddr,
    /// The handle that it must have.
    pub handle: Option<HandleId>,
    /// The sequence number that its allocation must have.
    pub sequence_number: Option<u64>,
}

/// The result of a release.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Freed {
    /// The released ordinals, ascending, with the handle of each.
    pub freed: Vec<(usize, Option<String>)>,
    /// Addresses that were free already.
    pub unallocated: Vec<IpAddr>,
    /// The block has no allocated address any more.
    pub emptied: bool,
}

/// A new block of `node`. Its sequence number is the time, so that a block that is created again
/// never repeats an old number.
pub fn new_block(cidr: BlockCidr, node: &NodeName, now: SystemTime) -> Block {
    let nanos = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    Block {
        affinity: Some(Block::affinity_of(node)),
        affinity_claim_time: Some(time::rfc3339(now)),
        sequence_number: u64::try_from(nanos).unwrap_or(u64::MAX / 2),
        ..vacant(cidr)
    }
}

/// A block without affinity and allocations, equivalent to a missing record.
pub fn vacant(cidr: BlockCidr) -> Block {
    Block {
        cidr,
        affinity: None,
        affinity_claim_time: None,
        allocations: vec![None; cidr.size()],
        unallocated: (0..cidr.size()).collect(),
        attributes: None,
        sequence_number: 0,
        sequence_numbers: Some(Default::default()),
        deleted: false,
        host_affinity: None,
        strict_affinity: false,
        extra: Extra::new(),
    }
}

/// Allocates up to `count` free addresses from the head of the queue, skipping reserved ones; all
/// share one attribute.
pub fn auto_assign(block: &mut Block, count: usize, owner: &Attribute, reserved: &Reserved) -> Vec<usize> {
    let cidr = block.cidr;
    let mut taken = Vec::new();
    block.unallocated.retain(|&ordinal| {
        let take = taken.len() < count && !reserved.holds(cidr, ordinal);
        if take {
            taken.push(ordinal);
        }
        !take
    });
    if !taken.is_empty() {
        give(block, &taken, owner);
    }
    taken
}

/// Allocates one address, reserved or not.
pub fn assign(block: &mut Block, address: IpAddr, owner: &Attribute) -> Result<usize, IpamError> {
    let ordinal = block.cidr.ordinal(address).ok_or(IpamError::NotInPool { address })?;
    if block.allocations.get(ordinal).ok_or(IpamError::NotInPool { address })?.is_some() {
        let holder = block.attribute(ordinal).and_then(|attribute| attribute.handle_id.clone());
        return Err(IpamError::AlreadyAssigned { address, holder });
    }
    block.unallocated.retain(|free| *free != ordinal);
    give(block, &[ordinal], owner);
    Ok(ordinal)
}

/// Releases addresses. A wrong sequence number or handle fails the whole call and leaves the block
/// unchanged; the sequence number is checked first, so releasing an address twice with its old
/// number is an error.
pub fn release(block: &mut Block, addresses: &[ReleaseOptions]) -> Result<Freed, IpamError> {
    let mut result = Freed::default();
    let mut wanted: Vec<(usize, &ReleaseOptions)> = Vec::new();
    for options in addresses {
        let address = options.address;
        let ordinal = block.cidr.ordinal(address).ok_or(IpamError::NotInPool { address })?;
        wanted.retain(|(other, _)| *other != ordinal); // named twice: the last one counts
        wanted.push((ordinal, options));
    }
    wanted.sort_by_key(|(ordinal, _)| *ordinal);
    for (ordinal, options) in wanted {
        let address = options.address;
        let found = block.sequence_number_of(ordinal);
        if let Some(expected) = options.sequence_number.filter(|expected| *expected != found) {
            return Err(IpamError::BadSequence { address, expected, found });
        }
        let Some(owner) = block.attribute(ordinal).filter(|owner| owner.released_at.is_none()) else {
            result.unallocated.push(address);
            continue;
        };
        let stored = owner.handle_id.as_deref().map(HandleId::sanitized);
        if let Some(expected) = options.handle.as_ref().filter(|expected| Some(expected.as_str()) != stored) {
            let found = stored.map(str::to_owned);
            return Err(IpamError::BadHandle { address, expected: expected.clone(), found });
        }
        result.freed.push((ordinal, stored.map(str::to_owned)));
    }
    let ordinals: Vec<usize> = result.freed.iter().map(|(ordinal, _)| *ordinal).collect();
    take_back(block, &ordinals);
    Ok(result)
}

/// Releases the addresses of a handle, or of one interface of it: entries with another interface
/// stay.
pub fn release_by_handle(block: &mut Block, handle: &HandleId, interface: Option<&IfName>) -> Vec<usize> {
    let ordinals: Vec<usize> = block
        .ordinals_of(handle)
        .filter(|ordinal| {
            let named = block.attribute(*ordinal).and_then(|owner| owner.get("interface"));
            interface.is_none_or(|interface| named.is_none_or(|named| named == interface.as_str()))
        })
        .collect();
    take_back(block, &ordinals);
    ordinals
}

/// Releases ordinals with exactly this attribute: the allocations of one call, whatever else shares
/// its handle.
pub fn release_attribute(block: &mut Block, owner: &Attribute) -> Vec<usize> {
    let ordinals = ordinals_with(block, owner);
    take_back(block, &ordinals);
    ordinals
}

/// The ordinals with exactly this attribute.
pub fn ordinals_with(block: &Block, owner: &Attribute) -> Vec<usize> {
    (0..block.allocations.len()).filter(|ordinal| block.attribute(*ordinal) == Some(owner)).collect()
}

/// Changes only the sequence number, so that commits guarded by an older revision fail.
pub fn touch(block: &mut Block) {
    block.sequence_number = block.sequence_number.wrapping_add(1);
}

/// Removes the block's affinity; its addresses stay allocated.
pub fn drop_affinity(block: &mut Block) {
    block.affinity = None;
    block.affinity_claim_time = None;
    touch(block);
}

/// Whether `auto_assign` would find an address.
pub fn has_free(block: &Block, reserved: &Reserved) -> bool {
    block.unallocated.iter().any(|ordinal| !reserved.holds(block.cidr, *ordinal))
}

fn give(block: &mut Block, ordinals: &[usize], owner: &Attribute) {
    let attributes = block.attributes.get_or_insert_default();
    let index = attributes.iter().position(|known| known == owner).unwrap_or_else(|| {
        attributes.push(owner.clone());
        attributes.len() - 1
    });
    let numbers = block.sequence_numbers.get_or_insert_default();
    for &ordinal in ordinals {
        let Some(slot) = block.allocations.get_mut(ordinal) else { continue };
        *slot = Some(index);
        numbers.insert(ordinal.to_string(), block.sequence_number);
    }
    touch(block);
}

fn take_back(block: &mut Block, ordinals: &[usize]) {
    if ordinals.is_empty() {
        return;
    }
    for &ordinal in ordinals {
        let Some(slot) = block.allocations.get_mut(ordinal) else { continue };
        *slot = None;
        block.unallocated.push(ordinal);
        if let Some(numbers) = &mut block.sequence_numbers {
            numbers.remove(&ordinal.to_string());
        }
    }
    block.compact();
    touch(block);
}

// === impl Freed ===

impl Freed {
    /// Ordinals that one handle had.
    pub fn of_handle(ordinals: Vec<usize>, handle: &HandleId) -> Self {
        let freed = ordinals.into_iter().map(|ordinal| (ordinal, Some(handle.to_string()))).collect();
        Self { freed, ..Self::default() }
    }

    /// The handles that had the ordinals.
    pub fn handles(&self) -> BTreeSet<HandleId> {
        self.freed.iter().filter_map(|(_, handle)| HandleId::new(handle.as_deref()?).ok()).collect()
    }
}

// === impl Reserved ===

impl Reserved {
    /// Whether an address of a block is reserved.
    pub fn holds(&self, block: BlockCidr, ordinal: usize) -> bool {
        block.address(ordinal).is_some_and(|address| self.0.iter().any(|net| net.contains(&address)))
    }

    /// A prefix around a block without any free address: the reservation that contains the block,
    /// or the block itself if several reservations cover it together. Peers consider only the
    /// former; claiming the latter would waste one of a node's blocks.
    pub fn covering(&self, block: BlockCidr) -> Option<IpNet> {
        let whole = self.0.iter().copied().find(|net| net.contains(&block.net()));
        whole.or_else(|| self.fill(block).then(|| block.net()))
    }

    /// Whether the reservations inside a block cover all of it.
    fn fill(&self, block: BlockCidr) -> bool {
        let bits = block.family().bits();
        let inside = self.0.iter().filter(|net| block.net().contains(*net));
        let most: usize = inside.map(|net| 1_usize << (bits - net.prefix_len())).sum();
        most >= block.size() && (0..block.size()).all(|ordinal| self.holds(block, ordinal))
    }
}

#[cfg(test)]
mod tests;
