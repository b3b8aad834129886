//! Leases for a server without leases: in the v2 API each key has a time to live. A lease is an id
//! within this engine and its clones, with the keys that were written under it; keeping it alive
//! renews the time to live of each. The keys of a dead process expire at the server; the lease
//! itself does not outlive the process, and is not known to others.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::Method;
use russet_model::Key;
use russet_store::{LeaseId, Record, Revision, StoreError};
use russet_sync::random;
use tokio::time::Instant;

use crate::failure::{Class, Effect, Failure};
use crate::v2::answer::{Reply, Why};
use crate::v2::client::Client;
use crate::v2::http::Question;
use crate::v2::path;

/// How often a key whose guard failed is read again; each failure means a write by another client
/// in between.
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

/// A key's contents as written under a lease.
#[derive(Clone)]
pub(crate) struct Written {
    pub(crate) value: Vec<u8>,
    pub(crate) revision: Revision,
}

// === impl Leases ===

impl Leases {
    fn table(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Lease>> {
        // Every change of the table is a single call, so a panic elsewhere leaves it consistent.
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

    /// The remaining seconds of a lease, for a key that is written now; `None` if it has expired.
    pub(crate) fn seconds_left(&self, id: LeaseId) -> Option<u64> {
        let table = self.table();
        let left = table.get(&id)?.until.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then(|| whole_seconds(left))
    }

    /// Records that a key was written under a lease or without one; an earlier lease no longer
    /// holds it.
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

    /// The lease under which a record was last written, if it is one of these and the record was
    /// not written since.
    pub(crate) fn holding(&self, record: &Record) -> Option<LeaseId> {
        let table = self.table();
        let mut leases = table.iter().map(|(id, lease)| (*id, lease.keys.get(&record.key)));
        leases
            .find(|(_, written)| written.is_some_and(|written| written.revision == record.revision))
            .map(|(id, _)| id)
    }

    /// A lease that has not expired.
    fn alive(&self, id: LeaseId) -> Result<Lease, StoreError> {
        let now = Instant::now();
        let lease = self.table().get(&id).filter(|lease| lease.until > now).cloned();
        lease.ok_or(StoreError::NoLease { lease: id })
    }

    /// Renews a lease and every key that is unchanged since it was written under it.
    pub(crate) async fn keep_alive(&self, client: &Client, id: LeaseId) -> Result<Duration, StoreError> {
        let begun = Instant::now();
        let lease = self.alive(id)?;
        for (key, written) in lease.keys {
            match refresh(client, &key, written, lease.ttl).await {
                Ok(Some(written)) => self.refreshed(id, &key, written),
                Ok(None) => self.written(&key, None),
                Err(failure) => {
                    return Err(failure.into_store_error(format!("keep lease {} alive", id.0), Effect::Read));
                }
            }
        }
        match self.table().get_mut(&id) {
            Some(lease) => lease.until = begun + lease.ttl,
            None => return Err(StoreError::NoLease { lease: id }),
        }
        Ok(lease.ttl)
    }

    /// Only if the key still belongs to this lease: a commit may have intervened.
    fn refreshed(&self, id: LeaseId, key: &Key, written: Written) {
        if let Some(held) = self.table().get_mut(&id).and_then(|lease| lease.keys.get_mut(key))
            && held.revision < written.revision
        {
            *held = written;
        }
    }

    /// Ends a lease now: removes every key that is unchanged since it was written under it.
    pub(crate) async fn revoke(&self, client: &Client, id: LeaseId) -> Result<(), StoreError> {
        let lease = self.alive(id)?;
        for (key, written) in &lease.keys {
            let failed = |failure: Failure| {
                failure.into_store_error(format!("revoke lease {}", id.0), Effect::Idempotent)
            };
            let target = target(key).map_err(failed)?;
            let target = format!("{target}?prevIndex={}", written.revision.0);
            let question = Question { method: Method::DELETE, target, form: None, large: false };
            // Deleted, missing, or overwritten by another client: in each case the lease no longer
            // holds it.
            client.call(Effect::Idempotent, &question).await.map_err(failed)?;
        }
        self.table().remove(&id).map(drop).ok_or(StoreError::NoLease { lease: id })
    }
}

/// Renews one key. `None` if it is no longer as written under the lease.
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
            // The renewal may have been executed, which changes the key's index.
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

/// Whether a key still has the value that was written under the lease, and a time to live: a client
/// that removed the time to live wants the key to stay.
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
    async fn a_lease_expires() {
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
    async fn a_key_belongs_to_the_lease_of_its_last_write() {
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
