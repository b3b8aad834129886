//! A worker's store, with counts of lost races and of commits with an unknown outcome. The
//! allocator resolves nearly all of the latter itself, so that its callers do not see them.

use std::cell::Cell;
use std::rc::Rc;

use russet_store::{BoxFuture, CommitError, Revision, Step, Store};
use russet_store_etcd::Etcd;
use russet_testkit::forward_store;

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
    forward_store!(self.store: claims get list watch);

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
}
