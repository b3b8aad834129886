//! Whose addresses a request is about, and what it wants.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use russet_addr::{ContainerId, IfName, NetworkName, NodeName};
use russet_attach::Pod;
use russet_cni_spec::CniError;
use russet_cni_spec::plugin::Request;
use russet_ipam::Held;
use russet_model::{HandleId, WorkloadEndpointSpec};

use crate::calico_conf::CalicoConf;
use crate::target::pod;

/// One interface of one container on one network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The network.
    pub(crate) network: NetworkName,
    /// The container.
    pub(crate) container: ContainerId,
    /// The interface inside it.
    pub(crate) ifname: IfName,
    /// The pod, where Kubernetes named one.
    pub(crate) pod: Option<Pod>,
}

/// An ADD's share of IPAM.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct IpamRequest {
    /// The node on which the addresses will live.
    pub(crate) node: NodeName,
    /// Whose they will be.
    pub(crate) subject: Subject,
    /// Which they are to be.
    pub(crate) wanted: Wanted,
    /// How long it may take once the lock is there.
    pub(crate) budget: Duration,
}

/// Which addresses are wanted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wanted {
    /// This one.
    Address(IpAddr),
    /// One of each family that is switched on.
    Families {
        /// IPv4.
        v4: bool,
        /// IPv6.
        v6: bool,
        /// The only pools for IPv4, by prefix or name; empty: all that select the node.
        v4_pools: Vec<String>,
        /// The same for IPv6.
        v6_pools: Vec<String>,
    },
}

// === impl Subject ===

impl Subject {
    pub(super) fn of(request: &Request, target: &russet_cni_spec::Target) -> Result<Self, CniError> {
        Ok(Self {
            network: request.config.name.clone(),
            container: target.container_id.clone(),
            ifname: target.ifname.clone(),
            pod: pod(&request.env)?,
        })
    }

    /// Under what its addresses are held.
    pub(crate) fn handle(&self) -> HandleId {
        HandleId::pod(&self.network, &self.container)
    }

    /// Under what plugins before v1.11.2 held them (calico-ipam.md section 1.6).
    pub(super) fn legacy_handle(&self) -> Option<HandleId> {
        match &self.pod {
            Some(pod) => HandleId::workload(&pod.namespace, &pod.name).ok(),
            None => HandleId::new(self.container.as_str()).ok(),
        }
    }

    /// What is stored beside the addresses, apart from what the allocator adds itself (calico-ipam.md sections 1.4 and 9).
    pub(super) fn attributes(&self) -> BTreeMap<String, String> {
        let mut attributes = BTreeMap::from([("interface".to_owned(), self.ifname.to_string())]);
        if let Some(pod) = &self.pod {
            attributes.insert("namespace".to_owned(), pod.namespace.clone());
            attributes.insert("pod".to_owned(), pod.name.clone());
        }
        attributes
    }

    /// Whether an address of its handle is this interface's; Go peers name none.
    pub(super) fn holds(&self, held: &Held) -> bool {
        held.attribute.get("interface").is_none_or(|name| name == self.ifname.as_str())
    }

    /// Whether its legacy handle may as well be a container's of its network: whoever names namespaces and pods could name a victim.
    pub(super) fn is_ambiguous(&self, legacy: &HandleId) -> bool {
        legacy.as_str().strip_prefix(self.network.as_str()).is_some_and(|rest| rest.starts_with('.'))
    }

    /// Whether an address of its legacy handle may be this pod's: `<namespace>.<pod>` of one could be `<network>.<container>` of another. In its own
    /// network only what names the pod is.
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

    /// Refuses what cannot be in an endpoint's name, as peers do before they allocate (calico-ipam.md section 4.2 item 1).
    pub(super) fn refuse_bad_parts(&self, node: &NodeName) -> Result<(), CniError> {
        let name = match &self.pod {
            Some(pod) => WorkloadEndpointSpec::k8s_name(node, &pod.name, &self.ifname),
            None => WorkloadEndpointSpec::cni_name(node, &self.container, &self.ifname),
        };
        name.map(drop).map_err(|error| CniError::environment("the endpoint cannot be named", error))
    }
}

// === impl Wanted ===

impl Wanted {
    /// What a configuration asks for, unless `CNI_ARGS` names an address. Nothing at all is not worth a request.
    pub(crate) fn of(conf: &CalicoConf, address: Option<IpAddr>) -> Result<Self, CniError> {
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
