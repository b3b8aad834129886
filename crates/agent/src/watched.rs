//! The agent's store in the Kubernetes API, with a memory of what the agent watches there anyway: pools, reservations, settings, the cluster's
//! information, and this node's own record. They are read at every ADD; from the memory they cost the API server no request (kubernetes.md
//! section 2.7).
//!
//! The memory may be older than the server's state by the delay of the watch. A write is guarded by a revision, so it fails then; the record is
//! read from the server after that.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use russet_addr::NodeName;
use russet_model::{Key, Prefix, ResourceKind};
use russet_store::{
    BoxFuture, Claims, CommitError, Event, Record, Revision, Snapshot, Step, Store, StoreError, Watch,
};

use crate::pods::Pods;

/// The store. Following a prefix fills the memory, and its end empties it.
pub struct WatchedStore {
    store: Rc<dyn Store>,
    /// The pods of this node, whose endpoints are records.
    pods: Pods,
    memory: Rc<RefCell<Memory>>,
}

/// A watch that keeps the memory up to date.
struct RememberingWatch {
    watch: Box<dyn Watch>,
    prefix: Prefix,
    memory: Rc<RefCell<Memory>>,
}

struct Memory {
    /// Prefixes whose records are all remembered, if they are followed.
    complete: Vec<Prefix>,
    /// This node's record, the only one of a node that is remembered.
    own: Key,
    followed: Vec<Prefix>,
    records: BTreeMap<Key, Record>,
    /// Records whose guarded write failed: the next read asks the server.
    doubted: BTreeSet<Key>,
}

// === impl WatchedStore ===

impl WatchedStore {
    /// `store`, for the agent of `node`.
    pub fn over(store: Rc<dyn Store>, node: &NodeName, pods: Pods) -> Rc<Self> {
        let complete = vec![
            Prefix::pools(),
            Prefix::reservations(),
            Prefix::from_stored(Key::ipam_config().as_str()),
            Prefix::resources(ResourceKind::ClusterInformation),
        ];
        let memory = Memory {
            complete,
            own: Key::node(node),
            followed: Vec::new(),
            records: BTreeMap::new(),
            doubted: BTreeSet::new(),
        };
        Rc::new(Self { store, pods, memory: Rc::new(RefCell::new(memory)) })
    }

    async fn read(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        if is_endpoint(key)
            && let Some(known) = self.pods.endpoint(key).await
        {
            return Ok(Some(known));
        }
        if let Some(known) = self.memory.borrow().record(key) {
            return Ok(known);
        }
        let found = self.store.get(key).await?;
        self.memory.borrow_mut().answered(key, found.as_ref());
        Ok(found)
    }

    async fn write(&self, steps: Vec<Step>) -> Result<Vec<Revision>, CommitError> {
        let done = self.store.commit(steps.clone()).await;
        self.note_endpoints(&steps, done.as_ref().ok());
        let mut memory = self.memory.borrow_mut();
        match &done {
            Ok(revisions) => steps.into_iter().zip(revisions).for_each(|(step, at)| memory.wrote(step, *at)),
            Err(_) => memory.doubted.extend(steps.iter().map(|step| step.key().clone())),
        }
        memory.forget_other_doubts();
        done
    }
}

impl WatchedStore {
    /// Notes what endpoints are after a commit. What one whose write failed or removed it is like is for
    /// the server to say.
    fn note_endpoints(&self, steps: &[Step], revisions: Option<&Vec<Revision>>) {
        for (place, step) in steps.iter().enumerate().filter(|(_, step)| is_endpoint(step.key())) {
            let revision = revisions.and_then(|all| all.get(place));
            let written = step.value().zip(revision).map(|(value, revision)| (value.to_vec(), *revision));
            self.pods.wrote(step.key(), written);
        }
    }

    async fn records(&self, prefix: &Prefix) -> Result<Snapshot, StoreError> {
        if let Some(known) = self.endpoints(prefix).await {
            return Ok(snapshot(known));
        }
        if let Some(known) = self.memory.borrow().snapshot(prefix) {
            return Ok(known);
        }
        self.store.list(prefix).await
    }

    /// The endpoints below a prefix. An agent decides about those of its own node only, so that all of them
    /// are those of its node here: no agent lists the pods of thousands of nodes.
    async fn endpoints(&self, prefix: &Prefix) -> Option<Vec<Record>> {
        let all = Prefix::workload_endpoints();
        if *prefix == all {
            return self.pods.all_endpoints().await;
        }
        match prefix.as_str().starts_with(all.as_str()) {
            true => self.pods.endpoints(prefix).await,
            false => None,
        }
    }
}

fn is_endpoint(key: &Key) -> bool {
    Prefix::workload_endpoints().covers(key)
}

fn snapshot(records: Vec<Record>) -> Snapshot {
    let revision = records.iter().map(|record| record.revision).max().unwrap_or_default();
    Snapshot { records, revision }
}

impl Store for WatchedStore {
    fn claims(&self) -> Claims {
        self.store.claims()
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.read(key))
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(self.records(prefix))
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            match self.endpoints(prefix).await {
                Some(known) => {
                    let Snapshot { records, revision } = snapshot(known);
                    records.into_iter().for_each(take);
                    Ok(revision)
                }
                None => self.store.scan(prefix, take).await,
            }
        })
    }

    fn keys<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Vec<Key>, StoreError>> {
        self.store.keys(prefix)
    }

    fn holds<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.store.holds(prefix)
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(self.write(steps))
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        self.store.watch(prefix)
    }

    fn follow<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let memory = &self.memory;
            let mut both = |record| {
                memory.borrow_mut().put(&record);
                take(record);
            };
            let watch = self.store.follow(prefix, &mut both).await?;
            memory.borrow_mut().followed.push(prefix.clone());
            Ok(Box::new(RememberingWatch { watch, prefix: prefix.clone(), memory: Rc::clone(memory) })
                as Box<dyn Watch>)
        })
    }
}

// === impl RememberingWatch ===

impl Watch for RememberingWatch {
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>> {
        Box::pin(async move {
            let event = self.watch.next().await?;
            self.memory.borrow_mut().apply(&event);
            Ok(event)
        })
    }
}

impl Drop for RememberingWatch {
    fn drop(&mut self) {
        let mut memory = self.memory.borrow_mut();
        memory.followed.retain(|followed| *followed != self.prefix);
        memory.records.retain(|key, _| !self.prefix.covers(key));
    }
}

// === impl Memory ===

impl Memory {
    fn is_kept(&self, key: &Key) -> bool {
        *key == self.own || self.complete.iter().any(|prefix| prefix.covers(key))
    }

    fn is_current(&self, key: &Key) -> bool {
        self.is_kept(key) && self.followed.iter().any(|prefix| prefix.covers(key))
    }

    /// What is known of a record: that it is absent, too. None if the server has to be asked.
    fn record(&self, key: &Key) -> Option<Option<Record>> {
        let is_known = self.is_current(key) && !self.doubted.contains(key);
        is_known.then(|| self.records.get(key).cloned())
    }

    fn snapshot(&self, prefix: &Prefix) -> Option<Snapshot> {
        let is_complete = self.complete.contains(prefix) && self.followed.contains(prefix);
        if !is_complete || self.doubted.iter().any(|key| prefix.covers(key)) {
            return None;
        }
        let records = self.records.values().filter(|record| prefix.covers(&record.key));
        Some(snapshot(records.cloned().collect()))
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Snapshot(snapshot) => snapshot.records.iter().for_each(|record| self.put(record)),
            Event::Put(record) => self.put(record),
            Event::Deleted { key, .. } => {
                self.records.remove(key);
                self.doubted.remove(key);
            }
        }
    }

    /// Remembers a record, unless a newer one is known: an answer and an event may cross.
    fn put(&mut self, record: &Record) {
        let known = self.records.get(&record.key).map(|known| known.revision);
        if self.is_kept(&record.key) && known.is_none_or(|known| known <= record.revision) {
            self.doubted.remove(&record.key);
            self.records.insert(record.key.clone(), record.clone());
        }
    }

    /// The answer of a read of the server.
    fn answered(&mut self, key: &Key, found: Option<&Record>) {
        self.doubted.remove(key);
        match found {
            Some(record) if self.is_current(key) => self.put(record),
            Some(_) => {}
            None => _ = self.records.remove(key),
        }
    }

    fn wrote(&mut self, step: Step, revision: Revision) {
        if !self.is_current(step.key()) {
            return;
        }
        match step {
            Step::Create { key, value, .. }
            | Step::Update { key, value, .. }
            | Step::Put { key, value, .. } => {
                self.put(&Record { key, value, revision });
            }
            Step::Delete { key, .. } => _ = self.records.remove(&key),
        }
    }

    fn forget_other_doubts(&mut self) {
        let doubted = std::mem::take(&mut self.doubted);
        self.doubted = doubted.into_iter().filter(|key| self.is_kept(key)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_store::Sim;

    /// Counts nothing: a read that the memory answers succeeds although the store is away.
    fn away() -> russet_store::sim::Faults {
        russet_store::sim::Faults { unavailable: 1000, ..russet_store::sim::Faults::default() }
    }

    fn watched(sim: &Sim) -> Rc<WatchedStore> {
        let node = "node-a".parse().unwrap();
        let overrides = russet_kube::Overrides {
            server: Some("http://127.0.0.1:1".to_owned()),
            ..russet_kube::Overrides::default()
        };
        let source = russet_kube::Source::Direct { overrides };
        let store = russet_store_kube::KubeStore::connect(russet_store_kube::Settings::new(source)).unwrap();
        WatchedStore::over(Rc::new(sim.clone()), &node, Pods::new(&store, &node))
    }

    fn information(text: &str) -> Step {
        Step::Put { key: Key::cluster_information(), value: text.into(), lease: None }
    }

    async fn value(store: &WatchedStore) -> Option<Vec<u8>> {
        store.get(&Key::cluster_information()).await.unwrap().map(|record| record.value)
    }

    #[tokio::test]
    async fn what_is_followed_is_read_without_the_server() {
        let sim = Sim::atomic(1);
        let store = watched(&sim);
        sim.commit(vec![information("one")]).await.unwrap();
        let prefix = Prefix::resources(ResourceKind::ClusterInformation);
        let mut watch = store.follow(&prefix, &mut |_| {}).await.unwrap();
        sim.set_faults(away());
        assert_eq!(value(&store).await.unwrap(), b"one");
        assert_eq!(store.list(&prefix).await.unwrap().records.len(), 1);
        assert!(store.get(&Key::ipam_config()).await.is_err(), "it is not followed");
        sim.set_faults(Default::default());
        sim.commit(vec![information("two")]).await.unwrap();
        assert_eq!(value(&store).await.unwrap(), b"one", "the event was not taken yet");
        watch.next().await.unwrap();
        assert_eq!(value(&store).await.unwrap(), b"two");
        store.commit(vec![information("three")]).await.unwrap();
        assert_eq!(value(&store).await.unwrap(), b"three", "an own write needs no event");
        drop(watch);
        sim.set_faults(away());
        assert!(store.get(&Key::cluster_information()).await.is_err(), "nothing keeps it up to date");
    }

    #[tokio::test]
    async fn after_a_lost_race_the_server_is_asked() {
        let sim = Sim::atomic(1);
        let store = watched(&sim);
        let key = Key::node(&"node-a".parse().unwrap());
        let put = |text: &str| vec![Step::Put { key: key.clone(), value: text.into(), lease: None }];
        let stale = sim.commit(put("one")).await.unwrap()[0];
        let _watch = store.follow(&Prefix::nodes(), &mut |_| {}).await.unwrap();
        sim.commit(put("two")).await.unwrap();
        let update = |revision| vec![Step::update(key.clone(), b"three".to_vec(), revision)];
        store.commit(update(stale)).await.unwrap_err();
        let found = store.get(&key).await.unwrap().unwrap();
        assert_eq!(found.value, b"two");
        store.commit(update(found.revision)).await.unwrap();
    }
}
