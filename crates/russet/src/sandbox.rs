//! Pods on a host without Kubernetes: manifests read, and what becomes of them in [`russet_sandbox`]. The verb `sandbox` stands on this.

mod dns;
mod fields;
mod manifest;
mod names;

pub use dns::Cluster;
pub use manifest::{Manifest, read};
