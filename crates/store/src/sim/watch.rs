//! A watch of the simulated store: events may arrive late, and the log may be compacted when it
//! reads.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

use russet_model::Prefix;

use super::{Sim, pause};
use crate::follow::{Followed, Known};
use crate::{BoxFuture, Event, Revision, StoreError, Watch};

/// The maximum number of times that a delayed event lets all other tasks run first.
const DELAY_MAX: u64 = 20;

pub(super) struct SimWatch {
    sim: Sim,
    prefix: Prefix,
    at: Option<Revision>,
    known: Known,
    ready: VecDeque<Event>,
}

// === impl SimWatch ===

impl SimWatch {
    pub(super) fn new(sim: Sim, prefix: Prefix) -> Self {
        Self { sim, prefix, at: None, known: Known::new(), ready: VecDeque::new() }
    }

    async fn advance(&mut self) -> Result<Event, StoreError> {
        loop {
            for _ in 0..self.delay() {
                pause().await;
            }
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            self.wait_for_change().await;
            self.collect();
        }
    }

    fn delay(&self) -> u64 {
        let inner = &mut *self.sim.inner.borrow_mut();
        let delayed = inner.faults.delayed_event;
        if delayed != 0 && inner.rng.below(1000) < u64::from(delayed) {
            inner.rng.below(DELAY_MAX) + 1
        } else {
            0
        }
    }

    async fn wait_for_change(&self) {
        poll_fn(|context| {
            let state = &mut self.sim.inner.borrow_mut().state;
            if self.at.is_none_or(|at| at < state.revision) {
                return Poll::Ready(());
            }
            state.wait(context.waker());
            Poll::Pending
        })
        .await;
    }

    fn collect(&mut self) {
        let inner = &mut *self.sim.inner.borrow_mut();
        let compaction = inner.faults.compaction;
        if compaction != 0 && inner.rng.below(1000) < u64::from(compaction) {
            inner.state.compact();
        }
        let followed = inner.state.follow(&self.prefix, self.at);
        self.at = Some(inner.state.revision);
        self.ready = match followed {
            Followed::Snapshot(snapshot) => self.known.absorb(snapshot),
            Followed::Events(events) => {
                events.into_iter().filter_map(|event| self.known.admit(event)).collect()
            }
        };
    }
}

impl Watch for SimWatch {
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>> {
        Box::pin(self.advance())
    }
}
