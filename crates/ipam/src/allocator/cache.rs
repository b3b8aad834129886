//! What the agent's allocator remembers, so that an ordinary ADD is one commit and no read (ARCHITECTURE.md, "Time budgets").
//!
//! A remembered block or handle is used only under the guard of its revision: if it is stale, the commit fails and it is read. What pools, reservations,
//! settings and labels say is believed for a short time, as any process believes what it read at its start; the agent can end that at once.

mod refusal;
mod turns;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use russet_addr::{BlockCidr, Family, IpNet, NodeName};
use russet_model::{AddressUse, Block, Handle, HandleId};

use super::Stored;
use super::fast::Shared;
use super::pool::PoolFamilies;
use crate::Request;
use crate::block_ops::Reserved;
use refusal::Refusal;
pub(super) use turns::{Turn, Turns};

/// The allocator's memory, and the places where its requests wait for each other.
#[derive(Default)]
pub(super) struct Cache {
    /// None: nothing is remembered.
    max_age: Option<Duration>,
    blocks: RefCell<BTreeMap<BlockCidr, Stored<Block>>>,
    handles: RefCell<BTreeMap<HandleId, Stored<Handle>>>,
    plans: RefCell<VecDeque<Plan>>,
    /// The families that have pools, and since when that is known.
    families: RefCell<Option<(SystemTime, PoolFamilies)>>,
    /// How often the rules were forgotten: what was read before counts for nothing after.
    generation: Cell<u64>,
    /// How often something was found out the long way.
    learned: Cell<u64>,
    /// Requests that share commits.
    pub(super) shared: Shared,
    /// Releases that read and write a block.
    pub(super) freeing: Turns,
    /// Requests that find out the long way where addresses are.
    pub(super) asking: Turns<Source>,
    /// How the last of them failed, for those who waited meanwhile.
    refusal: RefCell<Option<Refusal>>,
    refusals: Cell<u64>,
    /// How often we made room: what was full before may not be so after.
    room: Cell<u64>,
}

/// Where a request's addresses may come from: those who look in the same place would get into each other's way.
#[derive(Clone, PartialEq)]
pub(super) struct Source {
    node: NodeName,
    /// None: no address of this family.
    pools: [Option<Option<Vec<IpNet>>>; 2],
    use_: AddressUse,
}

/// Where requests of one kind get their addresses.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) asked: Asked,
    pub(super) at: SystemTime,
    /// The node's blocks that may serve it, in order.
    pub(super) own: Vec<BlockCidr>,
    /// What is not handed out.
    pub(super) reserved: Reserved,
}

/// What makes two requests of one kind.
#[derive(Clone, PartialEq)]
pub(super) struct Asked {
    node: NodeName,
    family: Family,
    pools: Option<Vec<IpNet>>,
    use_: AddressUse,
    namespace_labels: BTreeMap<String, String>,
}

/// Blocks that are remembered: more than a node may have.
const BLOCKS_MAX: usize = 64;
/// Handles that are remembered: more than a node has containers. Any other costs its release one read.
const HANDLES_MAX: usize = 1024;
/// Kinds of requests that are remembered.
const PLANS_MAX: usize = 16;

// === impl Cache ===

impl Cache {
    /// A memory that believes what it read for `max_age`.
    pub(super) fn new(max_age: Duration) -> Self {
        Self { max_age: Some(max_age), ..Self::default() }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.max_age.is_some()
    }

    /// Forgets what pools, reservations, settings and labels say. Blocks and handles stay: their revisions guard them.
    pub(super) fn forget_rules(&self) {
        self.plans.borrow_mut().clear();
        self.families.take();
        self.generation.set(self.generation.get() + 1);
    }

    /// Which rules are being read: remember nothing that was read in an earlier generation.
    pub(super) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Remembers a block as it was just written or read. Answers may come in another order than they were given in: the newest counts.
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

    /// Forgets a block that is gone, or may have changed.
    pub(super) fn drop_block(&self, cidr: BlockCidr) {
        self.blocks.borrow_mut().remove(&cidr);
    }

    /// A block as it was last written.
    pub(super) fn block(&self, cidr: BlockCidr) -> Option<Stored<Block>> {
        self.blocks.borrow().get(&cidr).cloned()
    }

    /// What `look` sees in a block, without a copy of it.
    pub(super) fn look<T>(&self, cidr: BlockCidr, look: impl FnOnce(&Block) -> T) -> Option<T> {
        self.blocks.borrow().get(&cidr).map(|block| look(&block.value))
    }

    /// Remembers a handle as it was just written.
    pub(super) fn keep_handle(&self, id: HandleId, handle: Stored<Handle>) {
        let mut handles = self.handles.borrow_mut();
        if self.is_on() && (handles.len() < HANDLES_MAX || handles.contains_key(&id)) {
            handles.insert(id, handle);
        }
    }

    /// Forgets a handle that is gone, or may have changed.
    pub(super) fn drop_handle(&self, id: &HandleId) {
        self.handles.borrow_mut().remove(id);
    }

    /// A handle as it was last written.
    pub(super) fn handle(&self, id: &HandleId) -> Option<Stored<Handle>> {
        self.handles.borrow().get(id).cloned()
    }

    /// Changes whenever more is known about where addresses are.
    pub(super) fn learned(&self) -> u64 {
        self.learned.get()
    }

    /// Remembers where requests like this one get their addresses.
    pub(super) fn keep_plan(&self, plan: Plan, generation: u64) {
        if !self.is_on() || generation != self.generation() {
            return;
        }
        let mut plans = self.plans.borrow_mut();
        plans.retain(|known| known.asked != plan.asked);
        plans.push_front(plan);
        plans.truncate(PLANS_MAX);
        self.learned.set(self.learned.get() + 1);
    }

    /// Where requests like this one get their addresses, if that was found out lately.
    pub(super) fn plan(&self, asked: &Asked, now: SystemTime) -> Option<Plan> {
        let plans = self.plans.borrow();
        let plan = plans.iter().find(|plan| plan.asked == *asked)?;
        self.is_fresh(plan.at, now).then(|| plan.clone())
    }

    /// Remembers which families have pools.
    pub(super) fn keep_families(&self, families: &PoolFamilies, at: SystemTime, generation: u64) {
        if self.is_on() && generation == self.generation() {
            self.families.replace(Some((at, families.clone())));
        }
    }

    /// The families that have pools, if that was read lately.
    pub(super) fn families(&self, now: SystemTime) -> Option<PoolFamilies> {
        let known = self.families.borrow();
        known.as_ref().filter(|(at, _)| self.is_fresh(*at, now)).map(|(_, families)| families.clone())
    }

    /// A clock that went backwards makes everything old.
    fn is_fresh(&self, at: SystemTime, now: SystemTime) -> bool {
        self.max_age.is_some_and(|max_age| now.duration_since(at).is_ok_and(|age| age <= max_age))
    }
}

// === impl Asked ===

impl Asked {
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
    /// Where this request's addresses may come from.
    pub(super) fn of(request: &Request) -> Self {
        let pools =
            |family| (request.wanted(family) > 0).then(|| request.pools(family).map(<[IpNet]>::to_vec));
        Self { node: request.node.clone(), pools: Family::BOTH.map(pools), use_: request.use_ }
    }
}
