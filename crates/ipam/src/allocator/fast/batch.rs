//! One commit for many requests: each request's handle, and the shared blocks, each once. Only
//! builds it; `fast` sends it.

mod waves;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use std::time::SystemTime;

use russet_addr::{BlockCidr, Family, IfName, IpNet};
use russet_model::{Block, Handle, HandleId, Key};
use russet_store::{MAX_STEPS, Revision, Step};

use super::super::Stored;
use super::super::cache::{Cache, RequestKind};
use super::super::existing::with_block_prefix;
use super::super::handles::{self, Left, Lost};
use super::super::take::Owner;
use super::queue::{Answer, Job, QueuedRequest};
use crate::Request;
use crate::block_ops::{self, Reserved};

/// Limit of requests in one commit (ARCHITECTURE.md, "The store"): with two blocks of its own for each,
/// still below [`MAX_STEPS`].
const SHARERS_MAX: usize = 32;

/// A commit that is being built or in progress.
#[derive(Default)]
pub(super) struct CommitBatch {
    blocks: BTreeMap<BlockCidr, BatchedBlock>,
    parts: Vec<Part>,
    /// The record that each step writes.
    targets: Vec<Target>,
}

/// The new state of a block.
struct BatchedBlock {
    block: Block,
    base: Revision,
    /// Its sequence number before: all changes in one commit are one update.
    base_sequence: u64,
    is_changed: bool,
    /// The last of the parts that released addresses of it.
    freed_by: Option<usize>,
}

/// The changes for one request.
struct Part {
    queued: Rc<QueuedRequest>,
    step: Option<Step>,
    /// The handle's new state; none if it is deleted.
    handle: Option<Handle>,
    /// The blocks that it changes.
    blocks: Vec<BlockCidr>,
    answer: Answer,
}

/// The record that a step writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// The handle of the request with this index.
    Handle(usize),
    Block(BlockCidr),
}

/// Why a request is not part of a commit.
enum Refused {
    /// The commit is full, or has the request's handle already.
    Later,
    /// The request has its answer.
    Answered(Answer),
}

/// Addresses of one block for one request.
struct Choice {
    block: BlockCidr,
    count: usize,
    reserved: Reserved,
}

// === impl CommitBatch ===

impl CommitBatch {
    /// Adds a request, answers it, or returns it for the next commit.
    pub(super) fn admit(
        &mut self,
        queued: Rc<QueuedRequest>,
        cache: &Cache,
        now: SystemTime,
    ) -> Option<Rc<QueuedRequest>> {
        match self.part(&queued, cache, now) {
            Ok(part) => self.parts.push(part),
            Err(Refused::Later) => return Some(queued),
            Err(Refused::Answered(answer)) => queued.answer(answer),
        }
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether a request of this handle is part of the commit.
    pub(super) fn names(&self, handle: &HandleId) -> bool {
        self.parts.iter().any(|part| part.queued.job.handle() == handle)
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = &Rc<QueuedRequest>> {
        self.parts.iter().map(|part| &part.queued)
    }

    fn part(&mut self, queued: &Rc<QueuedRequest>, cache: &Cache, now: SystemTime) -> Result<Part, Refused> {
        if self.parts.len() >= SHARERS_MAX || self.names(queued.job.handle()) {
            return Err(Refused::Later);
        }
        match &queued.job {
            Job::Look(_) => Err(Answer::Clear.into()),
            Job::Add { request, owner } => self.add(queued, request, owner, cache, now),
            Job::Del { handle, interface, stored, blocks } => {
                let Some(stored) = stored.clone().or_else(|| cache.handle(handle)) else {
                    return Err(Answer::slow_path().into());
                };
                self.del(queued, (handle, interface.as_ref()), &stored, blocks, cache)
            }
        }
    }

    fn add(
        &mut self,
        queued: &Rc<QueuedRequest>,
        request: &Request,
        owner: &Owner,
        cache: &Cache,
        now: SystemTime,
    ) -> Result<Part, Refused> {
        if cache.handle(&owner.handle).is_some() {
            // It has addresses already, perhaps the requested ones.
            return Err(Answer::slow_path().into());
        }
        let choices = self.choose(request, cache, now).ok_or(Answer::Cold)?;
        self.check_room(choices.iter().map(|choice| choice.block))?;
        let mut handle = Handle::default();
        let mut addresses = Vec::new();
        for Choice { block: cidr, count, reserved } in choices {
            let batched = self.load(cidr, cache, &[]).ok_or(Answer::Cold)?;
            let taken =
                batched.change(|block| block_ops::auto_assign(block, count, &owner.attribute, &reserved));
            handle.add(cidr, taken.len() as u64);
            addresses.extend(taken.iter().filter_map(|ordinal| net(cidr, *ordinal)));
        }
        Ok(Part {
            queued: queued.clone(),
            step: self.raise(queued, &handle),
            blocks: handle.blocks().collect(),
            handle: Some(handle),
            answer: Answer::Added(addresses),
        })
    }

    /// The source of a request's addresses. None if the cache does not have enough.
    fn choose(&self, request: &Request, cache: &Cache, now: SystemTime) -> Option<Vec<Choice>> {
        let mut choices = Vec::new();
        for family in Family::BOTH {
            let mut missing = request.wanted(family) as usize;
            if missing == 0 {
                continue;
            }
            let plan = cache.plan(&RequestKind::of(request, family), now)?;
            for cidr in plan.own {
                let free = |block: &Block| {
                    let serves = block.serves(&request.node);
                    let free =
                        block.unallocated.iter().filter(|ordinal| !plan.reserved.holds(cidr, **ordinal));
                    if serves { free.take(missing).count() } else { 0 }
                };
                let count = self.look(cidr, cache, &[], free).unwrap_or(0);
                if count > 0 {
                    missing -= count;
                    choices.push(Choice { block: cidr, count, reserved: plan.reserved.clone() });
                }
            }
            if missing > 0 {
                return None;
            }
        }
        Some(choices)
    }

    fn del(
        &mut self,
        queued: &Rc<QueuedRequest>,
        (id, interface): (&HandleId, Option<&IfName>),
        stored: &Stored<Handle>,
        read: &[Stored<Block>],
        cache: &Cache,
    ) -> Result<Part, Refused> {
        // A count without addresses is corrected on the slow path.
        let holds = |block: &Block| block.ordinals_of(id).next().is_some();
        if !stored.value.blocks().all(|cidr| self.look(cidr, cache, read, holds) == Some(true)) {
            return Err(Answer::slow_path().into());
        }
        self.check_room(stored.value.blocks())?;
        let number = self.parts.len();
        let (mut addresses, mut changed) = (Vec::new(), Vec::new());
        let mut lost = Vec::new();
        for cidr in stored.value.blocks() {
            let batched = self.load(cidr, cache, read).ok_or_else(Answer::slow_path)?;
            let freed = batched.change(|block| block_ops::release_by_handle(block, id, interface));
            if freed.is_empty() {
                continue;
            }
            batched.freed_by = Some(number);
            changed.push(cidr);
            addresses.extend(freed.iter().filter_map(|ordinal| cidr.address(*ordinal)));
            let left = Left::within(&batched.block, id);
            lost.push(Lost { block: cidr, freed: freed.len(), left });
        }
        if lost.is_empty() {
            // According to the cache there is nothing to release, and no write would confirm that.
            return Err(Answer::slow_path().into());
        }
        let answer = Answer::Freed { addresses, emptied: Vec::new() };
        let handle = handles::after(&stored.value, lost);
        let step = handles::written(id, stored, &handle);
        let handle = Some(handle).filter(|handle| !handle.block.is_empty());
        Ok(Part { queued: queued.clone(), step, handle, blocks: changed, answer })
    }

    /// Whether one more handle and these blocks fit into the commit. A request that fits into none
    /// takes the slow path.
    fn check_room(&self, blocks: impl Iterator<Item = BlockCidr>) -> Result<(), Refused> {
        let new = blocks.filter(|cidr| !self.blocks.contains_key(cidr)).count();
        match self.parts.len() + 1 + self.blocks.len() + new {
            ..=MAX_STEPS => Ok(()),
            _ if self.is_empty() => Err(Answer::slow_path().into()),
            _ => Err(Refused::Later),
        }
    }

    /// The result of `look` on a block in its new state.
    fn look<T>(
        &self,
        cidr: BlockCidr,
        cache: &Cache,
        read: &[Stored<Block>],
        look: impl Fn(&Block) -> T,
    ) -> Option<T> {
        let batched = self.blocks.get(&cidr).map(|batched| look(&batched.block));
        let remembered = batched.or_else(|| cache.look(cidr, &look));
        remembered.or_else(|| read.iter().find(|block| block.value.cidr == cidr).map(|b| look(&b.value)))
    }

    fn load(&mut self, cidr: BlockCidr, cache: &Cache, read: &[Stored<Block>]) -> Option<&mut BatchedBlock> {
        let vacant = match self.blocks.entry(cidr) {
            Entry::Occupied(entry) => return Some(entry.into_mut()),
            Entry::Vacant(vacant) => vacant,
        };
        let read = || read.iter().find(|block| block.value.cidr == cidr).cloned();
        let Stored { value: block, revision: base } = cache.block(cidr).or_else(read)?;
        let base_sequence = block.sequence_number;
        Some(vacant.insert(BatchedBlock { block, base, base_sequence, is_changed: false, freed_by: None }))
    }

    /// The steps, in an order that is safe after each prefix: raised handles, blocks, lowered
    /// handles.
    pub(super) fn steps(&mut self) -> Vec<Step> {
        let (targets, steps) =
            self.handle_steps(true).chain(self.block_steps()).chain(self.handle_steps(false)).unzip();
        self.targets = targets;
        steps
    }

    /// The steps that raise handles, or those that lower them.
    fn handle_steps(&self, raise: bool) -> impl Iterator<Item = (Target, Step)> {
        let numbered = self.parts.iter().enumerate().filter(move |(_, part)| part.is_add() == raise);
        numbered.filter_map(|(number, part)| Some((Target::Handle(number), part.step.clone()?)))
    }

    fn block_steps(&self) -> impl Iterator<Item = (Target, Step)> {
        let changed = self.blocks.iter().filter(|(_, batched)| batched.is_changed);
        changed.map(|(cidr, batched)| (Target::Block(*cidr), batched.step()))
    }

    /// The record that the step with this index writes.
    pub(super) fn target(&self, step: usize) -> Option<Target> {
        self.targets.get(step).copied()
    }

    /// The commit was applied: caches what was written, and answers.
    pub(super) fn succeed(mut self, revisions: &[Revision], cache: &Cache) {
        let targets = std::mem::take(&mut self.targets);
        for (target, revision) in targets.into_iter().zip(revisions.iter().copied()) {
            match target {
                Target::Handle(number) => {
                    let Some(part) = self.parts.get_mut(number) else { continue };
                    let id = part.queued.job.handle();
                    match part.handle.take() {
                        Some(value) => cache.keep_handle(id.clone(), Stored { value, revision }),
                        None => cache.drop_handle(id),
                    }
                }
                Target::Block(cidr) => self.wrote_block(cidr, revision, cache),
            }
        }
        self.answer_all(cache);
    }

    fn wrote_block(&mut self, cidr: BlockCidr, revision: Revision, cache: &Cache) {
        let Some(batched) = self.blocks.remove(&cidr) else { return };
        if batched.block.is_empty() {
            self.report_emptied(cidr, batched.freed_by);
        }
        if batched.is_gone() {
            cache.drop_block(cidr);
        } else {
            cache.keep_block(Stored { value: batched.block, revision });
        }
    }

    fn answer_all(&mut self, cache: &Cache) {
        for part in std::mem::take(&mut self.parts) {
            if matches!(part.answer, Answer::Freed { .. }) {
                cache.make_room();
            }
            part.queued.answer(part.answer);
        }
    }

    fn report_emptied(&mut self, cidr: BlockCidr, freed_by: Option<usize>) {
        let part = freed_by.and_then(|number| self.parts.get_mut(number));
        if let Some(Answer::Freed { emptied, .. }) = part.map(|part| &mut part.answer) {
            emptied.push(cidr);
        }
    }

    /// The commit may have been applied: drops its records from the cache, and sends all requests
    /// to the slow path.
    pub(super) fn unknown_outcome(mut self, cache: &Cache) {
        for cidr in self.blocks.keys() {
            cache.drop_block(*cidr);
        }
        for part in std::mem::take(&mut self.parts) {
            cache.drop_handle(part.queued.job.handle());
            cache.make_room(); // perhaps
            part.queued.answer(part.answer.in_doubt());
        }
    }

    /// The commit was not applied, and the reason is known: that request takes the slow path. The
    /// others may try again.
    pub(super) fn without(mut self, culprit: Option<usize>, cache: &Cache) -> Vec<Rc<QueuedRequest>> {
        let mut others = Vec::new();
        for (number, part) in std::mem::take(&mut self.parts).into_iter().enumerate() {
            if culprit == Some(number) {
                cache.drop_handle(part.queued.job.handle());
                part.queued.answer(Answer::slow_path());
            } else {
                others.push(part.queued);
            }
        }
        others
    }
}

impl Drop for CommitBatch {
    /// Answers every request that has no answer yet, so that none waits forever. This also covers a
    /// failed commit without a known reason.
    fn drop(&mut self) {
        for part in &self.parts {
            part.queued.answer(Answer::slow_path());
        }
    }
}

// === impl Part ===

impl Part {
    fn is_add(&self) -> bool {
        matches!(self.queued.job, Job::Add { .. })
    }
}

// === impl BatchedBlock ===

impl BatchedBlock {
    fn change(&mut self, change: impl FnOnce(&mut Block) -> Vec<usize>) -> Vec<usize> {
        // An allocation is recorded with the sequence number before the write (calico-ipam.md
        // section 3).
        self.block.sequence_number = self.base_sequence;
        let ordinals = change(&mut self.block);
        self.is_changed |= !ordinals.is_empty();
        self.block.sequence_number = self.base_sequence.wrapping_add(u64::from(self.is_changed));
        ordinals
    }

    /// The block has neither an allocated address nor an affinity.
    fn is_gone(&self) -> bool {
        self.block.is_empty() && self.block.affinity.is_none()
    }

    fn step(&self) -> Step {
        let key = Key::block(self.block.cidr);
        if self.is_gone() {
            Step::delete(key, Some(self.base))
        } else {
            Step::update(key, self.block.encode(), self.base)
        }
    }
}

// === impl Answer ===

impl Answer {
    /// The slow path, before anything was sent.
    pub(super) const fn slow_path() -> Self {
        Self::SlowPath(Vec::new())
    }

    /// What remains of an answer if it is unknown whether the commit was applied.
    fn in_doubt(self) -> Self {
        match self {
            Self::Freed { addresses, .. } => Self::SlowPath(addresses),
            _ => Self::slow_path(),
        }
    }
}

impl From<Answer> for Refused {
    fn from(answer: Answer) -> Self {
        Self::Answered(answer)
    }
}

fn net(cidr: BlockCidr, ordinal: usize) -> Option<IpNet> {
    with_block_prefix(cidr, cidr.address(ordinal)?)
}
