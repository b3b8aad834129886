//! Kubernetes' objects: NetworkPolicies, and what decides whom they select.

mod objects;
mod policy;
mod slices;

pub(super) use objects::{namespace, node, pod, service_account};
pub(super) use policy::network_policy;
pub(super) use slices::{Slices, slice};
