//! The thread that listens to kernel events, and has controllers compare and restore when they are
//! dirty or due. Started by `controllers`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use russet_attach::restore::Depth;
use russet_linux::cpu::busy_time;
use russet_netlink::NetlinkError;

use super::Shared;
use super::verdicts::{PendingComparison, VerdictResult};
use crate::drift::budget::Budget;
use crate::drift::kernel_events::{Heard, KernelEvents, NO_WAIT};
use crate::drift::{ControllerId, Repaired, lock};
use crate::fast_path::Signal;

/// The comparison in progress, and the time that is left for comparisons that events cause.
struct RepairState {
    budgets: [Budget; BudgetClass::ALL.len()],
    /// The comparison of verdicts that has no answer yet.
    pending: Option<PendingComparison>,
}

/// Controllers that share a budget, in the order of comparison. Changes in a loop that concern one
/// class do not delay the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BudgetClass {
    /// Without verdicts every packet is accepted.
    Verdicts,
    /// Without its table, OpenShift's pods are cut off.
    Openshift,
    Others,
    /// A snapshot of pods' masquerade is only valid until our own next change to it.
    Nat,
}

/// The thread only runs netlink requests and comparisons.
const STACK_BYTES: usize = 512 * 1024;
/// Pause after an error while listening.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait for events, because the loop may make a controller due earlier.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Starts to listen, and starts the thread.
pub(super) fn start(shared: &Arc<Shared>, flows: Signal) -> Result<(), NetlinkError> {
    let kernel_events = KernelEvents::open(flows)?;
    let listener = Arc::clone(shared);
    let thread = thread::Builder::new().name("drift".to_owned()).stack_size(STACK_BYTES);
    let operation = || "start the thread that listens to changes".to_owned();
    let started = thread.spawn(move || listener.run(kernel_events));
    started.map(drop).map_err(|source| NetlinkError::Io { operation: operation(), source })
}

// === impl RepairState ===

impl RepairState {
    fn new(now: Instant) -> Self {
        Self { budgets: BudgetClass::ALL.map(|_| Budget::full(now)), pending: None }
    }

    fn budget(&mut self, class: BudgetClass) -> &mut Budget {
        &mut self.budgets[class as usize]
    }

    /// The comparison of verdicts and its result, once that is known.
    fn finish_verdicts(&mut self) -> Option<(PendingComparison, VerdictResult)> {
        let outcome = self.pending.as_mut()?.poll()?;
        self.budget(BudgetClass::Verdicts).spend(outcome.busy);
        Some((self.pending.take()?, outcome))
    }

    /// The controllers of a class that compare now: those that are due, and those that are dirty if
    /// the budget allows it. Otherwise also how long these have to wait.
    fn begin(
        &mut self,
        class: BudgetClass,
        dirty: &BTreeSet<ControllerId>,
        due: &BTreeSet<ControllerId>,
        now: Instant,
    ) -> (BTreeMap<ControllerId, Depth>, Duration) {
        let of_class = |all: &BTreeSet<ControllerId>, depth| -> BTreeMap<ControllerId, Depth> {
            all.iter().filter(|id| id.budget_class() == class).map(|id| (*id, depth)).collect()
        };
        let mut controllers = of_class(dirty, Depth::Tables);
        let pause = if controllers.is_empty() { NO_WAIT } else { self.budget(class).wait(now) };
        if !pause.is_zero() {
            controllers.clear();
        }
        controllers.extend(of_class(due, Depth::Everything));
        (controllers, pause)
    }
}

// === impl BudgetClass ===

impl BudgetClass {
    const ALL: [Self; 4] = [Self::Verdicts, Self::Openshift, Self::Others, Self::Nat];
}

// === impl ControllerId ===

impl ControllerId {
    fn budget_class(self) -> BudgetClass {
        match self {
            Self::Verdicts => BudgetClass::Verdicts,
            Self::Openshift => BudgetClass::Openshift,
            Self::Endpoints | Self::Overlay => BudgetClass::Others,
            Self::Nat => BudgetClass::Nat,
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Never returns.
    fn run(&self, mut kernel_events: KernelEvents) {
        let mut state = RepairState::new(Instant::now());
        let mut rest = NO_WAIT;
        loop {
            kernel_events.wait(&self.answer_ready, rest);
            let Heard { events, own_nat, failed } = self.drift.listen(&mut kernel_events);
            if own_nat {
                self.update_nat_baseline();
            }
            let repairs = self.drift.repairs().0;
            rest = self.work(&mut state);
            // What passed before a repair may not pass behind it.
            if self.drift.repairs().0 != repairs {
                kernel_events.flows().raise();
            }
            if failed {
                thread::park_timeout(FAILURE_PAUSE);
            } else if events > 0 {
                kernel_events.gather(&self.answer_ready);
            }
        }
    }

    /// Our own requests changed pods' masquerade and ports: takes a new snapshot.
    fn update_nat_baseline(&self) {
        let updated = lock(&self.nat).update_baseline();
        // The regular comparison reports what cannot be read now.
        if !updated.unwrap_or(false) {
            self.drift.schedule().soon(ControllerId::Nat, Instant::now());
        }
    }

    /// Has the controllers compare that are due, and the dirty ones as far as the budgets allow.
    /// Returns the time until the next comparison.
    fn work(&self, state: &mut RepairState) -> Duration {
        let (mut wait, mut held, mut repaired) = (WAIT_MAX, None, Vec::new());
        let was_pending = state.pending.is_some();
        repaired.extend(state.finish_verdicts().and_then(|answer| self.finish_verdicts(answer)));
        let free = was_pending && state.pending.is_none();
        let (dirty, due) = (self.drift.dirty(), self.drift.schedule().due(Instant::now()));
        for class in BudgetClass::ALL {
            // The commit of `Nat` would wait for the same lock as that of the verdicts, and block
            // this thread. If it was passed over once, it is next, however often the verdicts are
            // flushed.
            if class == BudgetClass::Nat && state.pending.is_some() && !free {
                held = Some(ControllerId::Nat);
                break;
            }
            let (controllers, pause) = state.begin(class, &dirty, &due, Instant::now());
            if !pause.is_zero() {
                wait = wait.min(pause);
            }
            if !controllers.is_empty() {
                let before = busy_time();
                repaired.extend(self.reconcile_all(&controllers, &mut state.pending));
                state.budget(class).spend(busy_time().saturating_sub(before));
            }
        }
        repaired.extend(state.finish_verdicts().and_then(|answer| self.finish_verdicts(answer)));
        // The search for the process that made the change comes last, because nothing waits for it.
        repaired.into_iter().for_each(|repaired| self.drift.record(repaired));
        let now = Instant::now();
        match state.pending.as_ref().map(|pending| pending.limit.saturating_duration_since(now)) {
            // The answer wakes the thread.
            Some(limit) => self.drift.schedule().wait(held, now).min(wait).min(limit),
            None if held.is_some() => NO_WAIT,
            None => self.drift.schedule().wait(None, now).min(wait),
        }
    }

    /// Has controllers compare and restore. For verdicts this only starts the comparison; `pending`
    /// receives it.
    fn reconcile_all(
        &self,
        controllers: &BTreeMap<ControllerId, Depth>,
        pending: &mut Option<PendingComparison>,
    ) -> Vec<Repaired> {
        if pending.is_none() && controllers.contains_key(&ControllerId::Verdicts) {
            self.drift.schedule().started(ControllerId::Verdicts, Instant::now());
            *pending = Some(self.verdicts.start(self.drift.take(ControllerId::Verdicts)));
        }
        let others = controllers.iter().filter(|(id, _)| **id != ControllerId::Verdicts);
        let repaired: Vec<_> = others.filter_map(|(id, depth)| self.reconcile(*id, *depth)).collect();
        if repaired.iter().any(|it| it.controller == ControllerId::Overlay && it.is_incomplete()) {
            self.drift.disturb();
        }
        repaired
    }

    /// Handles the result of the comparison of verdicts.
    fn finish_verdicts(&self, (pending, result): (PendingComparison, VerdictResult)) -> Option<Repaired> {
        let VerdictResult { report, done, .. } = result;
        self.drift.schedule().finished(ControllerId::Verdicts, report.failed == 0, done);
        Repaired::new(ControllerId::Verdicts, &report, pending.dirty, pending.began, done)
    }
}

#[cfg(test)]
mod tests;
