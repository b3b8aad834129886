//! What keeps a replica that does not lead from writing: every write asks the fence when it begins.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use russet_model::{Key, Prefix};
use russet_store::{
    BoxFuture, Cause, Claims, CommitError, Record, Revision, Snapshot, Step, Store, StoreError, Watch,
};

/// Until when writes may begin. Clones share it; at first nothing may be written.
#[derive(Debug, Clone, Default)]
pub struct Fence(Rc<Cell<Option<Instant>>>);

/// A store whose commits are refused unless the fence is open.
pub struct FencedStore {
    store: Rc<dyn Store>,
    fence: Fence,
}

// === impl Fence ===

impl Fence {
    /// Writes may begin until this moment.
    pub fn open(&self, until: Option<Instant>) {
        self.0.set(until);
    }

    /// No write may begin.
    pub fn close(&self) {
        self.0.set(None);
    }

    pub fn is_open(&self) -> bool {
        self.0.get().is_some_and(|until| Instant::now() < until)
    }
}

// === impl FencedStore ===

impl FencedStore {
    pub fn new(store: Rc<dyn Store>, fence: Fence) -> Self {
        Self { store, fence }
    }
}

impl Store for FencedStore {
    fn claims(&self) -> Claims {
        self.store.claims()
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.store.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.store.list(prefix)
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        self.store.scan(prefix, take)
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(async move {
            if self.fence.is_open() {
                return self.store.commit(steps).await;
            }
            let key = steps.first().map(|step| step.key().to_string()).unwrap_or_default();
            let source = Cause::text("this replica does not lead, or could not renew its lease");
            Err(StoreError::Unavailable { operation: format!("write {key}"), source }.into())
        })
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        self.store.watch(prefix)
    }
}
