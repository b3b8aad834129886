//! Access to the Kubernetes API: a small interface with the calls that the plugins and daemons
//! need, its objects, and its client.
//!
//! The `calico` plugin reads pods and namespaces and writes a pod's addresses into its annotations
//! (calico-cni.md sections 2.2.4 and 2.5); flannel's subnet manager watches nodes and patches its
//! own (flannel.md section 5). Callers use a [`Kubernetes`] and do not depend on its
//! implementation.

#![allow(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]
// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod answer;
mod api;
mod client;
mod config;
mod connection;
mod error;
mod heartbeat;
mod lease;
mod lines;
mod list;
mod objects;
mod patch;
mod path;
mod pruned;
mod rest;
#[cfg(feature = "testing")]
pub mod testing;
mod watch;
pub mod yaml;

pub use answer::{Again, Failure};
pub use api::{BoxFuture, Kubernetes, NodeEvent, NodeWatch, ObjectEvent};
pub use client::{CALL_DEADLINE, Client};
pub use config::{ConfigError, Overrides, Source};
pub use error::{KubeError, Said, absent_is_none};
pub use heartbeat::{HEARTBEAT_NAMESPACE, Heartbeat, heartbeat_node};
pub use lease::Lease;
pub use lines::{Lines, SILENCE};
pub use list::ListQuery;
pub use objects::{
    Address, Condition, Container, ContainerPort, Namespace, Node, NodeSpec, NodeStatus, ObjectMeta, Pod,
    PodIp, PodSpec, PodStatus, SecurityContext, Taint,
};
pub use patch::StatusPatch;
pub use pruned::Keep;
pub use rest::{Answer, Request, Verb};
pub use russet_http::Secret;
pub use watch::{Objects, Piece, Pieces, Watched};
