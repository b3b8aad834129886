//! Pods on a host without Kubernetes: converts manifests to configurations for [`russet_sandbox`].
//! Used by the verb `sandbox`.

mod dns;
mod fields;
mod manifest;
mod names;

pub use dns::Cluster;
pub use manifest::{Manifest, read};
