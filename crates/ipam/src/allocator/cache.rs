//! What the agent's allocator remembers, so that an ordinary ADD is one commit and no read (DESIGN.md section 7).
//!
//! A remembered block is used only under the guard of its revision: if it is stale, the commit fails and the slow way is gone. What pools, reservations,
//! settings and labels say is believed for a short time, as any process believes what it read at its start; the agent can end that at once.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime};

use russet_addr::{BlockCidr, Family, IpNet, NodeName};
use russet_model::{AddressUse, Block};

use super::Stored;
use crate::Request;
use crate::block_ops::Reserved;

/// The allocator's memory.
#[derive(Default)]
pub(super) struct Cache {
    /// None: nothing is remembered.
    max_age: Option<Duration>,
    blocks: RefCell<BTreeMap<BlockCidr, Stored<Block>>>,
    plans: RefCell<VecDeque<Plan>>,
    busy: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

/// Where requests of one kind get their addresses.
#[derive(Clone)]
pub(super) struct Plan {
    asked: Asked,
    at: SystemTime,
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

/// One request at a time writes from memory; the others wait and find it up to date.
pub(super) struct Turn<'a>(&'a Cache);

/// Blocks that are remembered: more than a node may have.
const BLOCKS_MAX: usize = 64;
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

    /// Forgets everything.
    pub(super) fn clear(&self) {
        self.blocks.borrow_mut().clear();
        self.plans.borrow_mut().clear();
    }

    /// Remembers a block as it was just written.
    pub(super) fn keep_block(&self, block: Stored<Block>) {
        let mut blocks = self.blocks.borrow_mut();
        if self.is_on() && (blocks.len() < BLOCKS_MAX || blocks.contains_key(&block.value.cidr)) {
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

    /// Remembers where requests like this one get their addresses.
    pub(super) fn keep_plan(&self, asked: Asked, own: Vec<BlockCidr>, reserved: Reserved, at: SystemTime) {
        if !self.is_on() {
            return;
        }
        let mut plans = self.plans.borrow_mut();
        plans.retain(|plan| plan.asked != asked);
        plans.push_front(Plan { asked, at, own, reserved });
        plans.truncate(PLANS_MAX);
    }

    /// Where requests like this one get their addresses, if that was found out lately.
    pub(super) fn plan(&self, asked: &Asked, now: SystemTime) -> Option<Plan> {
        let max_age = self.max_age?;
        let plans = self.plans.borrow();
        let plan = plans.iter().find(|plan| plan.asked == *asked)?;
        // A clock that went backwards makes everything old.
        now.duration_since(plan.at).is_ok_and(|age| age <= max_age).then(|| plan.clone())
    }

    /// Waits for the turn to write from memory.
    pub(super) async fn turn(&self) -> Turn<'_> {
        poll_fn(|context| {
            if self.busy.replace(true) {
                self.waiting.borrow_mut().push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        Turn(self)
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

// === impl Turn ===

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.set(false);
        // All are woken: one that was dropped in the meantime must not keep the others waiting.
        for waker in self.0.waiting.take() {
            waker.wake();
        }
    }
}
