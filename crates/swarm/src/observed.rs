//! A worker's store, with counts of lost races and of commits with an unknown outcome. The
//! allocator resolves nearly all of the latter itself, so that its callers do not see them.

use std::cell::Cell;
use std::rc::Rc;

use russet_model::{Key, Prefix};
use russet_store::{
    BoxFuture, Claims, CommitError, Record, Revision, Snapshot, Step, Store, StoreError, Watch,
};
use russet_store_etcd::Etcd;

/// A store and what its commits met.
pub struct Observed {
    store: Etcd,
    pub counts: Rc<Counts>,
}

/// What commits met.
#[derive(Default)]
pub struct Counts {
    pub unknown: Cell<u64>,
    pub lost_races: Cell<u64>,
}

// === impl Observed ===

impl Observed {
    pub fn new(store: Etcd) -> Self {
        Self { store, counts: Rc::default() }
    }
}

impl Store for Observed {
    fn claims(&self) -> Claims {
        self.store.claims()
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.store.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.store.list(prefix)
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(async move {
            let result = self.store.commit(steps).await;
            if let Err(CommitError { error, .. }) = &result {
                let counted = match error {
                    error if error.outcome_unknown() => Some(&self.counts.unknown),
                    error if error.lost_race() => Some(&self.counts.lost_races),
                    _ => None,
                };
                counted.iter().for_each(|count| count.set(count.get() + 1));
            }
            result
        })
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        self.store.watch(prefix)
    }
}
