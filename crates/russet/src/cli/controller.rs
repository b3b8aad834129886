//! The command lines of `russet controller` and `russet gc`.

use clap::{Args, Subcommand};
use russet_agent::{HealthAddress, StoreLocation};

use super::span::Span;
use super::{LogFormat, OutputArgs};

/// What `russet controller --help` ends with.
pub const EXAMPLES: &str = "Examples:
  russet controller                                            in a pod of the cluster, one or two replicas
  russet controller --store kubernetes:/root/.kube/config --dry-run --once
  russet controller --once -o json

A node without an object is cleaned when its agent has not renewed its lease in kube-node-lease for --grace: addresses of its pods, then its
tunnels' addresses, its blocks, and the lease. A pod that reports an address keeps it. Addresses of nodes that exist are their agents' to free.
When more than 5 % of all nodes (and at least 3) vanish within 10 minutes, or a tenth of all addresses would be freed at once, nothing is freed
until the nodes are back or `russet gc resume` confirms that they are gone. Where Calico's controllers free addresses, findings are reported
only. --dry-run writes nothing; --once ends when nothing can be freed any more without an operator.

Exit codes: 0; with --once 3 if something needs an operator.";

/// What `russet gc --help` ends with.
pub const GC_EXAMPLES: &str = "Examples:
  russet gc resume --store kubernetes:/root/.kube/config --namespace russet-system";

const ELECTION: &str = "Leader election";

#[derive(Debug, Args)]
pub struct ControllerArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// This replica's name in the lease; a random suffix is added [default: the host name].
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,
    /// For how long a node must have no object, and its agent be silent, before addresses of its pods are freed.
    #[arg(long, env = "RUSSET_CONTROLLER_GRACE", value_name = "TIME", default_value = "15m")]
    pub grace: Span,
    /// The same for its tunnels' addresses and its blocks, which a node of the same name would take again.
    #[arg(long, env = "RUSSET_CONTROLLER_TUNNEL_GRACE", value_name = "TIME", default_value = "15m")]
    pub tunnel_grace: Span,
    /// How often to look.
    #[arg(long, env = "RUSSET_CONTROLLER_INTERVAL", value_name = "TIME", default_value = "5m")]
    pub interval: Span,
    /// The time between two looks that must agree that a handle has no address.
    #[arg(long, env = "RUSSET_CONTROLLER_HANDLE_GRACE", value_name = "TIME", default_value = "10m")]
    pub handle_grace: Span,
    /// The key of the taint that is removed from nodes whose agents are ready.
    #[arg(long, env = "RUSSET_CONTROLLER_TAINT", value_name = "KEY", default_value = russet_controller::TAINT)]
    pub taint: String,
    /// Make OpenShift's NetNamespaces and HostSubnets, as its SDN master does. While that runs, nothing is written.
    #[arg(long, env = "RUSSET_CONTROLLER_OPENSHIFT")]
    pub openshift: bool,
    /// For how long the lease is a leader's after a renewal.
    #[arg(long, help_heading = ELECTION, env = "RUSSET_LEADER_ELECT_LEASE_DURATION", value_name = "TIME", default_value = "15s")]
    pub leader_elect_lease_duration: Span,
    /// A leader that could not renew the lease for this long stops its work.
    #[arg(long, help_heading = ELECTION, env = "RUSSET_LEADER_ELECT_RENEW_DEADLINE", value_name = "TIME", default_value = "10s")]
    pub leader_elect_renew_deadline: Span,
    /// Between attempts to take or to renew it.
    #[arg(long, help_heading = ELECTION, env = "RUSSET_LEADER_ELECT_RETRY_PERIOD", value_name = "TIME", default_value = "2s")]
    pub leader_elect_retry_period: Span,
    /// Where /healthz, /readyz and /metrics are served: IP:PORT or unix:PATH.
    #[arg(
        long,
        env = "RUSSET_CONTROLLER_HEALTH_ADDRESS",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:9473"
    )]
    pub health_address: HealthAddress,
    /// Print what would be freed, and write nothing; no lease is needed.
    #[arg(long)]
    pub dry_run: bool,
    /// Print each look, and end when nothing more can be freed without an operator.
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// How much to log: error, warn, info, debug, trace, or a filter such as info,russet_controller=debug.
    #[arg(long, env = "RUSSET_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    pub log_level: String,
    /// Log as text or as JSON.
    #[arg(long, env = "RUSSET_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// The cluster, and the namespace of the controller's lease.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// The cluster: `kubernetes:FILE` with a kubeconfig, or `kubernetes:in-cluster` in a pod.
    #[arg(long, env = "RUSSET_STORE", value_name = "STORE", default_value = "kubernetes:in-cluster")]
    pub store: StoreLocation,
    /// The namespace of the lease `russet-controller` [default: that of the pod or of the kubeconfig, else kube-system].
    #[arg(long, env = "RUSSET_CONTROLLER_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,
}

#[derive(Debug, Args)]
pub struct GcArgs {
    #[command(subcommand)]
    pub verb: GcVerb,
}

#[derive(Debug, Subcommand)]
pub enum GcVerb {
    /// Confirm that the nodes for which `russet controller` waits are gone for good: their addresses are then freed.
    Resume(ClusterArgs),
}
