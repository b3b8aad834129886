//! What every engine must do, as cases that run over any of them: *core* for all, *atomic* and *ttl* for those that claim it (ARCHITECTURE.md, "The store").
//! Run by the tests of this crate and of each engine's crate, inside a tokio runtime of one thread.

// A failed case is a failed test: panicking with what was expected is its purpose.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod atomic;
mod core;
mod core_watch;
mod ttl;
mod watched;

use std::rc::Rc;
use std::time::Duration;

use russet_model::{HandleId, Key};

use crate::{BoxFuture, Event, Revision, Step, Store, Watch};
use watched::WatchedRecords;

/// Limit of a wait for anything that happens without a request, including real servers on a busy
/// machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A new, empty store to test.
pub trait Subject {
    /// A client of the store. Each call returns another client, through its own connection if the
    /// engine has connections.
    fn store(&self) -> Rc<dyn Store>;

    /// Lets time pass for leases.
    fn pass(&self, time: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(time))
    }

    /// Interrupts watches: compacts the log, cuts connections, restarts the server. The records
    /// stay.
    fn interrupt(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// A value in the form in which it compares after a round trip, for engines that store another
    /// spelling.
    fn canonical(&self, value: &[u8]) -> Vec<u8> {
        value.to_vec()
    }

    /// Number of records that count as "many".
    fn many(&self) -> usize {
        10_000
    }
}

/// One running case.
pub(crate) struct Bench<'a> {
    pub(crate) subject: &'a dyn Subject,
    pub(crate) store: Rc<dyn Store>,
}

type Case = for<'a> fn(&'a Bench<'a>) -> BoxFuture<'a, ()>;

/// Runs the core part; `fresh` creates an empty store for each case.
pub async fn core<S: Subject>(fresh: impl AsyncFn() -> S) {
    run(core::CASES, &fresh).await;
    run(core_watch::CASES, &fresh).await;
}

/// Runs the atomic part. Panics for an engine that does not claim it.
pub async fn atomic<S: Subject>(fresh: impl AsyncFn() -> S) {
    run(atomic::CASES, &fresh).await;
}

/// Runs the part about leases. Panics for an engine that does not claim it.
pub async fn ttl<S: Subject>(fresh: impl AsyncFn() -> S) {
    run(ttl::CASES, &fresh).await;
}

async fn run<S: Subject>(cases: &[(&str, Case)], fresh: &impl AsyncFn() -> S) {
    for (name, case) in cases {
        eprintln!("conformance: {name}");
        let subject = fresh().await;
        let bench = Bench { subject: &subject, store: subject.store() };
        case(&bench).await;
    }
}

/// The key of the nth handle: every engine has handles, and no other record depends on them.
fn key(n: usize) -> Key {
    Key::handle(&HandleId::new(format!("k8s-pod-network.{n:06}")).unwrap())
}

/// A handle's value with this count.
fn value(count: usize) -> Vec<u8> {
    format!(r#"{{"block":{{"10.1.0.16/29":{count}}},"deleted":false}}"#).into_bytes()
}

/// The count in a value.
fn count(value: &[u8]) -> usize {
    let handle: serde_json::Value = serde_json::from_slice(value).unwrap();
    usize::try_from(handle["block"]["10.1.0.16/29"].as_u64().unwrap()).unwrap()
}

// === impl Bench ===

impl Bench<'_> {
    /// Commits one step that must succeed.
    async fn one(&self, step: Step) -> Revision {
        self.store.commit(vec![step]).await.unwrap()[0]
    }

    async fn create(&self, n: usize, count: usize) -> Revision {
        self.one(Step::create(key(n), value(count))).await
    }

    /// The count of the nth record, `None` when there is none.
    async fn count(&self, n: usize) -> Option<usize> {
        self.store.get(&key(n)).await.unwrap().map(|record| count(&record.value))
    }

    async fn revision(&self, n: usize) -> Revision {
        self.store.get(&key(n)).await.unwrap().expect("the record is there").revision
    }
}

/// The next event, or a failed case.
async fn next(watch: &mut Box<dyn Watch>) -> Event {
    tokio::time::timeout(TIMEOUT, watch.next()).await.expect("the watch has an event").unwrap()
}

#[cfg(test)]
mod tests;
