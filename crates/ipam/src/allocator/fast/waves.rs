//! Sends a batch to an engine that applies steps one by one, such as Kubernetes: first the handles
//! of ADDs, then each block once for all requests, then the handles of DELs. For n ADDs that wait
//! together these are n + 1 requests (kubernetes.md section 4.3).

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use russet_addr::BlockCidr;
use russet_model::{Block, Key};
use russet_store::{BoxFuture, Record, Revision, Step, Store};

use super::batch::CommitBatch;
use super::queue::{InFlightCommit, StoreAnswer};
use super::{Allocator, Failure, Stored, TRIES_MAX};

/// Steps that are sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wave {
    Raise,
    Blocks,
    Lower,
}

// === impl Allocator ===

impl Allocator {
    /// Sends the next wave that has steps. Without one, all requests have their answers.
    pub(super) fn next_wave(&self, mut batch: CommitBatch, first: Wave) -> Option<InFlightCommit> {
        let waves = [Wave::Raise, Wave::Blocks, Wave::Lower];
        for wave in waves.into_iter().skip_while(|wave| *wave != first) {
            let steps = batch.wave(wave);
            if !steps.is_empty() {
                return Some(self.wave(batch, wave, steps, Vec::new()));
            }
        }
        batch.finish(&self.cache);
        None
    }

    fn wave(&self, batch: CommitBatch, wave: Wave, steps: Vec<Step>, lost: Vec<BlockCidr>) -> InFlightCommit {
        let store = self.store.clone();
        let work = Box::pin(async move {
            let results = apply_each(&store, steps).await;
            let mut blocks = Vec::new();
            for cidr in lost {
                // One that cannot be read now is read by the request that needs it.
                blocks.extend(store.get(&Key::block(cidr)).await.ok().flatten());
            }
            StoreAnswer::Wave(wave, results, blocks)
        });
        InFlightCommit { work, batch: Some(batch) }
    }

    /// Distributes the results of a wave, and sends the next one.
    pub(super) fn wave_ended(
        &self,
        mut batch: CommitBatch,
        wave: Wave,
        results: Vec<Result<Revision, Failure>>,
        blocks: Vec<Record>,
    ) {
        let shared = &self.cache.shared;
        let next = match wave {
            Wave::Raise => match batch.raised(results) {
                // The blocks have the addresses of the refused ones, even if there are no others.
                Err(others) => return shared.put_back(others),
                Ok(()) => self.next_wave(batch, Wave::Blocks),
            },
            Wave::Blocks => {
                let undone = batch.wrote(results, TRIES_MAX, &self.cache);
                let is_lost = !undone.again.is_empty();
                shared.put_back(undone.again);
                match is_lost {
                    true => {
                        let steps = batch.wave(Wave::Lower);
                        Some(self.wave(batch, Wave::Lower, steps, undone.lost))
                    }
                    false => self.next_wave(batch, Wave::Lower),
                }
            }
            Wave::Lower => {
                self.keep_read(blocks);
                batch.lowered(results, &self.cache);
                batch.finish(&self.cache);
                None
            }
        };
        if let Some(next) = next {
            shared.put_in_flight(next);
        }
    }

    fn keep_read(&self, blocks: Vec<Record>) {
        for record in blocks {
            let block =
                Block::decode(&record.value).ok().filter(|block| Key::block(block.cidr) == record.key);
            if let Some(value) = block {
                self.cache.keep_block(Stored { value, revision: record.revision });
            }
        }
    }
}

/// Applies each step in a commit of its own, all at the same time.
async fn apply_each(store: &Rc<dyn Store>, steps: Vec<Step>) -> Vec<Result<Revision, Failure>> {
    let apply = |step: Step| -> BoxFuture<'static, Result<Revision, Failure>> {
        let store = store.clone();
        Box::pin(async move {
            let revisions = store.commit(vec![step]).await.map_err(|error| Failure::from(error.error))?;
            Ok(revisions.last().copied().unwrap_or_default())
        })
    };
    let mut pending: Vec<_> = steps.into_iter().map(|step| (apply(step), None)).collect();
    poll_fn(|context| {
        for (work, result) in pending.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                *result = Some(done);
            }
        }
        if pending.iter().all(|(_, result)| result.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    pending.into_iter().filter_map(|(_, result)| result).collect()
}
