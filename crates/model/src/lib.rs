//! The stored records: their types, datastore keys and JSON.
//!
//! The stored form is Calico's (calico-ipam.md sections 1.1 to 1.9), byte for byte as its newest
//! release writes it, so that Go peers can share a datastore with Russet. The store, the allocator
//! and the overlay use only these types to read and write records. All of it is pure: bytes in,
//! values out.

// It decodes bytes of other programs: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod affinity;
mod block;
mod cluster;
mod config;
mod felix;
pub mod flannel;
mod handle;
mod handle_id;
mod json;
mod key;
mod node;
pub mod openshift;
pub mod packed;
mod policy;
mod pool;
mod profile;
mod reservation;
mod resource;
mod selector;
pub mod time;
mod uid;
pub mod v1;
mod workload;

pub use affinity::{Affinity, AffinityState};
pub use block::{Attribute, Block, BlockFault};
pub use cluster::{ClusterInformation, ClusterInformationSpec};
pub use config::IpamConfig;
pub use felix::{FelixConfiguration, FelixConfigurationSpec};
pub use handle::Handle;
pub use handle_id::HandleId;
pub use json::{DecodeError, Extra};
pub use key::{Key, KeyKind, Prefix, ResourceKind};
pub use node::{Node, NodeBgp, NodeSpec, probe_annotation};
pub use policy::{
    CalicoPolicy, ClusterNetworkPolicySpec, GlobalNetworkPolicySpec, GlobalNetworkSetSpec, HostEndpointSpec,
    KubernetesNetworkPolicySpec, NetworkPolicySpec, NetworkSetSpec, StagedGlobalNetworkPolicySpec,
    StagedKubernetesNetworkPolicySpec, StagedNetworkPolicySpec, TierSpec,
};
pub use pool::{AddressUse, AssignmentMode, EncapMode, IpPool, IpPoolSpec};
pub use profile::{Profile, ProfileRule, ProfileSpec, RuleSide};
pub use reservation::{IpReservation, IpReservationSpec};
pub use resource::{API_VERSION, Metadata, Resource, Spec, SpecMembers};
pub use selector::{Restriction, Selector, SelectorError};
pub use uid::uid;
pub use workload::{EndpointPort, IpNat, WorkloadEndpoint, WorkloadEndpointSpec, WorkloadNameError};
