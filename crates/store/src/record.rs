//! What a store holds and what is asked of it: records, snapshots, steps and events. Plain values, used by every engine and every caller.

use russet_model::Key;

/// When a record was last written, on the store's own clock: 0 is before the first write. Only ever compared for equality by guards;
/// the order says what came first within one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub u64);

/// A lease that [`crate::Store::grant`] gave: records tied to it vanish when it runs out. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// How long a record stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenure {
    /// For ever: nothing ends it but a deletion.
    Forever,
    /// As long as a lease is kept alive: which, where the store can tell. On the etcd v2 API only this process's leases have names.
    Leased(Option<LeaseId>),
}

/// One record as it stands in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where it is.
    pub key: Key,
    /// What it says.
    pub value: Vec<u8>,
    /// Its last modification: the guard for the next one.
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
        /// Where.
        key: Key,
        /// What.
        value: Vec<u8>,
        /// The lease that it lives by, if any.
        lease: Option<LeaseId>,
    },
    /// Replaces a record that must still be at `revision`, else `Conflict`, or `NotFound` when it is gone. Without a lease it lives on
    /// for ever, whatever it was tied to before.
    Update {
        /// Where.
        key: Key,
        /// What.
        value: Vec<u8>,
        /// The revision that was read.
        revision: Revision,
        /// The lease that it lives by from now on, if any.
        lease: Option<LeaseId>,
    },
    /// Removes a record that must exist (`NotFound`) and, with a revision, must still be at it (`Conflict`).
    Delete {
        /// Where.
        key: Key,
        /// The revision that was read; `None` removes whatever is there.
        revision: Option<Revision>,
    },
    /// Writes a record whatever is there.
    Put {
        /// Where.
        key: Key,
        /// What.
        value: Vec<u8>,
        /// The lease that it lives by, if any.
        lease: Option<LeaseId>,
    },
}

/// What an engine promises beyond the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claims {
    /// A commit of several steps is all or nothing.
    pub atomic: bool,
    /// Leases work.
    pub ttl: bool,
}

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The state to start from: always the first event, and only the first.
    Snapshot(Snapshot),
    /// A record was created or changed. Versions overwritten before the watcher came to them may be left out, the last one never.
    Put(Record),
    /// A record that this watch has told of is gone.
    Deleted {
        /// Which.
        key: Key,
        /// When; after a gap in the watch, the moment at which it was found missing.
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

    /// The same step with its record tied to `id`. A removal stays as it is.
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

    /// The record that the step is about.
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
