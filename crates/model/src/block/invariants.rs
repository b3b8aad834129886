//! The five invariants of a block (calico-ipam.md section 1.3). Go programs panic on a block that
//! violates one, so Russet neither writes nor trusts it.

use super::Block;
use crate::json::DecodeError;

/// The violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockFault {
    /// Invariant 1.
    #[error("{found} entries where the block has {wanted} addresses")]
    Length {
        /// How many there are.
        found: usize,
        /// How many there must be.
        wanted: usize,
    },
    /// Invariant 2.
    #[error("there is no attribute {index}")]
    NoAttribute {
        /// The address's ordinal.
        ordinal: usize,
        /// What its entry says.
        index: usize,
    },
    /// Invariant 3.
    #[error("no address refers to it")]
    Unreferenced {
        /// The attribute's index.
        index: usize,
    },
    /// Invariant 4: an ordinal is out of range.
    #[error("ordinal {ordinal} is outside the block")]
    OutOfRange {
        /// The ordinal.
        ordinal: usize,
    },
    /// Invariant 4: an ordinal stands there twice.
    #[error("ordinal {ordinal} is listed twice")]
    Duplicate {
        /// The ordinal.
        ordinal: usize,
    },
    /// Invariant 4: an ordinal is both free and taken.
    #[error("ordinal {ordinal} is taken")]
    FreeAndTaken {
        /// The ordinal.
        ordinal: usize,
    },
    /// Invariant 5.
    #[error("ordinal {ordinal} is neither free nor taken")]
    Hidden {
        /// The ordinal.
        ordinal: usize,
    },
}

// === impl BlockFault ===

impl BlockFault {
    /// The member that is wrong.
    pub fn at(&self) -> String {
        match self {
            Self::Length { .. } => "allocations".into(),
            Self::NoAttribute { ordinal, .. } => format!("allocations[{ordinal}]"),
            Self::Unreferenced { index } => format!("attributes[{index}]"),
            Self::OutOfRange { .. }
            | Self::Duplicate { .. }
            | Self::FreeAndTaken { .. }
            | Self::Hidden { .. } => "unallocated".into(),
        }
    }
}

impl From<BlockFault> for DecodeError {
    fn from(fault: BlockFault) -> Self {
        Self { what: "block", at: fault.at(), problem: fault.to_string() }
    }
}

// === impl Block ===

impl Block {
    /// Makes the queue and the attributes consistent with the allocations, which alone decide about
    /// ownership: an allocated ordinal is not free, a free one is free once, in the order of the
    /// queue, and unused attributes are removed. Returns the first fault. Invalid allocations stay
    /// invalid.
    pub fn repair(&mut self) -> Result<Option<BlockFault>, BlockFault> {
        let Err(fault) = self.validate() else { return Ok(None) };
        if matches!(fault, BlockFault::Length { .. } | BlockFault::NoAttribute { .. }) {
            return Err(fault);
        }
        self.compact();
        let mut is_missing: Vec<bool> = self.allocations.iter().map(Option::is_none).collect();
        self.unallocated.retain(|&ordinal| is_missing.get_mut(ordinal).is_some_and(std::mem::take));
        // Addresses without an allocation are free: they are added at the end.
        let missing = is_missing.iter().enumerate().filter(|(_, is_missing)| **is_missing);
        self.unallocated.extend(missing.map(|(ordinal, _)| ordinal));
        self.validate()?;
        Ok(Some(fault))
    }

    /// Drops attributes without an allocation; those after them move down.
    pub fn compact(&mut self) {
        let Some(attributes) = &mut self.attributes else { return };
        let mut used = vec![false; attributes.len()];
        for index in self.allocations.iter().flatten() {
            // An index without an attribute is a fault that `validate` reports.
            used.get_mut(*index).into_iter().for_each(|used| *used = true);
        }
        let mut next = 0;
        let moved: Vec<usize> = used
            .iter()
            .map(|used| {
                let index = next;
                next += usize::from(*used);
                index
            })
            .collect();
        let mut used = used.into_iter();
        attributes.retain(|_| used.next().unwrap_or(true));
        for slot in self.allocations.iter_mut().flatten() {
            *slot = moved.get(*slot).copied().unwrap_or(*slot);
        }
    }

    /// Checks the five invariants and returns the first violated one.
    pub fn validate(&self) -> Result<(), BlockFault> {
        let size = self.cidr.size();
        if self.allocations.len() != size {
            return Err(BlockFault::Length { found: self.allocations.len(), wanted: size });
        }
        let mut referenced = vec![false; self.attributes().len()];
        for (ordinal, slot) in self.allocations.iter().enumerate() {
            let Some(index) = *slot else { continue };
            *referenced.get_mut(index).ok_or(BlockFault::NoAttribute { ordinal, index })? = true;
        }
        if let Some(index) = referenced.iter().position(|referenced| !referenced) {
            return Err(BlockFault::Unreferenced { index });
        }
        let mut free = vec![false; size];
        for &ordinal in &self.unallocated {
            let seen = free.get_mut(ordinal).ok_or(BlockFault::OutOfRange { ordinal })?;
            if *seen {
                return Err(BlockFault::Duplicate { ordinal });
            }
            if self.allocations.get(ordinal).is_some_and(Option::is_some) {
                return Err(BlockFault::FreeAndTaken { ordinal });
            }
            *seen = true;
        }
        let mut slots = free.iter().zip(&self.allocations);
        match slots.position(|(is_free, owner)| !is_free && owner.is_none()) {
            Some(ordinal) => Err(BlockFault::Hidden { ordinal }),
            None => Ok(()),
        }
    }
}
