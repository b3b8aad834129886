//! The command line of `russet kube`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use russet_agent::StoreLocation;

use super::OutputArgs;

const CHECK_EXAMPLES: &str = "Examples:
  russet kube check                                          on a node: its network configurations and what another network left
  russet kube check --store kubernetes:/root/.kube/config    also the cluster: Calico's and flannel's programs, API services, handles
  russet kube check --store kubernetes:/root/.kube/config -o json

Run it before Russet is installed, before another network's programs are removed, and when pods get the wrong network. It changes nothing.

Exit codes: 0 nothing stands in Russet's way; 1 something could not be looked at, and nothing else was found; 3 there are findings, each with
what to do.";

#[derive(Debug, Args)]
pub struct KubeArgs {
    #[command(subcommand)]
    pub verb: KubeVerb,
}

#[derive(Debug, Subcommand)]
pub enum KubeVerb {
    /// Show what of other networks stands in Russet's way, on this node and in the cluster.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The directory below which the node's files are.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Where the container runtime looks for networks, below the root.
    #[arg(long, default_value = "/etc/cni/net.d", value_name = "DIR")]
    pub cni_conf_dir: PathBuf,
    /// Look at this cluster, too: `kubernetes:FILE` with a kubeconfig, or `kubernetes:in-cluster` in a pod.
    #[arg(long, env = "RUSSET_STORE", value_name = "STORE")]
    pub store: Option<StoreLocation>,
    #[command(flatten)]
    pub output: OutputArgs,
}
