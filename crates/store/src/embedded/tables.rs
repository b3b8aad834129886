//! The tables of the redb file, and every read and write of them inside one transaction. Called by
//! readers on any thread and by the writer thread.

use redb::{ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use russet_model::{Key, Prefix};

use crate::follow::{Change, Followed, events_of};
use crate::{CommitError, LeaseId, Record, Revision, Snapshot, Step, StoreError, Tenure};

/// key -> (revision, lease or 0, value)
const RECORDS: TableDefinition<'_, &str, (u64, u64, &[u8])> = TableDefinition::new("records");
/// revision -> postcard of [(key, deleted)]: the changes of each commit. The revision of the last
/// row is the store's, so commits need no counter.
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// lease -> time to live in milliseconds
const LEASES: TableDefinition<'_, u64, u64> = TableDefinition::new("leases");
/// (lease, key): the records of each lease
const LEASED: TableDefinition<'_, (u64, &str), ()> = TableDefinition::new("leased");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

const FORMAT: u64 = 1;
const META_FORMAT: &str = "format";
const META_LAST_LEASE: &str = "last_lease";

/// Limits of the log rows and of the values' bytes that one step of a watch reads, which bound the
/// memory of a burst.
const FOLLOW_ROWS: usize = 256;
const FOLLOW_BYTES: usize = 1 << 20;

/// Why a step of a transaction failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// A guard failed: nothing was written.
    Refused(CommitError),
    /// An error of the file: the transaction has to be dropped.
    Disk(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Disk(error.into())
    }
}

/// Creates the tables of a new file, and refuses those of a newer version.
pub(super) fn prepare(db: &redb::Database) -> Result<(), Failure> {
    if let Ok(table) = db.begin_read()?.open_table(META) {
        return match table.get(META_FORMAT)?.map(|row| row.value()) {
            Some(FORMAT) => Ok(()),
            other => {
                let reason = format!(
                    "the file has format {other:?}, this program reads {FORMAT}; use the program that wrote it"
                );
                let error = StoreError::Invalid { operation: "open store".into(), reason };
                Err(Failure::Refused(error.into()))
            }
        };
    }
    let transaction = db.begin_write()?;
    transaction.open_table(META)?.insert(META_FORMAT, FORMAT)?;
    transaction.open_table(RECORDS)?;
    transaction.open_table(LOG)?;
    transaction.open_table(LEASES)?;
    transaction.open_table(LEASED)?;
    transaction.commit()?;
    Ok(())
}

// === reading ===

fn record(key: &str, (revision, _, value): (u64, u64, &[u8])) -> Record {
    Record { key: Key::from_stored(key), value: value.to_vec(), revision: Revision(revision) }
}

pub(super) fn revision(transaction: &ReadTransaction) -> Result<Revision, redb::Error> {
    let table = transaction.open_table(LOG)?;
    Ok(Revision(table.last()?.map_or(0, |(revision, _)| revision.value())))
}

pub(super) fn get(transaction: &ReadTransaction, key: &Key) -> Result<Option<Record>, redb::Error> {
    let table = transaction.open_table(RECORDS)?;
    Ok(table.get(key.as_str())?.map(|row| record(key.as_str(), row.value())))
}

pub(super) fn tenure(
    transaction: &ReadTransaction,
    key: &Key,
) -> Result<Option<(Record, Tenure)>, redb::Error> {
    let table = transaction.open_table(RECORDS)?;
    Ok(table.get(key.as_str())?.map(|row| {
        let (_, lease, _) = row.value();
        let tenure = if lease == 0 { Tenure::Forever } else { Tenure::Leased(Some(LeaseId(lease))) };
        (record(key.as_str(), row.value()), tenure)
    }))
}

pub(super) fn list(transaction: &ReadTransaction, prefix: &Prefix) -> Result<Snapshot, redb::Error> {
    let mut records = Vec::new();
    let revision = scan(transaction, prefix, &mut |record| records.push(record))?;
    Ok(Snapshot { records, revision })
}

/// Passes on every record under a prefix, row by row.
pub(super) fn scan(
    transaction: &ReadTransaction,
    prefix: &Prefix,
    take: &mut dyn FnMut(Record),
) -> Result<Revision, redb::Error> {
    let table = transaction.open_table(RECORDS)?;
    for row in table.range(prefix.as_str()..)? {
        let (key, value) = row?;
        if !key.value().starts_with(prefix.as_str()) {
            break;
        }
        take(record(key.value(), value.value()));
    }
    revision(transaction)
}

/// The changes after `since`, and the revision up to which they were read.
pub(super) fn follow(
    transaction: &ReadTransaction,
    prefix: &Prefix,
    since: Option<Revision>,
) -> Result<(Followed, Revision), redb::Error> {
    let log = transaction.open_table(LOG)?;
    let first = log.first()?.map_or(1, |(revision, _)| revision.value());
    let last = revision(transaction)?;
    let Some(since) = since.filter(|since| since.0 + 1 >= first && *since <= last) else {
        return Ok((Followed::Snapshot(list(transaction, prefix)?), last));
    };
    let records = transaction.open_table(RECORDS)?;
    let (mut events, mut at, mut bytes) = (Vec::new(), since, 0);
    for row in log.range(since.0 + 1..)?.take(FOLLOW_ROWS) {
        let (revision, changes) = row?;
        at = Revision(revision.value());
        let mut trouble = None;
        let current = |key: &Key| match records.get(key.as_str()) {
            Ok(row) => row.map(|row| record(key.as_str(), row.value())),
            Err(error) => {
                trouble = Some(error);
                None
            }
        };
        let found = events_of(prefix, changes_of(at, changes.value())?, current);
        if let Some(error) = trouble {
            return Err(error.into());
        }
        bytes += found.iter().map(event_bytes).sum::<usize>();
        events.extend(found);
        if bytes > FOLLOW_BYTES {
            break;
        }
    }
    Ok((Followed::Events(events), at))
}

fn event_bytes(event: &crate::Event) -> usize {
    match event {
        crate::Event::Put(record) => record.value.len(),
        _ => 0,
    }
}

fn changes_of(revision: Revision, row: &[u8]) -> Result<Vec<Change>, redb::Error> {
    let changes: Vec<(Key, bool)> = postcard::from_bytes(row)
        .map_err(|error| redb::Error::Corrupted(format!("change log at revision {}: {error}", revision.0)))?;
    Ok(changes.into_iter().map(|(key, deleted)| Change { revision, key, deleted }).collect())
}

// === writing ===

/// Checks every guard, then executes the steps at `revision`. A refusal has written nothing.
pub(super) fn apply(
    transaction: &WriteTransaction,
    steps: &[Step],
    revision: Revision,
) -> Result<(), Failure> {
    let mut records = transaction.open_table(RECORDS)?;
    let mut leased = transaction.open_table(LEASED)?;
    let mut previous_leases = Vec::with_capacity(steps.len());
    {
        let leases = transaction.open_table(LEASES)?;
        for (failed, step) in steps.iter().enumerate() {
            let refuse = |error| Failure::Refused(CommitError { done: 0, failed, error });
            let row = records.get(step.key().as_str())?;
            let (current, lease) = match row.as_ref().map(|row| row.value()) {
                Some((revision, lease, _)) => (Some(Revision(revision)), lease),
                None => (None, 0),
            };
            crate::guard::check(step, current).map_err(refuse)?;
            if let Some(lease) = step.lease()
                && leases.get(lease.0)?.is_none()
            {
                return Err(refuse(StoreError::NoLease { lease }));
            }
            previous_leases.push(lease);
        }
    }
    for (step, previous) in steps.iter().zip(previous_leases) {
        let key = step.key().as_str();
        let lease = step.lease().map_or(0, |lease| lease.0);
        if previous != lease && previous != 0 {
            leased.remove((previous, key))?;
        }
        match step.value() {
            Some(value) => records.insert(key, (revision.0, lease, value))?,
            None => records.remove(key)?,
        };
        if previous != lease && lease != 0 {
            leased.insert((lease, key), ())?;
        }
    }
    let changes = steps.iter().map(|step| (step.key(), step.value().is_none()));
    append_log(transaction, revision, changes)
}

fn append_log<'a>(
    transaction: &WriteTransaction,
    revision: Revision,
    changes: impl Iterator<Item = (&'a Key, bool)>,
) -> Result<(), Failure> {
    let changes: Vec<(&Key, bool)> = changes.collect();
    let row = postcard::to_stdvec(&changes)
        .map_err(|error| redb::Error::Corrupted(format!("encode change log: {error}")))?;
    transaction.open_table(LOG)?.insert(revision.0, row.as_slice())?;
    Ok(())
}

/// Removes all but the newest `keep` rows of the log.
pub(super) fn trim_log(transaction: &WriteTransaction, last: Revision, keep: u64) -> Result<(), Failure> {
    let mut log = transaction.open_table(LOG)?;
    let end = (last.0 + 1).saturating_sub(keep.max(1));
    while log.first()?.is_some_and(|(revision, _)| revision.value() < end) {
        log.pop_first()?;
    }
    Ok(())
}

// === leases ===

pub(super) fn leases(transaction: &ReadTransaction) -> Result<Vec<(LeaseId, u64)>, redb::Error> {
    let table = transaction.open_table(LEASES)?;
    table
        .iter()?
        .map(|row| row.map(|(id, ttl_ms)| (LeaseId(id.value()), ttl_ms.value())).map_err(Into::into))
        .collect()
}

pub(super) fn grant(transaction: &WriteTransaction, ttl_ms: u64) -> Result<LeaseId, Failure> {
    let mut meta = transaction.open_table(META)?;
    let id = meta.get(META_LAST_LEASE)?.map_or(0, |row| row.value()) + 1;
    meta.insert(META_LAST_LEASE, id)?;
    transaction.open_table(LEASES)?.insert(id, ttl_ms)?;
    Ok(LeaseId(id))
}

/// Removes a lease and its records at `revision`; whether there were any.
pub(super) fn revoke(
    transaction: &WriteTransaction,
    lease: LeaseId,
    revision: Revision,
) -> Result<bool, Failure> {
    transaction.open_table(LEASES)?.remove(lease.0)?;
    let mut leased = transaction.open_table(LEASED)?;
    let mut keys = Vec::new();
    for row in leased.range((lease.0, "")..)? {
        let (row, ()) = row.map(|(key, _)| (key, ()))?;
        let (id, key) = row.value();
        if id != lease.0 {
            break;
        }
        keys.push(Key::from_stored(key));
    }
    let mut records = transaction.open_table(RECORDS)?;
    for key in &keys {
        leased.remove((lease.0, key.as_str()))?;
        records.remove(key.as_str())?;
    }
    if keys.is_empty() {
        return Ok(false);
    }
    append_log(transaction, revision, keys.iter().map(|key| (key, true)))?;
    Ok(true)
}
