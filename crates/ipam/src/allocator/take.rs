//! Allocates addresses of one existing block: handle first, then block, and the block alone decides
//! (calico-ipam.md section 3.7).

use russet_addr::{BlockCidr, IpNet};
use russet_model::{Attribute, Block, HandleId, Key};
use russet_store::{Revision, Step};

use super::{Allocator, Failure, Stored, handles};
use crate::{IpamError, block_ops};

/// The owner of the new addresses.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) handle: HandleId,
    pub(super) attribute: Attribute,
    /// A block may have these addresses already: an earlier write has no answer.
    pub(super) is_in_doubt: bool,
    /// The addresses among them that the caller has found, and that are not new.
    pub(super) found: Vec<IpNet>,
}

/// The result of one attempt to write a block.
enum Attempt {
    Done(Revision),
    /// Another writer changed the block or the handle.
    Lost,
    /// Unknown; the next read of the block shows it.
    Unknown(russet_store::StoreError),
}

/// A write whose outcome is unknown.
struct Doubt {
    /// The revision that guarded it.
    base: Revision,
    error: russet_store::StoreError,
}

/// What this call has added to the handle's count for a block, as far as the block does not have it
/// yet. Always 0 on atomic engines.
#[derive(Default)]
struct Counted {
    addresses: usize,
    /// The revision of the block before the handle was raised for it. A DEL that finds no address
    /// changes the block before it removes the handle's count. So a write that is guarded by this
    /// revision fails if the count may be gone, and one that is guarded by a later revision must
    /// raise the handle again.
    base: Option<Revision>,
    /// The handle was raised more than once, and `addresses` may exceed what is left of that.
    is_inexact: bool,
    /// The block has addresses of this call.
    has_written: bool,
}

// === impl Owner ===

impl Owner {
    pub(super) fn new(handle: &HandleId, attribute: Attribute) -> Self {
        Self { handle: handle.clone(), attribute, is_in_doubt: false, found: Vec::new() }
    }
}

// === impl Allocator ===

impl Allocator {
    /// Allocates addresses of `cidr` as `change` decides, and returns their ordinals. `change` sees
    /// the current block and allocates nothing if there is nothing free; it may run many times.
    /// None if the block is gone.
    pub(super) async fn take(
        &self,
        cidr: BlockCidr,
        first: Option<Stored<Block>>,
        owner: &Owner,
        mut change: impl FnMut(&mut Block) -> Result<Vec<usize>, IpamError>,
    ) -> Result<Option<Vec<usize>>, IpamError> {
        let mut counted = Counted::default();
        let result = self.take_counting(cidr, first, owner, &mut counted, &mut change).await;
        // What is still counted now never reached the block. After an unknown outcome it stays: too
        // high a count is safe, too low a one causes a leak.
        let unknown = matches!(&result, Err(IpamError::Store { source, .. }) if source.outcome_unknown());
        if counted.addresses > 0 && !unknown {
            // The caller needs the reason why there is no address; the release that follows
            // corrects too high a count.
            if let Err(error) = self.in_grace().uncount(&owner.handle, cidr, &counted).await {
                tracing::warn!(handle = %owner.handle, block = %cidr, %error, "handle counts too many");
            }
        }
        result
    }

    /// Subtracts what is still counted from the handle.
    async fn uncount(&self, handle: &HandleId, cidr: BlockCidr, counted: &Counted) -> Result<(), IpamError> {
        if counted.is_inexact && !counted.has_written {
            // A part of the count may be another request's: only the block says how much.
            return self.settle(handle, cidr).await;
        }
        self.lower(handle, cidr, counted.addresses, None).await
    }

    async fn take_counting(
        &self,
        cidr: BlockCidr,
        first: Option<Stored<Block>>,
        owner: &Owner,
        counted: &mut Counted,
        change: &mut impl FnMut(&mut Block) -> Result<Vec<usize>, IpamError>,
    ) -> Result<Option<Vec<usize>>, IpamError> {
        let key = Key::block(cidr);
        let mut next = first;
        let mut doubt: Option<Doubt> = None;
        let mut tries = 0;
        let mut late = None;
        loop {
            let current = match next.take() {
                Some(block) => Some(block),
                None => self.read_after(cidr, doubt.as_ref()).await?,
            };
            let Some(current) = current else { return Ok(None) };
            if doubt.is_some() || owner.is_in_doubt {
                let mut ours = block_ops::ordinals_with(&current.value, &owner.attribute);
                ours.retain(|ordinal| {
                    let address = cidr.address(*ordinal);
                    !owner.found.iter().any(|found| Some(found.addr()) == address)
                });
                if !ours.is_empty() {
                    counted.reached(ours.len());
                    return Ok(Some(ours));
                }
                if let (Some(doubt), Some(late)) = (&doubt, late) {
                    return Err(if doubt.may_yet_happen(&current) { doubt.error(cidr) } else { late });
                }
            }
            let mut block = current.value.clone();
            let taken = change(&mut block)?;
            if taken.is_empty() {
                return Ok(Some(taken));
            }
            let wanted = Stored { value: block, revision: current.revision };
            match self.attempt(owner, counted, taken.len(), &wanted).await? {
                Attempt::Done(revision) => {
                    self.cache.keep_block(Stored { revision, ..wanted });
                    return Ok(Some(taken));
                }
                Attempt::Lost => {}
                Attempt::Unknown(error) => doubt = Some(Doubt { base: current.revision, error }),
            }
            late = match self.again(&mut tries, "write", &key).await {
                Ok(()) => None,
                // One more read, to see what became of the write.
                Err(late) if doubt.is_some() => Some(late),
                Err(late) => return Err(late),
            };
        }
    }

    /// Reads the block again. If a write is in doubt and the read fails, the doubt is what the
    /// caller must know.
    async fn read_after(
        &self,
        cidr: BlockCidr,
        doubt: Option<&Doubt>,
    ) -> Result<Option<Stored<Block>>, IpamError> {
        match (self.block(cidr).await, doubt) {
            (Err(IpamError::Store { .. }), Some(doubt)) => Err(doubt.error(cidr)),
            (result, _) => result,
        }
    }

    /// Writes `wanted`, with `addresses` new ones, under the guard of the revision that it was read
    /// at.
    async fn attempt(
        &self,
        owner: &Owner,
        counted: &mut Counted,
        addresses: usize,
        wanted: &Stored<Block>,
    ) -> Result<Attempt, IpamError> {
        let (cidr, base) = (wanted.value.cidr, wanted.revision);
        let block = Step::update(Key::block(cidr), wanted.value.encode(), base);
        let steps = if self.store.claims().atomic {
            let handle = self.handle(&owner.handle).await?;
            vec![handles::raised(&owner.handle, handle, cidr, addresses), block]
        } else {
            let missing = counted.missing(addresses, base);
            if missing > 0 {
                self.raise(&owner.handle, cidr, missing).await?;
                counted.raised(missing, base);
            }
            vec![block]
        };
        match self.store.commit(steps).await.map_err(|error| Failure::from(error.error)) {
            Ok(revisions) => {
                counted.reached(addresses);
                Ok(Attempt::Done(revisions.last().copied().unwrap_or_default()))
            }
            Err(Failure::Lost) => Ok(Attempt::Lost),
            Err(Failure::Unknown(error)) => Ok(Attempt::Unknown(error)),
            Err(Failure::Fatal(error)) => Err(IpamError::store(format!("write {}", Key::block(cidr)), error)),
        }
    }
}

// === impl Counted ===

impl Counted {
    /// What the handle must be raised by before `addresses` may be written to the block at `base`.
    fn missing(&self, addresses: usize, base: Revision) -> usize {
        if self.base == Some(base) { addresses.saturating_sub(self.addresses) } else { addresses }
    }

    fn raised(&mut self, addresses: usize, base: Revision) {
        self.is_inexact |= self.base.is_some_and(|before| before != base);
        self.addresses += addresses;
        self.base = Some(base);
    }

    /// The block has these addresses now.
    fn reached(&mut self, addresses: usize) {
        self.addresses = self.addresses.saturating_sub(addresses);
        self.has_written = true;
    }
}

// === impl Doubt ===

impl Doubt {
    /// Whether the write may still be in progress: the block is unchanged since.
    fn may_yet_happen(&self, current: &Stored<Block>) -> bool {
        current.revision == self.base
    }

    fn error(&self, cidr: BlockCidr) -> IpamError {
        IpamError::store(format!("write {}", Key::block(cidr)), self.error.clone())
    }
}
