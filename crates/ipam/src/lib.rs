//! The address allocator: Calico's blocks, affinities and handles over any store (calico-ipam.md section 3).
//!
//! Decisions are pure and have their own files (`block_ops`, `audit`, `pools`, `search`, `finder`);
//! `allocator` reads, decides and writes guarded steps.

#![expect(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]
// It reads blocks and handles that other programs wrote: none of that may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod allocator;
pub mod audit;
pub mod block_ops;
mod clock;
mod error;
pub mod explain;
mod finder;
pub mod pools;
mod request;
pub mod search;
mod trial_store;

pub use allocator::{Allocator, Configured, DefaultPool, Held, PoolFamilies};
pub use block_ops::ReleaseOptions;
pub use clock::{Backoff, Clock, NoBackoff, SystemClock, delay};
pub use error::IpamError;
pub use request::{Assigned, Released, Request, TIMESTAMP};
pub use russet_model::AddressUse as Use;
