//! One commit for many requests: each one's handle, and the blocks that they share, once. Decides only; `fast` sends it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use std::time::SystemTime;

use russet_addr::{BlockCidr, Family, IfName, IpNet};
use russet_model::{Block, Handle, HandleId, Key};
use russet_store::{MAX_STEPS, Revision, Step};

use super::super::Stored;
use super::super::cache::{Asked, Cache};
use super::super::existing::with_block_prefix;
use super::super::handles::{self, Lost};
use super::super::take::Owner;
use super::queue::{Answer, Job, Place};
use crate::Request;
use crate::block_ops::{self, Reserved};

/// Requests that share one commit; etcd allows 128 operations in a transaction: with two blocks of its own for each, still below [`MAX_STEPS`].
const SHARERS_MAX: usize = 32;

/// A commit in the making, or under way.
#[derive(Default)]
pub(super) struct Draft {
    blocks: BTreeMap<BlockCidr, Drafted>,
    parts: Vec<Part>,
    /// What each step is about.
    targets: Vec<Target>,
}

/// A block as it will be.
struct Drafted {
    block: Block,
    base: Revision,
    /// Its number before: whatever is done to it in one commit is one update.
    base_sequence: u64,
    is_changed: bool,
    /// The last of the parts that freed something in it.
    freed_by: Option<usize>,
}

/// What the commit does for one request.
struct Part {
    place: Rc<Place>,
    step: Option<Step>,
    /// The handle as it will be; none when it will be gone.
    handle: Option<Handle>,
    answer: Answer,
}

/// What a step is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// The handle of the request with this number.
    Handle(usize),
    Block(BlockCidr),
}

/// Why a request is not part of a commit.
enum Refused {
    /// There is no room for it, or its handle is in the commit already.
    Later,
    /// It has its answer.
    Answered(Answer),
}

/// Addresses of one block for one request.
struct Choice {
    block: BlockCidr,
    count: usize,
    reserved: Reserved,
}

// === impl Draft ===

impl Draft {
    /// Adds a request, or gives it its answer, or gives it back to wait for the next commit.
    pub(super) fn board(&mut self, place: Rc<Place>, cache: &Cache, now: SystemTime) -> Option<Rc<Place>> {
        match self.part(&place, cache, now) {
            Ok(part) => self.parts.push(part),
            Err(Refused::Later) => return Some(place),
            Err(Refused::Answered(answer)) => place.answer(answer),
        }
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether a request of this handle is part of it.
    pub(super) fn names(&self, handle: &HandleId) -> bool {
        self.parts.iter().any(|part| part.place.job.handle() == handle)
    }

    pub(super) fn places(&self) -> impl Iterator<Item = &Rc<Place>> {
        self.parts.iter().map(|part| &part.place)
    }

    fn part(&mut self, place: &Rc<Place>, cache: &Cache, now: SystemTime) -> Result<Part, Refused> {
        if self.parts.len() >= SHARERS_MAX || self.names(place.job.handle()) {
            return Err(Refused::Later);
        }
        match &place.job {
            Job::Look(_) => Err(Answer::Clear.into()),
            Job::Add { request, owner } => self.add(place, request, owner, cache, now),
            Job::Del { handle, interface, stored, blocks } => {
                let Some(stored) = stored.clone().or_else(|| cache.handle(handle)) else {
                    return Err(Answer::nothing_known().into());
                };
                self.del(place, (handle, interface.as_ref()), &stored, blocks, cache)
            }
        }
    }

    fn add(
        &mut self,
        place: &Rc<Place>,
        request: &Request,
        owner: &Owner,
        cache: &Cache,
        now: SystemTime,
    ) -> Result<Part, Refused> {
        if cache.handle(&owner.handle).is_some() {
            // It holds something already, perhaps what is asked for.
            return Err(Answer::nothing_known().into());
        }
        let choices = self.choose(request, cache, now).ok_or(Answer::Cold)?;
        self.check_room(choices.iter().map(|choice| choice.block))?;
        let mut handle = Handle::default();
        let mut addresses = Vec::new();
        for Choice { block: cidr, count, reserved } in choices {
            let drafted = self.load(cidr, cache, &[]).ok_or(Answer::Cold)?;
            let taken =
                drafted.change(|block| block_ops::auto_assign(block, count, &owner.attribute, &reserved));
            handle.add(cidr, taken.len() as u64);
            addresses.extend(taken.iter().filter_map(|ordinal| net(cidr, *ordinal)));
        }
        Ok(Part {
            place: place.clone(),
            step: Some(Step::create(Key::handle(&owner.handle), handle.encode())),
            handle: Some(handle),
            answer: Answer::Added(addresses),
        })
    }

    /// Where a request's addresses come from. None when memory does not have enough.
    fn choose(&self, request: &Request, cache: &Cache, now: SystemTime) -> Option<Vec<Choice>> {
        let mut choices = Vec::new();
        for family in Family::BOTH {
            let mut missing = request.wanted(family) as usize;
            if missing == 0 {
                continue;
            }
            let plan = cache.plan(&Asked::of(request, family), now)?;
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
        place: &Rc<Place>,
        (id, interface): (&HandleId, Option<&IfName>),
        stored: &Stored<Handle>,
        read: &[Stored<Block>],
        cache: &Cache,
    ) -> Result<Part, Refused> {
        // What is counted and not there is settled on the long way.
        let holds = |block: &Block| block.ordinals_of(id).next().is_some();
        if !stored.value.blocks().all(|cidr| self.look(cidr, cache, read, holds) == Some(true)) {
            return Err(Answer::nothing_known().into());
        }
        self.check_room(stored.value.blocks())?;
        let number = self.parts.len();
        let mut addresses = Vec::new();
        let mut lost = Vec::new();
        for cidr in stored.value.blocks() {
            let drafted = self.load(cidr, cache, read).ok_or_else(Answer::nothing_known)?;
            let freed = drafted.change(|block| block_ops::release_by_handle(block, id, interface));
            if freed.is_empty() {
                continue;
            }
            drafted.freed_by = Some(number);
            addresses.extend(freed.iter().filter_map(|ordinal| cidr.address(*ordinal)));
            let left = drafted.block.ordinals_of(id).count();
            lost.push(Lost { block: cidr, freed: freed.len(), left });
        }
        if lost.is_empty() {
            // Nothing to free, as far as memory goes; nothing is written that would prove it right.
            return Err(Answer::nothing_known().into());
        }
        let answer = Answer::Freed { addresses, emptied: Vec::new() };
        let handle = handles::after(&stored.value, lost);
        let step = handles::written(id, stored, &handle);
        let handle = Some(handle).filter(|handle| !handle.block.is_empty());
        Ok(Part { place: place.clone(), step, handle, answer })
    }

    /// Whether one more handle and these blocks fit into the commit. What fits into none goes the long way.
    fn check_room(&self, blocks: impl Iterator<Item = BlockCidr>) -> Result<(), Refused> {
        let new = blocks.filter(|cidr| !self.blocks.contains_key(cidr)).count();
        match self.parts.len() + 1 + self.blocks.len() + new {
            ..=MAX_STEPS => Ok(()),
            _ if self.is_empty() => Err(Answer::nothing_known().into()),
            _ => Err(Refused::Later),
        }
    }

    /// What `look` sees in a block as it will be after the requests so far.
    fn look<T>(
        &self,
        cidr: BlockCidr,
        cache: &Cache,
        read: &[Stored<Block>],
        look: impl Fn(&Block) -> T,
    ) -> Option<T> {
        let drafted = self.blocks.get(&cidr).map(|drafted| look(&drafted.block));
        let remembered = drafted.or_else(|| cache.look(cidr, &look));
        remembered.or_else(|| read.iter().find(|block| block.value.cidr == cidr).map(|b| look(&b.value)))
    }

    fn load(&mut self, cidr: BlockCidr, cache: &Cache, read: &[Stored<Block>]) -> Option<&mut Drafted> {
        let vacant = match self.blocks.entry(cidr) {
            Entry::Occupied(entry) => return Some(entry.into_mut()),
            Entry::Vacant(vacant) => vacant,
        };
        let read = || read.iter().find(|block| block.value.cidr == cidr).cloned();
        let Stored { value: block, revision: base } = cache.block(cidr).or_else(read)?;
        let base_sequence = block.sequence_number;
        Some(vacant.insert(Drafted { block, base, base_sequence, is_changed: false, freed_by: None }))
    }

    /// The steps, in an order that is safe at each prefix: handles that count more, blocks, handles that count less.
    pub(super) fn steps(&mut self) -> Vec<Step> {
        let is_creation = |step: &Step| matches!(step, Step::Create { .. });
        let handles = |before: bool| {
            let numbered = self.parts.iter().enumerate();
            let steps =
                numbered.filter_map(|(number, part)| Some((Target::Handle(number), part.step.clone()?)));
            steps.filter(move |(_, step)| is_creation(step) == before)
        };
        let changed = self.blocks.iter().filter(|(_, drafted)| drafted.is_changed);
        let blocks = changed.map(|(cidr, drafted)| (Target::Block(*cidr), drafted.step()));
        let (targets, steps) = handles(true).chain(blocks).chain(handles(false)).unzip();
        self.targets = targets;
        steps
    }

    /// What the step with this number is about.
    pub(super) fn target(&self, step: usize) -> Option<Target> {
        self.targets.get(step).copied()
    }

    /// It happened: remembers what was written, and answers.
    pub(super) fn succeed(mut self, revisions: &[Revision], cache: &Cache) {
        let targets = std::mem::take(&mut self.targets);
        for (target, revision) in targets.into_iter().zip(revisions.iter().copied()) {
            match target {
                Target::Handle(number) => {
                    let Some(part) = self.parts.get_mut(number) else { continue };
                    let id = part.place.job.handle();
                    match part.handle.take() {
                        Some(value) => cache.keep_handle(id.clone(), Stored { value, revision }),
                        None => cache.drop_handle(id),
                    }
                }
                Target::Block(cidr) => {
                    let Some(drafted) = self.blocks.remove(&cidr) else { continue };
                    if drafted.block.is_empty() {
                        self.tell_emptied(cidr, drafted.freed_by);
                    }
                    if drafted.is_gone() {
                        cache.drop_block(cidr);
                    } else {
                        cache.keep_block(Stored { value: drafted.block, revision });
                    }
                }
            }
        }
        for part in std::mem::take(&mut self.parts) {
            if matches!(part.answer, Answer::Freed { .. }) {
                cache.make_room();
            }
            part.place.answer(part.answer);
        }
    }

    fn tell_emptied(&mut self, cidr: BlockCidr, freed_by: Option<usize>) {
        let part = freed_by.and_then(|number| self.parts.get_mut(number));
        if let Some(Answer::Freed { emptied, .. }) = part.map(|part| &mut part.answer) {
            emptied.push(cidr);
        }
    }

    /// It may have happened: memory forgets what it was about, and everybody goes the long way.
    pub(super) fn doubt(mut self, cache: &Cache) {
        for cidr in self.blocks.keys() {
            cache.drop_block(*cidr);
        }
        for part in std::mem::take(&mut self.parts) {
            cache.drop_handle(part.place.job.handle());
            cache.make_room(); // perhaps
            part.place.answer(part.answer.in_doubt());
        }
    }

    /// It did not happen, and for whose sake is known: that request goes the long way. The others may try again.
    pub(super) fn without(mut self, culprit: Option<usize>, cache: &Cache) -> Vec<Rc<Place>> {
        let mut others = Vec::new();
        for (number, part) in std::mem::take(&mut self.parts).into_iter().enumerate() {
            if culprit == Some(number) {
                cache.drop_handle(part.place.job.handle());
                part.place.answer(Answer::nothing_known());
            } else {
                others.push(part.place);
            }
        }
        others
    }
}

impl Drop for Draft {
    /// Whatever ended it, nobody waits for ever. This also answers where a commit failed and nobody is to blame.
    fn drop(&mut self) {
        for part in &self.parts {
            part.place.answer(Answer::nothing_known());
        }
    }
}

// === impl Drafted ===

impl Drafted {
    fn change(&mut self, change: impl FnOnce(&mut Block) -> Vec<usize>) -> Vec<usize> {
        // What is taken is recorded under the number before the write (calico-ipam.md section 3).
        self.block.sequence_number = self.base_sequence;
        let ordinals = change(&mut self.block);
        self.is_changed |= !ordinals.is_empty();
        self.block.sequence_number = self.base_sequence.wrapping_add(u64::from(self.is_changed));
        ordinals
    }

    /// Nobody holds an address of it, and it serves nobody.
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
    /// The long way, before anything was sent.
    pub(super) const fn nothing_known() -> Self {
        Self::LongWay(Vec::new())
    }

    /// What remains of an answer when nobody knows whether it is true.
    fn in_doubt(self) -> Self {
        match self {
            Self::Freed { addresses, .. } => Self::LongWay(addresses),
            _ => Self::nothing_known(),
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
