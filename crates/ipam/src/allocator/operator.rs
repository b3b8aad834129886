//! Operations of `russet ipam` for operators: the holder of an address, a handle without addresses,
//! the settings (calico-ipam.md sections 1.7, 3.9, 5.2).

use std::net::IpAddr;

use russet_addr::{BlockCidr, IpNet};
use russet_model::{Block, HandleId, IpamConfig, Key};
use russet_store::{Revision, Step};

use super::existing::held_at;
use super::{Allocator, Held};
use crate::IpamError;

/// The settings before and after a change; equal if there was nothing to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Configured {
    pub before: IpamConfig,
    pub after: IpamConfig,
}

// === impl Allocator ===

impl Allocator {
    /// The holder of an address, whether its pool is enabled, disabled or deleted. None if it is
    /// free.
    pub async fn holder_of(&self, address: IpAddr) -> Result<Option<Held>, IpamError> {
        let host = IpNet::from(address);
        let pools = self.pools().await?;
        let sizes = pools
            .iter()
            .filter(|pool| pool.spec.cidr.contains(&host))
            .map(|pool| pool.spec.block_prefix_len());
        // The pool may be deleted, or its block size may have changed: a block of any size may
        // contain the address, with one read each.
        for length in sizes.chain((0..=host.max_prefix_len()).rev()) {
            let Ok(cidr) = BlockCidr::containing(address, length) else { continue };
            let block = self.repaired_block(cidr).await?;
            if let Some(held) = block.and_then(|block| held_in(&block.value, address)) {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// Removes counts of a handle for blocks without its addresses; returns whether the handle was
    /// still at `revision`. Counts for blocks with some are kept: too high a count does no harm,
    /// too low a one causes a leak.
    pub async fn settle_handle(&self, handle: &HandleId, revision: Revision) -> Result<bool, IpamError> {
        let Some(stored) = self.handle(handle).await?.filter(|stored| stored.revision == revision) else {
            return Ok(false);
        };
        if stored.value.block.is_empty() {
            let delete = Step::delete(Key::handle(handle), Some(revision));
            return Ok(self.try_commit("delete", vec![delete]).await?.is_some());
        }
        for cidr in stored.value.blocks() {
            self.settle(handle, cidr).await?;
        }
        Ok(true)
    }

    /// Changes the settings of the cluster by the rules of SetIPAMConfig. Unlike peers, which
    /// overwrite, this keeps unknown fields and concurrent changes of other writers.
    pub async fn configure(&self, change: impl Fn(&mut IpamConfig)) -> Result<Configured, IpamError> {
        let key = Key::ipam_config();
        let mut first = None;
        let mut tries = 0;
        loop {
            let stored = self.read(&key, IpamConfig::decode).await?;
            let (before, revision) = match stored {
                Some(stored) => (stored.value, Some(stored.revision)),
                None => (IpamConfig::default(), None),
            };
            let mut after = before.clone();
            change(&mut after);
            let nothing_to_do = after == before;
            // Even if a write whose answer was lost made the whole change.
            let before = first.get_or_insert(before).clone();
            if nothing_to_do {
                return Ok(Configured { before, after });
            }
            if let Some(rule) = after.refused() {
                return Err(IpamError::Invalid(format!("the IPAM config would break a rule: {rule}")));
            }
            let step = match revision {
                Some(revision) => Step::update(key.clone(), after.encode(), revision),
                None => Step::create(key.clone(), after.encode()),
            };
            if self.try_commit("write", vec![step]).await?.is_some() {
                self.forget();
                return Ok(Configured { before, after });
            }
            self.again(&mut tries, "configure", &key).await?;
        }
    }
}

fn held_in(block: &Block, address: IpAddr) -> Option<Held> {
    held_at(block, block.cidr.ordinal(address)?)
}
