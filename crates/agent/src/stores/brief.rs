//! The embedded store of a node without an agent, for one request of a plugin. Requests that come at once share it: the first opens the file and serves
//! the others until it leaves, so that a burst pays for opening, syncing and closing a few times and not once a request.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use russet_model::{Key, Prefix};
use russet_store::{
    Access, BoxFuture, Claims, CommitError, Event, LeaseId, Locked, Record, Remote, Revision, Snapshot, Step,
    Store, StoreError, Tenure, Watch,
};
use tokio::sync::{Mutex, oneshot};
use tokio::time::Instant;

use super::{OWNER_TIMEOUT, Service, store_dir};
use crate::config::Paths;

/// The scheduling priority of a thread that serves other processes; it ends with its request.
const OWNER_NICENESS: i32 = -10;

/// The embedded store, reached by the first operation, and again by the first one after [`pause`](Self::pause).
pub struct BriefStore {
    paths: Paths,
    joined: Mutex<Option<Rc<Joined>>>,
    hosting: RefCell<Option<Hosting>>,
}

/// How this process reaches the store.
enum Joined {
    /// It has the file open.
    Owner(Rc<Locked>),
    /// Another process has.
    Guest(Remote),
}

/// The service for other processes, while this one has the file open.
struct Hosting {
    service: Service,
    /// Asks the service to end; none once that is done.
    leave: Option<oneshot::Sender<()>>,
}

/// A watch, and what keeps its store open.
struct OpenWatch {
    // The order matters: the watch ends before the store is closed.
    watch: Box<dyn Watch>,
    _joined: Rc<Joined>,
}

// === impl Joined ===

impl Joined {
    fn store(&self) -> &dyn Store {
        match self {
            Self::Owner(locked) => locked.store(),
            Self::Guest(remote) => remote,
        }
    }

    /// Whether the process that had the store open has left. What it answered before is final.
    fn is_left(&self) -> bool {
        matches!(self, Self::Guest(remote) if remote.is_left())
    }
}

// === impl BriefStore ===

impl BriefStore {
    /// The store of the node with these paths; nothing is opened yet.
    pub fn new(paths: &Paths) -> Self {
        Self { paths: paths.clone(), joined: Mutex::new(None), hosting: RefCell::new(None) }
    }

    /// Reaches the store. Waits while another process has it open without serving it to others.
    pub async fn open(&self) -> Result<(), StoreError> {
        self.joined().await.map(drop)
    }

    /// The store is not needed while the kernel works. A guest gives up its connection; an owner begins to leave, as soon as no other process needs it.
    pub fn pause(&self) {
        if let Some(Hosting { leave, .. }) = &mut *self.hosting.borrow_mut() {
            leave.take().into_iter().for_each(|leave| _ = leave.send(()));
        } else if let Ok(mut joined) = self.joined.try_lock() {
            *joined = None;
        }
    }

    /// Does `work`, and serves other processes meanwhile if this one has the store open.
    pub async fn serve_during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        std::future::poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(done);
            }
            let mut hosting = self.hosting.borrow_mut();
            if hosting.as_mut().is_some_and(|hosting| hosting.service.as_mut().poll(context).is_ready()) {
                *hosting = None;
                drop(hosting);
                self.forget();
            }
            Poll::Pending
        })
        .await
    }

    /// Lets the guests that are there finish, and closes the store.
    pub async fn close(&self) {
        self.pause();
        let hosting = self.hosting.borrow_mut().take();
        if let Some(Hosting { service, .. }) = hosting {
            service.await;
        }
        self.forget();
    }

    /// Closes the store, or what leads to it, when no operation uses it any more.
    fn forget(&self) {
        if let Ok(mut joined) = self.joined.try_lock() {
            *joined = None;
        }
    }

    async fn joined(&self) -> Result<Rc<Joined>, StoreError> {
        let mut joined = self.joined.lock().await;
        if let Some(joined) = &*joined {
            return Ok(Rc::clone(joined));
        }
        let dir = store_dir(&self.paths)?;
        let fresh = match russet_store::join(&dir, OWNER_TIMEOUT).await? {
            Access::Remote(remote) => Joined::Guest(remote),
            Access::Locked(locked) => {
                let locked = Rc::new(locked);
                self.host(&locked);
                Joined::Owner(locked)
            }
        };
        Ok(Rc::clone(joined.insert(Rc::new(fresh))))
    }

    /// Prepares the service for other processes; [`serve_during`](Self::serve_during) runs it. Without it they wait until the store is closed.
    fn host(&self, locked: &Rc<Locked>) {
        let listener = store_dir(&self.paths).and_then(|dir| {
            russet_store::listen(&dir, locked)
                .map_err(|error| super::failed("make the store's socket", error))
        });
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                tracing::debug!(%error, "requests that come at once open the store one after the other");
                return;
            }
        };
        // Each guest waits for this thread several times, beside as many processes that start. Without
        // the privilege it stays as it is.
        let _ = rustix::process::setpriority_process(None, OWNER_NICENESS);
        let (leave, leaving) = oneshot::channel();
        let (locked, socket) = (Rc::clone(locked), self.paths.store_socket());
        let service = Box::pin(async move {
            let left = async { _ = leaving.await };
            russet_store::serve_guests(locked.store().clone(), listener, &socket, left).await;
        });
        *self.hosting.borrow_mut() = Some(Hosting { service, leave: Some(leave) });
    }

    /// Does an operation, and does it again where the process that had the store open left before it had done anything, for at most [`OWNER_TIMEOUT`].
    async fn with_store<T, E: AsRef<StoreError>>(
        &self,
        operation: impl AsyncFn(&dyn Store) -> Result<T, E>,
    ) -> Result<T, E>
    where
        StoreError: Into<E>,
    {
        let end = Instant::now() + OWNER_TIMEOUT;
        loop {
            let joined = self.joined().await.map_err(Into::into)?;
            let result = operation(joined.store()).await;
            let is_undone =
                matches!(&result, Err(error) if matches!(error.as_ref(), StoreError::Unavailable { .. }));
            if !is_undone || !joined.is_left() || Instant::now() >= end {
                return result;
            }
            drop(joined);
            self.forget();
        }
    }
}

impl Store for BriefStore {
    fn claims(&self) -> Claims {
        // Those of the engine, which are also those of its owner's socket.
        Claims { atomic: true, ttl: true }
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.with_store(async |store: &dyn Store| store.get(key).await))
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(self.with_store(async |store: &dyn Store| store.list(prefix).await))
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move { self.joined().await?.store().scan(prefix, take).await })
    }

    fn scan_marked<'a>(
        &'a self,
        prefix: &'a Prefix,
        marks: &'a mut dyn FnMut(&Key) -> Vec<Key>,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move { self.joined().await?.store().scan_marked(prefix, marks, take).await })
    }

    fn keys<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Vec<Key>, StoreError>> {
        Box::pin(self.with_store(async |store: &dyn Store| store.keys(prefix).await))
    }

    fn holds<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.with_store(async |store: &dyn Store| store.holds(prefix).await))
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(
            async move { self.with_store(async |store: &dyn Store| store.commit(steps.clone()).await).await },
        )
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let joined = self.joined().await?;
            let watch = joined.store().watch(prefix).await?;
            Ok(OpenWatch::boxed(watch, joined))
        })
    }

    fn follow<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let joined = self.joined().await?;
            let watch = joined.store().follow(prefix, take).await?;
            Ok(OpenWatch::boxed(watch, joined))
        })
    }

    fn tenure<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<(Record, Tenure)>, StoreError>> {
        Box::pin(self.with_store(async |store: &dyn Store| store.tenure(key).await))
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        Box::pin(async move { self.joined().await?.store().grant(ttl).await })
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(async move { self.joined().await?.store().keep_alive(lease).await })
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.joined().await?.store().revoke(lease).await })
    }
}

// === impl OpenWatch ===

impl OpenWatch {
    fn boxed(watch: Box<dyn Watch>, joined: Rc<Joined>) -> Box<dyn Watch> {
        Box::new(Self { watch, _joined: joined })
    }
}

impl Watch for OpenWatch {
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>> {
        self.watch.next()
    }
}

#[cfg(test)]
mod tests {
    use russet_store::{LOCK_FILE, SOCKET_FILE};
    use rustix::fs::{FlockOperation, flock};
    use tokio::task::LocalSet;

    use super::*;

    fn is_locked(paths: &Paths) -> bool {
        let file = std::fs::File::open(paths.state_dir().join(LOCK_FILE)).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
    }

    fn key(name: &str) -> Key {
        Key::node(&name.parse().unwrap())
    }

    async fn create(store: &BriefStore, name: &str) {
        let create = store.commit(vec![Step::create(key(name), "{}")]);
        store.serve_during(create).await.unwrap();
    }

    #[tokio::test]
    async fn the_store_is_locked_from_the_first_operation_until_it_is_closed() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let store = BriefStore::new(&paths);
        for name in ["n1", "n2"] {
            create(&store, name).await;
            assert!(is_locked(&paths));
            store.close().await;
            assert!(!is_locked(&paths));
            assert!(!paths.state_dir().join(SOCKET_FILE).exists());
        }
        assert!(store.get(&key("n1")).await.unwrap().is_some(), "it is opened again by itself");
    }

    #[tokio::test]
    async fn a_request_uses_the_store_that_another_has_open() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let (owner, guest) = (BriefStore::new(&paths), BriefStore::new(&paths));
        create(&owner, "n1").await;
        let by_guest = async {
            create(&guest, "n2").await;
            assert!(guest.get(&key("n1")).await.unwrap().is_some());
            guest.pause();
        };
        owner.serve_during(by_guest).await;
        assert!(owner.get(&key("n2")).await.unwrap().is_some());
        owner.close().await;
        // The owner has left: the guest opens the file.
        assert!(guest.get(&key("n2")).await.unwrap().is_some());
        assert!(is_locked(&paths));
    }

    #[tokio::test]
    async fn an_owner_that_pauses_closes_the_store_and_can_open_it_again() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let store = BriefStore::new(&paths);
        let work = async {
            create(&store, "n1").await;
            store.pause();
            while is_locked(&paths) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(store.get(&key("n1")).await.unwrap().is_some());
        };
        store.serve_during(work).await;
        assert!(is_locked(&paths));
        store.close().await;
        assert!(!is_locked(&paths));
    }

    #[tokio::test]
    async fn a_guest_that_keeps_its_connection_reaches_the_store_again_after_the_owner_left() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let (owner, guest) = (BriefStore::new(&paths), BriefStore::new(&paths));
        create(&owner, "n1").await;
        owner.serve_during(create(&guest, "n2")).await;
        // It keeps its connection, so the owner waits for it in vain.
        owner.close().await;
        create(&guest, "n3").await;
        assert!(is_locked(&paths));
        assert!(guest.get(&key("n1")).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn requests_that_come_at_once_lose_no_commit() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let local = LocalSet::new();
        for n in 0..40 {
            let paths = paths.clone();
            local.spawn_local(async move {
                let store = BriefStore::new(&paths);
                create(&store, &format!("n{n}")).await;
                store.pause();
                store.close().await;
            });
        }
        local.await;
        let store = BriefStore::new(&paths);
        assert_eq!(store.keys(&Prefix::nodes()).await.unwrap().len(), 40);
    }

    #[tokio::test]
    async fn a_watch_keeps_the_store_open() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let store = BriefStore::new(&paths);
        let watch = store.watch(&Prefix::handles()).await.unwrap();
        store.close().await;
        assert!(is_locked(&paths));
        drop(watch);
        assert!(!is_locked(&paths));
    }
}
