//! The thread that listens, and restores what is suspect, or due. Started by `drift`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use russet_attach::nat;
use russet_attach::restore::Depth;
use russet_linux::cpu::busy_time;
use russet_linux::watch::Call;
use russet_netlink::{Event, Monitor, NetlinkError, Socket, Topic, is_own_netfilter_port, is_own_route_port};
use russet_nft::monitor as tables;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::budget::Budget;
use super::judge::{Concern, Judge};
use super::verdicts::{Asked, Outcome};
use super::who::Traces;
use super::{Part, Shared, Suspicion, lock};

/// Ears for rtnetlink and for nf_tables, which a kernel may not have.
pub(super) struct Ears {
    routes: Monitor,
    tables: Option<tables::Monitor>,
    /// Asks for what was not told.
    socket: Socket,
    /// The judge does not know which links there are.
    links_unknown: bool,
}

/// What is listened to.
pub(super) const TOPICS: [Topic; 5] =
    [Topic::Links, Topic::Addresses, Topic::Routes, Topic::Neighbours, Topic::Confs];
/// Events that are taken in before what is suspect is restored: whoever makes more than that gets a comparison in between.
const EVENTS_MAX: usize = 10_000;
/// After the first word of something, what else rtnetlink tells is gathered for so long, however much it is and whoever does it: each of our own ADDs and DELs is a dozen
/// events, and 100,000 routes are a flood. What was heard by then does not wait for it, nor does nf_tables, without which nothing is kept apart.
const GATHER: Duration = Duration::from_millis(5);
/// After a failure to listen.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// What is due may become so earlier, by what the loop finds.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// What has not happened yet is not waited for.
const NO_WAIT: Duration = Duration::ZERO;

/// What was heard in one go.
#[derive(Default)]
struct Batch {
    events: usize,
    parts: BTreeSet<Part>,
    traces: Traces,
    underlay: bool,
    /// Requests of ours changed pods' masquerade and ports.
    own_nat: bool,
    /// Links may be others than those that were told of.
    links_lost: bool,
    /// Not everything could be heard.
    failed: bool,
}

/// What is at work, and what comparisons may cost that somebody's changes bring about.
struct Works {
    budgets: [Budget; Purse::ALL.len()],
    /// The comparison of verdicts that has no answer yet.
    asked: Option<Asked>,
}

/// Whose budget is one, in the order in which they are compared: whatever is changed in a loop, the others do not wait with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purse {
    /// While there are none, everything is let through.
    Verdicts,
    /// While its table is gone, its pods are shut.
    Sdn,
    Others,
    /// A picture of pods' masquerade is only good until our own next change of it.
    Nat,
}

// === impl Ears ===

impl Ears {
    /// Begins to listen.
    pub fn open() -> Result<Self, NetlinkError> {
        let tables = tables::Monitor::open().inspect_err(|error| {
            tracing::warn!(%error, "changes of nf_tables cannot be heard: they are found by the regular look");
        });
        let routes = Monitor::open(&TOPICS)?;
        Ok(Self { routes, tables: tables.ok(), socket: Socket::route()?, links_unknown: true })
    }

    /// Listens for ever.
    pub fn run(mut self, shared: &Shared) {
        let mut works = Works::new(Instant::now());
        let mut rest = NO_WAIT;
        loop {
            self.wait(&shared.bell, rest);
            let heard = Instant::now();
            let batch = self.listen(&shared.judge);
            let Batch { events, failed, own_nat, .. } = batch;
            shared.suspect(batch, heard);
            if own_nat {
                shared.follow_nat();
            }
            rest = shared.work(&mut works);
            if failed {
                std::thread::park_timeout(FAILURE_PAUSE);
            } else if events > 0 {
                self.gather(&shared.bell);
            }
        }
    }

    /// Until something is to be heard, an answer is there, or `timeout` passed.
    fn wait(&self, bell: &Call, timeout: Duration) {
        wait_for([Some(self.routes.as_fd()), self.tables_fd(), Some(bell.as_fd())], timeout);
        // An answer that comes from now on rings again; one that is there already will be found.
        bell.hush();
    }

    /// Until something of nf_tables is to be heard, an answer is there, or enough of the rest is.
    fn gather(&self, bell: &Call) {
        wait_for([None, self.tables_fd(), Some(bell.as_fd())], GATHER);
    }

    fn tables_fd(&self) -> Option<BorrowedFd<'_>> {
        self.tables.as_ref().map(AsFd::as_fd)
    }

    /// Takes in what there is to be heard. What cannot be heard may have been about everything.
    fn listen(&mut self, judge: &std::sync::Mutex<Judge>) -> Batch {
        let mut batch = Batch::default();
        let heard = self.hear_routes(judge, &mut batch);
        for error in [heard, self.hear_tables(judge, &mut batch)].into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "listen to changes");
            batch.note(Concern::EVERYTHING);
            (batch.links_lost, batch.failed) = (true, true);
        }
        self.links_unknown |= batch.links_lost;
        if self.links_unknown {
            match self.socket.links() {
                Ok(links) => {
                    lock(judge).learn(links);
                    self.links_unknown = false;
                }
                Err(error) => tracing::warn!(%error, "the node's links cannot be listed"),
            }
        }
        batch
    }

    fn hear_routes(
        &mut self,
        judge: &std::sync::Mutex<Judge>,
        batch: &mut Batch,
    ) -> Result<(), NetlinkError> {
        while batch.events < EVENTS_MAX
            && let Some(heard) = self.routes.next_heard(NO_WAIT)?
        {
            batch.events += 1;
            batch.links_lost |= heard.event == Event::Overrun;
            let own = heard.port != 0 && is_own_route_port(heard.port);
            let concern = lock(judge).hear(&heard.event, own);
            if batch.note(concern) {
                batch.traces.port(heard.port);
            }
        }
        Ok(())
    }

    fn hear_tables(
        &mut self,
        judge: &std::sync::Mutex<Judge>,
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
                    if batch.note(lock(judge).hear_commit(&commit)) {
                        batch.traces.process(commit.pid, &commit.process);
                    }
                }
            }
        }
        Ok(())
    }
}

fn wait_for(ears: [Option<BorrowedFd<'_>>; 3], timeout: Duration) {
    let ears = ears.into_iter().flatten();
    let mut ears: Vec<_> = ears.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).ok();
    // An error here is a signal, or one that listening will tell.
    let _ = poll(&mut ears, timeout.as_ref());
}

// === impl Batch ===

impl Batch {
    /// Whether it concerns us.
    fn note(&mut self, concern: Concern) -> bool {
        self.parts.extend(concern.parts());
        self.underlay |= concern.underlay;
        concern.is_any()
    }
}

// === impl Works ===

impl Works {
    fn new(now: Instant) -> Self {
        Self { budgets: Purse::ALL.map(|_| Budget::full(now)), asked: None }
    }

    fn budget(&mut self, purse: Purse) -> &mut Budget {
        &mut self.budgets[purse as usize]
    }

    /// What has come of the comparison of verdicts, once that is known.
    fn answered(&mut self) -> Option<(Asked, Outcome)> {
        let outcome = self.asked.as_mut()?.poll()?;
        self.budget(Purse::Verdicts).spend(outcome.busy);
        Some((self.asked.take()?, outcome))
    }

    /// What of a purse's is compared now: what is due, and what is suspect if the budget has something left; otherwise how long that waits.
    fn begin(
        &mut self,
        purse: Purse,
        suspects: &BTreeSet<Part>,
        due: &BTreeSet<Part>,
        now: Instant,
    ) -> (BTreeMap<Part, Depth>, Duration) {
        let of = |parts: &BTreeSet<Part>, depth| -> BTreeMap<Part, Depth> {
            parts.iter().filter(|part| part.purse() == purse).map(|part| (*part, depth)).collect()
        };
        let mut parts = of(suspects, Depth::Tables);
        let pause = if parts.is_empty() { NO_WAIT } else { self.budget(purse).wait(now) };
        if !pause.is_zero() {
            parts.clear();
        }
        parts.extend(of(due, Depth::Everything));
        (parts, pause)
    }
}

// === impl Purse ===

impl Purse {
    const ALL: [Self; 4] = [Self::Verdicts, Self::Sdn, Self::Others, Self::Nat];
}

// === impl Part ===

impl Part {
    fn purse(self) -> Purse {
        match self {
            Self::Verdicts => Purse::Verdicts,
            Self::Sdn => Purse::Sdn,
            Self::Pods | Self::Overlay => Purse::Others,
            Self::Nat => Purse::Nat,
        }
    }
}

// === impl Shared ===

impl Shared {
    fn suspect(&self, batch: Batch, heard: Instant) {
        if batch.underlay {
            self.underlay.store(true, std::sync::atomic::Ordering::Relaxed);
            self.disturbed.notify_one();
        }
        if !batch.parts.is_empty() {
            self.keep(Suspicion { since: heard, parts: batch.parts, traces: batch.traces });
        }
    }

    /// Requests of ours changed pods' masquerade and ports: that is how they should be.
    fn follow_nat(&self) {
        let followed = lock(&self.nat).follow();
        // What cannot be read now, either, is told by the look.
        if !followed.unwrap_or(false) {
            lock(&self.due).soon(Part::Nat, Instant::now());
        }
    }

    /// Restores what is due, and what is suspect as far as the budgets go; gives how long what is left of that, or comes next, waits.
    fn work(&self, works: &mut Works) -> Duration {
        let (mut wait, mut held, mut repaired) = (WAIT_MAX, None, Vec::new());
        let was_asked = works.asked.is_some();
        repaired.extend(works.answered().and_then(|answer| self.answered(answer)));
        let free = was_asked && works.asked.is_none();
        let suspects = lock(&self.suspicion).as_ref().map(|suspicion| suspicion.parts.clone());
        let (suspects, due) = (suspects.unwrap_or_default(), lock(&self.due).parts(Instant::now()));
        for purse in Purse::ALL {
            // Its commit would wait for whatever that of the verdicts waits for, and this thread with it. But however often those are flushed, it has its turn.
            if purse == Purse::Nat && works.asked.is_some() && !free {
                held = Some(Part::Nat);
                break;
            }
            let (parts, pause) = works.begin(purse, &suspects, &due, Instant::now());
            if !pause.is_zero() {
                wait = wait.min(pause);
            }
            if !parts.is_empty() {
                let before = busy_time();
                repaired.extend(self.restore(&parts, &mut works.asked));
                works.budget(purse).spend(busy_time().saturating_sub(before));
            }
        }
        repaired.extend(works.answered().and_then(|answer| self.answered(answer)));
        // Who it was is looked for when all is back, and nothing waits for the answer.
        repaired.into_iter().for_each(|repaired| self.record(repaired));
        let now = Instant::now();
        match works.asked.as_ref().map(|asked| asked.limit.saturating_duration_since(now)) {
            // The bell rings when there is an answer.
            Some(limit) => lock(&self.due).wait(held, now).min(wait).min(limit),
            None if held.is_some() => NO_WAIT,
            None => lock(&self.due).wait(None, now).min(wait),
        }
    }
}

#[cfg(test)]
mod tests;
