//! The thread that listens to kernel events, and restores parts that are dirty or due. Started by
//! `drift`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use russet_attach::nat;
use russet_attach::restore::Depth;
use russet_linux::cpu::busy_time;
use russet_linux::watch::WakeHandle;
use russet_netlink::{Event, Monitor, NetlinkError, Socket, Topic, is_own_netfilter_port, is_own_route_port};
use russet_nft::monitor as tables;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::budget::Budget;
use super::event_filter::{Concern, EventFilter};
use super::verdicts::{PendingComparison, VerdictResult};
use super::who::Traces;
use super::{DirtyParts, Part, Shared, lock};

/// Sockets for events of rtnetlink and of nf_tables, which a kernel may not have.
pub(super) struct KernelEvents {
    routes: Monitor,
    tables: Option<tables::Monitor>,
    /// For requests about what events do not report.
    socket: Socket,
    /// Link events were lost, so the filter's picture of the links has to be read again.
    links_unknown: bool,
}

/// The groups of rtnetlink that are listened to.
pub(super) const TOPICS: [Topic; 5] =
    [Topic::Links, Topic::Addresses, Topic::Routes, Topic::Neighbours, Topic::Confs];
/// Events that are read before dirty parts are restored. A program that causes more than this many
/// gets a comparison in between.
const EVENTS_MAX: usize = 10_000;
/// After the first event, further events of rtnetlink are collected for this long, also those that
/// Russet causes: each of our own ADDs and DELs causes a dozen events, and 100,000 routes are a flood. The
/// events read so far are handled without this wait, and nf_tables events never wait: without
/// verdicts no packet is filtered.
const GATHER: Duration = Duration::from_millis(5);
/// Pause after an error while listening.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait for events, because the loop may make a part due earlier.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Reads only what has arrived already.
const NO_WAIT: Duration = Duration::ZERO;

/// The events of one pass.
#[derive(Default)]
struct Batch {
    events: usize,
    parts: BTreeSet<Part>,
    traces: Traces,
    underlay: bool,
    /// Our own requests changed pods' masquerade and published ports.
    own_nat: bool,
    /// The known links may be out of date.
    links_lost: bool,
    /// Reading events failed.
    failed: bool,
}

/// The comparison in progress, and the time that is left for comparisons that events cause.
struct RepairState {
    budgets: [Budget; BudgetClass::ALL.len()],
    /// The comparison of verdicts that has no answer yet.
    pending: Option<PendingComparison>,
}

/// Parts that share a budget, in the order of comparison. Changes in a loop to the parts of one
/// class do not delay those of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BudgetClass {
    /// Without verdicts every packet is accepted.
    Verdicts,
    /// Without its table, OpenShift's pods are cut off.
    Sdn,
    Others,
    /// A snapshot of pods' masquerade is only valid until our own next change to it.
    Nat,
}

// === impl KernelEvents ===

impl KernelEvents {
    /// Opens the sockets and starts to listen.
    pub fn open() -> Result<Self, NetlinkError> {
        let tables = tables::Monitor::open().inspect_err(|error| {
            tracing::warn!(%error, "changes of nf_tables are not reported by the kernel; the regular comparison finds them");
        });
        let routes = Monitor::open(&TOPICS)?;
        Ok(Self { routes, tables: tables.ok(), socket: Socket::route()?, links_unknown: true })
    }

    /// Never returns.
    pub fn run(mut self, shared: &Shared) {
        let mut state = RepairState::new(Instant::now());
        let mut rest = NO_WAIT;
        loop {
            self.wait(&shared.answer_ready, rest);
            let heard = Instant::now();
            let batch = self.listen(&shared.event_filter);
            let Batch { events, failed, own_nat, .. } = batch;
            shared.mark_dirty(batch, heard);
            if own_nat {
                shared.update_nat_baseline();
            }
            rest = shared.work(&mut state);
            if failed {
                std::thread::park_timeout(FAILURE_PAUSE);
            } else if events > 0 {
                self.gather(&shared.answer_ready);
            }
        }
    }

    /// Waits until an event or an answer arrives, or `timeout` passed.
    fn wait(&self, answer_ready: &WakeHandle, timeout: Duration) {
        wait_for([Some(self.routes.as_fd()), self.tables_fd(), Some(answer_ready.as_fd())], timeout);
        // A later answer wakes the next wait; one that has arrived already is found by this pass.
        answer_ready.reset();
    }

    /// Waits until nf_tables sends an event, an answer arrives, or events of rtnetlink have been
    /// collected for long enough.
    fn gather(&self, answer_ready: &WakeHandle) {
        wait_for([None, self.tables_fd(), Some(answer_ready.as_fd())], GATHER);
    }

    fn tables_fd(&self) -> Option<BorrowedFd<'_>> {
        self.tables.as_ref().map(AsFd::as_fd)
    }

    /// Reads the events that have arrived. If some cannot be read, every part may have changed.
    fn listen(&mut self, filter: &std::sync::Mutex<EventFilter>) -> Batch {
        let mut batch = Batch::default();
        let heard = self.read_route_events(filter, &mut batch);
        for error in [heard, self.read_table_events(filter, &mut batch)].into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "listen to changes");
            batch.note(Concern::EVERYTHING);
            (batch.links_lost, batch.failed) = (true, true);
        }
        self.links_unknown |= batch.links_lost;
        if self.links_unknown {
            match self.socket.links() {
                Ok(links) => {
                    lock(filter).learn(links);
                    self.links_unknown = false;
                }
                Err(error) => tracing::warn!(%error, "the node's links cannot be listed"),
            }
        }
        batch
    }

    fn read_route_events(
        &mut self,
        filter: &std::sync::Mutex<EventFilter>,
        batch: &mut Batch,
    ) -> Result<(), NetlinkError> {
        while batch.events < EVENTS_MAX
            && let Some(heard) = self.routes.next_attributed(NO_WAIT)?
        {
            batch.events += 1;
            batch.links_lost |= heard.event == Event::Overrun;
            let own = heard.port != 0 && is_own_route_port(heard.port);
            let concern = lock(filter).classify(&heard.event, own);
            if batch.note(concern) {
                batch.traces.port(heard.port);
            }
        }
        Ok(())
    }

    fn read_table_events(
        &mut self,
        filter: &std::sync::Mutex<EventFilter>,
        batch: &mut Batch,
    ) -> Result<(), NetlinkError> {
        let Some(tables) = &mut self.tables else { return Ok(()) };
        while batch.events < EVENTS_MAX
            && let Some(event) = tables.next(NO_WAIT)?
        {
            batch.events += 1;
            match event {
                tables::Event::Overrun => _ = batch.note(Concern::EVERYTHING),
                tables::Event::Committed(commit) if is_own_netfilter_port(commit.port) => {
                    batch.own_nat |= commit.touches(&nat::table());
                }
                tables::Event::Committed(commit) => {
                    if batch.note(lock(filter).classify_commit(&commit)) {
                        batch.traces.process(commit.pid, &commit.process);
                    }
                }
            }
        }
        Ok(())
    }
}

fn wait_for(kernel_events: [Option<BorrowedFd<'_>>; 3], timeout: Duration) {
    let kernel_events = kernel_events.into_iter().flatten();
    let mut kernel_events: Vec<_> =
        kernel_events.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).ok();
    // A failure is a signal, or an error that the next read reports.
    let _ = poll(&mut kernel_events, timeout.as_ref());
}

// === impl Batch ===

impl Batch {
    /// Adds what an event concerns. True if it concerns a managed object.
    fn note(&mut self, concern: Concern) -> bool {
        self.parts.extend(concern.parts());
        self.underlay |= concern.underlay;
        concern.is_any()
    }
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

    /// The parts of a class to compare now: those that are due, and those that are dirty if the
    /// budget allows it. Otherwise also how long these have to wait.
    fn begin(
        &mut self,
        class: BudgetClass,
        dirty: &BTreeSet<Part>,
        schedule: &BTreeSet<Part>,
        now: Instant,
    ) -> (BTreeMap<Part, Depth>, Duration) {
        let of = |parts: &BTreeSet<Part>, depth| -> BTreeMap<Part, Depth> {
            parts.iter().filter(|part| part.budget_class() == class).map(|part| (*part, depth)).collect()
        };
        let mut parts = of(dirty, Depth::Tables);
        let pause = if parts.is_empty() { NO_WAIT } else { self.budget(class).wait(now) };
        if !pause.is_zero() {
            parts.clear();
        }
        parts.extend(of(schedule, Depth::Everything));
        (parts, pause)
    }
}

// === impl BudgetClass ===

impl BudgetClass {
    const ALL: [Self; 4] = [Self::Verdicts, Self::Sdn, Self::Others, Self::Nat];
}

// === impl Part ===

impl Part {
    fn budget_class(self) -> BudgetClass {
        match self {
            Self::Verdicts => BudgetClass::Verdicts,
            Self::Sdn => BudgetClass::Sdn,
            Self::Pods | Self::Overlay => BudgetClass::Others,
            Self::Nat => BudgetClass::Nat,
        }
    }
}

// === impl Shared ===

impl Shared {
    fn mark_dirty(&self, batch: Batch, heard: Instant) {
        if batch.underlay {
            self.underlay.store(true, std::sync::atomic::Ordering::Relaxed);
            self.disturbed.notify_one();
        }
        if !batch.parts.is_empty() {
            self.keep(DirtyParts { since: heard, parts: batch.parts, traces: batch.traces });
        }
    }

    /// Our own requests changed pods' masquerade and ports: takes a new snapshot.
    fn update_nat_baseline(&self) {
        let updated = lock(&self.nat).update_baseline();
        // The regular comparison reports what cannot be read now.
        if !updated.unwrap_or(false) {
            lock(&self.schedule).soon(Part::Nat, Instant::now());
        }
    }

    /// Restores the parts that are due, and the dirty ones as far as the budgets allow. Returns the
    /// time until the next comparison.
    fn work(&self, state: &mut RepairState) -> Duration {
        let (mut wait, mut held, mut repaired) = (WAIT_MAX, None, Vec::new());
        let was_pending = state.pending.is_some();
        repaired.extend(state.finish_verdicts().and_then(|answer| self.finish_verdicts(answer)));
        let free = was_pending && state.pending.is_none();
        let dirty = lock(&self.dirty).as_ref().map(|dirty| dirty.parts.clone());
        let (dirty, schedule) = (dirty.unwrap_or_default(), lock(&self.schedule).parts(Instant::now()));
        for class in BudgetClass::ALL {
            // The commit of `Nat` would wait for the same lock as that of the verdicts, and block
            // this thread. If it was passed over once, it is next, however often the verdicts are
            // flushed.
            if class == BudgetClass::Nat && state.pending.is_some() && !free {
                held = Some(Part::Nat);
                break;
            }
            let (parts, pause) = state.begin(class, &dirty, &schedule, Instant::now());
            if !pause.is_zero() {
                wait = wait.min(pause);
            }
            if !parts.is_empty() {
                let before = busy_time();
                repaired.extend(self.restore(&parts, &mut state.pending));
                state.budget(class).spend(busy_time().saturating_sub(before));
            }
        }
        repaired.extend(state.finish_verdicts().and_then(|answer| self.finish_verdicts(answer)));
        // The search for the process that made the change comes last, because nothing waits for it.
        repaired.into_iter().for_each(|repaired| self.record(repaired));
        let now = Instant::now();
        match state.pending.as_ref().map(|pending| pending.limit.saturating_duration_since(now)) {
            // The answer wakes the thread.
            Some(limit) => lock(&self.schedule).wait(held, now).min(wait).min(limit),
            None if held.is_some() => NO_WAIT,
            None => lock(&self.schedule).wait(None, now).min(wait),
        }
    }
}

#[cfg(test)]
mod tests;
