//! The cache of the agent's allocator, which makes an ordinary ADD one commit without a read
//! (ARCHITECTURE.md, "Time budgets").
//!
//! A cached block or handle is used only under the guard of its revision: if it is stale, the
//! commit fails and the record is read. Pools, reservations, settings and labels are cached for a
//! short time, as any process uses what it read at its start; the agent can drop them at once.

mod refusal;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use russet_addr::{BlockCidr, Family, IpNet, NodeName};
use russet_model::{AddressUse, Block, Handle, HandleId};
use russet_sync::KeyedLock;

use super::Stored;
use super::fast::Shared;
use super::pool::PoolFamilies;
use crate::Request;
use crate::block_ops::Reserved;
use refusal::Refusal;
pub(super) use refusal::Waiting;

/// The cache, and the locks and queue of requests.
#[derive(Default)]
pub(super) struct Cache {
    /// None: nothing is cached.
    max_age: Option<Duration>,
    blocks: RefCell<BTreeMap<BlockCidr, Stored<Block>>>,
    handles: RefCell<BTreeMap<HandleId, Stored<Handle>>>,
    plans: RefCell<VecDeque<Plan>>,
    /// The families that have pools, and when they were read.
    families: RefCell<Option<(SystemTime, PoolFamilies)>>,
    /// Incremented when the rules are dropped: what was read in an earlier generation must not be
    /// cached.
    generation: Cell<u64>,
    /// Number of results of the slow path.
    learned: Cell<u64>,
    /// Requests that share commits.
    pub(super) shared: Shared,
    /// Releases that read and write a block. This lock and the next one only keep requests from
    /// conflicting with each other; guards decide.
    pub(super) releases: KeyedLock<()>,
    /// Requests on the slow path.
    pub(super) slow_path: KeyedLock<Source>,
    /// The last failure of the slow path, for requests that waited meanwhile.
    refusal: RefCell<Option<Refusal>>,
    refusals: Cell<u64>,
    /// Number of releases by this process: an earlier failure may not apply after one.
    room: Cell<u64>,
}

/// The source of a request's addresses. Requests with the same source would compete on the slow
/// path.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Source {
    node: NodeName,
    /// None: no address of this family.
    pools: [Option<Option<Vec<IpNet>>>; 2],
    use_: AddressUse,
}

/// Where requests of one kind get their addresses.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) kind: RequestKind,
    pub(super) at: SystemTime,
    /// The node's blocks that may serve it, in order.
    pub(super) own: Vec<BlockCidr>,
    /// Reserved prefixes.
    pub(super) reserved: Reserved,
}

/// The kind of a request: equal kinds have equal plans.
#[derive(Clone, PartialEq)]
pub(super) struct RequestKind {
    node: NodeName,
    family: Family,
    pools: Option<Vec<IpNet>>,
    use_: AddressUse,
    namespace_labels: BTreeMap<String, String>,
}

/// Limit of cached blocks: more than a node may have.
const BLOCKS_MAX: usize = 64;
/// Limit of cached handles: more than a node has containers. The release of any other one costs a
/// read.
const HANDLES_MAX: usize = 1024;
/// Limit of cached plans.
const PLANS_MAX: usize = 16;

// === impl Cache ===

impl Cache {
    /// A cache whose rules are valid for `max_age`.
    pub(super) fn new(max_age: Duration) -> Self {
        Self { max_age: Some(max_age), ..Self::default() }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.max_age.is_some()
    }

    /// Drops pools, reservations, settings and labels. Blocks and handles stay, because their
    /// revisions guard them.
    pub(super) fn forget_rules(&self) {
        self.plans.borrow_mut().clear();
        self.families.take();
        self.generation.set(self.generation.get() + 1);
    }

    /// The current generation. What was read in an earlier one must not be cached.
    pub(super) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Caches a block that was just written or read. Answers may arrive out of order: the newest
    /// revision wins.
    pub(super) fn keep_block(&self, block: Stored<Block>) {
        let mut blocks = self.blocks.borrow_mut();
        let has_room = match blocks.get(&block.value.cidr) {
            Some(known) => known.revision < block.revision,
            None => blocks.len() < BLOCKS_MAX,
        };
        if self.is_on() && has_room {
            blocks.insert(block.value.cidr, block);
        }
    }

    /// Drops a block that is gone, or may have changed.
    pub(super) fn drop_block(&self, cidr: BlockCidr) {
        self.blocks.borrow_mut().remove(&cidr);
    }

    /// A block as last written.
    pub(super) fn block(&self, cidr: BlockCidr) -> Option<Stored<Block>> {
        self.blocks.borrow().get(&cidr).cloned()
    }

    /// The result of `look` on a block, without a copy of the block.
    pub(super) fn look<T>(&self, cidr: BlockCidr, look: impl FnOnce(&Block) -> T) -> Option<T> {
        self.blocks.borrow().get(&cidr).map(|block| look(&block.value))
    }

    /// Caches a handle that was just written.
    pub(super) fn keep_handle(&self, id: HandleId, handle: Stored<Handle>) {
        let mut handles = self.handles.borrow_mut();
        if self.is_on() && (handles.len() < HANDLES_MAX || handles.contains_key(&id)) {
            handles.insert(id, handle);
        }
    }

    /// Drops a handle that is gone, or may have changed.
    pub(super) fn drop_handle(&self, id: &HandleId) {
        self.handles.borrow_mut().remove(id);
    }

    /// A handle as last written.
    pub(super) fn handle(&self, id: &HandleId) -> Option<Stored<Handle>> {
        self.handles.borrow().get(id).cloned()
    }

    /// Changes whenever the slow path has a new result.
    pub(super) fn learned(&self) -> u64 {
        self.learned.get()
    }

    /// Caches where requests of this kind get their addresses.
    pub(super) fn keep_plan(&self, plan: Plan, generation: u64) {
        if !self.is_on() || generation != self.generation() {
            return;
        }
        let mut plans = self.plans.borrow_mut();
        plans.retain(|known| known.kind != plan.kind);
        plans.push_front(plan);
        plans.truncate(PLANS_MAX);
        self.learned.set(self.learned.get() + 1);
    }

    /// Where requests of this kind get their addresses, if that was determined recently.
    pub(super) fn plan(&self, kind: &RequestKind, now: SystemTime) -> Option<Plan> {
        let plans = self.plans.borrow();
        let plan = plans.iter().find(|plan| plan.kind == *kind)?;
        self.is_fresh(plan.at, now).then(|| plan.clone())
    }

    /// Caches which families have pools.
    pub(super) fn keep_families(&self, families: &PoolFamilies, at: SystemTime, generation: u64) {
        if self.is_on() && generation == self.generation() {
            self.families.replace(Some((at, families.clone())));
        }
    }

    /// The families that have pools, if they were read recently.
    pub(super) fn families(&self, now: SystemTime) -> Option<PoolFamilies> {
        let known = self.families.borrow();
        known.as_ref().filter(|(at, _)| self.is_fresh(*at, now)).map(|(_, families)| families.clone())
    }

    /// After the clock was set back, nothing is fresh.
    fn is_fresh(&self, at: SystemTime, now: SystemTime) -> bool {
        self.max_age.is_some_and(|max_age| now.duration_since(at).is_ok_and(|age| age <= max_age))
    }
}

// === impl RequestKind ===

impl RequestKind {
    /// The kind of one family of a request.
    pub(super) fn of(request: &Request, family: Family) -> Self {
        Self {
            node: request.node.clone(),
            family,
            pools: request.pools(family).map(<[IpNet]>::to_vec),
            use_: request.use_,
            namespace_labels: request.namespace_labels.clone(),
        }
    }
}

// === impl Source ===

impl Source {
    /// The source of this request's addresses.
    pub(super) fn of(request: &Request) -> Self {
        let pools =
            |family| (request.wanted(family) > 0).then(|| request.pools(family).map(<[IpNet]>::to_vec));
        Self { node: request.node.clone(), pools: Family::BOTH.map(pools), use_: request.use_ }
    }
}
