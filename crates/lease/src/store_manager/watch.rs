//! Watches the other nodes' leases: converts the store's watch, which survives compaction and lost
//! connections, to leases; garbage is skipped, and only differences are reported.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use russet_model::Key;
use russet_model::flannel::{Attributes, SubnetKey};
use russet_store::{Event as Change, Record, Snapshot, Store, StoreError, Watch};

use super::store_error;
use crate::path::Paths;
use crate::{BoxFuture, Event, Lease, LeaseError, LeaseWatch};

/// Pause after a watch that the store refused.
const RETRY: Duration = Duration::from_secs(1);

pub(super) struct StoreWatch {
    store: Rc<dyn Store>,
    paths: Paths,
    own: SubnetKey,
    /// None while it must be opened again.
    watch: Option<Box<dyn Watch>>,
    known: KnownLeases,
    ready: VecDeque<Event>,
}

/// The reported leases, by subnets.
#[derive(Default)]
struct KnownLeases(BTreeMap<SubnetKey, Vec<Version>>);

/// One record of a lease. Several records can be about the same subnets (`subnets/10.1.0.0-24`,
/// `subnets-old/10.1.0.0-24`): that under the regular key counts, else the one written last.
struct Version {
    key: Key,
    in_place: bool,
    revision: u64,
    attributes: Arc<Attributes>,
}

// === impl StoreWatch ===

impl StoreWatch {
    pub(super) async fn open(store: Rc<dyn Store>, paths: Paths, own: SubnetKey) -> Result<Self, LeaseError> {
        let (watch, snapshot) = begin(&*store, &paths).await.map_err(store_error("watch leases"))?;
        let known = KnownLeases::default();
        let mut this = Self { store, paths, own, watch: Some(watch), known, ready: VecDeque::new() };
        for record in snapshot.records {
            this.put(record);
        }
        this.ready = VecDeque::from([Event::Snapshot(this.known.leases().collect())]);
        Ok(this)
    }

    /// Applies a record; returns the event, if any. The own subnets are never reported.
    fn put(&mut self, record: Record) -> Option<Event> {
        let Ok(subnet) = record.key.as_str().parse::<SubnetKey>() else {
            let what = "a record among the leases is passed over";
            russet_store::refused(what, &record.key, "its key names no subnet");
            return None;
        };
        if subnet == self.own {
            return None;
        }
        let Record { key, value, revision } = record;
        let attributes = if subnet.is_canonical() {
            Attributes::from_json(&value).map(Arc::new).map_err(|error| error.to_string())
        } else {
            Err("its subnet does not begin where one does".to_owned())
        };
        match attributes {
            Ok(attributes) => self.known.learn(
                subnet,
                Version { in_place: self.paths.lease(&subnet) == key, key, revision: revision.0, attributes },
            ),
            Err(reason) => {
                russet_store::refused("a lease is passed over", &key, reason);
                self.known.forget(&key)
            }
        }
    }

    /// Reports the differences after the watch had to be opened again.
    fn compare(&mut self, snapshot: Snapshot) {
        let there: BTreeSet<&Key> = snapshot.records.iter().map(|record| &record.key).collect();
        let gone: Vec<Key> = self.known.keys().filter(|key| !there.contains(key)).cloned().collect();
        for key in gone {
            self.ready.extend(self.known.forget(&key));
        }
        for record in snapshot.records {
            let sent = self.put(record);
            self.ready.extend(sent);
        }
    }

    async fn following(&mut self) -> Event {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            let Some(watch) = &mut self.watch else {
                match begin(&*self.store, &self.paths).await {
                    Ok((watch, snapshot)) => {
                        self.watch = Some(watch);
                        self.compare(snapshot);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "watch leases");
                        tokio::time::sleep(RETRY).await;
                    }
                }
                continue;
            };
            match watch.next().await {
                Ok(Change::Snapshot(snapshot)) => self.compare(snapshot),
                Ok(Change::Put(record)) => {
                    let sent = self.put(record);
                    self.ready.extend(sent);
                }
                Ok(Change::Deleted { key, .. }) => self.ready.extend(self.known.forget(&key)),
                Err(error) => {
                    tracing::warn!(%error, "watch leases: opening the watch again");
                    self.watch = None;
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

impl LeaseWatch for StoreWatch {
    fn next(&mut self) -> BoxFuture<'_, Event> {
        Box::pin(self.following())
    }
}

async fn begin(store: &dyn Store, paths: &Paths) -> Result<(Box<dyn Watch>, Snapshot), StoreError> {
    let mut watch = store.watch(&paths.subnets()).await?;
    let first = watch.next().await?;
    let snapshot = match first {
        Change::Snapshot(snapshot) => snapshot,
        // The first event of every watch is a snapshot.
        Change::Put(_) | Change::Deleted { .. } => Snapshot::default(),
    };
    Ok((watch, snapshot))
}

// === impl KnownLeases ===

impl KnownLeases {
    fn learn(&mut self, subnet: SubnetKey, version: Version) -> Option<Event> {
        self.change(subnet, |versions| {
            versions.retain(|known| known.key != version.key);
            versions.push(version);
        })
    }

    fn forget(&mut self, key: &Key) -> Option<Event> {
        let subnet = key.as_str().parse().ok()?;
        self.change(subnet, |versions| versions.retain(|known| known.key != *key))
    }

    fn change(&mut self, subnet: SubnetKey, change: impl FnOnce(&mut Vec<Version>)) -> Option<Event> {
        // Usually one; the default would reserve room for four, half a kilobyte.
        let versions = self.0.entry(subnet).or_insert_with(|| Vec::with_capacity(1));
        let before = latest(versions).cloned();
        change(versions);
        let after = latest(versions);
        let event = match (&before, after) {
            (_, Some(after)) if before.as_ref() != Some(after) => Some(Event::Put(lease(subnet, after))),
            (Some(_), None) => Some(Event::Gone(subnet)),
            _ => None,
        };
        if versions.is_empty() {
            self.0.remove(&subnet);
        }
        event
    }

    fn leases(&self) -> impl Iterator<Item = Lease> {
        self.0.iter().filter_map(|(subnet, versions)| Some(lease(*subnet, latest(versions)?)))
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.values().flatten().map(|version| &version.key)
    }
}

fn latest(versions: &[Version]) -> Option<&Arc<Attributes>> {
    versions
        .iter()
        .max_by_key(|version| (version.in_place, version.revision))
        .map(|version| &version.attributes)
}

fn lease(key: SubnetKey, attributes: &Arc<Attributes>) -> Lease {
    Lease { key, attributes: Arc::clone(attributes), expires: None }
}
