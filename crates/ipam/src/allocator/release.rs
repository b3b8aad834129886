//! Releases addresses: block first, then handle (calico-ipam.md section 3.9).

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::{BlockCidr, IfName};
use russet_model::{Block, Handle, HandleId, Key};
use russet_store::{Revision, Step};

use super::fast::FastPath;
use super::handles::{self, Left, Traces};
use super::{Allocator, Failure, Stored};
use crate::block_ops::{self, Freed};
use crate::{IpamError, Released};

/// Handles whose records change in the same commit as a block; more are written one by one, to stay
/// below the limit of a commit.
const FUSED_MAX: usize = 100;

/// A handle with addresses in the block that is written.
struct Holder {
    id: HandleId,
    stored: Stored<Handle>,
    freed: usize,
    left: Left,
}

/// A write whose outcome is unknown.
struct Doubt {
    before: Block,
    base: Revision,
    freed: Freed,
}

// === impl Allocator ===

impl Allocator {
    /// Releases the addresses of a handle, or of one interface of it: entries without an
    /// `interface` match any. A missing handle is no error. A record that cannot be decoded is no
    /// error either, or its pod could never be deleted: it is logged, reported and left unchanged.
    pub async fn release_by_handle(
        &self,
        handle: &HandleId,
        interface: Option<&IfName>,
    ) -> Result<Released, IpamError> {
        let mut released = match self.release_fast(handle, interface).await? {
            FastPath::Done(addresses) => return Ok(Released { addresses, ..Released::default() }),
            // Released, or about to be: when the slow path is done, they do not belong to this
            // handle any more.
            FastPath::SlowPath(addresses) => Released { addresses, ..Released::default() },
        };
        let mut failed = None;
        let Traces { stored: mut known, blocks, unreadable } = self.traces(handle).await?;
        unreadable.iter().for_each(|error| released.cannot_read(handle, error));
        for cidr in blocks {
            match self.release_in(handle, cidr, interface, known.take()).await {
                Ok(addresses) => {
                    released.addresses.retain(|known| !addresses.contains(known));
                    released.addresses.extend(addresses);
                }
                Err(error @ IpamError::Corrupt { .. }) => released.cannot_read(handle, &error),
                Err(error) => {
                    tracing::warn!(%handle, block = %cidr, %error, "release failed");
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(released), Err)
    }

    /// `known` is the handle if it was just read: after the first block it has changed.
    async fn release_in(
        &self,
        handle: &HandleId,
        cidr: BlockCidr,
        interface: Option<&IfName>,
        known: Option<Stored<Handle>>,
    ) -> Result<Vec<IpAddr>, IpamError> {
        let known = match known {
            Some(known) => Some(known),
            None => self.readable_handle(handle).await?,
        };
        let known = known.as_ref().map(|known| (handle, known));
        let change = |block: &mut Block| {
            let ordinals = block_ops::release_by_handle(block, handle, interface);
            Ok(Freed::of_handle(ordinals, handle))
        };
        let freed = self.free(cidr, known, change).await;
        self.cache.make_room();
        let freed = freed?;
        if freed.freed.is_empty() {
            self.settle(handle, cidr).await?;
        } else if freed.emptied {
            self.tidy_affinity(cidr).await;
        }
        Ok(freed.freed.iter().filter_map(|(ordinal, _)| cidr.address(*ordinal)).collect())
    }

    /// Writes a block as `change` leaves it, and lowers the handles of the released addresses.
    /// `change` may run many times. `known` is a handle that was just read.
    pub(super) async fn free(
        &self,
        cidr: BlockCidr,
        known: Option<(&HandleId, &Stored<Handle>)>,
        mut change: impl FnMut(&mut Block) -> Result<Freed, IpamError>,
    ) -> Result<Freed, IpamError> {
        let _turn = if self.cache.is_on() { Some(self.cache.releases.lock([()]).await) } else { None };
        let key = Key::block(cidr);
        let mut doubt: Option<Doubt> = None;
        let mut tries = 0;
        loop {
            let current = self.repaired_block(cidr).await?;
            if let Some(doubt) = doubt.as_ref().filter(|doubt| doubt.happened(current.as_ref())) {
                // Where a handle is written after the block, the lost answer was the last write.
                for handle in doubt.freed.handles() {
                    self.settle(&handle, cidr).await?;
                }
                return Ok(doubt.freed.clone());
            }
            // A missing block has no allocations.
            let Some(current) = current else { return change(&mut block_ops::vacant(cidr)) };
            let mut block = current.value.clone();
            let mut freed = change(&mut block)?;
            if freed.freed.is_empty() {
                return Ok(freed);
            }
            freed.emptied = block.is_empty();
            let known = known.filter(|_| tries == 0);
            match self.write_freed(block, current.revision, &freed, known).await? {
                None => return Ok(freed),
                Some(Failure::Unknown(_)) => {
                    doubt = Some(Doubt { before: current.value, base: current.revision, freed });
                }
                Some(_) => {}
            }
            self.again(&mut tries, "release", &key).await?;
        }
    }

    /// The existing records of the handles that lose addresses.
    async fn holders(
        &self,
        block: &Block,
        freed: &Freed,
        known: Option<(&HandleId, &Stored<Handle>)>,
    ) -> Result<Vec<Holder>, IpamError> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for name in freed.freed.iter().filter_map(|(_, handle)| handle.as_deref()) {
            *counts.entry(name).or_default() += 1;
        }
        let mut holders = Vec::new();
        for (name, freed) in counts {
            let Ok(id) = HandleId::new(name) else { continue };
            let stored = match known.filter(|(known, _)| **known == id) {
                Some((_, stored)) => Some(stored.clone()),
                None => self.readable_handle(&id).await?,
            };
            if let Some(stored) = stored {
                let left = Left::within(block, &id);
                holders.push(Holder { id, stored, freed, left });
            }
        }
        Ok(holders)
    }

    /// Writes a block, guarded by `revision`, and the handles of the released addresses. None if it
    /// is done.
    async fn write_freed(
        &self,
        block: Block,
        revision: Revision,
        freed: &Freed,
        known: Option<(&HandleId, &Stored<Handle>)>,
    ) -> Result<Option<Failure>, IpamError> {
        let cidr = block.cidr;
        let holders = self.holders(&block, freed, known).await?;
        let gone = block.is_empty() && block.affinity.is_none();
        let step = if gone {
            Step::delete(Key::block(cidr), Some(revision))
        } else {
            Step::update(Key::block(cidr), block.encode(), revision)
        };
        let fused = self.store.claims().atomic && holders.len() <= FUSED_MAX;
        let mut steps = vec![step];
        if fused {
            let lowered =
                holders.iter().filter_map(|h| handles::lowered(&h.id, &h.stored, cidr, h.freed, h.left));
            steps.extend(lowered);
        }
        self.cache.drop_block(cidr);
        holders.iter().for_each(|holder| self.cache.drop_handle(&holder.id));
        match self.store.commit(steps).await.map_err(|error| Failure::from(error.error)) {
            Ok(revisions) => {
                if let Some(revision) = revisions.first().copied().filter(|_| !gone) {
                    self.cache.keep_block(Stored { value: block, revision });
                }
            }
            Err(Failure::Fatal(error)) => {
                return Err(IpamError::store(format!("write {}", Key::block(cidr)), error));
            }
            Err(failure) => return Ok(Some(failure)),
        }
        if !fused {
            for holder in holders {
                let known = Some((holder.stored, holder.left));
                self.lower(&holder.id, cidr, holder.freed, known).await?;
            }
        }
        Ok(None)
    }

    /// Lowers a handle's count for a block to the number of its addresses there. The block is
    /// written, too, so that a process that has raised the handle and is about to write the block
    /// must start again.
    pub(super) async fn settle(&self, handle: &HandleId, cidr: BlockCidr) -> Result<(), IpamError> {
        let mut tries = 0;
        loop {
            let Some(stored) = self.readable_handle(handle).await? else { return Ok(()) };
            let block = self.repaired_block(cidr).await?;
            let left = block.as_ref().map_or(Left::counted(0), |block| Left::within(&block.value, handle));
            let Some(lower) = handles::settled(handle, &stored, cidr, left) else { return Ok(()) };
            let touch = block.map(|block| {
                let mut touched = block.value;
                block_ops::touch(&mut touched);
                Step::update(Key::block(cidr), touched.encode(), block.revision)
            });
            self.cache.drop_handle(handle);
            // In this order also where the steps are applied one by one: the handle's guard is
            // older than the touch.
            let steps: Vec<Step> = touch.into_iter().chain([lower]).collect();
            if self.try_commit("settle", steps).await?.is_some() {
                return Ok(());
            }
            self.again(&mut tries, "settle", &Key::handle(handle)).await?;
        }
    }
}

// === impl Released ===

impl Released {
    fn cannot_read(&mut self, handle: &HandleId, error: &IpamError) {
        tracing::error!(%handle, %error, "addresses that only this record names are not released; `russet ipam check` reports it");
        let text = error.to_string();
        if !self.unreadable.contains(&text) {
            self.unreadable.push(text);
        }
    }
}

// === impl Doubt ===

impl Doubt {
    /// Whether the write in doubt was applied, according to the current block: what it released is
    /// free, or was allocated again.
    fn happened(&self, current: Option<&Stored<Block>>) -> bool {
        let Some(current) = current else { return true };
        let differs = |ordinal: usize| {
            current.value.attribute(ordinal).is_none()
                || current.value.sequence_number_of(ordinal) != self.before.sequence_number_of(ordinal)
        };
        current.revision != self.base && self.freed.freed.iter().all(|(ordinal, _)| differs(*ordinal))
    }
}
