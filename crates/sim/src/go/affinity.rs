//! Two-phase affinities (calico-ipam.md sections 3.6 and 3.10).

use russet_addr::{BlockCidr, Family, NodeName};
use russet_model::{Affinity, AffinityState, Block, Key, KeyKind, Node, Prefix};

use super::kv::Kv;
use super::{Go, GoError, RETRIES, Result, block};

// === impl Go ===

impl Go {
    pub(super) async fn pending_affinity(&self, cidr: BlockCidr) -> Result<Kv<Affinity>> {
        match self.create_affinity(&self.host, cidr).await {
            Err(GoError::AlreadyExists) => {}
            result => return result,
        }
        let found = self.get_affinity(&self.host, cidr).await?;
        if found.value.state == AffinityState::Confirmed {
            return Ok(found);
        }
        self.update_affinity(&self.host, cidr, &found, AffinityState::Pending).await
    }

    pub(super) async fn claim_affine_block(&self, cidr: BlockCidr, aff: Kv<Affinity>) -> Result<Kv<Block>> {
        let new = block::new_block(cidr, &self.host, self.claim_time(), self.environment.now());
        match self.create_block(new).await {
            Ok(created) => {
                self.confirm(cidr, &aff).await?;
                Ok(created)
            }
            Err(GoError::AlreadyExists) => {
                let found = self.get_block(cidr).await?;
                if block::is_ours(&found.value, &self.host) {
                    self.confirm(cidr, &aff).await?;
                    return Ok(found);
                }
                let _ = self.delete(Key::affinity(&self.host, cidr), aff.revision).await;
                Err(GoError::ClaimConflict)
            }
            Err(error) => Err(error),
        }
    }

    /// On an error, another process's confirmation suffices.
    async fn confirm(&self, cidr: BlockCidr, aff: &Kv<Affinity>) -> Result<()> {
        let Err(error) = self.update_affinity(&self.host, cidr, aff, AffinityState::Confirmed).await else {
            return Ok(());
        };
        let now = self.get_affinity(&self.host, cidr).await?;
        if now.value.state == AffinityState::Confirmed { Ok(()) } else { Err(error) }
    }

    pub(super) async fn block_from_affinity(&self, cidr: BlockCidr, aff: Kv<Affinity>) -> Result<Kv<Block>> {
        let found = match self.get_block(cidr).await {
            Ok(found) => found,
            Err(GoError::NotFound) => {
                let aff = self.update_affinity(&self.host, cidr, &aff, AffinityState::Pending).await?;
                return self.claim_affine_block(cidr, aff).await;
            }
            Err(error) => return Err(error),
        };
        if !block::is_ours(&found.value, &self.host) {
            self.delete(Key::affinity(&self.host, cidr), aff.revision).await?;
            return Err(GoError::StaleAffinity);
        }
        if aff.value.state == AffinityState::Confirmed {
            return Ok(found);
        }
        let aff = self.update_affinity(&self.host, cidr, &aff, AffinityState::Pending).await?;
        let touched = self.update_block(found).await?;
        self.update_affinity(&self.host, cidr, &aff, AffinityState::Confirmed).await?;
        Ok(touched)
    }

    /// releaseBlockAffinity, once.
    pub(super) async fn release_block_affinity(
        &self,
        host: &NodeName,
        cidr: BlockCidr,
        must_be_empty: bool,
        sequence_number: Option<u64>,
    ) -> Result<()> {
        let aff = self.get_affinity(host, cidr).await?;
        let mut found = self.get_block(cidr).await?;
        if sequence_number.is_some_and(|wanted| wanted != found.value.sequence_number) {
            return Err(GoError::Conflict);
        }
        if found.value.affinity.is_some() && !block::is_ours(&found.value, host) {
            self.delete(Key::affinity(host, cidr), aff.revision).await?;
            return Err(GoError::ClaimConflict);
        }
        if must_be_empty && !found.value.is_empty() {
            return Err(GoError::NotEmpty);
        }
        let aff = self.update_affinity(host, cidr, &aff, AffinityState::PendingDeletion).await?;
        if found.value.is_empty() {
            match self.delete(Key::block(cidr), found.revision).await {
                Ok(()) | Err(GoError::NotFound) => {}
                Err(error) => return Err(error),
            }
        } else {
            found.value.affinity = None;
            found.value.affinity_claim_time = None;
            self.update_block(found).await?;
        }
        match self.delete(Key::affinity(host, cidr), aff.revision).await {
            Ok(()) | Err(GoError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// ReleaseAffinity: conflicts are tried again, what is not ours or not there is no error.
    pub(crate) async fn release_affinity(
        &self,
        host: &NodeName,
        cidr: BlockCidr,
        must_be_empty: bool,
    ) -> Result<()> {
        for _ in 0..RETRIES {
            match self.release_block_affinity(host, cidr, must_be_empty, None).await {
                Err(GoError::Conflict) => {}
                Err(GoError::ClaimConflict | GoError::NotFound) => return Ok(()),
                result => return result,
            }
        }
        Err(GoError::Other("affinity: too many retries"))
    }

    /// ReleaseHostAffinities: goes on past errors.
    pub(crate) async fn release_node(&self) -> Result<()> {
        let mut result = Ok(());
        for family in Family::BOTH {
            for record in self.list(&Prefix::affinities_of(&self.host, family)).await? {
                let KeyKind::Affinity { block, .. } = record.key.kind() else { continue };
                if let Err(error) = self.release_affinity(&self.host, block, false).await {
                    result = Err(error);
                }
            }
        }
        result
    }

    /// ensureConsistentAffinity: errors are only logged.
    pub(super) async fn ensure_consistent_affinity(&self, block: &Block) {
        let result = self.try_ensure_consistent(block).await;
        if let Err(error) = result {
            self.environment.note(&|| format!("affinity of {}: {error}", block.cidr));
        }
    }

    async fn try_ensure_consistent(&self, block: &Block) -> Result<()> {
        let owner = block.node().ok_or(GoError::Other("the block has no affinity"))?;
        let node = self.get(&Key::node(&owner), Node::decode).await?.value;
        let pools = self.enabled_pools(block.cidr.family()).await?;
        let Some(pool) = pools.iter().find(|pool| pool.spec.cidr.contains(&block.cidr.net())) else {
            return Ok(());
        };
        if super::find::selects(pool, &node)? {
            return Ok(());
        }
        self.release_block_affinity(&owner, block.cidr, true, None).await
    }
}
