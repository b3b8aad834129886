//! What an operator asks for: who holds an address, a handle that counts nothing, the settings (calico-ipam.md sections 1.7, 3.9, 5.2). For `russet ipam`.

use std::net::IpAddr;

use russet_addr::{BlockCidr, IpNet};
use russet_model::{Block, HandleId, IpamConfig, Key};
use russet_store::{Revision, Step};

use super::existing::held_at;
use super::{Allocator, Held};
use crate::IpamError;

/// The settings before and after a change; equal when there was nothing to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Configured {
    /// What held before.
    pub before: IpamConfig,
    /// What holds now.
    pub after: IpamConfig,
}

// === impl Allocator ===

impl Allocator {
    /// Who holds an address, whether its pool is enabled, disabled or gone. None when nobody does.
    pub async fn holder_of(&self, address: IpAddr) -> Result<Option<Held>, IpamError> {
        let host = IpNet::from(address);
        let pools = self.pools().await?;
        let sizes = pools
            .iter()
            .filter(|pool| pool.spec.cidr.contains(&host))
            .map(|pool| pool.spec.block_prefix_len());
        // The pool may be gone, or have had another block size when the block was made: a block of any size may hold it, one read each.
        for length in sizes.chain((0..=host.max_prefix_len()).rev()) {
            let Ok(cidr) = BlockCidr::containing(address, length) else { continue };
            let block = self.mended_block(cidr).await?;
            if let Some(held) = block.and_then(|block| held_in(&block.value, address)) {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// Removes what a handle counts although no block holds it; says whether the handle was still the one seen at `revision`. Counts of
    /// blocks that do hold something stay: too high a count does no harm, too low a one leaks.
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

    /// Changes the settings of the cluster by the rules of SetIPAMConfig. Unlike peers, which put, this loses neither members that we
    /// do not know nor what somebody else wrote meanwhile.
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
            // Still what held at first, even if a write whose answer was lost did all of it.
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
