//! Which subnet: flannel's leases over any store, as a peer of real `flanneld` nodes (flannel.md section 3), or from Kubernetes
//! (section 5). The daemon holds a [`SubnetManager`] and does not know which.
//!
//! Futures are not `Send`, as the store's are not: everything here lives on one thread.

// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod decide;
mod error;
pub mod kube;
mod manager;
mod pace;
mod path;
mod store_manager;

pub use error::LeaseError;
pub use manager::{BoxFuture, Event, Lease, LeaseWatch, Lost, SubnetManager, Wish, gather};
pub use path::{Paths, clean_prefix};
pub use store_manager::{LEASE_TTL, Settings, StoreManager};
