//! The identity of a request's interface, and the addresses that the request asks for.

use std::net::IpAddr;
use std::time::Duration;

use russet_addr::{EndpointId, NodeName};
use russet_attach::Pod;
use russet_cni_spec::CniError;
use russet_cni_spec::plugin::Request;
use russet_ipam::Held;
use russet_model::{HandleId, WorkloadEndpointSpec};
use russet_wiring::pod;

use crate::conf::CalicoConf;

/// The endpoint of a request, and its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) id: EndpointId,
    /// The pod, where Kubernetes named one.
    pub(crate) pod: Option<Pod>,
}

/// The IPAM part of an ADD.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct IpamRequest {
    /// The node on which the addresses will be used.
    pub(crate) node: NodeName,
    /// The interface that will hold them.
    pub(crate) subject: Subject,
    pub(crate) wanted: Wanted,
    /// How long the allocation may take once the lock is held.
    pub(crate) budget: Duration,
}

/// The addresses that are requested.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wanted {
    Address(IpAddr),
    /// One of each enabled family.
    Families {
        /// IPv4.
        v4: bool,
        /// IPv6.
        v6: bool,
        /// The only pools for IPv4, by prefix or name; empty means all that select the node.
        v4_pools: Vec<String>,
        /// The same for IPv6.
        v6_pools: Vec<String>,
    },
}

// === impl Subject ===

impl Subject {
    pub(super) fn from_request(
        request: &Request,
        target: &russet_cni_spec::Target,
    ) -> Result<Self, CniError> {
        Ok(Self { id: target.id.clone(), pod: pod(&request.env)? })
    }

    /// The handle of its addresses.
    pub(crate) fn handle(&self) -> HandleId {
        HandleId::pod(&self.id.network, &self.id.container)
    }

    /// The handle that plugins before v1.11.2 used (calico-ipam.md section 1.6).
    pub(super) fn legacy_handle(&self) -> Option<HandleId> {
        match &self.pod {
            Some(pod) => HandleId::workload(&pod.namespace, &pod.name).ok(),
            None => HandleId::new(self.id.container.as_str()).ok(),
        }
    }

    /// Namespace and name of the pod.
    pub(super) fn pod_names(&self) -> Option<(&str, &str)> {
        self.pod.as_ref().map(|pod| (pod.namespace.as_str(), pod.name.as_str()))
    }

    /// Whether an address of its handle belongs to this interface; Go peers record no interface.
    pub(super) fn holds(&self, held: &Held) -> bool {
        held.attribute.get("interface").is_none_or(|name| name == self.id.ifname.as_str())
    }

    /// Whether its legacy handle could also be a container's handle in its network: a user who
    /// chooses namespace and pod names could otherwise release the addresses of another container.
    pub(super) fn is_ambiguous(&self, legacy: &HandleId) -> bool {
        legacy.as_str().strip_prefix(self.id.network.as_str()).is_some_and(|rest| rest.starts_with('.'))
    }

    /// Whether an address of its legacy handle may belong to this pod: `<namespace>.<pod>` of one
    /// could be `<network>.<container>` of another. If it is ambiguous, only addresses whose
    /// attributes name the pod do.
    pub(crate) fn may_hold(&self, legacy: &HandleId, held: &Held) -> bool {
        let unnamed = !self.is_ambiguous(legacy);
        let says = |name: &str, ours: Option<&str>| match held.attribute.get(name) {
            Some(it) => Some(it) == ours,
            None => unnamed,
        };
        let pod = self.pod.as_ref();
        says("pod", pod.map(|pod| pod.name.as_str()))
            && says("namespace", pod.map(|pod| pod.namespace.as_str()))
            && self.holds(held)
    }

    /// Refuses values that cannot be part of an endpoint's name, as peers do before they allocate
    /// (calico-ipam.md section 4.2 item 1).
    pub(super) fn refuse_bad_parts(&self, node: &NodeName) -> Result<(), CniError> {
        let name = match &self.pod {
            Some(pod) => WorkloadEndpointSpec::k8s_name(node, &pod.name, &self.id.ifname),
            None => WorkloadEndpointSpec::cni_name(node, &self.id.container, &self.id.ifname),
        };
        name.map(drop).map_err(|error| CniError::environment("the endpoint cannot be named", error))
    }
}

// === impl Wanted ===

impl Wanted {
    /// The addresses that a configuration asks for, unless `CNI_ARGS` name one. A configuration
    /// that asks for none is an error.
    pub(crate) fn from_conf(conf: &CalicoConf, address: Option<IpAddr>) -> Result<Self, CniError> {
        if let Some(address) = address {
            return Ok(Self::Address(address));
        }
        let ipam = conf.ipam.clone();
        if !ipam.assign_ipv4 && !ipam.assign_ipv6 {
            let details = "assign_ipv4 is \"false\" and assign_ipv6 is not \"true\"; nothing was written";
            return Err(CniError::invalid_config("ipam: no address of either family is requested", details));
        }
        let (v4_pools, v6_pools) = (ipam.ipv4_pools, ipam.ipv6_pools);
        Ok(Self::Families { v4: ipam.assign_ipv4, v6: ipam.assign_ipv6, v4_pools, v6_pools })
    }
}
