//! The Kubernetes engine of the store (ARCHITECTURE.md, "The store"): Calico's data in custom
//! resources of the Kubernetes API, and in its nodes, pods, namespaces and service accounts
//! (kubernetes.md section 1), so that Go peers of the same cluster share it.
//!
//! Callers see the keys and values of etcd; [`KubeStore`] converts both at its edge. A commit of
//! several steps is not atomic: one request writes one object. A revision is an object's
//! `resourceVersion`, and a write that changes nothing leaves it as it was.

// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod commit;
mod companion;
mod convert;
mod engine;
mod failure;
mod group;
mod list;
mod names;
mod place;
mod settings;
mod throttle;
mod watch;

pub use engine::KubeStore;
pub use group::Group;
pub use names::handle_name;
pub use settings::{LOCATION_SCHEME, Location, Pauses, Settings, WriteLimit};
