//! The short way of an ADD: from remembered blocks, both families and the handle in one commit, no read. Atomic engines only.
//!
//! The commit creates the handle and so fails for a container that holds anything; it is guarded by the blocks' revisions and so fails when they moved.
//! Whatever fails, the long way decides, and looks first for what may have been written after all.

use russet_addr::{BlockCidr, Family, IpNet};
use russet_model::{Block, Handle, Key};
use russet_store::Step;

use super::cache::Asked;
use super::existing::with_block_prefix;
use super::take::Owner;
use super::{Allocator, Stored};
use crate::{Request, block_ops};

/// Blocks as they will be, each with the revision that guards the write, and what is taken from them.
#[derive(Default)]
struct Draft {
    blocks: Vec<Stored<Block>>,
    handle: Handle,
    addresses: Vec<IpNet>,
}

// === impl Allocator ===

impl Allocator {
    /// The request's addresses, if memory has them and the store agrees. None says nothing: go the long way.
    pub(super) async fn assign_fast(&self, request: &Request, owner: &Owner) -> Option<Vec<IpNet>> {
        if !self.cache.is_on() || !self.store.claims().atomic {
            return None;
        }
        let _turn = self.cache.turn().await;
        let draft = self.draft(request, owner)?;
        let mut steps = vec![Step::create(Key::handle(&owner.handle), draft.handle.encode())];
        for block in &draft.blocks {
            steps.push(Step::update(Key::block(block.value.cidr), block.value.encode(), block.revision));
            // Until the answer is there nobody knows which revision holds; also if this future is dropped.
            self.cache.drop_block(block.value.cidr);
        }
        let revisions = self.store.commit(steps).await.ok()?;
        for (block, revision) in draft.blocks.into_iter().zip(revisions.into_iter().skip(1)) {
            self.cache.keep_block(Stored { value: block.value, revision });
        }
        Some(draft.addresses)
    }

    fn draft(&self, request: &Request, owner: &Owner) -> Option<Draft> {
        let mut draft = Draft::default();
        for family in Family::BOTH {
            let mut missing = request.wanted(family) as usize;
            if missing == 0 {
                continue;
            }
            let plan = self.cache.plan(&Asked::of(request, family), self.clock.now())?;
            for cidr in plan.own {
                let Some(mut block) =
                    self.cache.block(cidr).filter(|block| block.value.serves(&request.node))
                else {
                    continue;
                };
                let taken =
                    block_ops::auto_assign(&mut block.value, missing, &owner.attribute, &plan.reserved);
                if taken.is_empty() {
                    continue;
                }
                missing -= taken.len();
                draft.handle.add(cidr, taken.len() as u64);
                draft.addresses.extend(taken.iter().filter_map(|ordinal| address(cidr, *ordinal)));
                draft.blocks.push(block);
            }
            if missing > 0 {
                return None;
            }
        }
        Some(draft)
    }
}

fn address(cidr: BlockCidr, ordinal: usize) -> Option<IpNet> {
    with_block_prefix(cidr, cidr.address(ordinal)?)
}
