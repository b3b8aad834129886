//! The block: which of its addresses are allocated, to whom, and the order of the free ones
//! (calico-ipam.md sections 1.3 and 1.4).
//!
//! This file has the data and its JSON; the operations are in `russet-ipam`.

use std::collections::BTreeMap;

use russet_addr::{BlockCidr, NodeName};
use serde_json::Value;

use crate::json::{self, DecodeError, Extra, Fields, Object};
use crate::{HandleId, time};

mod invariants;

pub use invariants::BlockFault;

/// A block of addresses and their owners. `decode` returns only blocks that satisfy the five
/// invariants of calico-ipam.md section 1.3.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The prefix.
    pub cidr: BlockCidr,
    /// The owner that the block serves: `host:<node>` or `virtual:<owner>`; none if its affinity
    /// was released.
    pub affinity: Option<String>,
    /// When the block was created, RFC 3339; removed with the affinity.
    pub affinity_claim_time: Option<String>,
    /// One entry for each address: the index of its attribute, or none if it is free.
    pub allocations: Vec<Option<usize>>,
    /// The free ordinals, the next one first.
    pub unallocated: Vec<usize>,
    /// The owners. None, encoded as `null`, in a block that never had one.
    pub attributes: Option<Vec<Attribute>>,
    /// Incremented at each update. It starts with the creation time in nanoseconds, so it exceeds
    /// what a float holds.
    pub sequence_number: u64,
    /// Ordinal (in decimal) to the sequence number of its allocation. None, encoded as `null`, in
    /// blocks of old peers.
    pub sequence_numbers: Option<BTreeMap<String, u64>>,
    /// Always false outside Kubernetes.
    pub deleted: bool,
    /// v1's affinity; kept, never interpreted.
    pub host_affinity: Option<String>,
    /// Enforced by peers up to 3.13 only, and by Russet on the data of Calico v1; kept when true.
    pub strict_affinity: bool,
    /// Unknown members.
    pub extra: Extra,
}

/// One owner of addresses of a block.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Attribute {
    /// The handle, as stored: what follows a CR is garbage.
    pub handle_id: Option<String>,
    /// `node`, `pod`, `namespace`, `interface`, `timestamp`, `type`. A missing and an empty map are different owners, as in Go.
    pub secondary: Option<BTreeMap<String, String>>,
    /// KubeVirt's migration target.
    pub alternate_owner: BTreeMap<String, String>,
    /// Set while a released address is in cooldown (3.33): it is not free, whatever the handle
    /// says.
    pub released_at: Option<String>,
    /// Unknown members.
    pub extra: Extra,
}

// === impl Block ===

impl Block {
    /// Limit of an affinity: `host:` and a node's name have a quarter of it.
    pub const AFFINITY_MAX_BYTES: usize = 1024;

    /// Decodes a block and checks its invariants.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let block = Self::parse(bytes)?;
        block.validate().map_err(DecodeError::from)?;
        Ok(block)
    }

    /// Decodes a block for reading or releasing: only its allocations and owners have to be valid,
    /// and the rest is [repaired](Self::repair). Returns also what was wrong, if anything was.
    pub fn decode_repaired(bytes: &[u8]) -> Result<(Self, Option<BlockFault>), DecodeError> {
        let mut block = Self::parse(bytes)?;
        let fault = block.repair()?;
        Ok((block, fault))
    }

    fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields::parse("block", bytes)?;
        let Some(cidr) = fields.text("cidr")? else { return Err(fields.error("cidr", "it is missing")) };
        Ok(Self {
            cidr,
            affinity: fields
                .short_string("affinity", Self::AFFINITY_MAX_BYTES)?
                .filter(|owner| !owner.is_empty()),
            affinity_claim_time: fields.string("affinity_claim_time")?,
            allocations: allocations(&mut fields)?,
            unallocated: unallocated(&mut fields)?,
            attributes: attributes(&mut fields)?,
            sequence_number: fields.unsigned("sequenceNumber")?.unwrap_or(0),
            sequence_numbers: fields.number_map("sequenceNumberForAllocation")?,
            deleted: fields.boolean("deleted")?.unwrap_or(false),
            host_affinity: fields.string("hostAffinity")?,
            strict_affinity: fields.boolean("strictAffinity")?.unwrap_or(false),
            extra: fields.rest(),
        })
    }

    /// Encodes the block as Calico 3.32 does.
    pub fn encode(&self) -> Vec<u8> {
        let allocations: Vec<Value> = self.allocations.iter().map(|slot| Value::from(*slot)).collect();
        let attributes =
            self.attributes.as_ref().map(|list| list.iter().map(Attribute::to_value).collect::<Vec<_>>());
        let value = Object::default()
            .put("cidr", self.cidr.to_string())
            .put("affinity", self.affinity.clone())
            .put_some("affinity_claim_time", self.affinity_claim_time.clone())
            .put("allocations", allocations)
            .put("unallocated", self.unallocated.clone())
            .put("attributes", attributes)
            .put("sequenceNumber", self.sequence_number)
            .put("sequenceNumberForAllocation", self.sequence_numbers.as_ref().map(json::number_map))
            .put("deleted", self.deleted)
            .put_some("hostAffinity", self.host_affinity.clone())
            .put_true("strictAffinity", self.strict_affinity)
            .finish(&self.extra);
        json::encode(&value)
    }

    /// The `affinity` of a node.
    pub fn affinity_of(node: &NodeName) -> String {
        format!("host:{node}")
    }

    /// Whether the block serves exactly this node.
    pub fn serves(&self, node: &NodeName) -> bool {
        self.affinity.as_deref().and_then(|owner| owner.strip_prefix("host:")) == Some(node.as_str())
    }

    /// The node that the block serves; none if it serves no node.
    pub fn node(&self) -> Option<NodeName> {
        NodeName::new(self.affinity.as_deref()?.strip_prefix("host:")?).ok()
    }

    /// The owners.
    pub fn attributes(&self) -> &[Attribute] {
        self.attributes.as_deref().unwrap_or_default()
    }

    /// The owner of an ordinal; none when it is free.
    pub fn attribute(&self, ordinal: usize) -> Option<&Attribute> {
        self.attributes().get((*self.allocations.get(ordinal)?)?)
    }

    /// The sequence number of an ordinal's allocation, 0 if unknown.
    pub fn sequence_number_of(&self, ordinal: usize) -> u64 {
        let numbers = self.sequence_numbers.as_ref();
        numbers.and_then(|numbers| numbers.get(&ordinal.to_string()).copied()).unwrap_or(0)
    }

    /// The ordinals that a handle has, ascending; those in cooldown have no owner.
    pub fn ordinals_of<'a>(&'a self, handle: &'a HandleId) -> impl Iterator<Item = usize> + 'a {
        (0..self.allocations.len())
            .filter(move |ordinal| self.attribute(*ordinal).is_some_and(|owner| owner.is_of(handle)))
    }

    /// Whether no address is allocated: reservations of Windows hosts do not count, addresses in
    /// cooldown do.
    pub fn is_empty(&self) -> bool {
        let reserved = |owner: &Attribute| {
            owner.handle_id.as_deref().is_some_and(|id| id.eq_ignore_ascii_case(HandleId::WINDOWS_RESERVED))
        };
        (0..self.allocations.len()).filter_map(|ordinal| self.attribute(ordinal)).all(reserved)
    }

    /// When the block was claimed, if that can be parsed.
    pub fn claimed_at(&self) -> Option<std::time::SystemTime> {
        time::parse_rfc3339(self.affinity_claim_time.as_deref()?)
    }
}

fn allocations(fields: &mut Fields) -> Result<Vec<Option<usize>>, DecodeError> {
    let items = fields.array("allocations")?.unwrap_or_default();
    let one = |(index, item): (usize, Value)| match item {
        Value::Null => Ok(None),
        item => ordinal(fields, "allocations", index, &item).map(Some),
    };
    items.into_iter().enumerate().map(one).collect()
}

fn unallocated(fields: &mut Fields) -> Result<Vec<usize>, DecodeError> {
    let items = fields.array("unallocated")?.unwrap_or_default();
    items.into_iter().enumerate().map(|(index, item)| ordinal(fields, "unallocated", index, &item)).collect()
}

fn ordinal(fields: &Fields, name: &str, index: usize, item: &Value) -> Result<usize, DecodeError> {
    let number = item.as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| {
        fields.error(&format!("{name}[{index}]"), format!("an unsigned integer is wanted, not {item:.60}"))
    })
}

fn attributes(fields: &mut Fields) -> Result<Option<Vec<Attribute>>, DecodeError> {
    let Some(items) = fields.objects("attributes")? else { return Ok(None) };
    items.into_iter().map(Attribute::from_fields).collect::<Result<_, _>>().map(Some)
}

// === impl Attribute ===

impl Attribute {
    /// Limit of a stored handle: twice the longest handle, for what peers append after a CR.
    pub const HANDLE_MAX_BYTES: usize = 1024;
    /// Limit of a name or value of an attribute's member: names of pods and nodes have 253 bytes.
    pub const MEMBER_MAX_BYTES: usize = 4096;

    /// Whether the attribute is an active one of this handle.
    pub fn is_of(&self, handle: &HandleId) -> bool {
        self.released_at.is_none() && self.handle_id.as_deref().is_some_and(|stored| handle.is(stored))
    }

    /// A member of `secondary`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.secondary.as_ref()?.get(name).map(String::as_str)
    }

    fn from_fields(mut fields: Fields) -> Result<Self, DecodeError> {
        Ok(Self {
            handle_id: fields.short_string("handle_id", Self::HANDLE_MAX_BYTES)?,
            secondary: fields.short_string_map("secondary", Self::MEMBER_MAX_BYTES)?,
            alternate_owner: fields
                .short_string_map("alternateOwnerAttrs", Self::MEMBER_MAX_BYTES)?
                .unwrap_or_default(),
            released_at: fields.string("releasedAt")?,
            extra: fields.rest(),
        })
    }

    fn to_value(&self) -> Value {
        let secondary = self.secondary.as_ref().filter(|map| !map.is_empty());
        Object::default()
            .put_some("handle_id", self.handle_id.clone())
            .put_some("secondary", secondary.map(json::string_map))
            .put_map("alternateOwnerAttrs", &self.alternate_owner)
            .put_some("releasedAt", self.released_at.clone())
            .finish(&self.extra)
    }
}

#[cfg(test)]
mod tests;
