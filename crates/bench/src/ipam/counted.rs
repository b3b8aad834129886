//! A store that counts what is asked of it.

use std::cell::Cell;
use std::rc::Rc;

use russet_model::{Key, Prefix};
use russet_store::{BoxFuture, CommitError, Record, Revision, Snapshot, Step, Store, StoreError};
use russet_testkit::forward_store;

/// What all stores of one implementation were asked for.
#[derive(Default)]
pub struct Counts {
    commits: Cell<u64>,
    reads: Cell<u64>,
}

/// A store whose use is counted.
pub struct Counted {
    inner: Rc<dyn Store>,
    counts: Rc<Counts>,
}

// === impl Counts ===

impl Counts {
    /// Commits asked for, refused ones included.
    pub fn commits(&self) -> u64 {
        self.commits.get()
    }

    /// Records and listings asked for.
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Counts from 0 again.
    pub fn reset(&self) {
        self.commits.set(0);
        self.reads.set(0);
    }
}

// === impl Counted ===

impl Counted {
    /// The same store, counted.
    pub fn new(inner: Rc<dyn Store>, counts: &Rc<Counts>) -> Self {
        Self { inner, counts: Rc::clone(counts) }
    }

    fn read(&self) {
        self.counts.reads.set(self.counts.reads.get() + 1);
    }
}

impl Store for Counted {
    forward_store!(self.inner: claims watch);

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.read();
        self.inner.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.read();
        self.inner.list(prefix)
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        self.counts.commits.set(self.counts.commits.get() + 1);
        self.inner.commit(steps)
    }
}
