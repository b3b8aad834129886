//! Leases on a server that has none: the v2 API gives each key a time to live of its own. A lease is a number of this engine and its
//! clones, with the keys that were written under it; keeping it alive gives each of them its full time again. A key whose owner is gone
//! vanishes by itself, because the server counts its time; the lease itself does not outlive the process, and nobody else knows it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::Method;
use russet_model::Key;
use russet_store::{LeaseId, Record, Revision, StoreError};
use tokio::time::Instant;

use crate::backoff::random;
use crate::failure::{Class, Effect, Failure};
use crate::v2::answer::{Reply, Why};
use crate::v2::client::Client;
use crate::v2::http::Question;
use crate::v2::path;

/// Looks at one key whose guard failed before it is given up; each costs somebody else's write in between.
const LOOKS_MAX: u32 = 3;

/// The leases of one engine.
#[derive(Default)]
pub(crate) struct Leases(Mutex<BTreeMap<LeaseId, Lease>>);

#[derive(Clone)]
struct Lease {
    ttl: Duration,
    until: Instant,
    keys: BTreeMap<Key, Written>,
}

/// What was written under a lease.
#[derive(Clone)]
pub(crate) struct Written {
    pub(crate) value: Vec<u8>,
    pub(crate) revision: Revision,
}

// === impl Leases ===

impl Leases {
    fn table(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Lease>> {
        // Each change of the table is a single call, so that a panic elsewhere leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a lease of at least `ttl`, in whole seconds.
    pub(crate) fn grant(&self, ttl: Duration) -> LeaseId {
        let now = Instant::now();
        let ttl = Duration::from_secs(whole_seconds(ttl));
        let mut table = self.table();
        table.retain(|_, lease| lease.until > now);
        loop {
            let id = LeaseId((random() >> 1).max(1));
            if let Entry::Vacant(place) = table.entry(id) {
                place.insert(Lease { ttl, until: now + ttl, keys: BTreeMap::new() });
                return id;
            }
        }
    }

    /// The seconds that a lease still has, for a key that is written now; none when it has run out.
    pub(crate) fn seconds_left(&self, id: LeaseId) -> Option<u64> {
        let table = self.table();
        let left = table.get(&id)?.until.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then(|| whole_seconds(left))
    }

    /// A key was written under a lease, or without one; whatever held it before does so no longer.
    pub(crate) fn written(&self, key: &Key, under: Option<(LeaseId, Written)>) {
        let mut table = self.table();
        for lease in table.values_mut() {
            lease.keys.remove(key);
        }
        if let Some((id, written)) = under
            && let Some(lease) = table.get_mut(&id)
        {
            lease.keys.insert(key.clone(), written);
        }
    }

    /// The lease under which a record was last written, if that was one of these and nobody wrote it since.
    pub(crate) fn holding(&self, record: &Record) -> Option<LeaseId> {
        let table = self.table();
        let mut leases = table.iter().map(|(id, lease)| (*id, lease.keys.get(&record.key)));
        leases
            .find(|(_, written)| written.is_some_and(|written| written.revision == record.revision))
            .map(|(id, _)| id)
    }

    /// A living lease, as it is now.
    fn alive(&self, id: LeaseId) -> Result<Lease, StoreError> {
        let now = Instant::now();
        let lease = self.table().get(&id).filter(|lease| lease.until > now).cloned();
        lease.ok_or(StoreError::NoLease { lease: id })
    }

    /// Gives a lease, and every key that still is as it was written under it, the full time again.
    pub(crate) async fn keep_alive(&self, client: &Client, id: LeaseId) -> Result<Duration, StoreError> {
        let begun = Instant::now();
        let lease = self.alive(id)?;
        for (key, written) in lease.keys {
            match refresh(client, &key, written, lease.ttl).await {
                Ok(Some(written)) => self.refreshed(id, &key, written),
                Ok(None) => self.written(&key, None),
                Err(failure) => {
                    return Err(failure.told(format!("keep lease {} alive", id.0), Effect::Read));
                }
            }
        }
        match self.table().get_mut(&id) {
            Some(lease) => lease.until = begun + lease.ttl,
            None => return Err(StoreError::NoLease { lease: id }),
        }
        Ok(lease.ttl)
    }

    /// Only where the key is still this lease's: a commit may have come between.
    fn refreshed(&self, id: LeaseId, key: &Key, written: Written) {
        if let Some(held) = self.table().get_mut(&id).and_then(|lease| lease.keys.get_mut(key))
            && held.revision < written.revision
        {
            *held = written;
        }
    }

    /// Ends a lease now: removes every key that still is as it was written under it.
    pub(crate) async fn revoke(&self, client: &Client, id: LeaseId) -> Result<(), StoreError> {
        let lease = self.alive(id)?;
        for (key, written) in &lease.keys {
            let told = |failure: Failure| failure.told(format!("revoke lease {}", id.0), Effect::Idempotent);
            let target = target(key).map_err(told)?;
            let target = format!("{target}?prevIndex={}", written.revision.0);
            let question = Question { method: Method::DELETE, target, form: None, large: false };
            // Deleted, gone, or somebody else's by now: in each case the lease holds it no longer.
            client.call(Effect::Idempotent, &question).await.map_err(told)?;
        }
        self.table().remove(&id).map(drop).ok_or(StoreError::NoLease { lease: id })
    }
}

/// Gives one key its full time. None when it is no longer what was written under the lease.
async fn refresh(
    client: &Client,
    key: &Key,
    mut written: Written,
    ttl: Duration,
) -> Result<Option<Written>, Failure> {
    let target = target(key)?;
    for _ in 0..LOOKS_MAX {
        let question = Question {
            method: Method::PUT,
            target: format!("{target}?prevExist=true&prevIndex={}&refresh=true", written.revision.0),
            form: Some(format!("ttl={}", ttl.as_secs()).into()),
            large: false,
        };
        match client.call(Effect::Once, &question).await {
            Ok(Reply::Done(done)) => {
                written.revision = Revision(done.node.modified_index);
                return Ok(Some(written));
            }
            Ok(Reply::Refused(refusal)) if refusal.why() == Some(Why::Compare) => {}
            Ok(Reply::Refused(_)) => return Ok(None),
            // Perhaps done: then the key has moved on by our own doing.
            Err(failure) if failure.class == Class::Ambiguous => {}
            Err(failure) => return Err(failure),
        }
        match client.call(Effect::Read, &Question::get(format!("{target}?quorum=true"))).await? {
            Reply::Done(done) if still(&done.node, &written) => {
                written.revision = Revision(done.node.modified_index);
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}

/// Whether a key still says what was written under the lease, and still has a time to live: who took that away meant it to stay.
fn still(node: &crate::v2::answer::Node, written: &Written) -> bool {
    node.ttl.is_some() && node.value.as_deref().is_some_and(|value| value.as_bytes() == written.value)
}

fn target(key: &Key) -> Result<String, Failure> {
    path::of_key(key).map_err(|reason| Failure::new(Class::Refused, "etcd", reason.to_owned(), false))
}

fn whole_seconds(time: Duration) -> u64 {
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_runs_out_by_itself() {
        let leases = Leases::default();
        let id = leases.grant(Duration::from_millis(1500));
        assert_eq!(leases.seconds_left(id), Some(2));
        tokio::time::advance(Duration::from_millis(1200)).await;
        assert_eq!(leases.seconds_left(id), Some(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(leases.seconds_left(id), None);
        assert!(matches!(leases.alive(id), Err(StoreError::NoLease { .. })));
        assert_eq!(leases.seconds_left(LeaseId(7)), None);
    }

    #[tokio::test]
    async fn a_key_belongs_to_the_lease_that_it_was_last_written_under() {
        let leases = Leases::default();
        let (first, second) = (leases.grant(Duration::from_secs(9)), leases.grant(Duration::from_secs(9)));
        let key = Key::from_stored("/a/b");
        let written = || Written { value: Vec::new(), revision: Revision(4) };
        let held = |id| leases.alive(id).unwrap().keys.len();
        leases.written(&key, Some((first, written())));
        leases.written(&key, Some((second, written())));
        assert_eq!((held(first), held(second)), (0, 1));
        leases.written(&key, None);
        assert_eq!(held(second), 0);
    }
}
