//! The allocator: assigns addresses and records them in the store, so that neither Go peers nor
//! Russet ever assign one twice (calico-ipam.md section 3).
//!
//! **The block record is the only lock.** An address is allocated if and only if a guarded write of
//! its block says so; affinities and handles are indexes that may lag behind. Hence the order of
//! all writes: handle, then block when assigning; block, then handle when releasing. Engines with
//! atomic commits get both in one commit. On the others, a crash in between leaves a handle with
//! too high a count, never an address that no handle reaches.
//!
//! Called by the CNI plugins (in the agent, or on their own under the store's lock), by the agent's
//! start and clean-up, and by `russet ipam`.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use russet_addr::{BlockCidr, Family, IpNet, NodeName};
use russet_model::{
    Affinity, Attribute, Block, DecodeError, Handle, HandleId, IpPool, IpReservation, IpamConfig, Key,
    KeyKind, Node, Prefix, time,
};
use russet_store::{Record, Revision, Store, StoreError};

use crate::{Backoff, Clock, IpamError, NoBackoff, Request, TIMESTAMP};

mod affinity;
mod assign_ip;
mod auto;
mod borrow;
mod cache;
mod claim;
mod cleanup;
mod correct;
mod existing;
mod fast;
mod handles;
mod operator;
mod pool;
mod probe;
mod release;
mod release_ips;
mod split;
mod take;
mod tunnel;

pub use existing::Held;
pub use operator::Configured;
pub use pool::{DefaultPool, PoolFamilies};

/// Attempts at a contended record before giving up; peers use the same number.
pub(crate) const TRIES_MAX: u32 = 100;

/// The time that a request may still use to undo its work after its deadline or last attempt; peers
/// use the same time.
const GRACE: Duration = Duration::from_secs(30);

/// Assigns and releases addresses. Cheap to create; every write that relies on its cache is
/// guarded.
pub struct Allocator {
    store: Rc<dyn Store>,
    clock: Rc<dyn Clock>,
    backoff: Rc<dyn Backoff>,
    cache: Rc<cache::Cache>,
    /// Deadline of attempts. None: only their number is limited.
    end: Option<SystemTime>,
    /// Each block has its own strict affinity setting.
    strict_blocks: bool,
}

/// A record with the revision that guards it.
#[derive(Debug, Clone)]
pub(crate) struct Stored<T> {
    pub(crate) value: T,
    pub(crate) revision: Revision,
}

/// What a failed commit means for its caller.
pub(crate) enum Failure {
    /// Another writer changed one of the records first.
    Lost,
    /// The commit may have been applied.
    Unknown(StoreError),
    /// The commit was not applied, and an immediate retry will not help.
    Fatal(StoreError),
}

// === impl Allocator ===

impl Allocator {
    /// An allocator that retries contended records at once.
    pub fn new(store: Rc<dyn Store>, clock: Rc<dyn Clock>) -> Self {
        let cache = Rc::new(cache::Cache::default());
        Self { store, clock, backoff: Rc::new(NoBackoff), cache, end: None, strict_blocks: false }
    }

    /// The same, with pauses between attempts.
    #[must_use]
    pub fn with_backoff(self, backoff: Rc<dyn Backoff>) -> Self {
        Self { backoff, ..self }
    }

    /// The same with a cache, for the agent: an ADD then costs one commit and no read. Pools,
    /// reservations, settings and labels are cached for `max_age`; [`forget`](Self::forget) drops
    /// them at once.
    #[must_use]
    pub fn with_cache(self, max_age: Duration) -> Self {
        Self { cache: Rc::new(cache::Cache::new(max_age)), ..self }
    }

    /// The same for data of Calico up to v3.13, whose peers use the `strictAffinity` of each block
    /// and not the settings: a strict block has addresses for its own node only, and new blocks are
    /// as strict as the settings. Later peers ignore the field.
    #[must_use]
    pub fn with_strict_blocks(self) -> Self {
        Self { strict_blocks: true, ..self }
    }

    /// Whether `node` may borrow an address of `block`.
    pub(crate) fn may_lend(&self, block: &Block, node: &NodeName) -> bool {
        block.serves(node) || !(self.strict_blocks && block.strict_affinity)
    }

    /// The same allocator and cache for one request with the deadline `end`: contended records are
    /// not retried after that. Undoing the work of the request has 30 s more.
    #[must_use]
    pub fn until(&self, end: SystemTime) -> Self {
        Self {
            store: self.store.clone(),
            clock: self.clock.clone(),
            backoff: self.backoff.clone(),
            cache: self.cache.clone(),
            end: Some(end),
            strict_blocks: self.strict_blocks,
        }
    }

    /// The same, for undoing the work of a failed request: it has time of its own.
    pub(crate) fn in_grace(&self) -> Self {
        self.until(self.clock.now() + GRACE)
    }

    /// Drops the cache; for an agent that sees a pool, a reservation, the settings or its node
    /// change.
    pub fn forget(&self) {
        self.cache.forget_rules();
    }

    /// The cluster's settings, or the defaults if none are stored.
    pub async fn config(&self) -> Result<IpamConfig, IpamError> {
        let config = self.read(&Key::ipam_config(), IpamConfig::decode).await?;
        Ok(config.map(|stored| stored.value).unwrap_or_default())
    }

    /// All pools ordered by name. A pool that cannot be decoded is skipped, as peers do.
    pub async fn pools(&self) -> Result<Vec<IpPool>, IpamError> {
        Ok(self.pools_and_error().await?.0)
    }

    /// All pools that can be decoded, and the first error of the others: where a pool seems to be
    /// missing, that error is the reason to report.
    pub(crate) async fn pools_and_error(&self) -> Result<(Vec<IpPool>, Option<IpamError>), IpamError> {
        let mut pool_error = None;
        let mut pools = Vec::new();
        for record in self.records(&Prefix::pools()).await? {
            match IpPool::decode(&record.value) {
                Ok(pool) => pools.push(pool),
                Err(source) => {
                    russet_store::refused("a pool that cannot be read is skipped", &record.key, &source);
                    pool_error.get_or_insert(IpamError::Corrupt { key: record.key, source });
                }
            }
        }
        Ok((pools, pool_error))
    }

    /// The reserved prefixes of both families.
    pub(crate) async fn reserved(&self) -> Result<Vec<IpNet>, IpamError> {
        let reservations = self.list(&Prefix::reservations(), IpReservation::decode).await?;
        Ok(reservations.iter().flat_map(|reservation| reservation.spec.nets().collect::<Vec<_>>()).collect())
    }

    pub(crate) async fn node(&self, node: &NodeName) -> Result<Option<Node>, IpamError> {
        Ok(self.read(&Key::node(node), Node::decode).await?.map(|stored| stored.value))
    }

    /// One block.
    pub(crate) async fn block(&self, block: BlockCidr) -> Result<Option<Stored<Block>>, IpamError> {
        self.read(&Key::block(block), |bytes| at_its_place(Block::decode(bytes)?, block)).await
    }

    /// One block, for reading and for releasing: only its allocations and owners have to be valid.
    /// The rest is repaired, and written so.
    pub(crate) async fn repaired_block(&self, block: BlockCidr) -> Result<Option<Stored<Block>>, IpamError> {
        let key = Key::block(block);
        self.read(&key, |bytes| {
            let (decoded, fault) = Block::decode_repaired(bytes)?;
            if let Some(fault) = fault {
                let reason = format!("{}: {fault}", fault.at());
                russet_store::refused(
                    "a block is repaired where it does not say who owns what",
                    &key,
                    reason,
                );
            }
            at_its_place(decoded, block)
        })
        .await
    }

    pub(crate) async fn handle(&self, handle: &HandleId) -> Result<Option<Stored<Handle>>, IpamError> {
        self.read(&Key::handle(handle), Handle::decode).await
    }

    pub(crate) async fn affinity(
        &self,
        node: &NodeName,
        block: BlockCidr,
    ) -> Result<Option<Stored<Affinity>>, IpamError> {
        self.read(&Key::affinity(node, block), Affinity::decode).await
    }

    /// A node's affinities of one family, in key order; those that cannot be decoded are skipped.
    pub(crate) async fn affinities(
        &self,
        node: &NodeName,
        family: Family,
    ) -> Result<Vec<(BlockCidr, Stored<Affinity>)>, IpamError> {
        let prefix = Prefix::affinities_of(node, family);
        let records = self.records(&prefix).await?;
        let readable = records.into_iter().filter_map(|record| {
            let KeyKind::Affinity { block, .. } = record.key.kind() else { return None };
            let value = readable(&record, Affinity::decode)?;
            Some((block, Stored { value, revision: record.revision }))
        });
        Ok(readable.collect())
    }

    pub(crate) async fn records(&self, prefix: &Prefix) -> Result<Vec<Record>, IpamError> {
        let listed = self.store.list(prefix).await;
        Ok(listed.map_err(|error| IpamError::store(format!("list {prefix}"), error))?.records)
    }

    async fn list<T>(
        &self,
        prefix: &Prefix,
        decode: fn(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, IpamError> {
        Ok(self.records(prefix).await?.iter().filter_map(|record| readable(record, decode)).collect())
    }

    async fn read<T>(
        &self,
        key: &Key,
        decode: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<Option<Stored<T>>, IpamError> {
        let record = self.store.get(key).await;
        let Some(record) = record.map_err(|error| IpamError::store(format!("read {key}"), error))? else {
            return Ok(None);
        };
        let value =
            decode(&record.value).map_err(|source| IpamError::Corrupt { key: key.clone(), source })?;
        Ok(Some(Stored { value, revision: record.revision }))
    }

    /// The attributes that are stored beside the addresses of one request, by which a later attempt
    /// recognises its own write.
    pub(crate) fn owner(&self, request: &Request) -> Attribute {
        let mut secondary = request.attributes.clone();
        secondary.insert("node".into(), request.node.to_string());
        if request.use_ != russet_model::AddressUse::Tunnel {
            secondary.entry(TIMESTAMP.into()).or_insert_with(|| time::go_timestamp(self.clock.now()));
        }
        Attribute {
            handle_id: Some(request.handle.to_string()),
            secondary: Some(secondary),
            ..Attribute::default()
        }
    }

    /// Waits before attempt `tries`, or gives up.
    pub(crate) async fn again(
        &self,
        tries: &mut u32,
        operation: &'static str,
        key: &Key,
    ) -> Result<(), IpamError> {
        *tries += 1;
        if *tries >= TRIES_MAX {
            return Err(IpamError::Contended { operation, key: key.clone(), tries: *tries });
        }
        if self.end.is_some_and(|end| self.clock.now() >= end) {
            return Err(IpamError::Late { operation, key: key.clone(), tries: *tries });
        }
        self.backoff.wait(*tries - 1).await;
        Ok(())
    }
}

fn at_its_place(decoded: Block, block: BlockCidr) -> Result<Block, DecodeError> {
    if decoded.cidr == block {
        return Ok(decoded);
    }
    let problem = format!("{} is stored there", decoded.cidr);
    Err(DecodeError { what: "block", at: "cidr".into(), problem })
}

/// Decodes a listed record. One that cannot be decoded counts as absent, as for peers.
pub(crate) fn readable<T>(record: &Record, decode: fn(&[u8]) -> Result<T, DecodeError>) -> Option<T> {
    match decode(&record.value) {
        Ok(value) => Some(value),
        Err(error) => {
            russet_store::refused("a record that cannot be read is skipped", &record.key, &error);
            None
        }
    }
}

// === impl Failure ===

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            error if error.lost_race() => Self::Lost,
            error if error.outcome_unknown() => Self::Unknown(error),
            error => Self::Fatal(error),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
