//! The short way: what waits together goes into one commit, from remembered blocks and handles, without a read. Atomic engines only.
//!
//! The commit creates the handles of ADDs and lowers those of DELs at the revision that was read, so it fails for a container that holds something, or something else; and it is
//! guarded by the blocks' revisions. A request at fault goes the long way and the others try again without it; a block that somebody else wrote is read
//! again; and where nobody knows what happened, everybody goes the long way, which looks first for what may have been written after all.

mod draft;
mod queue;

use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;

use russet_addr::{BlockCidr, IfName, IpNet};
use russet_model::{Block, HandleId, Key};

use super::cache::{Source, Turn};
use super::take::Owner;
use super::{Allocator, Failure, Stored};
use crate::{IpamError, Request};
use draft::{Draft, Target};
use queue::{Answer, Flight, Job, Landed, Place};

pub(super) use queue::Shared;

/// What the short way leads to.
pub(super) enum Shortcut<T, Rest = Vec<IpAddr>> {
    Done(T),
    /// What came of it so far.
    LongWay(Rest),
}

/// Commits that a request may be part of and that fail for the sake of others. Each costs those who wait a round trip; alone it fails for its own only.
const TRIES_MAX: u32 = 4;
/// How often a request hopes that another one's long way spares its own.
const HOPES_MAX: u32 = 32;

// === impl Allocator ===

impl Allocator {
    /// The request's addresses, if memory has them and the store agrees. On the long way, whoever has to find out where addresses are has the turn
    /// to do so; the others that look in the same place wait, and find memory up to date or a reason why there is none.
    pub(super) async fn assign_fast(
        &self,
        request: &Request,
        owner: &Owner,
    ) -> Shortcut<Vec<IpNet>, Option<Turn<'_, Source>>> {
        if !self.cache.is_on() || !self.store.claims().atomic {
            return Shortcut::LongWay(None);
        }
        for hopes in 1.. {
            let learned = self.cache.learned();
            let job = Job::Add { request: Box::new(request.clone()), owner: owner.clone() };
            match self.share(job).await {
                Answer::Added(addresses) => return Shortcut::Done(addresses),
                Answer::Cold => {}
                _ => break,
            }
            let turn = self.cache.asking.turn(Source::of(request)).await;
            if self.cache.learned() == learned || hopes >= HOPES_MAX {
                return Shortcut::LongWay(Some(turn));
            }
        }
        // It is about to change, or already did.
        self.cache.drop_handle(&owner.handle);
        Shortcut::LongWay(None)
    }

    /// Frees what a handle holds, or one interface of it: all its blocks and the handle in one commit. With the long way come the addresses that may
    /// have been freed.
    pub(super) async fn release_fast(
        &self,
        handle: &HandleId,
        interface: Option<&IfName>,
    ) -> Result<Shortcut<Vec<IpAddr>>, IpamError> {
        if !self.store.claims().atomic {
            return Ok(Shortcut::LongWay(Vec::new()));
        }
        let mut stored = None;
        let blocks: Vec<BlockCidr> = match self.cache.handle(handle) {
            Some(known) => known.value.blocks().collect(),
            None => {
                // An ADD that was given up may be about to write the handle.
                if self.cache.shared.writes(handle) {
                    self.share(Job::Look(handle.clone())).await;
                }
                let read = match self.handle(handle).await {
                    Ok(Some(read)) => read,
                    Ok(None) => return Ok(Shortcut::Done(Vec::new())),
                    // The long way finds out without it.
                    Err(IpamError::Corrupt { .. }) => return Ok(Shortcut::LongWay(Vec::new())),
                    Err(error) => return Err(error),
                };
                stored.insert(read).value.blocks().collect()
            }
        };
        let mut read = Vec::new();
        for cidr in blocks {
            if self.cache.look(cidr, |_| ()).is_none() {
                match self.block(cidr).await {
                    Ok(Some(block)) => read.push(block),
                    // The long way goes on with the other blocks, and tells.
                    _ => return Ok(Shortcut::LongWay(Vec::new())),
                }
            }
        }
        let job = Job::Del { handle: handle.clone(), interface: interface.cloned(), stored, blocks: read };
        Ok(match self.share(job).await {
            Answer::Freed { addresses, emptied } => {
                for cidr in emptied {
                    self.tidy_affinity(cidr).await;
                }
                Shortcut::Done(addresses)
            }
            Answer::LongWay(addresses) => Shortcut::LongWay(addresses),
            _ => Shortcut::LongWay(Vec::new()),
        })
    }

    /// Waits in the queue, and in the commit, for the answer.
    async fn share(&self, job: Job) -> Answer {
        let ticket = self.cache.shared.line_up(job);
        let depart = || self.depart();
        let land = |flight, landed| self.land(flight, landed);
        poll_fn(|context| ticket.poll(context, depart, land)).await
    }

    /// Makes one commit of those who wait. None when all of them have their answers.
    fn depart(&self) -> Option<Flight> {
        let shared = &self.cache.shared;
        let now = self.clock.now();
        let mut draft = Draft::default();
        let mut later: Vec<Rc<Place>> = Vec::new();
        for place in shared.take_waiting() {
            // Requests of one handle stay in their order.
            let is_behind = later.iter().any(|other| other.job.handle() == place.job.handle());
            later.extend(if is_behind { Some(place) } else { draft.board(place, &self.cache, now) });
        }
        shared.put_back(later);
        if draft.is_empty() {
            return None;
        }
        let (store, steps) = (self.store.clone(), draft.steps());
        let work = Box::pin(async move { Landed::Commit(store.commit(steps).await) });
        Some(Flight { work, draft: Some(draft) })
    }

    /// Hands out the answers.
    fn land(&self, flight: Flight, landed: Landed) {
        match (landed, flight.draft) {
            (Landed::Commit(Ok(revisions)), Some(draft)) => draft.succeed(&revisions, &self.cache),
            (Landed::Commit(Err(error)), Some(draft)) => {
                let target = draft.target(error.failed);
                match (Failure::from(error.error), target) {
                    (Failure::Lost, Some(target)) => self.try_without(draft, target),
                    (Failure::Unknown(_), _) => draft.doubt(&self.cache),
                    _ => drop(draft), // it did not happen, and each finds out why
                }
            }
            (Landed::Block(cidr, Ok(Some(record))), _) => match Block::decode(&record.value) {
                Ok(value) if value.cidr == cidr => {
                    self.cache.keep_block(Stored { value, revision: record.revision });
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// A commit failed because of one record: its request goes the long way, its block is read again, and the others are the first of the next commit.
    fn try_without(&self, draft: Draft, target: Target) {
        let shared = &self.cache.shared;
        let culprit = match target {
            Target::Handle(number) => Some(number),
            Target::Block(cidr) => {
                self.cache.drop_block(cidr);
                None
            }
        };
        let (mut again, mut tired) = (Vec::new(), Vec::new());
        for place in draft.without(culprit, &self.cache) {
            place.tries.set(place.tries.get() + 1);
            let may = self.cache.is_on() && place.tries.get() < TRIES_MAX;
            if may { again.push(place) } else { tired.push(place) }
        }
        for place in tired {
            place.answer(Answer::nothing_known());
        }
        if let (Target::Block(cidr), false) = (target, again.is_empty()) {
            let store = self.store.clone();
            let work = Box::pin(async move {
                let key = Key::block(cidr);
                Landed::Block(cidr, store.get(&key).await)
            });
            shared.put_flight(Flight { work, draft: None });
        }
        shared.put_back(again);
    }
}
