//! What concurrent requests share: locks by key, bounded pools for blocking work, and pauses
//! between attempts. Nothing here knows the kernel or the store.

#![allow(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]

mod backoff;
mod keyed_lock;
mod pool;

pub use backoff::{Backoff, Rng, random};
pub use keyed_lock::{KeyedLock, LockGuard};
pub use pool::{BlockingPool, Permit, PoolError};
