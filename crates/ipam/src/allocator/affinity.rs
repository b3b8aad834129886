//! Ending a node's affinity to a block (calico-ipam.md section 3.10).

use russet_addr::{BlockCidr, NodeName};
use russet_model::{AffinityState, Block, Key};
use russet_store::Step;

use super::claim::write_affinity;
use super::{Allocator, Stored};
use crate::finder::Finder;
use crate::{IpamError, block_ops};

/// Conditions for ending an affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Provided {
    /// The block has no allocated address.
    pub(super) empty: bool,
    /// The block still has this sequence number.
    pub(super) sequence_number: Option<u64>,
}

// === impl Allocator ===

impl Allocator {
    /// Ends the affinity of `node` to `cidr`. An empty block is deleted; another one stays without
    /// affinity, or with `must_be_empty` is an error.
    pub async fn release_affinity(
        &self,
        node: &NodeName,
        cidr: BlockCidr,
        must_be_empty: bool,
    ) -> Result<(), IpamError> {
        self.end_affinity(node, cidr, Provided { empty: must_be_empty, sequence_number: None }).await
    }

    pub(super) async fn end_affinity(
        &self,
        node: &NodeName,
        cidr: BlockCidr,
        provided: Provided,
    ) -> Result<(), IpamError> {
        let key = Key::affinity(node, cidr);
        let mut begun = false;
        let mut tries = 0;
        loop {
            let Some(affinity) = self.affinity(node, cidr).await? else {
                // After an unknown outcome, or when another process completed the deletion, it is
                // gone as requested.
                return if begun {
                    Ok(())
                } else {
                    Err(IpamError::NoAffinity { node: node.clone(), block: cidr })
                };
            };
            let block = self.block(cidr).await?;
            let foreign = block.as_ref().filter(|b| b.value.affinity.is_some() && !b.value.serves(node));
            if let Some(foreign) = foreign {
                let owner = foreign.value.affinity.clone();
                let forget = Step::delete(key.clone(), Some(affinity.revision));
                self.try_commit("forget affinity", vec![forget]).await?;
                return Err(IpamError::ForeignBlock { block: cidr, owner });
            }
            if let Some(block) = &block {
                may_end(&block.value, provided)?;
            }
            begun = true;
            if self.end_once(node, affinity, cidr, block).await? {
                return Ok(());
            }
            self.again(&mut tries, "release affinity", &key).await?;
        }
    }

    /// One attempt. False if another writer was faster.
    async fn end_once(
        &self,
        node: &NodeName,
        affinity: Stored<russet_model::Affinity>,
        cidr: BlockCidr,
        block: Option<Stored<Block>>,
    ) -> Result<bool, IpamError> {
        let key = Key::affinity(node, cidr);
        let block = block.and_then(end_block);
        if self.store.claims().atomic {
            let delete = Step::delete(key, Some(affinity.revision));
            let steps: Vec<Step> = block.into_iter().chain([delete]).collect();
            return Ok(self.try_commit("release affinity", steps).await?.is_some());
        }
        let leaving = write_affinity(node, cidr, Some(&affinity), AffinityState::PendingDeletion);
        let Some(revisions) = self.try_commit("release affinity", vec![leaving]).await? else {
            return Ok(false);
        };
        if let Some(step) = block
            && self.try_commit("release affinity", vec![step]).await?.is_none()
        {
            return Ok(false);
        }
        let delete = Step::delete(key, revisions.first().copied());
        Ok(self.try_commit("release affinity", vec![delete]).await?.is_some())
    }

    /// Takes over the next idle block from its node. None if there is none.
    pub(super) async fn reclaim(&self, finder: &mut Finder) -> Result<Option<BlockCidr>, IpamError> {
        while let Some(idle) = finder.next_idle() {
            let provided = Provided { empty: true, sequence_number: Some(idle.sequence_number) };
            match self.end_affinity(&idle.node, idle.block, provided).await {
                Ok(()) => {
                    tracing::info!(block = %idle.block, node = %idle.node, "idle block reclaimed");
                    return Ok(Some(idle.block));
                }
                Err(error @ IpamError::Store { .. }) => return Err(error),
                Err(error) => tracing::debug!(block = %idle.block, %error, "idle block not reclaimed"),
            }
        }
        Ok(None)
    }
}

fn may_end(block: &Block, provided: Provided) -> Result<(), IpamError> {
    let moved = provided.sequence_number.is_some_and(|wanted| wanted != block.sequence_number);
    if moved || provided.empty && !block.is_empty() {
        return Err(IpamError::NotEmpty { block: block.cidr });
    }
    Ok(())
}

/// The step that removes the affinity from a block, or an empty block from the store. None for a
/// block without affinity that is in use.
fn end_block(stored: Stored<Block>) -> Option<Step> {
    let key = Key::block(stored.value.cidr);
    let mut block = stored.value;
    if block.is_empty() {
        return Some(Step::delete(key, Some(stored.revision)));
    }
    block.affinity.as_ref()?;
    block_ops::drop_affinity(&mut block);
    Some(Step::update(key, block.encode(), stored.revision))
}
