//! Splits a pool into equal parts with new names (calico-ipam.md section 5.2). Addresses, blocks
//! and affinities do not change: only which record names their range changes.

use russet_addr::{Family, IpNet};
use russet_model::{IpPool, Key};
use russet_store::Step;

use super::Allocator;
use crate::IpamError;

/// Limit of the parts: with the old pool's deletion still one commit.
const PARTS_MAX: u32 = 64;

// === impl Allocator ===

impl Allocator {
    /// Replaces the pool called `name` by `parts` pools `split-<name>-<i>` with the same settings.
    /// Returns the new ones.
    ///
    /// On an atomic store there is no moment without a pool, nor one with two pools over the same
    /// range. On other stores the old pool is disabled first and deleted last, and an interrupted
    /// run is finished by the next one.
    pub async fn split_pool(&self, name: &str, parts: u32) -> Result<Vec<IpPool>, IpamError> {
        let key = Key::pool(name).map_err(|error| IpamError::Invalid(error.to_string()))?;
        let mut tries = 0;
        let mut pools = Vec::new();
        loop {
            let Some(stored) = self.read(&key, IpPool::decode).await? else {
                if tries > 0 {
                    // An earlier commit was applied, and its answer was lost.
                    return Ok(pools);
                }
                return Err(IpamError::Invalid(format!("there is no pool {name:.80}")));
            };
            pools = self.parts(&stored.value, parts).await?;
            if self.claims_atomic() {
                let mut steps = Vec::new();
                for pool in &pools {
                    steps.push(Step::create(part_key(pool)?, pool.encode()));
                }
                steps.push(Step::delete(key.clone(), Some(stored.revision)));
                if self.try_commit("split pool", steps).await?.is_some() {
                    return Ok(pools);
                }
            } else if self.split_in_steps(&key, stored.value, stored.revision, &pools).await? {
                return Ok(pools);
            }
            self.again(&mut tries, "split pool", &key).await?;
        }
    }

    /// False if another writer changed the old pool meanwhile.
    async fn split_in_steps(
        &self,
        key: &Key,
        mut old: IpPool,
        mut revision: russet_store::Revision,
        pools: &[IpPool],
    ) -> Result<bool, IpamError> {
        if !old.spec.disabled {
            old.spec.disabled = true;
            let disable = Step::update(key.clone(), old.encode(), revision);
            let Some(revisions) = self.try_commit("disable pool", vec![disable]).await? else {
                return Ok(false);
            };
            revision = revisions.first().copied().unwrap_or(revision);
        }
        for pool in pools {
            let key = part_key(pool)?;
            if self.read(&key, IpPool::decode).await?.is_none() {
                self.try_commit("create pool", vec![Step::create(key, pool.encode())]).await?;
            }
        }
        let delete = Step::delete(key.clone(), Some(revision));
        Ok(self.try_commit("delete pool", vec![delete]).await?.is_some())
    }

    /// The new pools, checked; no pool of another range has one of their names.
    async fn parts(&self, old: &IpPool, parts: u32) -> Result<Vec<IpPool>, IpamError> {
        let cidr = old.spec.cidr;
        let invalid =
            |reason: String| Err(IpamError::Invalid(format!("pool {cidr} cannot be split: {reason}")));
        if parts < 2 || !parts.is_power_of_two() || parts > PARTS_MAX {
            return invalid(format!(
                "{parts} parts were requested; it must be a power of two from 2 to {PARTS_MAX}"
            ));
        }
        let length = u32::from(cidr.prefix_len()) + parts.trailing_zeros();
        let block = u32::from(old.spec.block_prefix_len());
        if length > block {
            return invalid(format!(
                "{parts} parts would be /{length} each, smaller than its blocks of /{block}"
            ));
        }
        // Checked above: it is no longer than a block's.
        let subnets = cidr.subnets(length as u8).map_err(|error| IpamError::Invalid(error.to_string()))?;
        let others = self.pools().await?;
        let mut pools = Vec::new();
        for (number, subnet) in subnets.enumerate() {
            let name = format!("split-{}-{number}", old.metadata.name);
            if let Some(other) =
                others.iter().find(|pool| pool.metadata.name == name && pool.spec.cidr != subnet)
            {
                return invalid(format!("there is a pool {name} of {} already", other.spec.cidr));
            }
            pools.push(self.part(old, name, subnet));
        }
        Ok(pools)
    }

    fn part(&self, old: &IpPool, name: String, cidr: IpNet) -> IpPool {
        debug_assert_eq!(Family::of_net(&cidr), old.spec.family());
        let mut spec = old.spec.clone();
        spec.cidr = cidr;
        let mut pool = IpPool::new(name, spec);
        pool.metadata.labels = old.metadata.labels.clone();
        pool.metadata.annotations = old.metadata.annotations.clone();
        self.stamp_pool(&mut pool);
        pool
    }
}

fn part_key(pool: &IpPool) -> Result<Key, IpamError> {
    Key::pool(&pool.metadata.name).map_err(|error| IpamError::Invalid(error.to_string()))
}
