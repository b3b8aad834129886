//! The etcd engines of the store (ARCHITECTURE.md, "The store"): [`Etcd`] for v3, which `russet
//! agent` and `russet ipam` use for the location `etcd:...`, and [`EtcdV2`] for the keys API of old
//! peers.
//!
//! On v3, a commit is one guarded transaction, a watch survives the loss of members and
//! connections, and a transaction with unknown outcome is never repeated. Records are stored as
//! Calico writes them (calico-ipam.md sections 1.1 and 2.1), so Go peers share them.

// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod auth;
mod client;
mod engine;
mod failure;
mod guard;
mod lease;
mod members;
mod notification;
mod proto;
mod range;
mod reach;
mod settings;
mod tls;
mod v2;
mod watch;

pub use engine::Etcd;
pub use failure::EtcdError;
pub use reach::Reach;
pub use russet_http::Secret;
pub use settings::{CALL_DEADLINE, LOCATION_SCHEME, Settings, SettingsError};
pub use v2::{EtcdV2, Life};
