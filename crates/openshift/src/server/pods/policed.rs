//! The node's pods as one sees them that enforces NetworkPolicies, in a cluster that isolates by these
//! (policy.md section 1.10).

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use russet_addr::{ContainerId, IfName};
use tokio::sync::watch;

use super::super::request::Pod;
use super::super::socket::Refusal;
use crate::data_path::Port;

/// A pod on which policies are enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicedPod {
    /// The runtime's ID of the sandbox.
    pub sandbox: ContainerId,
    /// Namespace and name, unless no record of an earlier server has them.
    pub name: Option<(String, String)>,
    pub host_veth: IfName,
    pub address: Ipv4Addr,
}

/// Enforces NetworkPolicies on pods.
pub trait PodPolicies: Send + Sync {
    /// Denies everything to and from a pod until policies have decided about it. May take seconds.
    fn hold(&self, pod: &PolicedPod) -> Result<(), String>;

    /// The pod is attached.
    fn attached(&self, pod: PolicedPod);

    /// The pod is not attached, or not any more.
    fn detached(&self, sandbox: &ContainerId);

    /// These pods are attached when the server starts. Nothing is decided before.
    fn listed(&self, pods: Vec<PolicedPod>);

    /// True while what policies say about all of them is in force.
    fn in_force(&self) -> watch::Receiver<bool>;

    /// Policies are not about this node's pods, for this reason.
    fn left_out(&self, why: &str);
}

/// What the server does with its pods before and after it attaches them.
#[derive(Clone, Default)]
pub struct Policing(pub Option<Arc<dyn PodPolicies>>);

// === impl PolicedPod ===

impl PolicedPod {
    pub fn new(port: &Port, record: Option<&Pod>) -> Self {
        let named = record.filter(|pod| !pod.name.is_empty());
        let name = named.map(|pod| (pod.namespace.clone(), pod.name.clone()));
        Self { sandbox: port.sandbox.clone(), name, host_veth: port.host_veth.clone(), address: port.address }
    }
}

// === impl Policing ===

impl Policing {
    pub(super) async fn hold(&self, pod: &PolicedPod) -> Result<(), Refusal> {
        let Some(policies) = self.0.clone() else { return Ok(()) };
        let pod = pod.clone();
        let held = tokio::task::spawn_blocking(move || policies.hold(&pod)).await;
        let held = held.unwrap_or_else(|error| Err(error.to_string()));
        held.map_err(|error| Refusal::later(format!("policies are not ready for a new pod: {error}")))
    }

    pub(super) fn attached(&self, pod: PolicedPod) {
        if let Some(policies) = &self.0 {
            policies.attached(pod);
        }
    }

    pub(super) fn detached(&self, sandbox: &ContainerId) {
        if let Some(policies) = &self.0 {
            policies.detached(sandbox);
        }
    }
}

impl fmt::Debug for Policing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Policing").field(&self.0.is_some()).finish()
    }
}
