//! The store: one trait, its engines, and the test suite that every engine passes.
//!
//! All state of Russet is accessed through [`Store`] (ARCHITECTURE.md, "The store"). The allocator, the
//! leases, the overlay and the policy read and write typed records through it, independent of the
//! engine.

// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod embedded;
mod error;
mod follow;
mod guard;
mod locked;
mod record;
mod refused;
pub mod remote;
mod service;
pub mod sim;
mod traits;
mod wire;

pub use embedded::Embedded;
pub use error::{Cause, CommitError, StoreError};
pub use follow::Known;
pub use locked::{Access, LOCK_FILE, Locked, SOCKET_FILE, STORE_FILE, join, listen, open_or_connect};
pub use record::{Claims, Event, LeaseId, Record, Revision, Snapshot, Step, Tenure};
pub use refused::refused;
pub use remote::Remote;
pub use service::{LISTENER, serve, serve_guests, serve_within};
pub use sim::Sim;
pub use traits::{BoxFuture, MARKED_RECORDS, Store, Watch, check_steps};

/// Largest value of one record. A block of 4,096 addresses with its attributes is about 1.2 MB, and etcd refuses requests above 1.5 MiB.
pub const MAX_VALUE_BYTES: usize = 1_400_000;
/// Limit of the sum of keys and values in one commit: what fits into a request of a default etcd
/// server.
pub const MAX_COMMIT_BYTES: usize = 1_450_000;
/// Limit of steps in one commit: etcd's default limit of operations in a transaction.
pub const MAX_STEPS: usize = 128;
/// Limit of a key in bytes. Calico's longest (a workload endpoint with two 253-byte names) is
/// shorter.
pub const MAX_KEY_BYTES: usize = 1024;
