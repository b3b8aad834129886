//! The data of a store and its requests: records, snapshots, steps and events. Plain values, used
//! by every engine and every caller.

use russet_model::Key;

/// When a record was last written, on the store's own clock: 0 is before the first write. Guards
/// compare it only for equality; the order shows what came first within one store. A write that
/// changes nothing may leave it as it was, so it does not fence off other writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub u64);

/// A lease from [`crate::Store::grant`]: its records vanish when it expires. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// How long a record exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenure {
    /// Until it is deleted.
    Forever,
    /// As long as a lease is kept alive; the lease, if the store knows it. On the etcd v2 API only
    /// this process's leases have IDs.
    Leased(Option<LeaseId>),
}

/// One record of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The record's key.
    pub key: Key,
    /// The new value.
    pub value: Vec<u8>,
    /// The revision of its last change: the guard for the next one.
    pub revision: Revision,
}

/// Every record under a prefix at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// In key order (byte order).
    pub records: Vec<Record>,
    /// The store's revision at that moment.
    pub revision: Revision,
}

/// One guarded write. A commit names each key at most once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Writes a record that must not exist, else `AlreadyExists`.
    Create {
        /// The record's key.
        key: Key,
        /// The new value.
        value: Vec<u8>,
        /// Its lease, if any.
        lease: Option<LeaseId>,
    },
    /// Replaces a record that must still be at `revision`, else `Conflict`, or `NotFound` if it is
    /// gone. Without a lease the record has none any more, whatever it had before.
    Update {
        /// The record's key.
        key: Key,
        /// The new value.
        value: Vec<u8>,
        /// The revision that was read.
        revision: Revision,
        /// Its new lease, if any.
        lease: Option<LeaseId>,
    },
    /// Removes a record that must exist (`NotFound`) and, with a revision, must still be at it (`Conflict`).
    Delete {
        /// The record's key.
        key: Key,
        /// The revision that was read; `None` removes any.
        revision: Option<Revision>,
    },
    /// Writes a record unconditionally.
    Put {
        /// The record's key.
        key: Key,
        /// The new value.
        value: Vec<u8>,
        /// Its lease, if any.
        lease: Option<LeaseId>,
    },
}

/// What an engine supports beyond the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claims {
    /// A commit of several steps is all or nothing.
    pub atomic: bool,
    /// Leases work.
    pub ttl: bool,
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The initial state: always the first event, and only the first.
    Snapshot(Snapshot),
    /// A record was created or changed. Versions that were overwritten meanwhile may be left out,
    /// the last one never.
    Put(Record),
    /// A record that this watch has reported was removed.
    Deleted {
        /// The record's key.
        key: Key,
        /// The revision; after a gap in the watch, that at which it was found missing.
        revision: Revision,
    },
}

// === impl Step ===

impl Step {
    /// A guarded creation, without a lease.
    pub fn create(key: Key, value: impl Into<Vec<u8>>) -> Self {
        Self::Create { key, value: value.into(), lease: None }
    }

    /// A guarded replacement, without a lease.
    pub fn update(key: Key, value: impl Into<Vec<u8>>, revision: Revision) -> Self {
        Self::Update { key, value: value.into(), revision, lease: None }
    }

    /// A removal, guarded when a revision is given.
    pub fn delete(key: Key, revision: Option<Revision>) -> Self {
        Self::Delete { key, revision }
    }

    /// An unguarded write, without a lease.
    pub fn put(key: Key, value: impl Into<Vec<u8>>) -> Self {
        Self::Put { key, value: value.into(), lease: None }
    }

    /// The same step with its record tied to `id`. A removal is unchanged.
    #[must_use]
    pub fn with_lease(mut self, id: LeaseId) -> Self {
        match &mut self {
            Self::Create { lease, .. } | Self::Update { lease, .. } | Self::Put { lease, .. } => {
                *lease = Some(id)
            }
            Self::Delete { .. } => {}
        }
        self
    }

    /// The record's key.
    pub fn key(&self) -> &Key {
        match self {
            Self::Create { key, .. }
            | Self::Update { key, .. }
            | Self::Delete { key, .. }
            | Self::Put { key, .. } => key,
        }
    }

    /// The bytes that it writes; `None` for a removal.
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Create { value, .. } | Self::Update { value, .. } | Self::Put { value, .. } => Some(value),
            Self::Delete { .. } => None,
        }
    }

    /// The lease that it names, if any.
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::Create { lease, .. } | Self::Update { lease, .. } | Self::Put { lease, .. } => *lease,
            Self::Delete { .. } => None,
        }
    }
}
