//! findOrClaimBlock and findUsableBlock (calico-ipam.md section 3.5).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use russet_addr::{BlockCidr, Family, IpNet};
use russet_model::{AddressUse, Block, IpPool, IpReservation, IpamConfig, KeyKind, Node, Prefix};

use super::kv::Kv;
use super::{Go, GoError, RETRIES, Result, Version, block};

/// One family of one AutoAssign.
pub(super) struct Search {
    pub(super) pools: Vec<IpPool>,
    pub(super) reserved: Vec<IpNet>,
    pub(super) config: IpamConfig,
    pub(super) affine: VecDeque<BlockCidr>,
    pub(super) may_claim: bool,
}

/// An empty block younger than this is left to its owner.
const IDLE_AFTER: Duration = Duration::from_secs(60);

// === impl Go ===

impl Go {
    pub(super) async fn enabled_pools(&self, family: Family) -> Result<Vec<IpPool>> {
        let records = self.list(&Prefix::pools()).await?;
        let pools = records.iter().filter_map(|record| IpPool::decode(&record.value).ok());
        Ok(pools.filter(|pool| pool.is_enabled() && pool.spec.family() == family).collect())
    }

    pub(super) async fn reservations(&self) -> Result<Vec<IpNet>> {
        let records = self.list(&Prefix::reservations()).await?;
        let all = records.iter().filter_map(|record| IpReservation::decode(&record.value).ok());
        Ok(all.flat_map(|reservation| reservation.spec.nets().collect::<Vec<_>>()).collect())
    }

    /// A block with room, and whether it was newly claimed.
    pub(super) async fn find_or_claim(&self, search: &mut Search) -> Result<(Kv<Block>, bool)> {
        while let Some(cidr) = search.affine.pop_front() {
            if is_wholly_reserved(&search.reserved, cidr) {
                continue;
            }
            for _ in 0..RETRIES {
                let Ok(aff) = self.get_affinity(&self.host, cidr).await else { break };
                match self.block_from_affinity(cidr, aff).await {
                    Ok(found) if block::free_count(&found.value, &search.reserved) > 0 => {
                        return Ok((found, false));
                    }
                    Err(GoError::Conflict) => {}
                    _ => break,
                }
            }
        }
        if !search.may_claim {
            return Err(GoError::BlockLimit);
        }
        if !search.config.auto_allocate_blocks {
            return Err(GoError::Other("failed to find or claim a block"));
        }
        for _ in 0..RETRIES {
            let cidr = self.find_usable(search).await?;
            if let Some(found) = self.claim_until_settled(cidr, search).await? {
                return Ok((found, true));
            }
        }
        Err(GoError::Other("claim: too many retries"))
    }

    /// None: choose another one.
    async fn claim_until_settled(&self, cidr: BlockCidr, search: &Search) -> Result<Option<Kv<Block>>> {
        for _ in 0..RETRIES {
            let aff = match self.pending_affinity(cidr).await {
                Err(GoError::Conflict) => continue,
                aff => aff?,
            };
            match self.block_from_affinity(cidr, aff).await {
                Ok(found) if block::free_count(&found.value, &search.reserved) > 0 => return Ok(Some(found)),
                Ok(_) | Err(GoError::ClaimConflict | GoError::StaleAffinity) => return Ok(None),
                Err(GoError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Err(GoError::Other("claim: too many retries"))
    }

    /// A hole, one of our own blocks with room, or since 3.32 an idle block of another host. Looks at exact prefixes only.
    async fn find_usable(&self, search: &Search) -> Result<BlockCidr> {
        let mut blocks: BTreeMap<BlockCidr, Block> = BTreeMap::new();
        for record in self.list(&Prefix::blocks(None)).await? {
            if let (KeyKind::Block(cidr), Ok(block)) = (record.key.kind(), self.decode_block(&record.value)) {
                blocks.insert(cidr, block);
            }
        }
        let mut empty = Vec::new();
        for cidr in search.pools.iter().flat_map(|pool| self.walk(pool)) {
            if is_wholly_reserved(&search.reserved, cidr) {
                continue;
            }
            let Some(found) = blocks.get(&cidr) else { return Ok(cidr) };
            let room = block::free_count(found, &search.reserved) > 0;
            if block::is_ours(found, &self.host) && room {
                return Ok(cidr);
            }
            if self.version >= Version::V332 && found.is_empty() && room {
                empty.push(found);
            }
        }
        for idle in empty {
            let young = idle
                .claimed_at()
                .is_some_and(|at| self.environment.now().duration_since(at).unwrap_or_default() < IDLE_AFTER);
            let Some(owner) = idle.node().filter(|_| !young) else { continue };
            let released = self.release_block_affinity(&owner, idle.cidr, true, Some(idle.sequence_number));
            if released.await.is_ok() {
                return Ok(idle.cidr);
            }
        }
        Err(GoError::NoFreeBlocks)
    }

    /// All blocks of a pool, from one that the host's name decides.
    pub(super) fn walk(&self, pool: &IpPool) -> Vec<BlockCidr> {
        let (cidr, len) = (pool.spec.cidr, pool.spec.block_prefix_len());
        let count = BlockCidr::count_in(cidr, len);
        let hash = self
            .host
            .as_str()
            .bytes()
            .fold(2_166_136_261, |hash: u32, byte| hash.wrapping_mul(16_777_619) ^ u32::from(byte));
        let index = |offset: u64| (u64::from(hash) + offset) % count.max(1);
        (0..count).filter_map(|offset| BlockCidr::nth_in(cidr, len, index(offset))).collect()
    }
}

pub(super) fn is_wholly_reserved(reserved: &[IpNet], cidr: BlockCidr) -> bool {
    reserved.iter().any(|net| net.contains(&cidr.net()))
}

pub(super) fn selects(pool: &IpPool, node: &Node) -> Result<bool> {
    let selector = pool.spec.nodes().map_err(|_| GoError::Other("bad selector"))?;
    Ok(selector.matches(&node.metadata.labels))
}

/// The pools that serve a workload on a node.
pub(super) fn selecting(pools: &[IpPool], node: &Node) -> Result<Vec<IpPool>> {
    let mut chosen = Vec::new();
    for pool in pools.iter().filter(|pool| pool.spec.is_automatic()) {
        if selects(pool, node)? {
            chosen.push(pool.clone());
        }
    }
    if chosen.is_empty() {
        return Err(GoError::Other("no configured Calico pools for node"));
    }
    chosen.retain(|pool| pool.spec.allows(AddressUse::Workload));
    if chosen.is_empty() { Err(GoError::Other("no qualified pool")) } else { Ok(chosen) }
}
