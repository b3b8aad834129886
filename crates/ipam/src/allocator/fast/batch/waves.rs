//! The steps of a batch in three waves, for engines that apply steps one by one: each wave is as
//! safe as the steps of one commit in the same order, and its steps fail one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use russet_addr::BlockCidr;
use russet_model::{Handle, Key};
use russet_store::{Revision, Step};

use super::super::super::cache::Cache;
use super::super::super::{Failure, Stored};
use super::super::queue::{Answer, QueuedRequest, Raised};
use super::super::waves::Wave;
use super::{CommitBatch, Part, Target};

/// What a wave of blocks leaves to do.
#[derive(Default)]
pub(in super::super) struct Undone {
    /// Requests whose blocks another writer changed.
    pub(in super::super) again: Vec<Rc<QueuedRequest>>,
    /// These blocks.
    pub(in super::super) lost: Vec<BlockCidr>,
}

// === impl CommitBatch ===

impl CommitBatch {
    /// The step that raises the handle of an ADD: none if that was done for the same blocks.
    pub(super) fn raise(&self, queued: &QueuedRequest, wanted: &Handle) -> Option<Step> {
        let key = Key::handle(queued.job.handle());
        let raised = queued.raised.borrow();
        let Some(Raised { stored: Some(stored), bases }) = &*raised else {
            return Some(Step::create(key, wanted.encode()));
        };
        let is_raised = |cidr: BlockCidr| {
            stored.value.count(cidr) >= wanted.count(cidr) && bases.get(&cidr) == self.base(cidr).as_ref()
        };
        if wanted.blocks().all(is_raised) {
            return None;
        }
        Some(Step::update(key, sum(&stored.value, wanted).encode(), stored.revision))
    }

    fn base(&self, cidr: BlockCidr) -> Option<Revision> {
        self.blocks.get(&cidr).map(|batched| batched.base)
    }

    /// The steps of a wave.
    pub(in super::super) fn wave(&mut self, wave: Wave) -> Vec<Step> {
        let (targets, steps) = match wave {
            Wave::Raise => self.handle_steps(true).unzip(),
            Wave::Blocks => self.block_steps().unzip(),
            Wave::Lower => self.handle_steps(false).chain(self.excess_steps()).unzip(),
        };
        self.targets = targets;
        steps
    }

    /// The steps that lower handles of ADDs which were raised more than once.
    fn excess_steps(&self) -> impl Iterator<Item = (Target, Step)> {
        let adds = self.parts.iter().enumerate().filter(|(_, part)| part.is_add());
        adds.filter_map(|(number, part)| {
            let (raised, wanted) = (part.queued.raised.borrow(), part.handle.as_ref()?);
            let stored = raised.as_ref()?.stored.as_ref().filter(|stored| stored.value != *wanted)?;
            let key = Key::handle(part.queued.job.handle());
            Some((Target::Handle(number), Step::update(key, wanted.encode(), stored.revision)))
        })
    }

    /// Takes the results of [`Wave::Raise`]. The requests whose handle has another state take the
    /// slow path. If there are any, this batch must not be sent further: the blocks have to be built
    /// again for the others, which are the error.
    pub(in super::super) fn raised(
        &mut self,
        results: Vec<Result<Revision, Failure>>,
    ) -> Result<(), Vec<Rc<QueuedRequest>>> {
        let targets = std::mem::take(&mut self.targets);
        let mut refused = BTreeSet::new();
        for (target, result) in targets.into_iter().zip(results) {
            let Target::Handle(number) = target else { continue };
            let Some(part) = self.parts.get(number) else { continue };
            let stored = match result {
                Ok(revision) => Some(Stored { value: part.raised_value(), revision }),
                Err(_) => None,
            };
            // Earlier attempts may have raised it for other blocks.
            let mut bases: BTreeMap<_, _> =
                part.queued.raised.take().map_or_else(BTreeMap::new, |raised| raised.bases);
            bases.extend(part.blocks.iter().filter_map(|cidr| Some((*cidr, self.base(*cidr)?))));
            if stored.is_none() {
                refused.insert(number);
            }
            // Without an answer it may have been raised, too.
            part.queued.raised.replace(Some(Raised { stored, bases }));
        }
        if refused.is_empty() {
            return Ok(());
        }
        let mut others = Vec::new();
        for (number, part) in std::mem::take(&mut self.parts).into_iter().enumerate() {
            if refused.contains(&number) {
                part.queued.answer(Answer::slow_path());
            } else {
                others.push(part.queued);
            }
        }
        Err(others)
    }

    /// Takes the results of [`Wave::Blocks`]. What remains in the batch is written, except for handles
    /// that are to be lowered. Requests with a block whose state is unknown take the slow path.
    pub(in super::super) fn wrote(
        &mut self,
        results: Vec<Result<Revision, Failure>>,
        tries_max: u32,
        cache: &Cache,
    ) -> Undone {
        let mut undone = Undone::default();
        let mut unknown = BTreeSet::new();
        for (target, result) in std::mem::take(&mut self.targets).into_iter().zip(results) {
            let Target::Block(cidr) = target else { continue };
            match result {
                Ok(revision) => {
                    self.wrote_block(cidr, revision, cache);
                    continue;
                }
                Err(Failure::Lost) => undone.lost.push(cidr),
                Err(_) => _ = unknown.insert(cidr),
            }
            cache.drop_block(cidr);
        }
        for part in std::mem::take(&mut self.parts) {
            let (failed, written): (Vec<_>, Vec<_>) =
                part.blocks.iter().partition(|cidr| undone.lost.contains(cidr) || unknown.contains(cidr));
            if failed.is_empty() {
                self.parts.push(part);
                continue;
            }
            let tries = part.queued.tries.get() + 1;
            part.queued.tries.set(tries);
            if written.is_empty() && tries < tries_max && !failed.iter().any(|cidr| unknown.contains(cidr)) {
                undone.again.push(part.queued);
            } else {
                cache.drop_handle(part.queued.job.handle());
                part.queued.answer(part.answer.in_doubt().without(&undone.lost));
            }
        }
        undone
    }

    /// Takes the results of [`Wave::Lower`]. A DEL whose handle is not lowered takes the slow path.
    pub(in super::super) fn lowered(&mut self, results: Vec<Result<Revision, Failure>>, cache: &Cache) {
        for (target, result) in std::mem::take(&mut self.targets).into_iter().zip(results) {
            let Target::Handle(number) = target else { continue };
            let Some(part) = self.parts.get_mut(number) else { continue };
            let id = part.queued.job.handle().clone();
            // A handle that was raised twice may stay so: its DEL removes it.
            part.queued.raised.take();
            match (result, part.handle.take()) {
                (Ok(revision), Some(value)) => cache.keep_handle(id, Stored { value, revision }),
                (result, _) => {
                    cache.drop_handle(&id);
                    if result.is_err() && !part.is_add() {
                        let answer = std::mem::replace(&mut part.answer, Answer::slow_path());
                        part.answer = answer.in_doubt();
                    }
                }
            }
        }
    }

    /// Answers every request that is left; all of it was done.
    pub(in super::super) fn finish(mut self, cache: &Cache) {
        for part in self.parts.iter().filter(|part| part.is_add()) {
            let raised = part.queued.raised.take();
            if let Some(Raised { stored: Some(stored), .. }) = raised {
                cache.keep_handle(part.queued.job.handle().clone(), stored);
            }
        }
        self.answer_all(cache);
    }
}

// === impl Answer ===

impl Answer {
    /// The same without the addresses of blocks that were certainly not written.
    fn without(mut self, lost: &[BlockCidr]) -> Self {
        if let Self::SlowPath(addresses) = &mut self {
            addresses.retain(|address| !lost.iter().any(|cidr| cidr.ordinal(*address).is_some()));
        }
        self
    }
}

// === impl Part ===

impl Part {
    /// What the step that raises the handle writes.
    fn raised_value(&self) -> Handle {
        let wanted = self.handle.clone().unwrap_or_default();
        match &*self.queued.raised.borrow() {
            Some(Raised { stored: Some(stored), .. }) => sum(&stored.value, &wanted),
            _ => wanted,
        }
    }
}

fn sum(one: &Handle, other: &Handle) -> Handle {
    let mut sum = one.clone();
    for cidr in other.blocks() {
        sum.add(cidr, other.count(cidr));
    }
    sum
}
