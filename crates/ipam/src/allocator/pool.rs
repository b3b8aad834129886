//! Creates and deletes pools (calico-ipam.md section 1.8), and creates the default pools of a new
//! store.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::UNIX_EPOCH;

use russet_addr::{Family, IpNet};
use russet_model::{EncapMode, IpPool, IpPoolSpec, Key, KeyKind, Prefix, time, uid};
use russet_store::Step;

use super::Allocator;
use crate::IpamError;

/// A pool to create for a family without one.
#[derive(Debug, Clone, PartialEq)]
pub struct DefaultPool {
    pub name: String,
    pub cidr: IpNet,
    /// When its traffic is encapsulated in VXLAN.
    pub vxlan_mode: EncapMode,
    /// Whether traffic that leaves the pools is masqueraded.
    pub nat_outgoing: bool,
}

/// The families of the pools. A pod that names no pool gets an address of each enabled one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolFamilies {
    /// Families with an enabled pool.
    pub enabled: Vec<Family>,
    /// Families whose pools are all disabled: pods start without an address of them.
    pub switched_off: Vec<Family>,
}

// === impl PoolFamilies ===

impl PoolFamilies {
    /// The families of these pools.
    pub fn of(pools: &[IpPool]) -> Self {
        let of = |family: Family| pools.iter().filter(move |pool| pool.spec.family() == family);
        let there = Family::BOTH.into_iter().filter(|family| of(*family).next().is_some());
        let (enabled, switched_off) = there.partition(|family| of(*family).any(IpPool::is_enabled));
        Self { enabled, switched_off }
    }
}

// === impl Allocator ===

impl Allocator {
    /// Creates each of these pools whose family has no pool at all, not even a disabled one.
    /// Returns the names of the created ones.
    pub async fn ensure_pools(&self, defaults: &[DefaultPool]) -> Result<Vec<String>, IpamError> {
        let mut created = Vec::new();
        for default in defaults {
            let family = Family::of_net(&default.cidr);
            if self.pools().await?.iter().any(|pool| pool.spec.family() == family) {
                continue;
            }
            let mut spec = IpPoolSpec::new(default.cidr);
            spec.vxlan_mode = default.vxlan_mode;
            spec.nat_outgoing = default.nat_outgoing;
            match self.create_pool(IpPool::new(default.name.clone(), spec)).await {
                Ok(()) => created.push(default.name.clone()),
                // Another node starts at the same time, with the same defaults.
                Err(IpamError::Store { source, .. }) if source.lost_race() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(created)
    }

    /// The families that have pools. With a cache, as old as it allows.
    pub async fn pool_families(&self) -> Result<PoolFamilies, IpamError> {
        if let Some(families) = self.cache.families(self.clock.now()) {
            return Ok(families);
        }
        let generation = self.cache.generation();
        let families = PoolFamilies::of(&self.pools().await?);
        // A caller that waits for the first pool must see it at once.
        if !families.enabled.is_empty() {
            self.cache.keep_families(&families, self.clock.now(), generation);
        }
        Ok(families)
    }

    /// Creates a pool, unless it overlaps another one or its range has blocks of another size.
    pub async fn create_pool(&self, mut pool: IpPool) -> Result<(), IpamError> {
        let name = pool.metadata.name.clone();
        let key = Key::pool(&name).map_err(|error| IpamError::Invalid(error.to_string()))?;
        self.check_pool(&pool).await?;
        self.stamp_pool(&mut pool);
        let create = Step::create(key.clone(), pool.encode());
        let failed = match self.store.commit(vec![create]).await {
            Ok(_) => return Ok(()),
            Err(error) => error.error,
        };
        if failed.outcome_unknown()
            && let Some(stored) = self.read(&key, IpPool::decode).await?
            && stored.value == pool
        {
            return Ok(());
        }
        Err(IpamError::store(format!("create {key}"), failed))
    }

    /// Fills the fields that every v3 resource must have when it is created (calico-ipam.md section
    /// 1.8).
    pub(super) fn stamp_pool(&self, pool: &mut IpPool) {
        let (now, metadata) = (self.clock.now(), &mut pool.metadata);
        metadata.creation_timestamp.get_or_insert_with(|| time::rfc3339(now));
        let nanos = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = metadata.name.clone();
        metadata.uid.get_or_insert_with(|| uuid(&name, nanos));
    }

    pub(super) fn claims_atomic(&self) -> bool {
        self.store.claims().atomic
    }

    /// Deletes a pool: disables it, releases its blocks, and removes it. Blocks with addresses stay
    /// until those are released.
    pub async fn delete_pool(&self, name: &str) -> Result<(), IpamError> {
        let key = Key::pool(name).map_err(|error| IpamError::Invalid(error.to_string()))?;
        let mut tries = 0;
        loop {
            let Some(mut stored) = self.read(&key, IpPool::decode).await? else {
                return if tries > 0 {
                    Ok(())
                } else {
                    Err(IpamError::Invalid(format!("there is no pool {name:.80}")))
                };
            };
            let cidr = stored.value.spec.cidr;
            stored.value.spec.disabled = true;
            let disable = Step::update(key.clone(), stored.value.encode(), stored.revision);
            if let Some(revisions) = self.try_commit("disable pool", vec![disable]).await? {
                self.release_pool_affinities(cidr).await?;
                let delete = Step::delete(key.clone(), revisions.first().copied());
                if self.try_commit("delete pool", vec![delete]).await?.is_some() {
                    return Ok(());
                }
            }
            self.again(&mut tries, "delete pool", &key).await?;
        }
    }

    /// The error if a pool cannot be created now: it overlaps another one, or its range has blocks
    /// of another size.
    pub async fn check_pool(&self, pool: &IpPool) -> Result<(), IpamError> {
        let cidr = pool.spec.cidr;
        let overlaps = |other: IpNet| other.contains(&cidr) || cidr.contains(&other);
        for other in self.pools().await? {
            if overlaps(other.spec.cidr) && other.metadata.name != pool.metadata.name {
                let name = other.metadata.name;
                return Err(IpamError::PoolOverlap { pool: cidr, other: other.spec.cidr, name });
            }
        }
        let wanted = pool.spec.block_prefix_len();
        for record in self.records(&Prefix::blocks(Some(pool.spec.family()))).await? {
            let KeyKind::Block(block) = record.key.kind() else { continue };
            if overlaps(block.net()) && block.net().prefix_len() != wanted {
                return Err(IpamError::Invalid(format!(
                    "pool {cidr}: block {block} still exists and is not a /{wanted}; release its addresses or use its size"
                )));
            }
        }
        Ok(())
    }
}

/// Formally a UUID of version 4. It only has to differ from others, and be the same in a simulation
/// that is replayed.
fn uuid(name: &str, nanos: u128) -> String {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, name, nanos).hash(&mut hasher);
        hasher.finish()
    };
    uid(((u128::from(half(0)) << 64) | u128::from(half(1))).to_be_bytes())
}
