//! The one thread of a process that works on the table.
//!
//! A commit waits in the kernel for all other commits, and this wait cannot be interrupted, so a
//! caller must be able to stop waiting. Requests therefore go to a thread, which executes them in
//! order. Callers rely on that order, too: the entry of a deleted interface is removed before an
//! entry of the same name is added.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use russet_addr::{IfName, IpNet};
use russet_linux::cpu::busy_time;
use russet_linux::probe::{self, Feature};

use crate::error::PolicyError;
use crate::verdicts::{VerdictReport, VerdictState, Verdicts};
use crate::{Entry, Guards, PortGuard};

/// Returns the entries of all existing interfaces; called on the keeper's thread.
pub type Load = Arc<dyn Fn() -> Result<Vec<Entry>, String> + Send + Sync>;

/// The table's keeper. Clones share the thread, which starts with the first request, in the network
/// namespace of the requesting thread.
#[derive(Clone)]
pub struct Keeper {
    shared: Arc<Shared>,
}

/// Why a request failed, or its result is unknown.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The kernel refused a change, or cannot be read.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The existing interfaces cannot be listed.
    #[error("list the interfaces that have a verdict: {0}")]
    Load(String),
    /// The limit passed. The request may still be executed later.
    #[error("nf_tables did not take the change within {0:?}")]
    Late(Duration),
    /// Too many requests are queued.
    #[error("{QUEUE_MAX} changes of verdicts wait for nf_tables already; try again later")]
    Busy,
    /// The thread has ended.
    #[error("the thread that keeps verdicts is gone: {0}")]
    Gone(String),
}

struct Shared {
    desk: Resources,
    /// The sender to the thread, once it runs.
    queue: Mutex<Option<SyncSender<Job>>>,
}

/// Access to the kernel, replaceable by tests.
#[derive(Clone, Copy)]
struct Kernel {
    open: fn() -> Result<Verdicts, PolicyError>,
    has_nf_tables: fn() -> bool,
}

/// A request whose answer is awaited.
#[derive(Debug)]
pub struct Pending<T> {
    answered: Receiver<Answer<T>>,
    limit: Instant,
    /// The time between the request and its limit.
    timeout: Duration,
}

/// The answer of a request.
#[derive(Debug)]
pub struct Answer<T> {
    pub result: Result<T>,
    /// When it was known.
    pub at: Instant,
    /// The CPU time that it took; waiting for the kernel's locks does not count.
    pub busy: Duration,
}

/// Called when the answer of a request is available, or will never be.
pub type Bell = Arc<dyn Fn() + Send + Sync>;

/// The destination of an answer, sent before the bell is rung.
struct Reply<T> {
    answer: SyncSender<Answer<T>>,
    _ring: RingOnDrop,
}

/// Rings when it is dropped, also for a request that is never executed.
struct RingOnDrop(Option<Bell>);

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// The resources of the thread.
#[derive(Clone)]
struct Resources {
    load: Load,
    kernel: Kernel,
    unsupported: Arc<AtomicBool>,
    guards: Arc<Mutex<Arc<Guards>>>,
}

struct Worker {
    desk: Resources,
    verdicts: Option<Verdicts>,
}

/// Limit of queued requests: each concerns one interface, and only a few are made at a time.
const QUEUE_MAX: usize = 256;

type Result<T, E = KeeperError> = std::result::Result<T, E>;

// === impl Keeper ===

impl Keeper {
    /// Creates a keeper; nothing is opened before the first request.
    pub fn new(load: Load) -> Self {
        let has_nf_tables = || !matches!(probe::supports(Feature::NfTables), Ok(false));
        Self::of_kernel(load, Kernel { open: Verdicts::open, has_nf_tables })
    }

    fn of_kernel(load: Load, kernel: Kernel) -> Self {
        let desk = Resources { load, kernel, unsupported: Arc::default(), guards: Arc::default() };
        Self { shared: Arc::new(Shared { desk, queue: Mutex::default() }) }
    }

    /// Whether the kernel was found to lack nf_tables, so that nothing can be isolated.
    pub fn is_unsupported(&self) -> bool {
        self.shared.desk.unsupported.load(Ordering::Relaxed)
    }

    /// Adds an entry before `limit`, with those of all other interfaces if the table must be
    /// created first. After the limit the entry may still be added: a caller that gives up must
    /// [`forget`](Self::forget) it.
    pub fn put(&self, entry: Entry, limit: Instant) -> Result<()> {
        self.ask(limit, true, move |clerk| clerk.put(&entry))
    }

    /// The last node-dependent settings of the guards.
    pub fn guards(&self) -> Arc<Guards> {
        Arc::clone(&self.shared.desk.guards.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the node-dependent settings of the guards for all later requests; returns whether
    /// anything changed. [`reconcile`](Self::reconcile) updates the table.
    pub fn change_guards(&self, change: impl FnOnce(&mut Guards)) -> bool {
        let mut guards = self.shared.desk.guards.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = (**guards).clone();
        change(&mut changed);
        let differs = changed != **guards;
        if differs {
            *guards = Arc::new(changed);
        }
        differs
    }

    /// Sets the prefixes from which a host end may send besides the addresses that are routed to
    /// it.
    pub fn put_sources(&self, host_name: IfName, nets: Vec<IpNet>, limit: Instant) -> Result<()> {
        self.change_guards(|guards| {
            let Some(sources) = &mut guards.sources else { return };
            match nets.is_empty() {
                true => _ = sources.remove(&host_name),
                false => _ = sources.insert(host_name.clone(), nets.clone()),
            }
        });
        self.ask(limit, true, move |clerk| {
            clerk.with((), |_, verdicts| Ok(verdicts.put_sources(&host_name, &nets)?))
        })
    }

    /// Guards the ports of bridges; called for the first such port.
    pub fn guard_ports(&self, limit: Instant) -> Result<()> {
        self.ask(limit, true, |clerk| clerk.with((), |_, verdicts| Ok(verdicts.guard_ports().map(drop)?)))
    }

    /// Lets a port of a bridge send this and nothing else. False where the kernel cannot check that.
    pub fn put_port(&self, host_name: IfName, guard: PortGuard, limit: Instant) -> Result<bool> {
        self.change_guards(|guards| {
            guards.ports.iter_mut().for_each(|ports| _ = ports.insert(host_name.clone(), guard.clone()));
        });
        self.ask(limit, true, move |clerk| {
            clerk.with(false, |_, verdicts| Ok(verdicts.put_port(&host_name, &guard)?))
        })
    }

    /// Whether a port of a bridge is guarded by exactly this; none where the kernel cannot check that.
    pub fn is_port_guarded(
        &self,
        host_name: IfName,
        guard: PortGuard,
        limit: Instant,
    ) -> Result<Option<bool>> {
        self.ask(limit, true, move |clerk| {
            clerk.with(None, |_, verdicts| Ok(verdicts.is_port_guarded(&host_name, &guard)?))
        })
    }

    /// Removes what a port of a bridge may send. Done in its turn even when the time is up.
    pub fn remove_port(&self, host_name: IfName, limit: Instant) -> Result<bool> {
        self.strike_port(&host_name);
        self.ask(limit, false, move |clerk| {
            clerk.with(false, |_, verdicts| Ok(verdicts.remove_port(&host_name)?))
        })
    }

    /// [`remove_port`](Self::remove_port) without waiting for it.
    pub fn forget_port(&self, host_name: IfName) -> Result<()> {
        self.strike_port(&host_name);
        self.send(Box::new(move |clerk| {
            let removed = clerk.with(false, |_, verdicts| Ok(verdicts.remove_port(&host_name)?));
            if let Err(error) = removed {
                tracing::warn!(link = %host_name, %error, "what the port of a bridge may send stays until the table is compared");
            }
        }))
    }

    fn strike_port(&self, host_name: &IfName) {
        self.change_guards(|guards| {
            guards.ports.iter_mut().for_each(|ports| _ = ports.remove(host_name));
        });
    }

    /// Removes an entry; returns whether there was one. It is executed even after the limit.
    pub fn remove(&self, host_name: IfName, limit: Instant) -> Result<bool> {
        self.ask(limit, false, move |clerk| clerk.with(false, |_, verdicts| Ok(verdicts.remove(&host_name)?)))
    }

    /// [`remove`](Self::remove) without waiting.
    pub fn forget(&self, host_name: IfName) -> Result<()> {
        let subject = host_name.clone();
        self.send(Box::new(move |clerk| {
            let removed = clerk.with(false, |_, verdicts| Ok(verdicts.remove(&host_name)?));
            if let Err(error) = removed {
                tracing::warn!(link = %subject, %error, "a verdict that is no longer needed stays until the table is compared");
            }
        }))
    }

    /// The verdict in force for a host end; none on a kernel without nf_tables.
    pub fn verdict_state(&self, host_name: IfName, limit: Instant) -> Result<Option<VerdictState>> {
        self.ask(limit, true, move |clerk| {
            clerk.with(None, |_, verdicts| Ok(Some(verdicts.verdict_state(&host_name)?)))
        })
    }

    /// Reconciles the table with the entries of all existing interfaces; other entries are removed.
    /// Only for a process that alone manages the node's verdicts: the agent.
    pub fn reconcile(&self, limit: Instant) -> Result<VerdictReport> {
        self.begin(limit, true, None, Worker::reconcile)?.wait()
    }

    /// [`reconcile`](Self::reconcile) without waiting: `bell` is called when the answer is
    /// available, unless `limit` passes before.
    pub fn begin_reconcile(&self, limit: Instant, bell: Bell) -> Result<Pending<VerdictReport>> {
        self.begin(limit, true, Some(bell), Worker::reconcile)
    }

    /// Removes the table; returns whether there was one.
    pub fn withdraw(&self, limit: Instant) -> Result<bool> {
        self.ask(limit, true, |clerk| clerk.with(false, |_, verdicts| Ok(verdicts.withdraw()?)))
    }

    /// Executes `work` on the thread and waits. If it has not started at the limit it is skipped if
    /// `droppable`.
    fn ask<T: Send + 'static>(
        &self,
        limit: Instant,
        droppable: bool,
        work: impl FnOnce(&mut Worker) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.begin(limit, droppable, None, work)?.wait()
    }

    fn begin<T: Send + 'static>(
        &self,
        limit: Instant,
        droppable: bool,
        bell: Option<Bell>,
        work: impl FnOnce(&mut Worker) -> Result<T> + Send + 'static,
    ) -> Result<Pending<T>> {
        let timeout = limit.saturating_duration_since(Instant::now());
        let (answer, answered) = mpsc::sync_channel(1);
        let reply = Reply { answer, _ring: RingOnDrop(bell) };
        self.send(Box::new(move |clerk| {
            // Moved as a whole, so that the bell rings only after the answer is sent.
            let reply = reply;
            if droppable && Instant::now() >= limit {
                return;
            }
            let before = busy_time();
            let result = work(clerk);
            let busy = busy_time().saturating_sub(before);
            // The receiver is gone if the caller gave up.
            let _ = reply.answer.send(Answer { result, at: Instant::now(), busy });
        }))?;
        Ok(Pending { answered, limit, timeout })
    }

    fn send(&self, job: Job) -> Result<()> {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match queue.take() {
            Some(sender) => sender,
            None => start(self.shared.desk.clone())?,
        };
        let sent = sender.try_send(job);
        if !matches!(sent, Err(TrySendError::Disconnected(_))) {
            *queue = Some(sender);
        }
        sent.map_err(|error| match error {
            TrySendError::Full(_) => KeeperError::Busy,
            TrySendError::Disconnected(_) => KeeperError::Gone("it ended".to_owned()),
        })
    }
}

// === impl RingOnDrop ===

impl Drop for RingOnDrop {
    fn drop(&mut self) {
        if let Some(bell) = &self.0 {
            bell();
        }
    }
}

// === impl Pending ===

impl<T> Pending<T> {
    /// The answer; none while it may still arrive before the limit.
    pub fn poll(&self) -> Option<Answer<T>> {
        match self.answered.try_recv() {
            Ok(done) => Some(done),
            Err(TryRecvError::Empty) if Instant::now() < self.limit => None,
            Err(error) => Some(Answer {
                result: Err(self.unanswered(error == TryRecvError::Disconnected)),
                at: Instant::now(),
                busy: Duration::ZERO,
            }),
        }
    }

    /// Waits for the answer, until the limit.
    pub fn wait(self) -> Result<T> {
        match self.answered.recv_timeout(self.limit.saturating_duration_since(Instant::now())) {
            Ok(answer) => answer.result,
            Err(error) => Err(self.unanswered(error == RecvTimeoutError::Disconnected)),
        }
    }

    /// The error of a missing answer. If it was `dropped` before the limit, the thread has ended.
    fn unanswered(&self, dropped: bool) -> KeeperError {
        if dropped && Instant::now() < self.limit {
            return KeeperError::Gone("it stopped half-way".to_owned());
        }
        // Rounded to milliseconds, so that a repeated failure has the same text.
        KeeperError::Late(Duration::from_millis((self.timeout.as_secs_f64() * 1000.0).round() as u64))
    }
}

fn start(desk: Resources) -> Result<SyncSender<Job>> {
    let (sender, jobs) = mpsc::sync_channel::<Job>(QUEUE_MAX);
    let serve = move || {
        let mut clerk = Worker { desk, verdicts: None };
        // Until the last keeper is dropped.
        jobs.into_iter().for_each(|job| job(&mut clerk));
    };
    let thread = std::thread::Builder::new().name("verdicts".to_owned()).spawn(serve);
    thread.map(|_| sender).map_err(|error| KeeperError::Gone(error.to_string()))
}

// === impl Worker ===

impl Worker {
    fn put(&mut self, entry: &Entry) -> Result<()> {
        self.with((), |load, verdicts| match verdicts.put(entry) {
            Err(error) if error.is_incomplete() => {
                let mut all = load().map_err(KeeperError::Load)?;
                all.retain(|other| other.host_name != entry.host_name);
                all.push(entry.clone());
                let report = verdicts.complete(&all)?;
                tracing::info!(reason = %error, entries = report.added.len(), "verdicts are in force");
                Ok(())
            }
            done => Ok(done?),
        })
    }

    fn reconcile(&mut self) -> Result<VerdictReport> {
        self.with(VerdictReport::default(), |load, verdicts| {
            Ok(verdicts.reconcile(&load().map_err(KeeperError::Load)?)?)
        })
    }

    /// Works on the table. `otherwise` is the answer on a kernel without nf_tables, which is
    /// detected at the first failure.
    fn with<T>(&mut self, otherwise: T, work: impl FnOnce(&Load, &mut Verdicts) -> Result<T>) -> Result<T> {
        if self.desk.unsupported.load(Ordering::Relaxed) {
            return Ok(otherwise);
        }
        let opened = match self.verdicts.take() {
            Some(verdicts) => Ok(verdicts),
            None => (self.desk.kernel.open)(),
        };
        let guards = Arc::clone(&self.desk.guards.lock().unwrap_or_else(PoisonError::into_inner));
        let done = opened.map_err(KeeperError::from).and_then(|mut verdicts| {
            verdicts.guard(&guards);
            let done = work(&self.desk.load, &mut verdicts);
            self.verdicts = Some(verdicts);
            done
        });
        match done {
            Err(KeeperError::Policy(error)) if !(self.desk.kernel.has_nf_tables)() => {
                self.desk.unsupported.store(true, Ordering::Relaxed);
                tracing::warn!(%error, "this kernel has no nf_tables: pods are attached, and their packets are not isolated");
                Ok(otherwise)
            }
            done => done,
        }
    }
}

// === impl fmt::Debug ===

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("unsupported", &self.is_unsupported()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use russet_testkit::in_new_netns;

    use super::*;
    use crate::Verdict;

    fn name(text: &str) -> IfName {
        text.parse().unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn load_of(names: &'static [&'static str]) -> Load {
        Arc::new(move || Ok(names.iter().map(|text| Entry::allow(name(text))).collect()))
    }

    fn refused() -> Result<Verdicts, PolicyError> {
        Err(PolicyError::Incomplete("a test", "nothing is there".to_owned()))
    }

    #[test]
    fn on_a_kernel_without_nf_tables_everything_succeeds_and_says_so() {
        let kernel = |has_nf_tables| Keeper::of_kernel(load_of(&[]), Kernel { open: refused, has_nf_tables });
        let keeper = kernel(|| false);
        assert!(!keeper.is_unsupported());
        keeper.put(Entry::allow(name("russ1")), soon()).unwrap();
        assert!(keeper.is_unsupported());
        assert_eq!(keeper.verdict_state(name("russ1"), soon()).unwrap(), None);
        assert!(!keeper.remove(name("russ1"), soon()).unwrap());
        // Where the kernel has nf_tables, a failure is an error.
        let keeper = kernel(|| true);
        assert!(keeper.put(Entry::allow(name("russ1")), soon()).is_err());
        assert!(!keeper.is_unsupported());
    }

    #[test]
    fn a_caller_gives_up_at_the_limit_and_droppable_work_that_has_not_started_is_skipped() {
        let (release, hang) = mpsc::channel::<()>();
        let keeper = Keeper::of_kernel(load_of(&[]), Kernel { open: refused, has_nf_tables: || true });
        keeper.send(Box::new(move |_| _ = hang.recv())).unwrap();
        let limit = Instant::now() + Duration::from_millis(20);
        let (began, begun) = mpsc::channel::<&str>();
        for (text, droppable) in [("dropped", true), ("done", false)] {
            let began = began.clone();
            let late = keeper.ask(limit, droppable, move |_| {
                began.send(text).unwrap();
                Ok(())
            });
            assert!(matches!(late, Err(KeeperError::Late(_))), "{text}");
        }
        drop((release, began));
        assert_eq!(begun.iter().collect::<Vec<_>>(), ["done"]);
        // A caller does not wait for a full queue either.
        let (release, hang) = mpsc::channel::<()>();
        keeper.send(Box::new(move |_| _ = hang.recv())).unwrap();
        let busy = (0..QUEUE_MAX + 2).find_map(|_| keeper.forget(name("russ1")).err());
        assert!(matches!(busy, Some(KeeperError::Busy)));
        drop(release);
    }

    #[test]
    fn a_caller_that_does_not_wait_is_notified_of_the_answer_or_of_the_named_limit() {
        let (release, hang) = mpsc::channel::<()>();
        let keeper = Keeper::of_kernel(load_of(&[]), Kernel { open: refused, has_nf_tables: || true });
        keeper.send(Box::new(move |_| _ = hang.recv())).unwrap();
        let (first, last) = (mpsc::channel(), mpsc::channel());
        let bell = |rung: &mpsc::Sender<()>| -> Bell {
            let rung = rung.clone();
            Arc::new(move || rung.send(()).unwrap())
        };
        let limit = Instant::now() + Duration::from_millis(20);
        let late = keeper.begin_reconcile(limit, bell(&first.0)).unwrap();
        let good = keeper.begin_reconcile(soon(), bell(&last.0)).unwrap();
        let answer = russet_testkit::eventually_some(Duration::from_secs(10), || late.poll());
        assert!(matches!(answer.result, Err(KeeperError::Late(limit)) if limit <= Duration::from_millis(20)));
        assert!(good.poll().is_none(), "it has not been begun");
        assert!(first.1.try_recv().is_err() && last.1.try_recv().is_err(), "nothing rings before its turn");
        release.send(()).unwrap();
        for (_, rung) in [first, last] {
            rung.recv_timeout(Duration::from_secs(10)).unwrap();
            assert!(rung.try_recv().is_err(), "once");
        }
        let answer = good.poll().unwrap();
        assert!(matches!(answer.result, Err(KeeperError::Policy(_))));
    }

    #[test]
    fn an_answer_includes_its_cpu_time() {
        const COST: Duration = Duration::from_millis(50);
        let open = || {
            let before = busy_time();
            while busy_time() < before + COST {}
            refused()
        };
        let keeper = Keeper::of_kernel(load_of(&[]), Kernel { open, has_nf_tables: || true });
        let asked = keeper.begin_reconcile(soon(), Arc::new(|| ())).unwrap();
        let answer = russet_testkit::eventually_some(Duration::from_secs(10), || asked.poll());
        assert!(answer.result.is_err() && answer.busy >= COST, "{answer:?}");
    }

    #[test]
    #[ignore = "kernel: nf_tables, root"]
    fn the_first_entry_brings_the_table_with_the_entries_of_all_interfaces() {
        in_new_netns(|| {
            let keeper = Keeper::new(load_of(&["russ1", "russ2"]));
            let in_force = |text| keeper.verdict_state(name(text), soon()).unwrap();
            assert!(matches!(in_force("russ1"), Some(VerdictState::Unjudged(_))));
            keeper.put(Entry::allow(name("russ3")), soon()).unwrap();
            for text in ["russ1", "russ2", "russ3"] {
                assert_eq!(in_force(text), Some(VerdictState::InForce(Verdict::Allow)), "{text}");
            }
            // Those of the existing interfaces only.
            assert_eq!(keeper.reconcile(soon()).unwrap().removed, ["russ3"]);
            assert!(keeper.remove(name("russ2"), soon()).unwrap());
            assert_eq!(keeper.reconcile(soon()).unwrap().added, [name("russ2")]);
            assert!(keeper.withdraw(soon()).unwrap());
        });
    }

    #[test]
    #[ignore = "kernel: nf_tables, root"]
    fn a_late_entry_is_removed_before_the_next_one_is_added() {
        in_new_netns(|| {
            let (release, hang) = mpsc::channel::<()>();
            let hang = Mutex::new(hang);
            let load: Load = Arc::new(move || {
                _ = hang.lock().unwrap().recv();
                Ok(Vec::new())
            });
            let keeper = Keeper::new(load);
            let late = keeper.put(Entry::allow(name("russ1")), Instant::now() + Duration::from_millis(50));
            assert!(matches!(late, Err(KeeperError::Late(_))), "{late:?}");
            keeper.forget(name("russ1")).unwrap();
            drop(release);
            assert_eq!(keeper.verdict_state(name("russ1"), soon()).unwrap(), Some(VerdictState::None));
        });
    }
}
