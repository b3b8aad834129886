//! How nodes reach each other's pods: from nodes, pools and block affinities to devices, FDB, neighbours, routes and
//! address translation.

#![allow(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]
// It reads leases of other nodes and rules of other programs: none of that may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod apply;
pub mod controller;
mod convert;
mod desired;
pub mod fast_path;
pub mod firewall;
pub mod flannel;
mod inputs;
mod mac;
mod masquerade;
mod nat;
mod observe;
mod owner;
mod plan;
mod prefix;
mod reconcile;
mod refusal;
mod report;
mod routed;
pub mod ruleset;
pub mod underlay;
mod validated;
mod vxlan;

pub use controller::{Controller, Round};
pub use desired::{Desired, Hop, desired};
pub use inputs::{
    Addresses, Affinity, Borrowed, Dialect, Encapsulation, Inputs, Node, Pool, Tunnel, TunnelSenders,
    Underlay,
};
pub use mac::tunnel_mac;
pub use masquerade::{FOREIGN_TUNNEL_DROP, Masquerade, POD_ENCAPSULATION_DROP, POD_TUNNEL_DROP, TunnelEnds};
pub use observe::{DEVICE_ALIAS, FoundDevice, Observed, ROUTE_PROTOCOL, is_ours, observe, on_loopback};
pub use owner::{Owner, Yielding};
pub use plan::{BATCH_MAX_OPS, Op, Plan, batches, plan};
pub use reconcile::{Difference, NodeState, Reconciler};
pub use refusal::{Reason, Refusal, Subject};
pub use report::{ERRORS_MAX, Kind, OverlayError, ReconcileReport};
pub use russet_model::AffinityState;
pub use vxlan::{Device, PORT, VNI, device_name};
