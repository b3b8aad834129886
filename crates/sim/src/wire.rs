//! A node's connection to the simulated store: records its operations, and when something may have
//! been written.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use russet_ipam::Clock;
use russet_model::{Key, KeyKind, Prefix};
use russet_store::{
    BoxFuture, Claims, CommitError, Record, Revision, Sim, Snapshot, Step, Store, StoreError, Watch,
};

use crate::go::Environment;

/// What all connections share: the step counter, the clock, and the trace.
pub(crate) struct Log {
    traced: bool,
    lines: RefCell<Vec<String>>,
    pub(crate) step: Cell<u64>,
    now: Cell<Duration>,
    /// A commit was in progress since the last check.
    pub(crate) written: Cell<bool>,
    /// Commits of several requests.
    pub(crate) shared_commits: Cell<u64>,
    /// A runtime got addresses since the last check.
    pub(crate) answered: Cell<bool>,
}

/// One connection.
pub(crate) struct Wire {
    pub(crate) sim: Sim,
    pub(crate) who: String,
    pub(crate) log: Rc<Log>,
}

/// The simulated clock, as the allocators see it.
pub(crate) struct SimClock(pub(crate) Rc<Log>);

/// When simulations begin; that of the vectors of calico-ipam.md section 8.
const BEGIN: Duration = Duration::from_secs(1_767_322_800);

// === impl Log ===

impl Log {
    pub(crate) fn new(traced: bool) -> Self {
        Self {
            traced,
            lines: RefCell::default(),
            step: Cell::new(0),
            now: Cell::new(BEGIN),
            written: Cell::new(false),
            answered: Cell::new(false),
            shared_commits: Cell::new(0),
        }
    }

    /// Adds a line to the trace, if there is one.
    pub(crate) fn note(&self, who: &str, line: impl FnOnce() -> String) {
        if self.traced {
            self.lines.borrow_mut().push(format!("{:5} {who}: {}", self.step.get(), line()));
        }
    }

    pub(crate) fn take_lines(&self) -> Vec<String> {
        self.lines.take()
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    /// The time. No two readings are the same, as with real nanoseconds.
    pub(crate) fn now(&self) -> SystemTime {
        self.advance(Duration::from_nanos(1));
        UNIX_EPOCH + self.now.get()
    }
}

impl Clock for SimClock {
    fn now(&self) -> SystemTime {
        self.0.now()
    }
}

// === impl Wire ===

impl Environment for Wire {
    fn now(&self) -> SystemTime {
        self.log.now()
    }

    fn note(&self, line: &dyn Fn() -> String) {
        self.log.note(&self.who, line);
    }
}

impl Store for Wire {
    fn claims(&self) -> Claims {
        self.sim.claims()
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            let result = self.sim.get(key).await;
            self.log.note(&self.who, || match &result {
                Ok(Some(record)) => format!("get {} -> @{}", short(key), record.revision.0),
                Ok(None) => format!("get {} -> none", short(key)),
                Err(error) => format!("get {} -> {error}", short(key)),
            });
            result
        })
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            let result = self.sim.list(prefix).await;
            self.log.note(&self.who, || match &result {
                Ok(snapshot) => format!("list {prefix} -> {} records", snapshot.records.len()),
                Err(error) => format!("list {prefix} -> {error}"),
            });
            result
        })
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(async move {
            let text: Vec<String> =
                if self.log.traced { steps.iter().map(describe).collect() } else { Vec::new() };
            self.log.note(&self.who, || format!("send {}", text.join(" + ")));
            let handles = steps.iter().filter(|step| matches!(step.key().kind(), KeyKind::Handle(_))).count();
            if handles > 1 {
                self.log.shared_commits.set(self.log.shared_commits.get() + 1);
            }
            let mut work = self.sim.commit(steps);
            let result = poll_fn(|context| {
                self.log.written.set(true);
                work.as_mut().poll(context)
            })
            .await;
            self.log.note(&self.who, || match &result {
                Ok(revisions) => format!("done @{}", revisions.last().map_or(0, |revision| revision.0)),
                Err(error) => format!("not done: {error}"),
            });
            result
        })
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        self.sim.watch(prefix)
    }
}

/// A step in readable form: operation, subject, and value.
fn describe(step: &Step) -> String {
    let (verb, guard) = match step {
        Step::Create { .. } => ("create", String::new()),
        Step::Update { revision, .. } => ("update", format!("@{}", revision.0)),
        Step::Delete { revision, .. } => ("delete", revision.map_or(String::new(), |r| format!("@{}", r.0))),
        Step::Put { .. } => ("put", String::new()),
    };
    let value = step.value().map(String::from_utf8_lossy).unwrap_or_default();
    format!("{verb} {}{guard} {value}", short(step.key()))
}

/// A key without what all keys have in common.
fn short(key: &Key) -> &str {
    let path = key.as_str();
    let path = path.strip_prefix("/calico/ipam/v2/").unwrap_or(path);
    path.strip_prefix("assignment/").unwrap_or(path)
}
