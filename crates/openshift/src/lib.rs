//! OpenShift's network on a node in place of openshift-sdn: the server of its plugins, its tenants,
//! and the data path of its pods.
//!
//! The agent runs it: it hands the [`Server`] its store, what it knows of the node ([`Node`]), where
//! to report problems, and its [`DriftRepair`]; it gets a [`DataPathController`] to call when
//! another program changed the data path.

#![expect(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]
// It reads requests of a socket, stored objects and answers of name servers: none of that may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod controller;
pub mod data_path;
mod dns;
mod server;
pub mod tenants;

pub use controller::{DataPathController, DriftRepair};
pub use server::{
    LISTENER, NetworkDefault, Node, PodPolicies, PolicedPod, Served, Server, Settings, recorded_pods,
};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The target of this crate's log lines. Operators filter by it since this was a part of the agent.
const LOG: &str = "russet_agent::openshift";

/// The data path after a thread panicked is compared with the kernel like any other.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
