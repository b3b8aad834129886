//! The records that a careful watcher derives from the events. It refuses every repeated, unordered
//! or unfounded event.

use std::collections::BTreeMap;

use russet_model::{Key, Prefix};

use super::{Bench, key, next, value};
use crate::{Event, Record, Revision, Step, Watch};

#[derive(Default)]
pub(super) struct WatchedRecords {
    pub(super) records: BTreeMap<Key, Record>,
    pub(super) events: usize,
    started: bool,
    last_put: Revision,
    /// How often the last record was written: an engine may ignore a write that changes nothing.
    catch_ups: usize,
}

// === impl WatchedRecords ===

impl WatchedRecords {
    pub(super) fn take(&mut self, event: Event) {
        self.events += 1;
        match event {
            Event::Snapshot(snapshot) => {
                assert!(!std::mem::replace(&mut self.started, true), "a snapshot comes once, first");
                assert!(
                    snapshot.records.is_sorted_by_key(|record| &record.key),
                    "a snapshot is in key order"
                );
                self.last_put =
                    snapshot.records.iter().map(|record| record.revision).max().unwrap_or_default();
                self.records =
                    snapshot.records.into_iter().map(|record| (record.key.clone(), record)).collect();
            }
            Event::Put(record) => {
                assert!(self.started, "a snapshot comes first");
                assert!(record.revision >= self.last_put, "{record:?} comes after {:?}", self.last_put);
                self.last_put = record.revision;
                let known = self.records.insert(record.key.clone(), record.clone());
                assert!(
                    known.is_none_or(|known| known.revision < record.revision),
                    "{record:?} was reported twice"
                );
            }
            Event::Deleted { key, revision } => {
                assert!(self.started, "a snapshot comes first");
                let known = self.records.remove(&key);
                assert!(
                    known.is_some_and(|known| known.revision <= revision),
                    "{key} was not known, or deleted before it was written"
                );
            }
        }
    }

    /// Writes a last record and takes events until it arrives and nothing is missing. After a gap,
    /// removals are reported after writes.
    pub(super) async fn catch_up(&mut self, bench: &Bench<'_>, watch: &mut Box<dyn Watch>, sentinel: usize) {
        self.catch_ups += 1;
        let revision = bench.one(Step::put(key(sentinel), value(self.catch_ups))).await;
        while self.records.get(&key(sentinel)).is_none_or(|record| record.revision < revision) {
            self.take(next(watch).await);
        }
        let listed = bench.store.list(&Prefix::handles()).await.unwrap().records;
        while self.records.len() > listed.len() {
            self.take(next(watch).await);
        }
        let revisions = |records: &mut dyn Iterator<Item = &Record>| -> Vec<(Key, Revision)> {
            records.map(|record| (record.key.clone(), record.revision)).collect()
        };
        assert_eq!(revisions(&mut self.records.values()), revisions(&mut listed.iter()));
    }
}
