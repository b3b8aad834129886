//! Handle records: raised before a block is written, lowered afterwards (calico-ipam.md section
//! 3.9).

use russet_addr::BlockCidr;
use russet_model::{Block, Handle, HandleId, Key, Prefix};
use russet_store::{Record, Step};

use super::existing::decode_repaired;
use super::{Allocator, Failure, Stored};
use crate::IpamError;

/// The step that adds `addresses` to the handle's count for `block`.
pub(super) fn raised(
    id: &HandleId,
    stored: Option<Stored<Handle>>,
    block: BlockCidr,
    addresses: usize,
) -> Step {
    let (mut handle, revision) = match stored {
        Some(stored) => (stored.value, Some(stored.revision)),
        None => (Handle::default(), None),
    };
    handle.add(block, addresses as u64);
    match revision {
        Some(revision) => Step::update(Key::handle(id), handle.encode(), revision),
        None => Step::create(Key::handle(id), handle.encode()),
    }
}

/// What a handle loses in one block.
pub(super) struct Lost {
    pub(super) block: BlockCidr,
    /// Number of released addresses.
    pub(super) freed: usize,
    pub(super) left: Left,
}

/// What is left of a handle's addresses in a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    count: usize,
    /// The block has addresses of a handle whose ID differs in case only. In Kubernetes both share
    /// one record (kubernetes.md section 1.3), so a part of the count may be the other's.
    is_shared: bool,
}

// === impl Left ===

impl Left {
    /// What a block has.
    pub(super) fn within(block: &Block, id: &HandleId) -> Self {
        let owners =
            (0..block.cidr.size()).filter_map(|ordinal| block.attribute(ordinal)?.handle_id.as_deref());
        let is_other = |owner: &str| owner != id.as_str() && owner.eq_ignore_ascii_case(id.as_str());
        let is_shared = owners.map(HandleId::sanitized).any(is_other);
        Self { count: block.ordinals_of(id).count(), is_shared }
    }

    /// A number that is known without the block.
    pub(super) const fn counted(count: usize) -> Self {
        Self { count, is_shared: false }
    }
}

/// The handle after its losses. A count never falls below the number of addresses in the block; and
/// if none are left, a residue of lost races is removed, too.
pub(super) fn after(stored: &Handle, lost: impl IntoIterator<Item = Lost>) -> Handle {
    let mut handle = stored.clone();
    for Lost { block, freed, left } in lost {
        let count = match left {
            Left { count: 0, is_shared: false } => 0,
            Left { count, .. } => handle.count(block).saturating_sub(freed as u64).max(count as u64),
        };
        handle.set(block, count);
    }
    handle
}

/// The step that writes the handle [`after`] its losses. None if nothing changes.
pub(super) fn written(id: &HandleId, stored: &Stored<Handle>, handle: &Handle) -> Option<Step> {
    if *handle == stored.value {
        return None;
    }
    Some(if handle.block.is_empty() {
        Step::delete(Key::handle(id), Some(stored.revision))
    } else {
        Step::update(Key::handle(id), handle.encode(), stored.revision)
    })
}

/// The step that subtracts `freed` addresses from the count for `block`, in which `left` remain.
pub(super) fn lowered(
    id: &HandleId,
    stored: &Stored<Handle>,
    block: BlockCidr,
    freed: usize,
    left: Left,
) -> Option<Step> {
    written(id, stored, &after(&stored.value, [Lost { block, freed, left }]))
}

/// The step that lowers the count for `block` to what is left there.
pub(super) fn settled(id: &HandleId, stored: &Stored<Handle>, block: BlockCidr, left: Left) -> Option<Step> {
    let mut handle = stored.value.clone();
    if !left.is_shared {
        handle.set(block, handle.count(block).min(left.count as u64));
    }
    written(id, stored, &handle)
}

/// Where a handle may have addresses.
pub(super) struct Traces {
    /// Its record, if it exists and can be decoded.
    pub(super) stored: Option<Stored<Handle>>,
    pub(super) blocks: Vec<BlockCidr>,
    /// Why its record cannot be decoded.
    pub(super) unreadable: Option<IpamError>,
}

// === impl Allocator ===

impl Allocator {
    /// The blocks in a handle's record; if that cannot be decoded, the blocks with allocations of
    /// the handle.
    pub(super) async fn traces(&self, id: &HandleId) -> Result<Traces, IpamError> {
        match self.handle(id).await {
            Ok(stored) => {
                let blocks = stored.iter().flat_map(|stored| stored.value.blocks()).collect();
                Ok(Traces { stored, blocks, unreadable: None })
            }
            Err(error @ IpamError::Corrupt { .. }) => {
                let blocks = self.blocks_with(id).await?;
                Ok(Traces { stored: None, blocks, unreadable: Some(error) })
            }
            Err(error) => Err(error),
        }
    }

    /// Searches all blocks; those that cannot be decoded are skipped.
    async fn blocks_with(&self, id: &HandleId) -> Result<Vec<BlockCidr>, IpamError> {
        let prefix = Prefix::blocks(None);
        let mut blocks = Vec::new();
        let mut take = |record: Record| {
            let block =
                decode_repaired(&record.value).ok().filter(|block| block.ordinals_of(id).next().is_some());
            blocks.extend(block.map(|block| block.cidr).filter(|cidr| record.key == Key::block(*cidr)));
        };
        let scanned = self.store.scan(&prefix, &mut take).await;
        scanned.map_err(|error| IpamError::store(format!("search {prefix}"), error))?;
        Ok(blocks)
    }

    /// A handle whose count is to be lowered. One that cannot be decoded is skipped: its addresses
    /// are released anyway.
    pub(super) async fn readable_handle(&self, id: &HandleId) -> Result<Option<Stored<Handle>>, IpamError> {
        match self.handle(id).await {
            Err(error @ IpamError::Corrupt { .. }) => {
                tracing::warn!(handle = %id, %error, "handle skipped");
                Ok(None)
            }
            stored => stored,
        }
    }

    /// Adds `addresses` to the count for `block`, in its own commit.
    pub(super) async fn raise(
        &self,
        id: &HandleId,
        block: BlockCidr,
        addresses: usize,
    ) -> Result<(), IpamError> {
        let key = Key::handle(id);
        let mut sent: Option<Vec<u8>> = None;
        let mut tries = 0;
        loop {
            let stored = self.handle(id).await?;
            // An answer was lost: the stored record is the one that was sent, so it was applied.
            if sent.is_some() && stored.as_ref().map(|stored| stored.value.encode()) == sent {
                return Ok(());
            }
            let step = raised(id, stored, block, addresses);
            let value = step.value().map(<[u8]>::to_vec);
            match self.store.commit(vec![step]).await.map_err(|error| Failure::from(error.error)) {
                Ok(_) => return Ok(()),
                Err(Failure::Fatal(error)) => return Err(IpamError::store(format!("write {key}"), error)),
                Err(Failure::Unknown(_)) => sent = value,
                Err(Failure::Lost) => sent = None,
            }
            self.again(&mut tries, "raise handle", &key).await?;
        }
    }

    /// Subtracts `freed` from the count for `block`, in its own commit. `known` is the handle
    /// before the block was written, and the number of its addresses in the block afterwards: while
    /// the handle is unchanged, its count is set to exactly that. Otherwise, and without it,
    /// `freed` is subtracted, down to what the block has: an ADD of the same container may have
    /// subtracted the same addresses, if the answer to its write was lost. The block is read after
    /// the handle, since an ADD raises that before it writes the block. If the outcome stays
    /// unknown, the count may stay too high, which is safe.
    pub(super) async fn lower(
        &self,
        id: &HandleId,
        block: BlockCidr,
        freed: usize,
        known: Option<(Stored<Handle>, Left)>,
    ) -> Result<(), IpamError> {
        let key = Key::handle(id);
        let mut next = known;
        let mut doubt = false;
        let mut tries = 0;
        loop {
            let (stored, left) = match next.take() {
                Some(known) => known,
                None => match self.handle(id).await? {
                    None => return Ok(()),
                    Some(stored) => {
                        let count = usize::try_from(stored.value.count(block)).unwrap_or(usize::MAX);
                        let held = self.held_count(id, block).await?;
                        (stored, Left::counted(count.saturating_sub(freed).max(held)))
                    }
                },
            };
            let Some(step) = lowered(id, &stored, block, freed, left) else { return Ok(()) };
            match self.store.commit(vec![step]).await.map_err(|error| Failure::from(error.error)) {
                Ok(_) => return Ok(()),
                Err(Failure::Fatal(error)) => return Err(IpamError::store(format!("write {key}"), error)),
                Err(Failure::Lost) if doubt => return Ok(()),
                Err(Failure::Lost) => {}
                Err(Failure::Unknown(_)) => match self.handle(id).await? {
                    Some(now) if now.revision == stored.revision => {
                        doubt = true;
                        next = Some((stored, left));
                    }
                    _ => return Ok(()),
                },
            }
            self.again(&mut tries, "lower handle", &key).await?;
        }
    }

    /// The number of a handle's addresses in a block; 0 if that cannot be decoded.
    async fn held_count(&self, id: &HandleId, block: BlockCidr) -> Result<usize, IpamError> {
        match self.repaired_block(block).await {
            Ok(stored) => Ok(stored.map_or(0, |stored| stored.value.ordinals_of(id).count())),
            Err(IpamError::Corrupt { .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }
}
