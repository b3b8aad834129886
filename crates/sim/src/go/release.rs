//! ReleaseIPs and ReleaseByHandle (calico-ipam.md sections 3.8 and 3.9).

use std::collections::BTreeMap;

use russet_addr::{BlockCidr, Family, IpNet};
use russet_model::{Block, HandleId, IpPool, Key, KeyKind, Prefix};

use super::block::{self, Manner, Wanted};
use super::kv::Kv;
use super::{Go, GoError, RETRIES, Result, Version};

// === impl Go ===

impl Go {
    pub(super) async fn release_ips(&self, wanted: Vec<Wanted>) -> Result<()> {
        let records = self.list(&Prefix::pools()).await?;
        let pools: Vec<IpPool> =
            records.iter().filter_map(|record| IpPool::decode(&record.value).ok()).collect();
        let mut by_block: BTreeMap<BlockCidr, Vec<Wanted>> = BTreeMap::new();
        for one in wanted {
            if let Some(cidr) = self.block_of(&one, &pools).await? {
                by_block.entry(cidr).or_default().push(one);
            }
        }
        let mut result = Ok(());
        for (cidr, wanted) in by_block {
            if let Err(error) = self.release_in(cidr, &wanted).await {
                result = result.and(Err(error));
            }
        }
        result
    }

    async fn block_of(&self, one: &Wanted, pools: &[IpPool]) -> Result<Option<BlockCidr>> {
        let host = IpNet::from(one.address);
        if let Some(pool) = pools.iter().find(|pool| pool.spec.cidr.contains(&host)) {
            return Ok(BlockCidr::containing(one.address, pool.spec.block_prefix_len()).ok());
        }
        let records = self.list(&Prefix::blocks(Some(Family::of(one.address)))).await?;
        let mut cidrs = records.iter().filter_map(|record| match record.key.kind() {
            KeyKind::Block(cidr) => Some(cidr),
            _ => None,
        });
        Ok(cidrs.find(|cidr| cidr.net().contains(&host)))
    }

    async fn release_in(&self, cidr: BlockCidr, wanted: &[Wanted]) -> Result<()> {
        let manner = self.manner().await?;
        for _ in 0..RETRIES {
            let mut found = match self.get_block(cidr).await {
                Err(GoError::NotFound) => return Ok(()),
                found => found?,
            };
            let freed = block::release(&mut found.value, wanted, manner)?;
            if freed.count == 0 {
                return Ok(());
            }
            let after = found.value.clone();
            match self.write_or_delete(found).await {
                Err(GoError::Conflict) => continue,
                result => result?,
            }
            for (handle, count) in freed.handles {
                if let Ok(id) = HandleId::new(handle)
                    && let Err(error) = self.decrement(&id, cidr, count as usize).await
                {
                    self.environment.note(&|| format!("handle {id}: {error}"));
                }
            }
            self.ensure_consistent_affinity(&after).await;
            return Ok(());
        }
        Err(GoError::Other("release: too many retries"))
    }

    /// Stops at the first error. A block that holds nothing leaves the handle as it is.
    pub async fn release_by_handle(&self, handle: &HandleId) -> Result<()> {
        let blocks: Vec<BlockCidr> = self.get_handle(handle).await?.value.blocks().collect();
        for cidr in blocks {
            self.release_handle_in(handle, cidr).await?;
        }
        Ok(())
    }

    async fn release_handle_in(&self, handle: &HandleId, cidr: BlockCidr) -> Result<()> {
        let manner = self.manner().await?;
        for _ in 0..RETRIES {
            let mut found = match self.get_block(cidr).await {
                Err(GoError::NotFound) => return Ok(()),
                found => found?,
            };
            let count = block::release_by_handle(&mut found.value, handle, manner);
            if count == 0 {
                return Ok(());
            }
            let after = found.value.clone();
            match self.write_or_delete(found).await {
                Err(GoError::Conflict) => continue,
                result => result?,
            }
            if let Err(error) = self.decrement(handle, cidr, count).await {
                self.environment.note(&|| format!("handle {handle}: {error}"));
            }
            self.ensure_consistent_affinity(&after).await;
            return Ok(());
        }
        Err(GoError::Other("release: too many retries"))
    }

    /// An empty block without affinity is deleted.
    async fn write_or_delete(&self, found: Kv<Block>) -> Result<()> {
        if found.value.is_empty() && found.value.affinity.is_none() {
            return self.delete(Key::block(found.value.cidr), found.revision).await;
        }
        self.update_block(found).await.map(|_| ())
    }

    async fn manner(&self) -> Result<Manner> {
        let cooldown_s = match self.version {
            Version::V333 => self.config().await?.ip_cooldown_seconds,
            _ => 0,
        };
        Ok(Manner { version: self.version, now: self.environment.now(), cooldown_s })
    }
}
