//! Calico's CNI plugins: the main plugin ([`plugin`]) and its IPAM ([`ipam`]), on the datastore that
//! the network configuration names.
//!
//! What exists only for data of Calico v1.11 is in modules called `v1`.

#![expect(missing_docs, reason = "used by the programs of this workspace only")]
// It reads configurations, records and answers of other programs: none of that may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod clusters;
mod conf;
mod datastore;
pub mod ipam;
mod node;
pub mod plugin;
mod v1;

pub use clusters::Clusters;
pub use conf::KubernetesSettings;
pub use datastore::{CalicoHost, Datastore, Datastores};
pub use node::CalicoNode;
pub use plugin::{Outcome, PolicyWait, endpoint_status_file};
pub use v1::has_v1 as has_v1_data;
