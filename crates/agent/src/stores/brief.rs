//! The embedded store of a node without an agent, open only while a request uses it: `direct` closes it before the kernel has work to do, so that requests
//! that come at once wire and delete their links beside each other instead of one after the other.

use std::rc::Rc;
use std::time::Duration;

use russet_model::{Key, Prefix};
use russet_store::{
    BoxFuture, Claims, CommitError, Event, LeaseId, Record, Revision, Snapshot, Step, Store, StoreError,
    Tenure, Watch,
};
use tokio::sync::Mutex;

use super::{Opened, open_local};
use crate::config::Paths;

/// The embedded store, opened by the first operation after [`close`](Self::close).
pub struct BriefStore {
    paths: Paths,
    opened: Mutex<Option<Rc<Opened>>>,
}

/// A watch, and what keeps its store open.
struct OpenWatch {
    // The order matters: the watch ends before the store is closed.
    watch: Box<dyn Watch>,
    _opened: Rc<Opened>,
}

// === impl BriefStore ===

impl BriefStore {
    /// The store of the node with these paths; nothing is opened yet.
    pub fn new(paths: &Paths) -> Self {
        Self { paths: paths.clone(), opened: Mutex::new(None) }
    }

    /// Opens the store, or waits until its lock is free.
    pub async fn open(&self) -> Result<Rc<Opened>, StoreError> {
        let mut opened = self.opened.lock().await;
        if let Some(opened) = &*opened {
            return Ok(Rc::clone(opened));
        }
        let fresh = Rc::new(open_local(&self.paths).await?);
        Ok(Rc::clone(opened.insert(fresh)))
    }

    /// Closes the store as soon as no operation or watch uses it any more.
    pub fn close(&self) {
        if let Ok(mut opened) = self.opened.try_lock() {
            *opened = None;
        }
    }
}

impl Store for BriefStore {
    fn claims(&self) -> Claims {
        // Those of the engine, which are also those of its owner's socket.
        Claims { atomic: true, ttl: true }
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move { self.open().await?.store.get(key).await })
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move { self.open().await?.store.list(prefix).await })
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move { self.open().await?.store.scan(prefix, take).await })
    }

    fn scan_marked<'a>(
        &'a self,
        prefix: &'a Prefix,
        marks: &'a mut dyn FnMut(&Key) -> Vec<Key>,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move { self.open().await?.store.scan_marked(prefix, marks, take).await })
    }

    fn keys<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Vec<Key>, StoreError>> {
        Box::pin(async move { self.open().await?.store.keys(prefix).await })
    }

    fn holds<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { self.open().await?.store.holds(prefix).await })
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(async move { self.open().await?.store.commit(steps).await })
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let opened = self.open().await?;
            let watch = opened.store.watch(prefix).await?;
            Ok(OpenWatch::boxed(watch, opened))
        })
    }

    fn follow<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let opened = self.open().await?;
            let watch = opened.store.follow(prefix, take).await?;
            Ok(OpenWatch::boxed(watch, opened))
        })
    }

    fn tenure<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<(Record, Tenure)>, StoreError>> {
        Box::pin(async move { self.open().await?.store.tenure(key).await })
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        Box::pin(async move { self.open().await?.store.grant(ttl).await })
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(async move { self.open().await?.store.keep_alive(lease).await })
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.open().await?.store.revoke(lease).await })
    }
}

// === impl OpenWatch ===

impl OpenWatch {
    fn boxed(watch: Box<dyn Watch>, opened: Rc<Opened>) -> Box<dyn Watch> {
        Box::new(Self { watch, _opened: opened })
    }
}

impl Watch for OpenWatch {
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>> {
        self.watch.next()
    }
}

#[cfg(test)]
mod tests {
    use russet_store::{LOCK_FILE, Step};
    use rustix::fs::{FlockOperation, flock};

    use super::*;

    fn is_locked(paths: &Paths) -> bool {
        let file = std::fs::File::open(paths.state_dir().join(LOCK_FILE)).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
    }

    #[tokio::test]
    async fn the_store_is_locked_only_between_an_operation_and_close() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let store = BriefStore::new(&paths);
        let key = Key::node(&"n1".parse().unwrap());
        for revision in 0..2 {
            let step = if revision == 0 {
                Step::create(key.clone(), "{}")
            } else {
                Step::delete(key.clone(), Some(store.get(&key).await.unwrap().unwrap().revision))
            };
            store.commit(vec![step]).await.unwrap();
            assert!(is_locked(&paths));
            store.close();
            assert!(!is_locked(&paths), "a request that wires its interface keeps others from the store");
        }
        assert!(store.get(&key).await.unwrap().is_none(), "it is opened again by itself");
    }

    #[tokio::test]
    async fn a_watch_keeps_the_store_open() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let store = BriefStore::new(&paths);
        let watch = store.watch(&Prefix::handles()).await.unwrap();
        store.close();
        assert!(is_locked(&paths));
        drop(watch);
        assert!(!is_locked(&paths));
    }
}
