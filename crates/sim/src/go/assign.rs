//! AutoAssign and AssignIP (calico-ipam.md sections 3.4 and 3.7).

use std::net::IpAddr;

use russet_addr::{BlockCidr, Family, IpNet};
use russet_model::{Attribute, Block, HandleId, IpPool, Key, KeyKind, Node, Prefix};

use super::find::{self, Search};
use super::kv::Kv;
use super::{Go, GoError, RETRIES, Result, block};

/// What is being taken.
struct Ask<'a> {
    handle: &'a HandleId,
    owner: &'a Attribute,
}

/// Rounds of the outer loop; each visits a block, so a real one ends long before.
const ROUNDS_MAX: usize = 200;

// === impl Go ===

impl Go {
    /// One family. Fewer addresses than asked for are no error.
    pub(super) async fn auto_assign(
        &self,
        family: Family,
        count: usize,
        handle: &HandleId,
        owner: &Attribute,
    ) -> Result<Vec<IpAddr>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let config = self.config().await?;
        let reserved = self.reservations().await?;
        let node = self.get(&Key::node(&self.host), Node::decode).await?.value;
        let enabled = self.enabled_pools(family).await?;
        let pools = find::selecting(&enabled, &node)?;
        let affine = self.affine_blocks(family, &enabled, &pools, &node).await?;
        let mut owned = affine.len() as u64;
        let limit = config.block_limit(0);
        let mut search = Search { pools, reserved, config, affine: affine.into(), may_claim: true };
        let ask = Ask { handle, owner };
        let mut taken = Vec::new();
        for _ in 0..ROUNDS_MAX {
            if taken.len() >= count {
                break;
            }
            search.may_claim = owned < limit;
            match self.find_or_claim(&mut search).await {
                Ok((found, new)) => {
                    owned += u64::from(new);
                    taken.extend(self.take_from(found, count - taken.len(), &ask, &search).await);
                }
                Err(GoError::NoFreeBlocks) => break,
                Err(error) => return Err(error),
            }
        }
        if taken.len() < count && !search.config.strict_affinity {
            let missing = count - taken.len();
            taken.extend(self.borrow(missing, &ask, &search).await?);
        }
        Ok(taken)
    }

    /// Our affinities inside the chosen pools; others that an enabled pool no longer gives us are released when empty.
    async fn affine_blocks(
        &self,
        family: Family,
        enabled: &[IpPool],
        chosen: &[IpPool],
        node: &Node,
    ) -> Result<Vec<BlockCidr>> {
        let records = self.list(&Prefix::affinities_of(&self.host, family)).await?;
        let mut inside = Vec::new();
        for record in records {
            let KeyKind::Affinity { block: cidr, .. } = record.key.kind() else { continue };
            let holds = |pool: &&IpPool| pool.spec.cidr.contains(&cidr.net());
            if chosen.iter().any(|pool| holds(&pool)) {
                inside.push(cidr);
            } else if let Some(pool) = enabled.iter().find(holds)
                && !find::selects(pool, node)?
            {
                let _ = self.release_affinity(&self.host, cidr, true).await;
            }
        }
        Ok(inside)
    }

    /// Tries one block until it is written or an error other than a conflict comes; that one is only noted.
    async fn take_from(&self, found: Kv<Block>, count: usize, ask: &Ask<'_>, search: &Search) -> Vec<IpAddr> {
        let cidr = found.value.cidr;
        let mut found = Some(found);
        for _ in 0..RETRIES {
            let current = match found.take() {
                Some(found) => found,
                None => match self.get_block(cidr).await {
                    Ok(found) => found,
                    Err(_) => break,
                },
            };
            let strict = search.config.strict_affinity;
            match self.assign_from_existing(current, count, ask, strict, &search.reserved).await {
                Ok(taken) => return taken,
                Err(GoError::Conflict) => {}
                Err(error) => {
                    self.environment.note(&|| format!("{cidr}: {error}"));
                    break;
                }
            }
        }
        Vec::new()
    }

    /// The handle counts what was asked for, not what was taken.
    async fn assign_from_existing(
        &self,
        mut found: Kv<Block>,
        count: usize,
        ask: &Ask<'_>,
        strict: bool,
        reserved: &[IpNet],
    ) -> Result<Vec<IpAddr>> {
        let must_serve = strict.then_some(&self.host);
        let ordinals = block::auto_assign(&mut found.value, count, ask.owner, must_serve, reserved)?;
        if ordinals.is_empty() {
            return Ok(Vec::new());
        }
        let cidr = found.value.cidr;
        self.increment(ask.handle, cidr, count).await?;
        if let Err(error) = self.update_block(found).await {
            let _ = self.decrement(ask.handle, cidr, count).await;
            return Err(error);
        }
        Ok(ordinals.into_iter().filter_map(|ordinal| cidr.address(ordinal)).collect())
    }

    /// From blocks of any node.
    async fn borrow(&self, count: usize, ask: &Ask<'_>, search: &Search) -> Result<Vec<IpAddr>> {
        let mut taken = Vec::new();
        for cidr in search.pools.iter().flat_map(|pool| self.walk(pool)) {
            if taken.len() >= count {
                break;
            }
            if find::is_wholly_reserved(&search.reserved, cidr) {
                continue;
            }
            for _ in 0..RETRIES {
                let Ok(found) = self.get_block(cidr).await else { break };
                let missing = count - taken.len();
                match self.assign_from_existing(found, missing, ask, false, &search.reserved).await {
                    Err(GoError::Conflict) => {}
                    Err(_) => break,
                    Ok(more) => {
                        taken.extend(more);
                        break;
                    }
                }
            }
        }
        Ok(taken)
    }

    /// On a lost race the handle is raised again without having been lowered.
    pub(super) async fn assign_ip(
        &self,
        handle: &HandleId,
        owner: &Attribute,
        address: IpAddr,
    ) -> Result<()> {
        let pools = self.enabled_pools(Family::of(address)).await?;
        let pool = pools.iter().find(|pool| pool.spec.cidr.contains(&IpNet::from(address)));
        let pool = pool.ok_or(GoError::Other("not in a configured pool"))?;
        let cidr = BlockCidr::containing(address, pool.spec.block_prefix_len())
            .map_err(|_| GoError::Other("bad block"))?;
        for _ in 0..RETRIES {
            let mut found = match self.get_block(cidr).await {
                Ok(found) => found,
                Err(GoError::NotFound) => match self.claim_for_assign(cidr).await {
                    Err(GoError::Conflict) => continue,
                    claimed => claimed?,
                },
                Err(error) => return Err(error),
            };
            let strict = self.config().await?.strict_affinity;
            block::assign(&mut found.value, address, owner, strict.then_some(&self.host))?;
            self.increment(handle, cidr, 1).await?;
            match self.update_block(found).await {
                Ok(_) => return Ok(()),
                Err(GoError::Conflict) => {}
                Err(error) => {
                    let _ = self.decrement(handle, cidr, 1).await;
                    return Err(error);
                }
            }
        }
        Err(GoError::Other("assign: too many retries"))
    }

    async fn claim_for_assign(&self, cidr: BlockCidr) -> Result<Kv<Block>> {
        let aff = self.pending_affinity(cidr).await?;
        self.claim_affine_block(cidr, aff).await
    }
}
