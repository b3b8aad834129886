//! Flags of an agent in openshift-sdn's place (docs/openshift.md).

use std::path::PathBuf;

use clap::Args;
use russet_addr::Ipv4Net;

/// What the server of OpenShift's thin plugins goes by.
#[derive(Debug, Args)]
pub struct OpenshiftArgs {
    /// Stand in openshift-sdn's place on this node, too: serve its thin plugin, and keep its tenants apart. Without pools for the agent's own
    /// plugin, unless they are given.
    #[arg(long, env = "RUSSET_OPENSHIFT")]
    pub openshift: bool,
    /// Where pods are, for a store that has no ClusterNetwork.
    #[arg(long, env = "RUSSET_OPENSHIFT_CLUSTER_NETWORK", value_name = "CIDR")]
    pub openshift_cluster_network: Option<Ipv4Net>,
    /// The length of each node's part of it [default: 23].
    #[arg(long, env = "RUSSET_OPENSHIFT_HOST_PREFIX", value_name = "LENGTH", value_parser = clap::value_parser!(u32).range(1..=30))]
    pub openshift_host_prefix: Option<u32>,
    /// Where services are, for a store that has no ClusterNetwork.
    #[arg(long, env = "RUSSET_OPENSHIFT_SERVICE_NETWORK", value_name = "CIDR")]
    pub openshift_service_network: Option<Ipv4Net>,
    /// How the Kubernetes API is reached, which says which pods get a macvlan0.
    #[arg(long, env = "RUSSET_OPENSHIFT_KUBECONFIG", value_name = "FILE")]
    pub openshift_kubeconfig: Option<PathBuf>,
    /// Without the Kubernetes API: believe annotations that the runtime hands on, and that pods which have them are privileged.
    #[arg(long, env = "RUSSET_OPENSHIFT_TRUST_ANNOTATIONS")]
    pub openshift_trust_annotations: bool,
    /// MTU of pods' routes; by default that of their interfaces.
    #[arg(long, env = "RUSSET_OPENSHIFT_ROUTABLE_MTU", value_name = "BYTES", value_parser = clap::value_parser!(u32).range(576..=65535))]
    pub openshift_routable_mtu: Option<u32>,
    /// The cloud that the node runs in, as OpenShift calls it: AWS, AlibabaCloud, ...
    #[arg(long, env = "RUSSET_OPENSHIFT_PLATFORM", value_name = "NAME")]
    pub openshift_platform: Option<String>,
}
