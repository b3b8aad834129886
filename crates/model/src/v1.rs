//! The data model of Calico's v1 line (plugins up to 1.11, libcalico-go 1.x), which lies behind etcd's v2 API: hierarchical keys and
//! snake_case JSON (calico-cni.md sections 0.2, 2.2.3, 2.3; calico-ipam.md section 1.9). Read and written by the `calico` plugin for a
//! v1.11 conflist, read by `russet migrate calico-v1`.
//!
//! What differs from v3:
//! * There are no resources: no kind, metadata, uid or creation time. What v3 has in
//!   `metadata.name` is only in the key, escaped (`%` as `%25`, `/` as `%2f`), and a profile is
//!   three keys.
//! * Pools are named by their network, have no selectors and no block size: blocks are /26 and
//!   /122.
//! * Blocks, affinities, handles and settings are under v3's paths (`/calico/ipam/v2/...`). Blocks
//!   have `hostAffinity` or `affinity`, and `strictAffinity`, and no sequence numbers; affinities
//!   are empty or `{}`; handles have no `deleted`.
//! * An endpoint is found by node, orchestrator, workload and interface; a workload of Kubernetes is `<namespace>.<pod>`.
//! * A node is several keys of plain text, half of them below `/calico/bgp/v1`.

mod convert;
mod endpoint;
mod ipam;
mod key;
mod node;
mod pool;
mod profile;

pub use endpoint::{Endpoint, Nat};
pub use ipam::{block_from_v3, block_to_v3, handle_from_v3};
pub use key::{BgpMember, EndpointId, ProfilePart, V1Key};
pub use node::NodeData;
pub use pool::Pool;
pub use profile::{Profile, profile_name_in_v3, rule_in_v3};

/// The node's orchestrator for pods of Kubernetes.
pub const ORCHESTRATOR_K8S: &str = "k8s";
/// The orchestrator of containers outside of Kubernetes.
pub const ORCHESTRATOR_CNI: &str = "cni";
