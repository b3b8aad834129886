//! The simulated engine: a store in memory whose faults are chosen by a seed or a script, so that a
//! run can be replayed. Single-threaded and without a clock of its own. Used by the conformance
//! suite, by the allocator's tests and by the cluster simulation.
//!
//! Every operation can be dropped before it takes effect and afterwards, and in non-atomic mode
//! around each step: a driver that stops polling there has crashed its node.

mod state;
mod watch;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use russet_model::{Key, Prefix};
pub use russet_sync::Rng;

use crate::{
    BoxFuture, Cause, Claims, CommitError, LeaseId, Record, Revision, Snapshot, Step, Store, StoreError,
    Tenure, Watch, check_steps,
};
use state::State;
use watch::SimWatch;

/// A simulated store. Clones are further clients of the same store, with the same faults.
#[derive(Clone)]
pub struct Sim {
    inner: Rc<RefCell<Inner>>,
    atomic: bool,
}

/// The possible faults of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing does.
    None,
    /// Another writer changes the first guarded record just before, so that the guard fails.
    Conflict,
    /// It takes effect, and the answer is lost: `Unknown`.
    LostReply,
    /// The request is lost, which the client cannot distinguish from a lost answer: `Unknown`. A
    /// read is `Unavailable`.
    LostRequest,
    /// The store is known to be unavailable: `Unavailable`.
    Unavailable,
}

/// The probability of each random fault, in thousandths.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// `Fault::Conflict`.
    pub conflict: u32,
    /// `Fault::LostReply`.
    pub lost_reply: u32,
    /// `Fault::LostRequest`.
    pub lost_request: u32,
    /// `Fault::Unavailable`.
    pub unavailable: u32,
    /// An event of a watch comes later.
    pub delayed_event: u32,
    /// The change log is compacted before a watch reads it.
    pub compaction: u32,
}

struct Inner {
    state: State,
    rng: Rng,
    faults: Faults,
    /// Faults of the next writes; afterwards they are random.
    script: std::collections::VecDeque<Fault>,
    operations: u64,
}

// === impl Sim ===

impl Sim {
    /// An empty store whose commits are all or nothing.
    pub fn atomic(seed: u64) -> Self {
        Self::new(seed, true)
    }

    /// An empty store that applies the steps of a commit one by one, as Kubernetes does.
    pub fn non_atomic(seed: u64) -> Self {
        Self::new(seed, false)
    }

    fn new(seed: u64, atomic: bool) -> Self {
        let inner = Inner {
            state: State::default(),
            rng: Rng::new(seed),
            faults: Faults::default(),
            script: std::collections::VecDeque::new(),
            operations: 0,
        };
        Self { inner: Rc::new(RefCell::new(inner)), atomic }
    }

    /// Enables random faults.
    pub fn set_faults(&self, faults: Faults) {
        self.inner.borrow_mut().faults = faults;
    }

    /// Sets the faults of the next writes, one for each step if steps are applied one by one;
    /// afterwards they are random again.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.inner.borrow_mut().script.extend(faults);
    }

    /// Clears the change log: every watch has to compare a complete list.
    pub fn compact(&self) {
        self.inner.borrow_mut().state.compact();
    }

    /// Advances the clock; leases expire in the order of their deadlines.
    pub fn advance(&self, time: Duration) {
        self.inner.borrow_mut().state.advance(time);
    }

    /// The clock: time since the store was made.
    pub fn now(&self) -> Duration {
        self.inner.borrow().state.now
    }

    /// Every record, without faults and without a point at which the call can be dropped.
    pub fn records(&self) -> BTreeMap<Key, Record> {
        self.inner
            .borrow()
            .state
            .records
            .iter()
            .map(|(key, held)| (key.clone(), held.record.clone()))
            .collect()
    }

    /// Number of operations so far, for tests of cost.
    pub fn operations(&self) -> u64 {
        self.inner.borrow().operations
    }

    /// The state as text, identical for the same seed and callers.
    pub fn dump(&self) -> String {
        let inner = self.inner.borrow();
        let mut text = format!("revision {} at {:?}\n", inner.state.revision.0, inner.state.now);
        for held in inner.state.records.values() {
            let lease = held.lease.map_or(String::new(), |lease| format!(" lease {}", lease.0));
            let value = String::from_utf8_lossy(&held.record.value);
            let _ = writeln!(text, "{} @{}{lease} {value}", held.record.key, held.record.revision.0);
        }
        text
    }

    /// The fault of the next write.
    fn draw(&self) -> Fault {
        let inner = &mut *self.inner.borrow_mut();
        if let Some(fault) = inner.script.pop_front() {
            return fault;
        }
        let faults = inner.faults;
        let odds = [
            (faults.conflict, Fault::Conflict),
            (faults.lost_reply, Fault::LostReply),
            (faults.lost_request, Fault::LostRequest),
            (faults.unavailable, Fault::Unavailable),
        ];
        let mut drawn = inner.rng.below(1000);
        for (odds, fault) in odds {
            if drawn < u64::from(odds) {
                return fault;
            }
            drawn -= u64::from(odds);
        }
        Fault::None
    }

    /// A read: it can only fail as unavailable, and ignores a script for writes.
    async fn read<T>(
        &self,
        operation: impl FnOnce() -> String,
        query: impl FnOnce(&State) -> T,
    ) -> Result<T, StoreError> {
        pause().await;
        let value = {
            let inner = &mut *self.inner.borrow_mut();
            inner.operations += 1;
            let odds =
                u64::from(inner.faults.unavailable + inner.faults.lost_request + inner.faults.lost_reply);
            if inner.rng.below(1000) < odds {
                return Err(unavailable(operation()));
            }
            query(&inner.state)
        };
        pause().await;
        Ok(value)
    }

    /// A write: `work` takes effect between the two points at which the caller can be dropped,
    /// unless the fault says otherwise.
    async fn write<T>(
        &self,
        operation: &str,
        steps: &[Step],
        work: impl FnOnce(&mut State) -> Result<T, CommitError>,
    ) -> Result<T, CommitError> {
        pause().await;
        let fault = self.draw();
        let result = {
            let inner = &mut *self.inner.borrow_mut();
            inner.operations += 1;
            match fault {
                Fault::LostRequest => Err(unknown(operation).into()),
                Fault::Unavailable => Err(unavailable(operation.to_owned()).into()),
                Fault::Conflict => {
                    inner.state.touch_first_guarded(steps);
                    work(&mut inner.state)
                }
                Fault::None => work(&mut inner.state),
                Fault::LostReply => {
                    // The result stays on the store's side.
                    let _ = work(&mut inner.state);
                    Err(unknown(operation).into())
                }
            }
        };
        pause().await;
        result
    }

    async fn commit_steps(&self, steps: Vec<Step>) -> Result<Vec<Revision>, CommitError> {
        check_steps(&steps)?;
        if steps.is_empty() {
            return Ok(Vec::new());
        }
        if self.atomic {
            return self.write("commit", &steps, |state| state.commit(&steps)).await;
        }
        let mut revisions = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            let one = std::slice::from_ref(step);
            let done = self.write("commit step", one, |state| state.commit(one)).await;
            revisions.extend(done.map_err(|CommitError { error, .. }| CommitError {
                done: index,
                failed: index,
                error,
            })?);
        }
        Ok(revisions)
    }
}

impl Store for Sim {
    fn claims(&self) -> Claims {
        Claims { atomic: self.atomic, ttl: true }
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.read(move || format!("get {key}"), |state| state.get(key)))
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(self.read(move || format!("list {prefix}"), |state| state.list(prefix)))
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(self.commit_steps(steps))
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            pause().await;
            Ok(Box::new(SimWatch::new(self.clone(), prefix.clone())) as Box<dyn Watch>)
        })
    }

    fn tenure<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<(Record, Tenure)>, StoreError>> {
        Box::pin(self.read(move || format!("get {key}"), |state| state.tenure(key)))
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        Box::pin(async move { Ok(self.write("grant lease", &[], |state| Ok(state.grant(ttl))).await?) })
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(async move {
            Ok(self.write("keep lease alive", &[], |state| Ok(state.keep_alive(lease)?)).await?)
        })
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { Ok(self.write("revoke lease", &[], |state| Ok(state.revoke(lease)?)).await?) })
    }
}

/// A point at which the driver may continue with another node, or drop this one.
async fn pause() {
    let mut paused = false;
    poll_fn(|context| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn unknown(operation: &str) -> StoreError {
    StoreError::Unknown { operation: operation.to_owned(), source: Cause::text("simulated: no answer came") }
}

fn unavailable(operation: String) -> StoreError {
    StoreError::Unavailable { operation, source: Cause::text("simulated: the store is away") }
}

#[cfg(test)]
mod tests;
