//! The Go allocator's block functions (calico-ipam.md sections 3.1 to 3.3), pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use russet_addr::{BlockCidr, IpNet, NodeName};
use russet_model::{Attribute, Block, Extra, HandleId, time};

use super::{GoError, Result, Version};

/// An address to give back.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) address: IpAddr,
    pub(super) handle: Option<HandleId>,
    pub(super) sequence_number: Option<u64>,
}

/// What a release did.
#[derive(Debug, Default)]
pub(super) struct Freed {
    pub(super) count: usize,
    /// How much each handle is lowered; up to 3.32 by 1, however many addresses it loses.
    pub(super) handles: BTreeMap<String, u64>,
}

/// How a release works.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    pub(super) version: Version,
    pub(super) now: SystemTime,
    pub(super) cooldown_s: u64,
}

pub(super) fn new_block(
    cidr: BlockCidr,
    host: &NodeName,
    claim_time: Option<String>,
    now: SystemTime,
) -> Block {
    let nanos = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    Block {
        cidr,
        affinity: Some(format!("host:{host}")),
        affinity_claim_time: claim_time,
        allocations: vec![None; cidr.size()],
        unallocated: (0..cidr.size()).collect(),
        attributes: None,
        sequence_number: u64::try_from(nanos).unwrap_or_default(),
        sequence_numbers: Some(BTreeMap::new()),
        deleted: false,
        host_affinity: None,
        strict_affinity: false,
        extra: Extra::new(),
    }
}

pub(super) fn is_ours(block: &Block, host: &NodeName) -> bool {
    block.affinity.as_deref() == Some(format!("host:{host}").as_str())
}

pub(super) fn is_reserved(reserved: &[IpNet], block: &Block, ordinal: usize) -> bool {
    block.cidr.address(ordinal).is_some_and(|address| reserved.iter().any(|net| net.contains(&address)))
}

pub(super) fn free_count(block: &Block, reserved: &[IpNet]) -> usize {
    block.unallocated.iter().filter(|ordinal| !is_reserved(reserved, block, **ordinal)).count()
}

pub(super) fn auto_assign(
    block: &mut Block,
    count: usize,
    owner: &Attribute,
    must_serve: Option<&NodeName>,
    reserved: &[IpNet],
) -> Result<Vec<usize>> {
    if must_serve.is_some_and(|host| !is_ours(block, host)) {
        return Err(GoError::Affinity);
    }
    let free = block.unallocated.iter().copied();
    let taken: Vec<usize> =
        free.filter(|ordinal| !is_reserved(reserved, block, *ordinal)).take(count).collect();
    take(block, &taken, owner);
    Ok(taken)
}

pub(super) fn assign(
    block: &mut Block,
    address: IpAddr,
    owner: &Attribute,
    must_serve: Option<&NodeName>,
) -> Result<()> {
    if must_serve.is_some_and(|host| !is_ours(block, host)) {
        return Err(GoError::Affinity);
    }
    let ordinal = block.cidr.ordinal(address).ok_or(GoError::Other("not in the block"))?;
    if block.allocations[ordinal].is_some() {
        return Err(GoError::AlreadyExists);
    }
    take(block, &[ordinal], owner);
    Ok(())
}

fn take(block: &mut Block, ordinals: &[usize], owner: &Attribute) {
    if ordinals.is_empty() {
        return;
    }
    let index = attribute(block, owner);
    let number = block.sequence_number;
    for &ordinal in ordinals {
        block.allocations[ordinal] = Some(index);
        block.unallocated.retain(|free| *free != ordinal);
        block.sequence_numbers.get_or_insert_default().insert(ordinal.to_string(), number);
    }
}

/// The index of an attribute that is equal in all members, or of a new one.
fn attribute(block: &mut Block, owner: &Attribute) -> usize {
    let attributes = block.attributes.get_or_insert_default();
    attributes.iter().position(|known| known == owner).unwrap_or_else(|| {
        attributes.push(owner.clone());
        attributes.len() - 1
    })
}

pub(super) fn release(block: &mut Block, wanted: &[Wanted], manner: Manner) -> Result<Freed> {
    let mut ordinals = Vec::new();
    let mut freed = Freed::default();
    for one in wanted {
        let ordinal = block.cidr.ordinal(one.address).ok_or(GoError::Other("not in the block"))?;
        if ordinals.contains(&ordinal) {
            continue;
        }
        let sequence_number = block.sequence_number_of(ordinal);
        if one.sequence_number.is_some_and(|wanted| wanted != sequence_number) {
            return Err(GoError::Conflict);
        }
        let Some(owner) = block.attribute(ordinal).filter(|owner| owner.released_at.is_none()) else {
            continue;
        };
        let stored = owner.handle_id.as_deref().map(HandleId::sanitized).map(str::to_owned);
        if one.handle.as_ref().is_some_and(|wanted| Some(wanted.as_str()) != stored.as_deref()) {
            return Err(GoError::Conflict);
        }
        ordinals.push(ordinal);
        if let Some(handle) = stored {
            let count = freed.handles.entry(handle).or_default();
            *count = if manner.version >= Version::V333 { *count + 1 } else { 1 };
        }
    }
    freed.count = ordinals.len();
    match manner.version >= Version::V333 {
        true => ordinals.sort_unstable(),
        false => ordinals.reverse(), // the order of a Go map: any
    }
    give_back(block, &ordinals, manner, true);
    Ok(freed)
}

pub(super) fn release_by_handle(block: &mut Block, handle: &HandleId, manner: Manner) -> usize {
    let ordinals: Vec<usize> = block.ordinals_of(handle).collect();
    give_back(block, &ordinals, manner, manner.version >= Version::V333);
    ordinals.len()
}

fn give_back(block: &mut Block, ordinals: &[usize], manner: Manner, forgets_numbers: bool) {
    if ordinals.is_empty() {
        return;
    }
    if manner.version >= Version::V333 && manner.cooldown_s > 0 {
        let owner = Attribute { released_at: Some(time::rfc3339(manner.now)), ..Attribute::default() };
        let index = attribute(block, &owner);
        for &ordinal in ordinals {
            block.allocations[ordinal] = Some(index);
        }
        compact(block);
        return free_cooled(block, manner.now, manner.cooldown_s);
    }
    free(block, ordinals, forgets_numbers);
}

fn free(block: &mut Block, ordinals: &[usize], forgets_numbers: bool) {
    for &ordinal in ordinals {
        block.allocations[ordinal] = None;
        block.unallocated.push(ordinal);
        if forgets_numbers && let Some(numbers) = &mut block.sequence_numbers {
            numbers.remove(&ordinal.to_string());
        }
    }
    compact(block);
}

/// The garbage collection of 3.33: frees what has cooled down.
pub(super) fn free_cooled(block: &mut Block, now: SystemTime, cooldown_s: u64) {
    let cooled = |owner: &Attribute| {
        let at = owner.released_at.as_deref().and_then(time::parse_rfc3339);
        at.is_some_and(|at| now.duration_since(at).is_ok_and(|age| age.as_secs() >= cooldown_s))
    };
    let ordinals: Vec<usize> = (0..block.allocations.len())
        .filter(|ordinal| block.attribute(*ordinal).is_some_and(cooled))
        .collect();
    if !ordinals.is_empty() {
        free(block, &ordinals, true);
    }
}

/// Removes attributes without references; indexes above them shift down.
fn compact(block: &mut Block) {
    let count = block.attributes().len();
    for index in (0..count).rev() {
        if block.allocations.contains(&Some(index)) {
            continue;
        }
        if let Some(attributes) = &mut block.attributes {
            attributes.remove(index);
        }
        for slot in block.allocations.iter_mut().flatten().filter(|slot| **slot > index) {
            *slot -= 1;
        }
    }
}

// === impl Wanted ===

impl Wanted {
    pub(super) fn unguarded(address: IpAddr) -> Self {
        Self { address, handle: None, sequence_number: None }
    }
}
