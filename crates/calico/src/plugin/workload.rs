//! The identity of an endpoint: orchestrator, node, namespace, pod or container (calico-cni.md
//! sections 1.5 and 2.2.1).

use russet_addr::{EndpointId, NodeName};
use russet_attach::Pod;
use russet_cni_spec::CniError;
use russet_cni_spec::plugin::Request;
use russet_model::{Key, Prefix, WorkloadEndpointSpec, WorkloadNameError};
use russet_wiring::Target;

use super::labels;
use crate::conf::CalicoConf;

/// One interface of one container, identified as in endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// The node that runs it.
    pub node: NodeName,
    /// The namespace of its endpoint.
    pub namespace: String,
    /// The pod, where Kubernetes named one.
    pub pod: Option<Pod>,
    pub id: EndpointId,
}

/// The orchestrator of pods that Kubernetes named.
pub const K8S: &str = "k8s";
/// The orchestrator of all other containers.
pub const CNI: &str = "cni";
/// The namespace of endpoints of other containers.
const DEFAULT_NAMESPACE: &str = "default";

// === impl Workload ===

impl Workload {
    /// The workload of a request.
    pub fn from_request(request: &Request, conf: &CalicoConf, target: &Target, node: NodeName) -> Self {
        let namespace = match &target.pod {
            Some(pod) => pod.namespace.clone(),
            // Upstream's tests choose a namespace by this argument.
            None => (request.env.args.get("CNI_TEST_NAMESPACE").map(str::to_owned))
                .filter(|namespace| !namespace.is_empty())
                .or_else(|| labels::mesos_namespace(&conf.mesos_labels))
                .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
        };
        Self { node, namespace, pod: target.pod.clone(), id: target.id.clone() }
    }

    /// `k8s` or `cni`.
    pub fn orchestrator(&self) -> &'static str {
        if self.pod.is_some() { K8S } else { CNI }
    }

    pub fn name(&self) -> Result<String, CniError> {
        let name = match &self.pod {
            Some(pod) => WorkloadEndpointSpec::k8s_name(&self.node, &pod.name, &self.id.ifname),
            None => WorkloadEndpointSpec::cni_name(&self.node, &self.id.container, &self.id.ifname),
        };
        name.map_err(unnameable)
    }

    pub fn key(&self) -> Result<Key, CniError> {
        Key::workload_endpoint(&self.namespace, &self.name()?)
            .map_err(|error| CniError::environment("the workload endpoint cannot be named", error))
    }

    /// The prefix of the keys of the workload's endpoints, whatever their interface. Endpoints of
    /// other workloads may be below it: see [`owns`](Self::owns).
    pub fn prefix(&self) -> Result<Prefix, CniError> {
        let workload = self.pod.as_ref().map_or(self.id.container.as_str(), |pod| &pod.name);
        let start = WorkloadEndpointSpec::name_prefix(&self.node, self.orchestrator(), workload)
            .map_err(unnameable)?;
        Prefix::workload_endpoints_named(&self.namespace, &start)
            .map_err(|error| CniError::environment("the workload endpoint cannot be named", error))
    }

    /// Whether an endpoint below [`prefix`](Self::prefix) belongs to this workload, whatever its
    /// interface.
    pub fn owns(&self, spec: &WorkloadEndpointSpec) -> bool {
        let same = match &self.pod {
            Some(pod) => spec.pod == pod.name,
            None => spec.container_id == self.id.container.as_str(),
        };
        same && spec.node == self.node.as_str() && spec.orchestrator == self.orchestrator()
    }
}

fn unnameable(error: WorkloadNameError) -> CniError {
    CniError::environment("the workload endpoint cannot be named", error)
}
