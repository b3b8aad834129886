//! The content of the simulated store and its changes. Faults are chosen in `sim`.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;
use std::time::Duration;

use russet_model::{Key, Prefix};

use crate::follow::{Change, Followed, events_of};
use crate::{CommitError, LeaseId, Record, Revision, Snapshot, Step, StoreError, Tenure};

/// Limit of changes in the log, so that a long simulation does not grow.
const LOG_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct State {
    pub(super) records: BTreeMap<Key, Held>,
    pub(super) revision: Revision,
    pub(super) now: Duration,
    log: VecDeque<Change>,
    /// The log has every change after this revision.
    log_floor: Revision,
    leases: BTreeMap<LeaseId, Lease>,
    last_lease: u64,
    /// Watches that wait for the next change.
    waiting: Vec<Waker>,
}

pub(super) struct Held {
    pub(super) record: Record,
    pub(super) lease: Option<LeaseId>,
}

struct Lease {
    ttl: Duration,
    end: Duration,
}

// === impl State ===

impl State {
    pub(super) fn get(&self, key: &Key) -> Option<Record> {
        self.records.get(key).map(|held| held.record.clone())
    }

    pub(super) fn tenure(&self, key: &Key) -> Option<(Record, Tenure)> {
        self.records.get(key).map(|held| {
            let tenure = held.lease.map_or(Tenure::Forever, |lease| Tenure::Leased(Some(lease)));
            (held.record.clone(), tenure)
        })
    }

    pub(super) fn list(&self, prefix: &Prefix) -> Snapshot {
        let from = Key::from_stored(prefix.as_str());
        let records = self
            .records
            .range(from..)
            .take_while(|(key, _)| prefix.covers(key))
            .map(|(_, held)| held.record.clone());
        Snapshot { records: records.collect(), revision: self.revision }
    }

    /// All or nothing: every guard is checked before anything is written.
    pub(super) fn commit(&mut self, steps: &[Step]) -> Result<Vec<Revision>, CommitError> {
        for (failed, step) in steps.iter().enumerate() {
            let current = self.records.get(step.key()).map(|held| held.record.revision);
            let lease = step.lease().filter(|lease| !self.leases.contains_key(lease));
            let checked = crate::guard::check(step, current)
                .and(lease.map_or(Ok(()), |lease| Err(StoreError::NoLease { lease })));
            checked.map_err(|error| CommitError { done: 0, failed, error })?;
        }
        let revision = self.begin();
        for step in steps {
            self.write(step.key().clone(), step.value().map(<[u8]>::to_vec), step.lease());
        }
        self.wake();
        Ok(vec![revision; steps.len()])
    }

    fn begin(&mut self) -> Revision {
        self.revision.0 += 1;
        self.revision
    }

    fn write(&mut self, key: Key, value: Option<Vec<u8>>, lease: Option<LeaseId>) {
        let revision = self.revision;
        self.log.push_back(Change { revision, key: key.clone(), deleted: value.is_none() });
        if self.log.len() > LOG_MAX
            && let Some(oldest) = self.log.pop_front()
        {
            self.log_floor = oldest.revision;
        }
        match value {
            Some(value) => {
                self.records.insert(key.clone(), Held { record: Record { key, value, revision }, lease })
            }
            None => self.records.remove(&key),
        };
    }

    /// Changes the first record that a step guards, like a faster peer. Without such a record
    /// nothing happens.
    pub(super) fn touch_first_guarded(&mut self, steps: &[Step]) {
        let guarded = steps
            .iter()
            .find(|step| matches!(step, Step::Update { .. } | Step::Delete { revision: Some(_), .. }));
        let Some((key, value, lease)) = guarded.and_then(|step| {
            self.records
                .get(step.key())
                .map(|held| (step.key().clone(), held.record.value.clone(), held.lease))
        }) else {
            return;
        };
        self.begin();
        self.write(key, Some(value), lease);
        self.wake();
    }

    // === watches ===

    pub(super) fn follow(&self, prefix: &Prefix, since: Option<Revision>) -> Followed {
        match since.filter(|since| *since >= self.log_floor) {
            None => Followed::Snapshot(self.list(prefix)),
            Some(since) => {
                let start = self.log.partition_point(|change| change.revision <= since);
                Followed::Events(events_of(prefix, self.log.range(start..).cloned(), |key| self.get(key)))
            }
        }
    }

    pub(super) fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|known| known.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }

    pub(super) fn compact(&mut self) {
        self.log.clear();
        self.log_floor = self.revision;
    }

    // === leases ===

    pub(super) fn grant(&mut self, ttl: Duration) -> LeaseId {
        self.last_lease += 1;
        let id = LeaseId(self.last_lease);
        self.leases.insert(id, Lease { ttl, end: self.now + ttl });
        id
    }

    pub(super) fn keep_alive(&mut self, id: LeaseId) -> Result<Duration, StoreError> {
        let lease = self.leases.get_mut(&id).ok_or(StoreError::NoLease { lease: id })?;
        lease.end = self.now + lease.ttl;
        Ok(lease.ttl)
    }

    pub(super) fn revoke(&mut self, id: LeaseId) -> Result<(), StoreError> {
        self.leases.remove(&id).ok_or(StoreError::NoLease { lease: id })?;
        let keys: Vec<Key> = self
            .records
            .iter()
            .filter(|(_, held)| held.lease == Some(id))
            .map(|(key, _)| key.clone())
            .collect();
        if !keys.is_empty() {
            self.begin();
            keys.into_iter().for_each(|key| self.write(key, None, None));
            self.wake();
        }
        Ok(())
    }

    pub(super) fn advance(&mut self, time: Duration) {
        self.now += time;
        let mut over: Vec<(Duration, LeaseId)> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.end <= self.now)
            .map(|(id, lease)| (lease.end, *id))
            .collect();
        over.sort();
        for (_, id) in over {
            // It exists, because the list was made from the table a moment ago.
            let _ = self.revoke(id);
        }
    }
}
