//! Makes a handle's counts those of the blocks (kubernetes.md section 3.2, G8).

use std::collections::BTreeSet;

use russet_addr::BlockCidr;
use russet_model::{HandleId, Key};
use russet_store::{Revision, Step};

use super::Allocator;
use crate::IpamError;

// === impl Allocator ===

impl Allocator {
    /// Makes the counts of a handle equal to what the blocks hold, and deletes it if they hold
    /// nothing. `held` are blocks with its addresses, which its record may lack. Returns whether
    /// the handle was still at `revision`. The caller has seen it at that revision for longer than
    /// any request takes, so no ADD is between its handle and its block.
    pub async fn correct_handle(
        &self,
        handle: &HandleId,
        revision: Revision,
        held: impl IntoIterator<Item = BlockCidr>,
    ) -> Result<bool, IpamError> {
        let Some(stored) = self.handle(handle).await?.filter(|stored| stored.revision == revision) else {
            return Ok(false);
        };
        let mut counted = stored.value.clone();
        for cidr in stored.value.blocks().chain(held).collect::<BTreeSet<_>>() {
            let block = self.repaired_block(cidr).await?;
            counted.set(cidr, block.map_or(0, |block| block.value.ordinals_of(handle).count()) as u64);
        }
        if counted.block.is_empty() {
            return self.settle_handle(handle, revision).await;
        }
        if counted == stored.value {
            return Ok(true);
        }
        self.cache.drop_handle(handle);
        let update = Step::update(Key::handle(handle), counted.encode(), revision);
        Ok(self.try_commit("correct", vec![update]).await?.is_some())
    }
}
