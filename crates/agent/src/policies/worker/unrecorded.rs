//! Endpoints of this node that no record of the store describes: those of the plugin `russet`, unless
//! an operator has written a workload endpoint with their labels.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::EndpointId;
use russet_verdict::world::{Endpoint, EndpointKey, EndpointKind, Update};

use super::wiring::LocalPod;
use super::{PodName, Worker, pod_name};
use crate::policies::Source;

/// The namespace of containers that are no pods of Kubernetes, as in Calico's plugin.
const NO_NAMESPACE: &str = "default";
/// The labels that every workload endpoint has (calico-cni.md section 2.2.2).
const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
const ORCHESTRATOR_LABEL: &str = "projectcalico.org/orchestrator";
/// Policies of Kubernetes select pods by it. On a machine without Kubernetes every container is a pod
/// to them, or nothing could be.
const ORCHESTRATOR: &str = "k8s";
/// The profile that allows everything and is never stored (policy.md section 1.6).
const ALLOW_ALL_PROFILE: &str = "projectcalico-default-allow";

// === impl Worker ===

impl Worker {
    /// The name of an endpoint that has no pod. With Kubernetes no policy is about it.
    pub(super) fn container_name(&self, id: &EndpointId) -> Option<PodName> {
        (self.shared.source == Source::Records).then(|| format!("{NO_NAMESPACE}/{}", id.container))
    }

    /// Whether a pod of this node is described: by its name, or by its address where a plugin without an
    /// agent has attached it, so that the name is not known.
    pub(super) fn is_recorded(&self, name: &str, local: &LocalPod) -> bool {
        self.pods.values().any(|endpoint| {
            let has_address = || !local.is_pod && local.is_at(endpoint);
            pod_name(endpoint) == name || has_address()
        })
    }

    /// Applies what is wired and has no record, and removes what is not wired any more or has one now. Calico's plugins
    /// write one for each interface.
    pub(super) fn apply_unrecorded(&mut self) {
        let wired =
            self.wired.iter().filter(|(name, local)| !local.is_calico && !self.is_recorded(name, local));
        let wanted: BTreeMap<PodName, Arc<Endpoint>> =
            wired.map(|(name, local)| (name.clone(), Arc::new(self.endpoint_of(name, local)))).collect();
        let before = std::mem::replace(&mut self.unrecorded, wanted);
        for name in before.keys().filter(|name| !self.unrecorded.contains_key(*name)) {
            self.engine.apply(Update::Endpoint(key_of(name), None));
        }
        for (name, endpoint) in &self.unrecorded {
            if before.get(name) != Some(endpoint) {
                self.engine.apply(Update::Endpoint(key_of(name), Some(Arc::clone(endpoint))));
            }
        }
    }

    fn endpoint_of(&self, name: &str, local: &LocalPod) -> Endpoint {
        let has_profile = |name: &str| self.profiles.contains(name);
        let endpoint = wired_endpoint(name, &self.node, local.addresses.clone(), has_profile);
        Endpoint { local: Some(local.host_name.clone()), ..endpoint }
    }
}

/// An endpoint of this node that no record describes, as Calico would describe it, without the labels,
/// which only the cluster knows. `name` is `NAMESPACE/POD`. Its profile is its namespace's, if there is one.
pub fn wired_endpoint(
    name: &str,
    node: &str,
    addresses: BTreeSet<IpAddr>,
    has_profile: impl FnOnce(&str) -> bool,
) -> Endpoint {
    let (namespace, pod) = name.split_once('/').unwrap_or((NO_NAMESPACE, name));
    let profile = format!("kns.{namespace}");
    let profile = if has_profile(&profile) { profile.into() } else { ALLOW_ALL_PROFILE.into() };
    Endpoint {
        kind: EndpointKind::Workload,
        namespace: Some(namespace.into()),
        name: pod.into(),
        node: node.into(),
        addresses,
        labels: BTreeMap::from([
            (NAMESPACE_LABEL.into(), namespace.into()),
            (ORCHESTRATOR_LABEL.into(), ORCHESTRATOR.into()),
        ]),
        profiles: vec![profile],
        ports: Vec::new(),
        local: None,
        // What is wired here has the address, whatever records of others say.
        age: u64::MAX,
    }
}

fn key_of(name: &str) -> EndpointKey {
    EndpointKey(format!("wired/{name}").into())
}
