//! How a watch stays exact: what it has reported so far, and what to report next. Used by the
//! watches of every engine; no I/O, no clock.

use std::collections::{BTreeMap, VecDeque};

use russet_model::{Key, Prefix};

use crate::{Event, Record, Revision, Snapshot};

/// One entry of a change log: the record was written or removed at this revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    pub(crate) key: Key,
    pub(crate) deleted: bool,
}

/// The changes after a revision of a store.
#[derive(Debug)]
pub(crate) enum Followed {
    /// Changes in order, possibly including some that the watcher has reported or never needs.
    Events(Vec<Event>),
    /// The log does not reach back that far: all records, to be compared.
    Snapshot(Snapshot),
}

/// The records that a watcher has reported, to report only differences after a gap.
#[derive(Debug)]
pub struct Known {
    started: bool,
    revisions: BTreeMap<Key, Revision>,
}

// === impl Known ===

impl Known {
    /// Nothing reported yet.
    pub fn new() -> Self {
        Self { started: false, revisions: BTreeMap::new() }
    }

    /// An empty listing was reported.
    pub fn nothing() -> Self {
        Self { started: true, revisions: BTreeMap::new() }
    }

    /// How many records there are.
    pub fn count(&self) -> usize {
        self.revisions.len()
    }

    /// Applies a complete list: the first becomes the snapshot event, a later one only the
    /// differences.
    pub fn absorb(&mut self, snapshot: Snapshot) -> VecDeque<Event> {
        let next = snapshot.records.iter().map(|record| (record.key.clone(), record.revision)).collect();
        let previous = std::mem::replace(&mut self.revisions, next);
        if !std::mem::replace(&mut self.started, true) {
            return VecDeque::from([Event::Snapshot(snapshot)]);
        }
        let gone: Vec<Key> =
            previous.keys().filter(|key| !self.revisions.contains_key(*key)).cloned().collect();
        let revision = snapshot.revision;
        let mut changed: Vec<Record> = snapshot
            .records
            .into_iter()
            .filter(|record| previous.get(&record.key) != Some(&record.revision))
            .collect();
        changed.sort_by_key(|record| record.revision);
        let deleted = gone.into_iter().map(|key| Event::Deleted { key, revision });
        changed.into_iter().map(Event::Put).chain(deleted).collect()
    }

    /// Applies a record of the first list, which is reported record by record instead of as a
    /// snapshot.
    pub fn learn(&mut self, record: &Record) {
        self.revisions.insert(record.key.clone(), record.revision);
    }

    /// Applies one change; `None` if it was reported already, or removes a record that was never
    /// reported.
    pub fn admit(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Snapshot(_) => None,
            Event::Put(record) => {
                let known = self.revisions.get(&record.key);
                if known.is_some_and(|revision| *revision >= record.revision) {
                    return None;
                }
                self.revisions.insert(record.key.clone(), record.revision);
                Some(Event::Put(record))
            }
            Event::Deleted { key, revision } => {
                let known = *self.revisions.get(&key)?;
                if known > revision {
                    return None;
                }
                self.revisions.remove(&key);
                Some(Event::Deleted { key, revision })
            }
        }
    }
}

impl Default for Known {
    fn default() -> Self {
        Self::new()
    }
}

/// Turns log entries into events. Only a record's last entry counts: earlier versions no longer
/// exist.
pub(crate) fn events_of(
    prefix: &Prefix,
    changes: impl IntoIterator<Item = Change>,
    mut current: impl FnMut(&Key) -> Option<Record>,
) -> Vec<Event> {
    let mut events = Vec::new();
    for Change { revision, key, deleted } in changes.into_iter().filter(|change| prefix.covers(&change.key)) {
        match current(&key) {
            Some(record) if !deleted && record.revision == revision => events.push(Event::Put(record)),
            Some(record) if deleted && record.revision < revision => {}
            None if deleted => events.push(Event::Deleted { key, revision }),
            _ => {}
        }
    }
    events
}
