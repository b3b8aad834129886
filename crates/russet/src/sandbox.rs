//! Pods on a host without Kubernetes: manifests read, and what becomes of them in [`russet_sandbox`]. The verb `sandbox` stands on this.

mod dns;
mod fields;
mod manifest;

pub use dns::Cluster;
pub use manifest::{Manifest, read};
