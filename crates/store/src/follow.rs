//! How a watch stays exact: what it has told so far, and what to tell next. Used by the watches of every engine; no I/O, no clock.

use std::collections::{BTreeMap, VecDeque};

use russet_model::{Key, Prefix};

use crate::{Event, Record, Revision, Snapshot};

/// One line of a change log: at this revision the record was written or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    pub(crate) key: Key,
    pub(crate) deleted: bool,
}

/// What follows a revision in a store.
#[derive(Debug)]
pub(crate) enum Followed {
    /// Changes in order, possibly with some that the watcher knows or never knew.
    Events(Vec<Event>),
    /// The log does not reach back that far: all records, to be compared.
    Snapshot(Snapshot),
}

/// What a watcher has been told: enough to tell only differences after a gap.
#[derive(Debug)]
pub struct Known {
    started: bool,
    revisions: BTreeMap<Key, Revision>,
}

// === impl Known ===

impl Known {
    /// Nothing told yet.
    pub fn new() -> Self {
        Self { started: false, revisions: BTreeMap::new() }
    }

    /// Told, so far, that there is nothing.
    pub fn nothing() -> Self {
        Self { started: true, revisions: BTreeMap::new() }
    }

    /// Takes in a full listing: the first becomes the snapshot event, a later one only what differs.
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

    /// Takes in a record of the first listing, told record by record instead of as a snapshot.
    pub fn learn(&mut self, record: &Record) {
        self.revisions.insert(record.key.clone(), record.revision);
    }

    /// Takes in one change; `None` when the watcher knows it already, or never knew what is now gone.
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

/// Turns log lines into events. Only the line of a record's last change counts: earlier versions are no longer there to be told.
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
