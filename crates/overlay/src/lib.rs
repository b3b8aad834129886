//! How nodes reach each other's pods: from nodes, pools and block affinities to devices, FDB, neighbours, routes and
//! address translation.

mod desired;
mod inputs;
mod mac;
mod masquerade;
mod observe;
mod plan;
mod prefix;
mod refusal;
mod routed;
mod scene;
mod vxlan;

pub use desired::{Desired, Hop, desired};
pub use inputs::{Addresses, Affinity, AffinityState, Borrowed, Encapsulation, Inputs, Node, Pool, Underlay};
pub use mac::tunnel_mac;
pub use masquerade::Masquerade;
pub use observe::{DEVICE_ALIAS, FoundDevice, Observed, ROUTE_PROTOCOL, is_ours, observe};
pub use plan::{BATCH_MAX_OPS, Op, Plan, plan};
pub use refusal::{Reason, Refusal, Subject};
pub use vxlan::{Device, PORT, VNI, device_name};
