//! Flags of an agent that replaces openshift-sdn (docs/openshift.md).

use std::path::PathBuf;

use clap::Args;
use russet_addr::Ipv4Net;

/// Settings of the server for OpenShift's thin plugins.
#[derive(Debug, Args)]
pub struct OpenshiftArgs {
    /// Also replace openshift-sdn on this node: serve its thin plugin, and isolate its tenants. The
    /// agent's own plugin then has no pools, unless they are given.
    #[arg(long, env = "RUSSET_OPENSHIFT")]
    pub openshift: bool,
    /// The pods' network, for a store that has no ClusterNetwork.
    #[arg(long, env = "RUSSET_OPENSHIFT_CLUSTER_NETWORK", value_name = "CIDR")]
    pub openshift_cluster_network: Option<Ipv4Net>,
    /// The prefix length of each node's part of it [default: 23].
    #[arg(long, env = "RUSSET_OPENSHIFT_HOST_PREFIX", value_name = "LENGTH", value_parser = clap::value_parser!(u32).range(1..=30))]
    pub openshift_host_prefix: Option<u32>,
    /// The services' network, for a store that has no ClusterNetwork.
    #[arg(long, env = "RUSSET_OPENSHIFT_SERVICE_NETWORK", value_name = "CIDR")]
    pub openshift_service_network: Option<Ipv4Net>,
    /// The kubeconfig for the Kubernetes API, which says which pods get a macvlan0, and has
    /// EgressNetworkPolicies.
    #[arg(long, env = "RUSSET_OPENSHIFT_KUBECONFIG", value_name = "FILE")]
    pub openshift_kubeconfig: Option<PathBuf>,
    /// Without the Kubernetes API: trust the annotations that the runtime passes on, and treat pods
    /// that have them as privileged.
    #[arg(long, env = "RUSSET_OPENSHIFT_TRUST_ANNOTATIONS")]
    pub openshift_trust_annotations: bool,
    /// MTU of pods' routes; by default that of their interfaces.
    #[arg(long, env = "RUSSET_OPENSHIFT_ROUTABLE_MTU", value_name = "BYTES", value_parser = clap::value_parser!(u32).range(576..=65535))]
    pub openshift_routable_mtu: Option<u32>,
    /// The cloud that the node runs in, as OpenShift calls it: AWS, AlibabaCloud, ...
    #[arg(long, env = "RUSSET_OPENSHIFT_PLATFORM", value_name = "NAME")]
    pub openshift_platform: Option<String>,
}
