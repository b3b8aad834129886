//! Requests of plugins: one at a time for each container and each pod, GC without any other,
//! everything else in parallel; each with a deadline by which its caller has an answer. The start
//! of an operation is written into the journal first.

mod done;
mod recent;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak as RcWeak};
use std::time::{Duration, Instant};

use russet_cni_spec::plugin::{Outcome, Prepared, prepare};
use russet_cni_spec::relay::RelayRequest;
use russet_cni_spec::table::{self, Plugin};
use russet_cni_spec::{Call, CniError, CniResult, Request, Target};
use russet_journal::{History, Journal};
use russet_plugins::stages::during;
use russet_plugins::{Node, Release, RequestLog, RequestOutcome, Stage, Stages};
use russet_sync::{KeyedLock, LockGuard};
use tokio::sync::watch;
use tokio::task::spawn_local;

use crate::metrics::Metrics;

pub use recent::RecentOperations;

/// The text for a user who runs the plugin by hand; the small executable prints the same.
const ABOUT: &str = "CNI russet plugin";

/// The deadline of a request whose caller gives none.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(55);

/// With more open operations than this, a DEL is answered only when it is done: while a store hangs
/// or is away, open operations must not fill the memory or the journal.
const OPEN_MAX: usize = 1024;

/// How long a DEL waits before it releases its addresses: its answer is sent first, without
/// competition from the store's thread, and DELs that arrive together share a commit.
const ANSWER_FIRST: Duration = Duration::from_millis(1);

/// The agent's handling of requests.
pub struct Operations {
    node: Node,
    metrics: Metrics,
    history: History,
    journal: Rc<Journal>,
    recent: RecentOperations,
    /// Locks of main plugins, by container ID and by `namespace/name` of pods. A GC has all.
    main: KeyedLock,
    /// Locks of IPAM plugins. A main plugin calls them during its own request, so they must not
    /// wait for main plugins.
    ipam: KeyedLock,
    /// Records the containers of requests, if a leak repair is interested.
    seen_requests: RefCell<RcWeak<SeenRequests>>,
    /// Finishes or undoes operations that could not be ended at once.
    remainder_handler: RefCell<Option<RemainderHandler>>,
    /// Changes when the API server answers again, with a store there.
    contacts: RefCell<Option<watch::Receiver<u64>>>,
}

/// Takes the number of an operation that has to be finished or undone later, and what remains of
/// it.
pub(crate) type RemainderHandler = Box<dyn Fn(u64, Remainder)>;

/// What remains of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remainder {
    /// Everything that its DEL or GC finds.
    Everything,
    /// The release of a DEL's addresses. The rest is done, and its caller has the answer.
    Release,
}

/// No request for any container is in progress as long as this value exists.
pub(crate) type ExclusiveGuard = [LockGuard; 2];

/// The containers of the requests that arrived or ended while this value existed.
#[derive(Debug, Default)]
pub struct SeenRequests(RefCell<BTreeSet<String>>);

/// A request that holds its locks.
struct LockedRequest {
    plugin: String,
    request: Request,
    /// The request's environment as it arrived, for the journal.
    env: Vec<(String, String)>,
    log: Rc<RequestLog>,
    end: Instant,
    /// Its caller has got the answer that it took too long.
    late: Rc<Cell<bool>>,
    guard: LockGuard,
}

/// A DEL that is answered and not finished.
struct AnsweredDel {
    op: u64,
    request: Request,
    release: Release,
    _guard: LockGuard,
}

// === impl Operations ===

impl Operations {
    /// Serves requests for `node`, whose wiring reports to the journal.
    pub fn new(node: Node, metrics: Metrics, history: History, journal: Rc<Journal>) -> Self {
        let (main, ipam) = (KeyedLock::default(), KeyedLock::default());
        let (seen_requests, remainder_handler) = (RefCell::default(), RefCell::default());
        let (contacts, recent) = (RefCell::default(), RecentOperations::default());
        Self {
            node,
            metrics,
            history,
            journal,
            recent,
            main,
            ipam,
            seen_requests,
            remainder_handler,
            contacts,
        }
    }

    /// Lets what could not be ended be tried again when these change.
    pub(crate) fn follow_contacts(&self, contacts: watch::Receiver<u64>) {
        *self.contacts.borrow_mut() = Some(contacts);
    }

    /// Changes when the store answers again after it was away; none where nothing says so.
    pub(crate) fn contacts(&self) -> Option<watch::Receiver<u64>> {
        self.contacts.borrow().clone()
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// What is in progress, and what has ended lately.
    pub(crate) fn recent(&self) -> RecentOperations {
        self.recent.clone()
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Sets the function that finishes what cannot be undone at once.
    pub(crate) fn set_remainder_handler(&self, remainder_handler: RemainderHandler) {
        *self.remainder_handler.borrow_mut() = Some(remainder_handler);
    }

    /// Waits until no request for any container is in progress, and then blocks new ones. While it
    /// waits, requests are not delayed.
    pub async fn exclusive(&self) -> ExclusiveGuard {
        loop {
            let main = self.main.exclusive().await;
            if let Some(ipam) = self.ipam.try_exclusive() {
                return [main, ipam];
            }
            // Requests of main plugins are not delayed while IPAM plugins work.
            drop(main);
            drop(self.ipam.exclusive().await);
        }
    }

    /// Records the containers of requests that arrive from now on or are in progress, as long as
    /// the returned value exists. For one caller at a time.
    pub fn record_requests(&self) -> Rc<SeenRequests> {
        let seen_requests = Rc::new(SeenRequests::default());
        *self.seen_requests.borrow_mut() = Rc::downgrade(&seen_requests);
        seen_requests
    }

    fn note_request(&self, target: Option<&Target>) {
        if let (Some(target), Some(seen_requests)) = (target, self.seen_requests.borrow().upgrade()) {
            seen_requests.0.borrow_mut().insert(target.id.container.to_string());
        }
    }

    /// Carries out one request. A request that does not get its locks before its deadline, or
    /// before its caller is `gone`, is not started. A started request is carried out completely,
    /// also when its caller is gone; an ADD that ends after its deadline is undone.
    pub async fn execute(self: &Rc<Self>, message: RelayRequest, gone: impl Future<Output = ()>) -> Outcome {
        let started = Instant::now();
        let RelayRequest { plugin, env, config, deadline, timing } = message;
        let stages = Stages::begin();
        let deadline = if deadline.is_zero() { DEFAULT_DEADLINE } else { deadline };
        let verb = verb_of(&env);
        let outcome = match prepare(env.clone(), config, ABOUT) {
            Ok(Prepared::Answer(outcome)) => outcome,
            Ok(Prepared::Request(request)) => {
                let (plugin, request, line) = (plugin.clone(), *request, stages.clone());
                let waiting = Waiting { plugin, request, env, deadline, end: started + deadline, line };
                stages.record(self.run(waiting, gone)).await
            }
            Err(error) => self.failed(verb, &error),
        };
        let code = if outcome.is_success() { 0 } else { code_of(&outcome) };
        let spent = stages.spent();
        self.metrics.request(verb, code, &spent);
        Outcome { timing: timing.then(|| spent.timing(&plugin)), ..outcome }
    }

    async fn run(self: &Rc<Self>, waiting: Waiting, gone: impl Future<Output = ()>) -> Outcome {
        let log = Rc::new(RequestLog::new(&waiting.plugin));
        let target = waiting.request.env.target().cloned();
        self.note_request(target.as_ref());
        let request = waiting.request.clone();
        let (subject, started) = (done::RequestSubject::new(&request, self.journal.table()), Instant::now());
        let running = self.recent.begin(&waiting.plugin, &request);
        let done = self.work(waiting, &log, gone).await;
        if let Some(running) = running {
            running.ended(&done);
        }
        // Recorded again at the end, because it may have changed something after the recording
        // started.
        self.note_request(target.as_ref());
        let container = target.as_ref().map_or("", |target| target.id.container.as_str());
        let ifname = target.as_ref().map_or("", |target| target.id.ifname.as_str());
        let verb = verb_of(&request.env.vars);
        match &done {
            Ok(result) => {
                self.history.record(&request, result.as_ref());
                subject.done(result.as_ref(), started.elapsed());
            }
            // Every runtime calls STATUS every few seconds, and readiness logs its own changes.
            Err(error) if matches!(request.env.call, Call::Status) => {
                tracing::debug!(verb, %error, "not ready")
            }
            Err(error) => {
                tracing::warn!(verb, container, ifname, code = error.code, %error, "request failed");
            }
        }
        Outcome { stderr: log.text(), ..done.into() }
    }

    async fn work(
        self: &Rc<Self>,
        waiting: Waiting,
        log: &Rc<RequestLog>,
        gone: impl Future<Output = ()>,
    ) -> Result<Option<CniResult>, CniError> {
        let is_main = table::find(&waiting.plugin).is_none_or(Plugin::takes_container_lock);
        let locks = if is_main { &self.main } else { &self.ipam };
        let guard = match &waiting.request.env.call {
            Call::Add(target) | Call::Check(target) | Call::Del(target) => {
                let guard = waiting.until(locks.lock(lock_keys(&waiting.request, target)), gone);
                during(Stage::Turn, guard).await?
            }
            Call::Gc => during(Stage::Turn, waiting.until(locks.exclusive(), gone)).await?,
            Call::Status => {
                let done = russet_plugins::run(&self.node, &waiting.plugin, &waiting.request, log);
                return Box::pin(done).await?.settled().await;
            }
        };
        let Waiting { plugin, request, env, deadline, end, line } = waiting;
        let late = Rc::new(Cell::new(false));
        let (log, flag, this) = (Rc::clone(log), Rc::clone(&late), Rc::clone(self));
        let task = LockedRequest { plugin, request, env, log, end, late, guard };
        let task = spawn_local(async move { line.record(this.begun(task)).await });
        match tokio::time::timeout_at(end.into(), task).await {
            Ok(Ok(done)) => done?.settled().await,
            Ok(Err(error)) => Err(CniError::internal("the request was interrupted", error)),
            Err(_) => {
                flag.set(true);
                let details = format!("it was not done after {deadline:?}; an ADD is undone, a DEL goes on");
                Err(CniError::try_again_later("the request took too long", details))
            }
        }
    }

    /// Carries out a request that holds its locks.
    async fn begun(self: Rc<Self>, task: LockedRequest) -> Result<RequestOutcome, CniError> {
        let LockedRequest { plugin, request, env, log, end, late, guard } = task;
        let adds = matches!(request.env.call, Call::Add(_));
        let node = if adds { self.node.for_add(end) } else { self.node.clone() };
        let begin = async { self.journal.begin(&plugin, &request, (&env, &request.stdin)) };
        let op = during(Stage::Journal, begin).await?;
        let done = Box::pin(russet_plugins::run(&node, &plugin, &request, &log)).await;
        let Call::Add(target) = &request.env.call else {
            return self.ended(done, op, request, guard).await;
        };
        let repeated = op.is_some_and(|op| self.journal.is_repeated(op));
        let done = match done {
            Ok(_) if late.get() => {
                Err(CniError::try_again_later("the request took too long", "it is undone"))
            }
            Ok(done) => self.end(op, 0).map(|()| done),
            Err(error) => {
                let _ = self.end(op, error.code);
                return Err(error);
            }
        };
        match done {
            Ok(done) => Ok(done),
            Err(error) => {
                let undone = repeated || self.undo(&plugin, &request, target, &log).await;
                match (undone, op) {
                    (true, _) => _ = self.end(op, error.code),
                    (false, Some(op)) => self.leave(op, Remainder::Everything),
                    (false, None) => {}
                }
                Err(error)
            }
        }
    }

    /// Ends a request that is not an ADD. If the journal has a DEL, it is answered before its
    /// addresses are released.
    async fn ended(
        self: Rc<Self>,
        done: Result<RequestOutcome, CniError>,
        op: Option<u64>,
        request: Request,
        guard: LockGuard,
    ) -> Result<RequestOutcome, CniError> {
        let done = match (done, op) {
            (Ok(RequestOutcome { release: Some(release), result, policy }), Some(op))
                if self.journal.is_recorded(op) && self.journal.open_count() <= OPEN_MAX =>
            {
                spawn_local(self.release(AnsweredDel { op, request, release, _guard: guard }));
                return Ok(RequestOutcome { result, policy, release: None });
            }
            (Ok(done), _) => done.released().await,
            (Err(error), _) => Err(error),
        };
        let code = done.as_ref().map_or_else(|error| error.code, |_| 0);
        // It is done, whether that can be written or not; what is not written is done again after a
        // crash.
        let _ = self.end(op, code);
        done
    }

    /// The rest of a DEL after its answer, with its locks held. If this fails, or the agent dies,
    /// recovery does it again from the journal.
    async fn release(self: Rc<Self>, finishing: AnsweredDel) {
        let AnsweredDel { op, request, release, _guard } = finishing;
        tokio::time::sleep(ANSWER_FIRST).await;
        let line = Stages::begin();
        let done = line.record(release.run()).await;
        self.metrics.stages(verb_of(&request.env.vars), &line.spent());
        self.note_request(request.env.target());
        match done {
            Ok(()) => {
                // What cannot be written is done again after a crash.
                let _ = self.journal.end(op, 0);
            }
            Err(error) => {
                let container = request.env.target().map_or("", |target| target.id.container.as_str());
                tracing::warn!(op, container, %error, "a DEL's addresses are still held");
                self.leave(op, Remainder::Release);
            }
        }
    }

    /// Undoes an ADD that ended too late. Its caller has got an error and may never send DEL.
    async fn undo(&self, plugin: &str, request: &Request, target: &Target, log: &RequestLog) -> bool {
        let mut del = request.clone();
        del.env.call = Call::Del(target.clone());
        let done = async { russet_plugins::run(&self.node, plugin, &del, log).await?.released().await };
        match Box::pin(done).await {
            Ok(_) => {
                tracing::info!(container = %target.id.container, ifname = %target.id.ifname, "an ADD that took too long was undone");
                true
            }
            Err(error) => {
                tracing::warn!(container = %target.id.container, ifname = %target.id.ifname, %error, "an ADD that took too long cannot be undone now");
                false
            }
        }
    }

    /// Ends an operation, if the request is one.
    fn end(&self, op: Option<u64>, code: u32) -> Result<(), CniError> {
        op.map_or(Ok(()), |op| self.journal.end(op, code))
    }

    fn leave(&self, op: u64, left: Remainder) {
        if let Some(remainder_handler) = &*self.remainder_handler.borrow() {
            remainder_handler(op, left);
        }
    }

    /// Finishes an operation that could not be ended earlier, once, with its locks. Does nothing if
    /// a later operation has replaced it; `request` is a DEL or a GC.
    pub(crate) async fn finish(
        &self,
        op: u64,
        plugin: &str,
        request: &Request,
        left: Remainder,
    ) -> Result<bool, CniError> {
        let _guard = match &request.env.call {
            Call::Del(target) => self.main.lock(lock_keys(request, target)).await,
            _ => self.main.exclusive().await,
        };
        if !self.journal.is_open(op) {
            return Ok(false);
        }
        self.note_request(request.env.target());
        // The wiring of a later ADD that failed may still exist and use the addresses: it is
        // removed first.
        if left == Remainder::Release && !self.journal.is_overtaken(op) {
            return russet_plugins::release(&self.node, plugin, request)?.run().await.map(|()| true);
        }
        let log = RequestLog::new(plugin);
        let done = async { russet_plugins::run(&self.node, plugin, request, &log).await?.released().await };
        Box::pin(done).await?;
        self.history.record(request, None);
        Ok(true)
    }

    fn failed(&self, verb: &str, error: &CniError) -> Outcome {
        tracing::warn!(verb, code = error.code, error = %error, "request refused");
        Outcome::failure(error)
    }
}

/// A request that waits for its locks.
struct Waiting {
    plugin: String,
    request: Request,
    env: Vec<(String, String)>,
    deadline: Duration,
    end: Instant,
    line: Stages,
}

// === impl Waiting ===

impl Waiting {
    /// Waits for locks until the deadline, or until the caller is gone.
    async fn until(
        &self,
        guard: impl Future<Output = LockGuard>,
        gone: impl Future<Output = ()>,
    ) -> Result<LockGuard, CniError> {
        tokio::select! {
            biased;
            () = gone => {
                Err(CniError::try_again_later("the caller of the request has disconnected", "nothing was begun"))
            }
            guard = guard => Ok(guard),
            () = tokio::time::sleep_until(self.end.into()) => {
                let details = format!("it waited {:?}; nothing was begun", self.deadline);
                Err(CniError::try_again_later("the requests before this one are not done yet", details))
            }
        }
    }
}

// === impl SeenRequests ===

impl SeenRequests {
    /// The containers recorded so far.
    pub fn containers(&self) -> BTreeSet<String> {
        self.0.borrow().clone()
    }
}

/// The keys of a request in the order in which they are locked: its container, then its pod, because
/// an old and a new sandbox of one pod use the same host end. No pod's key is a container ID.
fn lock_keys(request: &Request, target: &Target) -> impl Iterator<Item = String> {
    let pod = request.env.args.pod().map(|pod| format!("{}/{}", pod.namespace, pod.name));
    [Some(target.id.container.to_string()), pod].into_iter().flatten()
}

/// The verb for logs and metrics. Anything else is `-`, so that a caller cannot create metric
/// labels.
fn verb_of(vars: &[(String, String)]) -> &'static str {
    let given = vars.iter().rev().find(|(key, _)| key == "CNI_COMMAND").map(|(_, value)| value.as_str());
    let known = ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"];
    known.into_iter().find(|verb| Some(*verb) == given).unwrap_or("-")
}

fn code_of(outcome: &Outcome) -> u32 {
    CniError::decode(&outcome.stdout).map_or(russet_cni_spec::code::INTERNAL, |error| error.code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, DEFAULT_HEALTH, DefaultPools, Paths, StoreLocation};
    use crate::health::Readiness;
    use russet_journal::{Effect, JournalMetrics};
    use russet_plugins::Teardown;
    use russet_store::Sim;
    use russet_store::sim::Faults;
    use std::rc::Rc;

    /// The directory is that of its journal.
    fn operations() -> (Rc<Operations>, tempfile::TempDir) {
        operations_on(Sim::atomic(1))
    }

    fn operations_on(store: Sim) -> (Rc<Operations>, tempfile::TempDir) {
        let config = Config {
            paths: Paths::new("/nonexistent"),
            node_name: "node-a".parse().unwrap(),
            store: StoreLocation::Embedded,
            interface: None,
            calico: false,
            pools: DefaultPools::default(),
            mtu_bytes: None,
            health: DEFAULT_HEALTH.into(),
            ui: None,
            sync_delete: false,
            leak_repair: None,
            cni_caches: Vec::new(),
            ipam: Default::default(),
            annotate: Default::default(),
            policies: Default::default(),
            fast_path: Default::default(),
            big_tcp: Default::default(),
            conflist: None,
            calico_kubeconfig: None,
            peers: Default::default(),
            openshift: None,
        };
        let mut node = crate::node(&config, Rc::new(store), Teardown::Synchronous, &Readiness::pending());
        let history = History::at("/nonexistent/history".into());
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) =
            Journal::open(dir.path().join("journal"), "boot".to_owned(), JournalMetrics::default());
        let journal = Rc::new(journal);
        node.host.wiring = node.host.wiring.with_observer_and_precreation(Rc::clone(&journal) as _);
        (Rc::new(Operations::new(node, Metrics::new().0, history, journal)), dir)
    }

    fn run<T>(body: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, body)
    }

    /// Runs a request whose caller waits without limit.
    async fn execute(operations: &Rc<Operations>, message: RelayRequest) -> Outcome {
        operations.execute(message, std::future::pending()).await
    }

    fn message(verb: &str, deadline: Duration) -> RelayRequest {
        let vars = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "abc"),
            ("CNI_NETNS", "/nonexistent"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"),
            ("CNI_PATH", "/"),
        ];
        RelayRequest {
            plugin: "loopback".to_owned(),
            env: vars.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
            config:
                br#"{"cniVersion":"1.1.0","name":"net","type":"loopback","cni.dev/valid-attachments":[]}"#
                    .to_vec(),
            deadline,
            timing: false,
        }
    }

    #[test]
    fn a_request_that_does_not_get_its_locks_fails_with_try_again_later() {
        let (operations, _dir) = operations();
        let short = Duration::from_millis(10);
        for subject in ["abc", "default/web-0"] {
            let busy = operations.main.try_lock(subject.to_owned()).unwrap();
            assert_eq!(code_of(&run(execute(&operations, message("DEL", short)))), 11, "{subject}");
            drop(busy);
        }
        let busy = operations.main.try_lock("def".to_owned()).unwrap();
        assert_eq!(code_of(&run(execute(&operations, message("GC", short)))), 11);
        drop(busy);
        for verb in ["DEL", "GC"] {
            assert!(run(execute(&operations, message(verb, Duration::ZERO))).is_success(), "{verb}");
        }
    }

    #[test]
    fn the_stages_of_a_request_are_reported_on_demand() {
        let (operations, _dir) = operations();
        let message = message("DEL", Duration::from_secs(5));
        let silent = run(execute(&operations, message.clone()));
        assert!(silent.is_success() && silent.timing.is_none());
        let busy = operations.main.try_lock("abc".to_owned()).unwrap();
        let timed = run(async {
            let wait = async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                drop(busy);
            };
            tokio::join!(execute(&operations, RelayRequest { timing: true, ..message }), wait).0
        });
        let timing = timed.timing.unwrap();
        let sum: u64 = timing.stages.iter().map(|(_, us)| us).sum();
        assert!(timing.plugin == "loopback" && sum <= timing.total_us, "{timing:?}");
        assert!(
            matches!(&timing.stages[..], [(stage, us), (journal, _)] if stage == "turn" && *us >= 4000 && journal == "journal"),
            "{timing:?}"
        );
        let counted = operations.metrics.stages_of("DEL", Stage::Turn);
        assert_eq!(counted, 2, "both requests are counted");
    }

    /// A DEL that the plugin has carried out except for its release, with its locks; with a journal
    /// entry if `written`.
    async fn carried_out(operations: &Rc<Operations>, written: bool) -> (Option<u64>, Request, LockGuard) {
        let message = message("DEL", Duration::ZERO);
        let request = Request::new(message.env.clone(), message.config).unwrap();
        let guard = operations.main.lock(lock_keys(&request, request.env.target().unwrap())).await;
        let begin = || operations.journal.begin("russet", &request, (&message.env, &request.stdin));
        let op = written.then(|| begin().unwrap().unwrap());
        (op, request, guard)
    }

    #[test]
    fn a_del_is_answered_before_its_release_which_keeps_its_locks_and_its_record() {
        let (operations, _dir) = operations();
        let (left, leavings) = std::sync::mpsc::channel();
        operations.set_remainder_handler(Box::new(move |op, what| left.send((op, what)).unwrap()));
        run(async {
            for fails in [false, true] {
                let (op, request, guard) = carried_out(&operations, true).await;
                let op = op.unwrap();
                let (finish, finished) = tokio::sync::oneshot::channel();
                let release = Release::new(&operations.node.releases, async { finished.await.unwrap() });
                let done = RequestOutcome { result: None, policy: None, release: Some(release) };
                let done = Rc::clone(&operations).ended(Ok(done), Some(op), request, guard).await.unwrap();
                assert!(done.release.is_none() && operations.journal.is_open(op));
                assert!(operations.main.try_lock("abc".to_owned()).is_none(), "the locks are held");
                let mut exclusive = Box::pin(operations.exclusive());
                let early = tokio::time::timeout(Duration::from_millis(40), &mut exclusive).await;
                assert!(early.is_err(), "a GC waits for what is left");
                let outcome = if fails { Err(CniError::internal("no", "")) } else { Ok(()) };
                finish.send(outcome).unwrap();
                drop(exclusive.await);
                assert_eq!(operations.journal.is_open(op), fails);
                assert_eq!(
                    leavings.try_recv().ok(),
                    fails.then_some((op, Remainder::Release)),
                    "it is tried again"
                );
            }
        });
    }

    #[test]
    fn a_failed_release_is_retried_without_the_rest_of_its_del() {
        let store = Sim::atomic(1);
        let (operations, _dir) = operations_on(store.clone());
        run(async {
            let (op, request, guard) = carried_out(&operations, true).await;
            let op = op.unwrap();
            drop(guard);
            for unavailable in [1000, 1000, 0] {
                store.set_faults(Faults { unavailable, ..Faults::default() });
                let finished = operations.finish(op, "russet", &request, Remainder::Release).await;
                assert_eq!(finished.is_ok_and(|done| done), unavailable == 0);
                let effects = operations.journal.open_one(op).unwrap().effects;
                assert_eq!(effects, [], "nothing is taken down once more");
            }
            operations.journal.end(op, 0).unwrap();
            assert!(!operations.finish(op, "russet", &request, Remainder::Release).await.unwrap());
        });
    }

    #[test]
    fn a_release_first_removes_what_a_later_failed_add_left() {
        let (operations, _dir) = operations_on(Sim::atomic(1));
        run(async {
            let (op, request, guard) = carried_out(&operations, true).await;
            drop(guard);
            let message = message("ADD", Duration::ZERO);
            let prepared = prepare(message.env.clone(), message.config, ABOUT).unwrap();
            let Prepared::Request(add) = prepared else { panic!("{prepared:?}") };
            let begun = operations.journal.begin("russet", &add, (&message.env, &add.stdin)).unwrap();
            // Half of its wiring may exist.
            operations.end(begun, 11).unwrap();
            let op = op.unwrap();
            // Whether there is a kernel to work on or not, an interface was searched.
            let _ = operations.finish(op, "russet", &request, Remainder::Release).await;
            let effects = operations.journal.open_one(op).unwrap().effects;
            assert!(matches!(effects[..], [(_, Effect::Leaving(_))]), "{effects:?}");
        });
    }

    #[test]
    fn with_too_many_open_operations_a_del_is_answered_when_it_is_done() {
        let (operations, _dir) = operations();
        run(async {
            for index in 0..OPEN_MAX {
                let mut message = message("DEL", Duration::ZERO);
                message.env[1].1 = format!("left-{index}");
                let request = Request::new(message.env.clone(), message.config).unwrap();
                operations.journal.begin("russet", &request, (&message.env, &request.stdin)).unwrap();
            }
            let (op, request, guard) = carried_out(&operations, true).await;
            let failing = async { Err(CniError::internal("the store is away", "")) };
            let release = Release::new(&operations.node.releases, failing);
            let done = RequestOutcome { result: None, policy: None, release: Some(release) };
            let error = Rc::clone(&operations).ended(Ok(done), op, request, guard).await.unwrap_err();
            assert!(error.msg.contains("the store is away") && !operations.journal.is_open(op.unwrap()));
        });
    }

    #[test]
    fn a_del_without_a_journal_entry_is_done_when_it_is_answered() {
        let (operations, _dir) = operations();
        run(async {
            for outcome in [Ok(()), Err(CniError::internal("no", ""))] {
                let (_, request, guard) = carried_out(&operations, false).await;
                let result = outcome.clone();
                let release = Release::new(&operations.node.releases, async {
                    tokio::task::yield_now().await;
                    result
                });
                let done = RequestOutcome { result: None, policy: None, release: Some(release) };
                let done = Rc::clone(&operations).ended(Ok(done), None, request, guard).await;
                assert_eq!(done.map(|done| done.release.is_none()), outcome.map(|()| true));
                assert_eq!(operations.node.releases.pending(), 0);
            }
        });
    }

    #[test]
    fn a_waiter_for_exclusive_access_does_not_delay_requests() {
        // cni-runtime.md section 6.2 item 53: a GC waits for what is in progress
        let (operations, _dir) = operations();
        run(async {
            // A slow ADD of another container.
            for slow in [&operations.main, &operations.ipam] {
                let slow = slow.try_lock("def".to_owned()).unwrap();
                let del = async {
                    tokio::time::sleep(Duration::from_millis(40)).await;
                    execute(&operations, message("DEL", Duration::from_secs(5))).await
                };
                let exclusive = async {
                    let gc = execute(&operations, message("GC", Duration::from_secs(600)));
                    tokio::join!(gc, async { drop(operations.exclusive().await) })
                };
                tokio::pin!(exclusive);
                tokio::select! {
                    del = del => assert!(del.is_success(), "{}", code_of(&del)),
                    _ = &mut exclusive => panic!("exclusive access while a request is in progress"),
                }
                drop(slow);
                assert!(exclusive.await.0.is_success());
            }
        });
    }

    #[test]
    fn an_ipam_plugin_does_not_wait_for_the_main_plugin_that_calls_it() {
        let (operations, _dir) = operations();
        for verb in ["DEL", "GC"] {
            // The locks of the main plugin's own request for this verb.
            let _main = match verb {
                "DEL" => run(operations.main.lock(["abc", "default/web-0"].map(str::to_owned))),
                _ => operations.main.try_exclusive().unwrap(),
            };
            let request =
                RelayRequest { plugin: "calico-ipam".to_owned(), ..message(verb, Duration::from_secs(5)) };
            let outcome = run(execute(&operations, request));
            // Its configuration names no datastore, which means the Kubernetes API of this process's
            // pod, and there is none: it is refused, but not for lack of a lock.
            assert_eq!(code_of(&outcome), 7, "{verb}");
        }
    }

    #[test]
    fn a_request_whose_caller_disconnects_before_it_gets_its_locks_is_not_started() {
        let (operations, _dir) = operations();
        run(async {
            let busy = operations.main.try_lock("abc".to_owned()).unwrap();
            let (here, gone) = tokio::sync::oneshot::channel::<()>();
            let waiting =
                operations.execute(message("DEL", Duration::from_secs(600)), async { _ = gone.await });
            let outcome = tokio::join!(waiting, async { drop(here) }).0;
            assert_eq!(code_of(&outcome), 11);
            drop(busy);
            // A request that holds its locks is carried out, whether its caller waits or not.
            let done =
                operations.execute(message("DEL", Duration::from_secs(5)), std::future::pending()).await;
            assert!(done.is_success());
            assert!(operations.main.try_lock("abc".to_owned()).is_some(), "the locks are released");
        });
    }
}
