//! AutoAssign (calico-ipam.md sections 3.4 and 3.5): from the node's own blocks, then from a newly
//! claimed block, then from blocks of other nodes.

use std::collections::BTreeSet;

use russet_addr::{BlockCidr, Family, IpNet};
use russet_model::{AddressUse, Affinity, Block, IpPool, IpamConfig, Key, Node};
use russet_store::Record;
use russet_sync::LockGuard;

use super::cache::{Plan, RequestKind, Waiting};
use super::claim::Claimed;
use super::existing::with_block_prefix;
use super::fast::{FastPath, SlowAdd};
use super::take::Owner;
use super::{Allocator, Stored};
use crate::block_ops::{self, Freed, Reserved};
use crate::finder::Finder;
use crate::pools::{self, Asker};
use crate::{Assigned, IpamError, Request};

/// Limit of addresses for one call, against invalid requests.
const ADDRESSES_MAX: u32 = 1024;

/// One family of one request.
pub(super) struct FamilyRun<'a> {
    pub(super) request: &'a Request,
    pub(super) owner: &'a Owner,
    pub(super) family: Family,
    pub(super) config: IpamConfig,
    pub(super) reserved: Reserved,
    pub(super) pools: Vec<IpPool>,
    wanted: usize,
    taken: Vec<IpNet>,
    /// Blocks that are the node's.
    own: Vec<BlockCidr>,
    /// Why an own block could not be used: the error to report if no other block has a free
    /// address.
    passed_over: Option<IpamError>,
    /// Another node's block has free addresses, but affinity is strict.
    pub(super) passed_strict: bool,
}

/// What is read once for both families of a request.
struct Facts {
    /// The generation of the cache when reading began.
    generation: u64,
    config: IpamConfig,
    reserved: Vec<IpNet>,
    pools: Vec<IpPool>,
    /// Why a pool could not be decoded.
    pool_error: Option<IpamError>,
    node: Option<Node>,
}

/// Blocks that a call has written, so that a failure can release everything.
type Touched = BTreeSet<BlockCidr>;

// === impl Allocator ===

impl Allocator {
    /// Assigns the request's addresses: those that its handle and interface have already, and new
    /// ones for the rest. All or nothing for both families.
    pub async fn auto_assign(&self, request: &Request) -> Result<Assigned, IpamError> {
        check(request)?;
        let mut owner = Owner::new(&request.handle, self.owner(request));
        let waiting = self.cache.wait();
        let SlowAdd { turn, raised, is_new } = match self.assign_fast(request, &owner).await {
            FastPath::Done(addresses) => return Ok(Assigned { addresses, existing: false }),
            FastPath::SlowPath(slow) => slow,
        };
        owner.is_in_doubt = !raised.is_empty();
        let result = self.assign_slowly(request, &owner, turn, waiting).await;
        // An earlier ADD of this container would keep its addresses: its pod may run.
        if result.is_err() && is_new {
            self.in_grace().give_back(&owner, &raised).await;
        }
        for cidr in raised {
            if let Err(error) = self.in_grace().settle(&owner.handle, cidr).await {
                tracing::warn!(handle = %owner.handle, block = %cidr, %error, "handle counts too many");
            }
        }
        result
    }

    /// `waiting` is when the request began to wait for `turn`.
    async fn assign_slowly(
        &self,
        request: &Request,
        owner: &Owner,
        turn: Option<LockGuard>,
        waiting: Waiting,
    ) -> Result<Assigned, IpamError> {
        let attempt = self.cache.attempt();
        let existing = self.existing(request).await?;
        let owner = &Owner { found: existing.clone(), ..owner.clone() };
        let is_sharing = turn.is_some() && existing.is_empty();
        if let Some(error) = self.cache.refusal(request, waiting).filter(|_| is_sharing) {
            return Err(error);
        }
        let mut addresses = existing.clone();
        let mut touched = Touched::new();
        let mut facts = None;
        for family in Family::BOTH {
            let held = existing.iter().filter(|net| Family::of_net(net) == family).count();
            let wanted = (request.wanted(family) as usize).saturating_sub(held);
            if wanted == 0 {
                continue;
            }
            let facts = match &facts {
                Some(facts) => facts,
                None => facts.insert(self.facts(request).await?),
            };
            match self.assign_family(request, facts, owner, (family, wanted), &mut touched).await {
                Ok(taken) => addresses.extend(taken),
                Err(error) => {
                    self.in_grace().give_back(owner, &touched).await;
                    if is_sharing {
                        self.cache.refuse(request, attempt, &error);
                    }
                    return Err(error);
                }
            }
        }
        addresses.sort_by_key(Family::of_net);
        let existing = existing.len() == addresses.len();
        Ok(Assigned { addresses, existing })
    }

    async fn facts(&self, request: &Request) -> Result<Facts, IpamError> {
        let generation = self.cache.generation();
        let node = self.node_of(request).await?;
        let (pools, pool_error) = self.pools_and_error().await?;
        Ok(Facts {
            generation,
            config: self.config().await?,
            reserved: self.reserved().await?,
            pools,
            pool_error,
            node,
        })
    }

    /// The record of the request's node, which some requests require.
    pub(super) async fn node_of(&self, request: &Request) -> Result<Option<Node>, IpamError> {
        match self.node(&request.node).await? {
            None if request.registered_node => {
                let node = request.node.clone();
                Err(IpamError::NodeUnknown { key: Key::node(&node), node })
            }
            node => Ok(node),
        }
    }

    async fn assign_family(
        &self,
        request: &Request,
        facts: &Facts,
        owner: &Owner,
        (family, wanted): (Family, usize),
        touched: &mut Touched,
    ) -> Result<Vec<IpNet>, IpamError> {
        let Facts { config, reserved, pools: all_pools, pool_error, node, .. } = facts;
        let reserved = reserved.iter().copied().filter(|net| Family::of_net(net) == family).collect();
        let asker = Asker {
            node: &request.node,
            node_labels: node.as_ref().map(|node| &node.metadata.labels),
            namespace_labels: &request.namespace_labels,
            use_: request.use_,
        };
        let chosen = pools::choose(all_pools, family, request.pools(family), &asker);
        let pools = chosen.map_err(|error| match (error, pool_error) {
            (IpamError::NoPool { .. } | IpamError::PoolMissing { .. }, Some(pool_error)) => {
                pool_error.clone()
            }
            (error, _) => error,
        })?;
        let affinities = self.affinities(&request.node, family).await?;
        let (own, others): (Vec<_>, Vec<_>) = affinities
            .into_iter()
            .partition(|(block, _)| pools.iter().any(|pool| pool.spec.cidr.contains(&block.net())));
        self.release_strays(request, all_pools, asker.node_labels, &others).await;
        let mut run = FamilyRun {
            request,
            owner,
            family,
            config: config.clone(),
            reserved: Reserved(reserved),
            pools,
            wanted,
            taken: Vec::new(),
            own: Vec::new(),
            passed_over: None,
            passed_strict: false,
        };
        let owned = self.use_own_blocks(&mut run, own, touched).await?;
        if run.missing() > 0 {
            self.use_new_blocks(&mut run, owned, touched).await?;
        }
        if run.missing() > 0 && request.borrow && !run.config.strict_affinity {
            self.borrow(&mut run, touched).await?;
        }
        if run.missing() > 0 {
            return Err(run.short());
        }
        let (kind, at) = (RequestKind::of(request, family), self.clock.now());
        self.cache.keep_plan(Plan { kind, at, own: run.own, reserved: run.reserved }, facts.generation);
        Ok(run.taken)
    }

    /// Returns how many blocks of the chosen pools the node has.
    async fn use_own_blocks(
        &self,
        run: &mut FamilyRun<'_>,
        own: Vec<(BlockCidr, Stored<Affinity>)>,
        touched: &mut Touched,
    ) -> Result<u64, IpamError> {
        let mut owned = own.len() as u64;
        for (cidr, affinity) in own {
            if run.missing() == 0 {
                break;
            }
            if run.reserved.covering(cidr).is_some() {
                continue;
            }
            match self.affine_block(&run.request.node, cidr, affinity).await {
                Ok(Claimed::Ours(block)) => self.take_own(run, cidr, Some(*block), touched).await?,
                Ok(Claimed::Foreign) => owned -= 1,
                Err(error @ (IpamError::Corrupt { .. } | IpamError::Contended { .. })) => {
                    russet_store::refused("own block skipped", cidr, &error);
                    run.passed_over.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(owned)
    }

    async fn use_new_blocks(
        &self,
        run: &mut FamilyRun<'_>,
        mut owned: u64,
        touched: &mut Touched,
    ) -> Result<(), IpamError> {
        let limit = run.config.block_limit(run.request.max_blocks);
        let node = &run.request.node;
        let mut finder: Option<Finder> = None;
        while run.missing() > 0 {
            if owned >= limit {
                return Err(IpamError::BlockLimit { node: node.clone(), family: run.family, limit });
            }
            if !run.config.auto_allocate_blocks {
                return Err(IpamError::AutoAllocateOff { node: node.clone(), family: run.family });
            }
            let finder = match &mut finder {
                Some(finder) => finder,
                None => finder.insert(self.finder(run).await?),
            };
            let cidr = match finder.next(&run.reserved) {
                Some(cidr) => Some(cidr),
                None => self.unlisted_or_idle(run, finder).await?,
            };
            let Some(cidr) = cidr else { break };
            if let Claimed::Ours(block) = self.claim(node, cidr).await? {
                owned += 1;
                self.take_own(run, cidr, Some(*block), touched).await?;
            }
        }
        Ok(())
    }

    async fn finder(&self, run: &FamilyRun<'_>) -> Result<Finder, IpamError> {
        let prefix = russet_model::Prefix::blocks(Some(run.family));
        let keys = self.store.keys(&prefix).await;
        let keys = keys.map_err(|error| IpamError::store(format!("list the keys of {prefix}"), error))?;
        Ok(Finder::new(&run.request.node, &run.pools, &keys))
    }

    /// For pools without a free range: a block of the node that has no affinity record, or an idle
    /// one of another node.
    async fn unlisted_or_idle(
        &self,
        run: &FamilyRun<'_>,
        finder: &mut Finder,
    ) -> Result<Option<BlockCidr>, IpamError> {
        if finder.must_look_closer() {
            let prefix = russet_model::Prefix::blocks(Some(run.family));
            let now = self.clock.now();
            let mut take = |record: Record| {
                finder.consider(&run.request.node, &run.pools, &record, &run.reserved, now);
            };
            let scanned = self.store.scan(&prefix, &mut take).await;
            scanned.map_err(|error| IpamError::store(format!("search {prefix}"), error))?;
        }
        match finder.next_mine() {
            Some(block) => Ok(Some(block)),
            None => self.reclaim(finder).await,
        }
    }

    /// Takes the missing addresses from a block, if it still serves the node when it is written.
    async fn take_own(
        &self,
        run: &mut FamilyRun<'_>,
        cidr: BlockCidr,
        block: Option<Stored<Block>>,
        touched: &mut Touched,
    ) -> Result<(), IpamError> {
        let node = run.request.node.clone();
        run.own.push(cidr);
        self.take_some(run, cidr, block, touched, |block| block.serves(&node)).await
    }

    /// Takes the missing addresses from a block while `allowed` permits it.
    pub(super) async fn take_some(
        &self,
        run: &mut FamilyRun<'_>,
        cidr: BlockCidr,
        block: Option<Stored<Block>>,
        touched: &mut Touched,
        allowed: impl Fn(&Block) -> bool,
    ) -> Result<(), IpamError> {
        let missing = run.missing();
        let (owner, reserved) = (run.owner, &run.reserved);
        touched.insert(cidr);
        let change = |block: &mut Block| {
            if !allowed(block) {
                return Ok(Vec::new());
            }
            Ok(block_ops::auto_assign(block, missing, &owner.attribute, reserved))
        };
        let ordinals = self.take(cidr, block, owner, change).await?.unwrap_or_default();
        for ordinal in ordinals {
            let net = cidr.address(ordinal).and_then(|address| with_block_prefix(cidr, address));
            run.taken.extend(net.filter(|net| !run.taken.contains(net)));
        }
        Ok(())
    }

    /// Releases what a failed call allocated. What cannot be released now stays reachable by its
    /// handle.
    pub(super) async fn give_back(&self, owner: &Owner, touched: &BTreeSet<BlockCidr>) {
        for cidr in touched {
            let change = |block: &mut Block| {
                let ordinals = block_ops::release_attribute(block, &owner.attribute);
                Ok(Freed::of_handle(ordinals, &owner.handle))
            };
            if let Err(error) = self.free(*cidr, None, change).await {
                tracing::warn!(handle = %owner.handle, block = %cidr, %error, "address of a failed request could not be released");
            }
        }
    }
}

// === impl FamilyRun ===

impl FamilyRun<'_> {
    /// How many addresses are still missing.
    pub(super) fn missing(&self) -> usize {
        self.wanted.saturating_sub(self.taken.len())
    }

    fn short(&mut self) -> IpamError {
        if let Some(error) = self.passed_over.take() {
            return error;
        }
        let pools: Vec<IpNet> = self.pools.iter().map(|pool| pool.spec.cidr).collect();
        if self.config.strict_affinity || self.passed_strict {
            return IpamError::StrictAffinity { node: self.request.node.clone(), family: self.family, pools };
        }
        let blocks = self.pools.iter().fold(0_u64, |sum, pool| sum.saturating_add(pool.spec.block_count()));
        IpamError::PoolExhausted {
            family: self.family,
            pools,
            blocks,
            assigned: u32::try_from(self.taken.len()).unwrap_or(u32::MAX),
            wanted: u32::try_from(self.wanted).unwrap_or(u32::MAX),
        }
    }
}

fn check(request: &Request) -> Result<(), IpamError> {
    if request.use_ == AddressUse::LoadBalancer {
        return Err(IpamError::Invalid("addresses of load balancers are not assigned to nodes".into()));
    }
    let wanted = u64::from(request.v4) + u64::from(request.v6);
    if wanted == 0 || wanted > u64::from(ADDRESSES_MAX) {
        return Err(IpamError::Invalid(format!(
            "{wanted} addresses were requested; 1 to {ADDRESSES_MAX} are possible"
        )));
    }
    Ok(())
}
