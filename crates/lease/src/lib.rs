//! Subnet leases: flannel's leases in any store, as a peer of real `flanneld` nodes (flannel.md
//! section 3), or from Kubernetes (section 5). The daemon uses a [`SubnetManager`] and does not
//! know which.
//!
//! Like the store's, the futures are not `Send`: everything runs on one thread.

#![allow(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]
// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod decide;
mod error;
pub mod kube;
mod manager;
mod path;
mod store_manager;
mod write_interval;

pub use error::LeaseError;
pub use manager::{BoxFuture, Event, Lease, LeaseWatch, Lost, SubnetManager, Wish, gather};
pub use path::{Paths, clean_prefix};
pub use store_manager::{LEASE_TTL, Settings, StoreManager};
