//! What an ADD for a pod asks Kubernetes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError};
use russet_kube::absent_is_none;

use crate::conf::CalicoConf;
use crate::node::CalicoNode;
use crate::plugin::{PodOptions, absent, kubernetes_failed};

/// Facts from Kubernetes about a pod, for configurations with Kubernetes policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
    /// `cni.projectcalico.org/ipv4pools`, which overrides the configuration's pools.
    pub ipv4_pools: Option<Vec<String>>,
    /// `cni.projectcalico.org/ipv6pools`.
    pub ipv6_pools: Option<Vec<String>>,
    /// `cni.projectcalico.org/ipAddrs`: exactly these addresses.
    pub ip_addrs: Option<Vec<IpAddr>>,
    /// `cni.projectcalico.org/ipAddrsNoIpam`: exactly these addresses, without IPAM. v1.11 had no
    /// switch for it.
    pub ip_addrs_no_ipam: Option<Vec<IpAddr>>,
}

// === impl PodFacts ===

impl PodFacts {
    /// The facts that an ADD with Kubernetes policy needs (calico-cni.md section 2.6).
    pub async fn read(
        node: &CalicoNode,
        request: &Request,
        conf: &CalicoConf,
    ) -> Result<Option<Self>, CniError> {
        let pod = match (&request.env.call, request.env.args.pod()) {
            (Call::Add(_), Some(pod)) if conf.policy.is_k8s() => pod,
            _ => return Ok(None),
        };
        let kubernetes = node.clusters.open(&conf.kubernetes)?;
        let found = absent_is_none(kubernetes.pod(pod.namespace, pod.name).await)
            .map_err(|error| kubernetes_failed("the pod could not be looked up", error))?
            .ok_or_else(|| absent(format!("pod {}/{}", pod.namespace, pod.name)))?;
        let pod_options = PodOptions::read(&Default::default(), &found.metadata.annotations)?;
        let PodOptions { ipv4_pools, ipv6_pools, ip_addrs, ip_addrs_no_ipam, .. } = pod_options;
        let labels = found.metadata.labels;
        Ok(Some(Self { labels, ipv4_pools, ipv6_pools, ip_addrs, ip_addrs_no_ipam }))
    }
}
