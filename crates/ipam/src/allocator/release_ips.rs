//! ReleaseIPs: individual addresses, each optionally guarded by its handle and its sequence number
//! (calico-ipam.md section 3.8).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use russet_addr::{BlockCidr, Family, IpNet};
use russet_model::{IpPool, Key, KeyKind, Prefix};

use super::Allocator;
use crate::{IpamError, ReleaseOptions, Released, block_ops};

// === impl Allocator ===

impl Allocator {
    /// Releases addresses. Within a block it is all or nothing; the other blocks continue, and the
    /// first error is returned.
    pub async fn release_ips(&self, addresses: &[ReleaseOptions]) -> Result<Released, IpamError> {
        let mut released = Released::default();
        let mut by_block: BTreeMap<BlockCidr, Vec<ReleaseOptions>> = BTreeMap::new();
        let pools = self.pools().await?;
        let mut blocks: BTreeMap<Family, Vec<BlockCidr>> = BTreeMap::new();
        for options in addresses {
            match self.block_holding(options.address, &pools, &mut blocks).await? {
                Some(cidr) => by_block.entry(cidr).or_default().push(options.clone()),
                None => released.unallocated.push(options.address),
            }
        }
        let mut failed = None;
        for (cidr, options) in by_block {
            let freed = self.free(cidr, None, |block| block_ops::release(block, &options)).await;
            self.cache.make_room();
            match freed {
                Ok(freed) => {
                    let emptied = freed.emptied;
                    let ordinals = freed.freed.iter().filter_map(|(ordinal, _)| cidr.address(*ordinal));
                    released.addresses.extend(ordinals);
                    released.unallocated.extend(freed.unallocated);
                    if emptied {
                        self.tidy_affinity(cidr).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(block = %cidr, %error, "addresses not released");
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(released), Err)
    }

    /// The block of an address: by its pool, disabled or not, or without a pool by searching the
    /// blocks.
    async fn block_holding(
        &self,
        address: IpAddr,
        pools: &[IpPool],
        blocks: &mut BTreeMap<Family, Vec<BlockCidr>>,
    ) -> Result<Option<BlockCidr>, IpamError> {
        let host = IpNet::from(address);
        if let Some(pool) = pools.iter().find(|pool| pool.spec.cidr.contains(&host))
            && let Ok(cidr) = BlockCidr::containing(address, pool.spec.block_prefix_len())
            && self.store_has(cidr).await?
        {
            return Ok(Some(cidr));
        }
        let listed = match blocks.entry(Family::of(address)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let records = self.records(&Prefix::blocks(Some(*entry.key()))).await?;
                let cidrs = records.iter().filter_map(|record| match record.key.kind() {
                    KeyKind::Block(cidr) => Some(cidr),
                    _ => None,
                });
                entry.insert(cidrs.collect())
            }
        };
        Ok(listed.iter().find(|cidr| cidr.net().contains(&host)).copied())
    }

    async fn store_has(&self, cidr: BlockCidr) -> Result<bool, IpamError> {
        let key = Key::block(cidr);
        let record = self.store.get(&key).await;
        Ok(record.map_err(|error| IpamError::store(format!("read {key}"), error))?.is_some())
    }
}
