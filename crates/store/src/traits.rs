//! The trait that every engine implements and every caller of the store uses.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use russet_model::{Key, Prefix};

use crate::{
    Claims, CommitError, Event, LeaseId, MAX_COMMIT_BYTES, MAX_KEY_BYTES, MAX_STEPS, MAX_VALUE_BYTES, Record,
    Revision, Snapshot, Step, StoreError, Tenure,
};

/// A boxed future. Not `Send`: an engine's callers run on one thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The approximate number of records between two marks of [`Store::scan_marked`]: small ones, such
/// as handles, are then a page of 2 to 3 MB.
pub const MARKED_RECORDS: usize = 16_384;

/// A store of typed records with revisions, guarded commits and watches.
pub trait Store {
    /// What this engine supports beyond the core.
    fn claims(&self) -> Claims;

    /// Reads one record. Includes every commit that was answered before the call.
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>>;

    /// Reads every record under a prefix, at one moment.
    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>>;

    /// Passes every record under a prefix to `take`, as of one revision, and returns that revision:
    /// for lists that would need too much memory. In key order. After an error, the records that
    /// were passed on are void: start again.
    fn scan<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            let Snapshot { records, revision } = self.list(prefix).await?;
            records.into_iter().for_each(take);
            Ok(revision)
        })
    }

    /// The same as `scan` for a caller that knows where keys are: an engine that reads page by page
    /// may then request several pages at a time. `marks` is called at the first key, and again when
    /// the scan has reached the last mark that it returned; all records before that were passed on
    /// by then. It returns keys after that one, in order and about [`MARKED_RECORDS`] records
    /// apart; or none if it knows none. However wrong they are, every record is passed on once.
    fn scan_marked<'a>(
        &'a self,
        prefix: &'a Prefix,
        _marks: &'a mut dyn FnMut(&Key) -> Vec<Key>,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        self.scan(prefix, take)
    }

    /// The keys under a prefix at one revision, in order, for callers that need no values.
    fn keys<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Vec<Key>, StoreError>> {
        Box::pin(async move {
            let mut keys = Vec::new();
            self.scan(prefix, &mut |record| keys.push(record.key)).await?;
            Ok(keys)
        })
    }

    /// Whether there is any record under a prefix.
    fn holds<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { Ok(!self.keys(prefix).await?.is_empty()) })
    }

    /// Applies guarded steps in order and returns each one's revision. Atomic engines: all or
    /// nothing. Others stop at the first failure, and `done` says how many certainly took effect.
    /// Once the future was polled, the commit may take effect even if it is then dropped.
    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>>;

    /// Follows a prefix: its snapshot first, then the changes. Survives compaction and lost
    /// connections without losing or repeating a change.
    /// repeating a change.
    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>>;

    /// The same as `watch`, except that the existing records are passed to `take` instead of being
    /// the first event: for prefixes that would need too much memory. After an error, the records
    /// that were passed on are void.
    fn follow<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let mut watch = self.watch(prefix).await?;
            if let Event::Snapshot(snapshot) = watch.next().await? {
                snapshot.records.into_iter().for_each(take);
            }
            Ok(watch)
        })
    }

    /// Reads one record and its lifetime.
    fn tenure<'a>(&'a self, _key: &'a Key) -> BoxFuture<'a, Result<Option<(Record, Tenure)>, StoreError>> {
        unsupported("read a record's lease")
    }

    /// Creates a lease with a TTL of at least `ttl`.
    fn grant(&self, _ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        unsupported("grant lease")
    }

    /// Restarts a lease's TTL and returns it. `NoLease` if it has expired.
    fn keep_alive(&self, _lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        unsupported("keep lease alive")
    }

    /// Ends a lease now, with its records. `NoLease` if it has expired.
    fn revoke(&self, _lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        unsupported("revoke lease")
    }
}

/// A watch. Dropping it ends it; dropping a pending `next` loses nothing.
pub trait Watch {
    /// The next event; the first is always a snapshot. Waits while nothing changes.
    fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Event, StoreError>>;
}

fn unsupported<'a, T: 'a>(operation: &str) -> BoxFuture<'a, Result<T, StoreError>> {
    let error = StoreError::Unsupported { operation: operation.to_owned() };
    Box::pin(async move { Err(error) })
}

/// Refuses a commit that some engine could not apply, so that all refuse the same ones: too many
/// steps, a repeated key, oversized keys or values.
pub fn check_steps(steps: &[Step]) -> Result<(), CommitError> {
    let invalid = |failed: usize, reason: String| {
        let error = StoreError::Invalid { operation: format!("commit of {} steps", steps.len()), reason };
        Err(CommitError { done: 0, failed, error })
    };
    if steps.len() > MAX_STEPS {
        return invalid(MAX_STEPS, format!("more than {MAX_STEPS} steps"));
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut total_bytes = 0;
    for (index, step) in steps.iter().enumerate() {
        let key = step.key();
        let value_bytes = step.value().map_or(0, <[u8]>::len);
        total_bytes += key.as_str().len() + value_bytes;
        if key.as_str().is_empty() || key.as_str().len() > MAX_KEY_BYTES {
            return invalid(index, format!("key {key} is empty or above {MAX_KEY_BYTES} bytes"));
        }
        if value_bytes > MAX_VALUE_BYTES {
            return invalid(index, format!("value of {key} is {value_bytes} bytes, above {MAX_VALUE_BYTES}"));
        }
        if total_bytes > MAX_COMMIT_BYTES {
            return invalid(index, format!("more than {MAX_COMMIT_BYTES} bytes in all"));
        }
        if !seen.insert(key) {
            return invalid(index, format!("{key} is named twice"));
        }
    }
    Ok(())
}
