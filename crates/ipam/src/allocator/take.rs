//! Allocates addresses of one existing block: handle first, then block, and the block alone decides
//! (calico-ipam.md section 3.7).

use russet_addr::BlockCidr;
use russet_model::{Attribute, Block, HandleId, Key};
use russet_store::{Revision, Step};

use super::{Allocator, Failure, Stored, handles};
use crate::{IpamError, block_ops};

/// The owner of the new addresses.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) handle: HandleId,
    pub(super) attribute: Attribute,
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
struct Counted(usize);

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
        if counted.0 > 0 && !unknown {
            let lowered = self.in_grace().lower(&owner.handle, cidr, counted.0, None).await;
            // The caller needs the reason why there is no address; the release that follows
            // corrects too high a count.
            if let Err(error) = lowered {
                tracing::warn!(handle = %owner.handle, block = %cidr, %error, "handle counts too many");
            }
        }
        result
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
            if let Some(doubt) = &doubt {
                let ours = block_ops::ordinals_with(&current.value, &owner.attribute);
                if !ours.is_empty() {
                    counted.0 = counted.0.saturating_sub(ours.len());
                    return Ok(Some(ours));
                }
                if let Some(late) = late {
                    return Err(if doubt.may_yet_happen(&current) { doubt.error(cidr) } else { late });
                }
            }
            let mut block = current.value.clone();
            let taken = change(&mut block)?;
            if taken.is_empty() {
                return Ok(Some(taken));
            }
            let step = Step::update(key.clone(), block.encode(), current.revision);
            match self.attempt(cidr, owner, counted, taken.len(), step).await? {
                Attempt::Done(revision) => {
                    self.cache.keep_block(Stored { value: block, revision });
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

    async fn attempt(
        &self,
        cidr: BlockCidr,
        owner: &Owner,
        counted: &mut Counted,
        addresses: usize,
        block: Step,
    ) -> Result<Attempt, IpamError> {
        let steps = if self.store.claims().atomic {
            let handle = self.handle(&owner.handle).await?;
            vec![handles::raised(&owner.handle, handle, cidr, addresses), block]
        } else {
            if counted.0 < addresses {
                self.raise(&owner.handle, cidr, addresses - counted.0).await?;
                counted.0 = addresses;
            }
            vec![block]
        };
        match self.store.commit(steps).await.map_err(|error| Failure::from(error.error)) {
            Ok(revisions) => {
                counted.0 = counted.0.saturating_sub(addresses);
                Ok(Attempt::Done(revisions.last().copied().unwrap_or_default()))
            }
            Err(Failure::Lost) => Ok(Attempt::Lost),
            Err(Failure::Unknown(error)) => Ok(Attempt::Unknown(error)),
            Err(Failure::Fatal(error)) => Err(IpamError::store(format!("write {}", Key::block(cidr)), error)),
        }
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
