//! The agent's store with a measurement of every request. `lib` puts it between the engine and all
//! users of the store.

use std::rc::Rc;
use std::time::Duration;

use russet_model::{Key, Prefix};
use russet_store::{
    BoxFuture, Claims, CommitError, Event, LeaseId, Record, Revision, Snapshot, Step, Store, StoreError,
    Tenure, Watch,
};

use crate::metrics::StoreMetrics;

/// A store whose requests are measured. Each method is passed on as it is, so that an engine's own
/// implementation is used.
pub struct Measured {
    store: Rc<dyn Store>,
    metrics: StoreMetrics,
}

/// A watch whose events are counted.
struct MeasuredWatch {
    watch: Box<dyn Watch>,
    metrics: StoreMetrics,
}

/// An error with a class for the metric's label.
trait Class {
    /// The store's error.
    fn error(&self) -> &StoreError;
}

/// The label, and whether the store itself returned the error.
fn class(error: &StoreError) -> (&'static str, bool) {
    match error {
        StoreError::Conflict { .. } => ("conflict", true),
        StoreError::AlreadyExists { .. } => ("exists", true),
        StoreError::NotFound { .. } => ("not_found", true),
        StoreError::NoLease { .. } => ("no_lease", true),
        StoreError::Unknown { .. } => ("unknown", false),
        StoreError::Unavailable { .. } => ("unavailable", false),
        StoreError::Corrupt { .. } => ("corrupt", true),
        StoreError::Full { .. } => ("full", true),
        StoreError::Invalid { .. } => ("invalid", false),
        StoreError::Unsupported { .. } => ("unsupported", false),
    }
}

// === impl Class ===

impl Class for StoreError {
    fn error(&self) -> &StoreError {
        self
    }
}

impl Class for CommitError {
    fn error(&self) -> &StoreError {
        &self.error
    }
}

// === impl Measured ===

impl Measured {
    /// `store`, measured.
    pub fn over(store: &Rc<dyn Store>, metrics: &StoreMetrics) -> Rc<Self> {
        Rc::new(Self { store: Rc::clone(store), metrics: metrics.clone() })
    }

    fn timed<'a, T: 'a, E: Class + 'a>(
        &'a self,
        op: &'static str,
        work: BoxFuture<'a, Result<T, E>>,
    ) -> BoxFuture<'a, Result<T, E>> {
        Box::pin(async move {
            let clock = self.metrics.clock(op);
            let done = work.await;
            let (outcome, heard) = done.as_ref().err().map_or(("ok", true), |error| class(error.error()));
            clock.ended(outcome, heard);
            done
        })
    }

    /// The same for requests that open a watch.
    fn opened<'a>(
        &'a self,
        op: &'static str,
        work: BoxFuture<'a, Result<Box<dyn Watch>, StoreError>>,
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        let opened = self.timed(op, work);
        Box::pin(async move {
            let metrics = self.metrics.clone();
            opened.await.map(|watch| Box::new(MeasuredWatch { watch, metrics }) as Box<dyn Watch>)
        })
    }
}

impl Store for Measured {
    fn claims(&self) -> Claims {
        self.store.claims()
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.timed("get", self.store.get(key))
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.timed("list", self.store.list(prefix))
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        self.timed("scan", self.store.scan(prefix, take))
    }

    fn scan_marked<'a>(
        &'a self,
        prefix: &'a Prefix,
        marks: &'a mut dyn FnMut(&Key) -> Vec<Key>,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        self.timed("scan_marked", self.store.scan_marked(prefix, marks, take))
    }

    fn keys<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Vec<Key>, StoreError>> {
        self.timed("keys", self.store.keys(prefix))
    }

    fn holds<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.timed("holds", self.store.holds(prefix))
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        self.timed("commit", self.store.commit(steps))
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        self.opened("watch", self.store.watch(prefix))
    }

    fn follow<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        self.opened("follow", self.store.follow(prefix, take))
    }

    fn tenure<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<(Record, Tenure)>, StoreError>> {
        self.timed("tenure", self.store.tenure(key))
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        self.timed("grant", self.store.grant(ttl))
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        self.timed("keep_alive", self.store.keep_alive(lease))
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        self.timed("revoke", self.store.revoke(lease))
    }
}

// === impl MeasuredWatch ===

impl Watch for MeasuredWatch {
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>> {
        Box::pin(async move {
            let event = self.watch.next().await?;
            self.metrics.event_received();
            Ok(event)
        })
    }
}

#[cfg(test)]
mod tests {
    use russet_store::Sim;

    use super::*;

    const OPERATIONS: [&str; 13] = [
        "get",
        "list",
        "scan",
        "scan_marked",
        "keys",
        "holds",
        "commit",
        "watch",
        "follow",
        "tenure",
        "grant",
        "keep_alive",
        "revoke",
    ];

    fn measured(metrics: &StoreMetrics) -> Rc<Measured> {
        let store: Rc<dyn Store> = Rc::new(Sim::atomic(1));
        Measured::over(&store, metrics)
    }

    fn step(key: &Key) -> Step {
        Step::Create { key: key.clone(), value: b"{}".to_vec(), lease: None }
    }

    #[test]
    fn every_operation_is_passed_on_and_measured_once() {
        // A method that is not passed on would use the trait's default implementation, which is a
        // request of another operation.
        let metrics = StoreMetrics::default();
        let store = measured(&metrics);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (key, prefix) = (Key::from_stored("/calico/a"), Prefix::from_stored("/calico/"));
        runtime.block_on(async {
            store.commit(vec![step(&key)]).await.unwrap();
            store.get(&key).await.unwrap().unwrap();
            store.list(&prefix).await.unwrap();
            let mut seen = 0;
            store.scan(&prefix, &mut |_| seen += 1).await.unwrap();
            store.scan_marked(&prefix, &mut |_| Vec::new(), &mut |_| seen += 1).await.unwrap();
            assert_eq!((seen, store.keys(&prefix).await.unwrap().len()), (2, 1));
            assert!(store.holds(&prefix).await.unwrap());
            let mut watch = store.watch(&prefix).await.unwrap();
            watch.next().await.unwrap();
            drop(store.follow(&prefix, &mut |_| {}).await.unwrap());
            store.tenure(&key).await.unwrap();
            let lease = store.grant(Duration::from_secs(60)).await.unwrap();
            store.keep_alive(lease).await.unwrap();
            store.revoke(lease).await.unwrap();
        });
        for op in OPERATIONS {
            assert_eq!(metrics.count(op, "ok"), 1, "{op}");
        }
        assert_eq!(store.claims(), Sim::atomic(1).claims());
    }

    #[test]
    fn failed_and_abandoned_requests_are_counted() {
        let metrics = StoreMetrics::default();
        let store = measured(&metrics);
        let key = Key::from_stored("/calico/a");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            store.commit(vec![step(&key)]).await.unwrap();
            store.commit(vec![step(&key)]).await.unwrap_err();
            let never = store.timed::<(), StoreError>("get", Box::pin(std::future::pending()));
            tokio::time::timeout(Duration::from_millis(1), never).await.unwrap_err();
        });
        let counts = [metrics.count("commit", "exists"), metrics.count("get", "abandoned")];
        assert_eq!(counts, [1, 1]);
    }
}
