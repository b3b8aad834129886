//! The command line of `russet sandbox`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::OutputArgs;
use super::pods::PodPlaceArgs;

/// What `--help` ends with.
pub const EXAMPLES: &str = "Examples:
  russet sandbox run web.yaml                      the pod of a Kubernetes manifest; prints its ID
  russet sandbox run web.yaml --replace --cluster-dns 10.96.0.10
  kubectl get pod web -o yaml | russet sandbox run -
  russet sandbox exec web -- nginx -g 'daemon off;'
  russet sandbox exec web -- ip address
  russet sandbox ls
  russet sandbox inspect default/web -o json
  russet sandbox stop web
  russet sandbox rm web

A pod is named by its name, by NAMESPACE/NAME, or by its ID or the beginning of its ID.
A manifest's network, names and kernel parameters are used; members without effect cause warnings. No container is started.

Exit codes: 0 success; 1 failed; 2 usage. `exec` has those of its program, 127 if it is not found and 126 if it cannot be executed.";

#[derive(Debug, Args)]
pub struct SandboxArgs {
    #[command(flatten)]
    pub place: PodPlaceArgs,
    #[command(subcommand)]
    pub verb: SandboxVerb,
}

#[derive(Debug, Subcommand)]
pub enum SandboxVerb {
    /// Make a pod from a manifest, with its network; it is ready when this returns.
    Run(RunArgs),
    /// Run a program of this host inside a pod: its network, IPC and host name, resolv.conf, hosts and /dev/shm.
    Exec(ExecArgs),
    /// List pods.
    #[command(visible_alias = "list")]
    Ls(OutputArgs),
    /// Show everything about a pod.
    Inspect(InspectArgs),
    /// Stop a pod: its programs end, its addresses are released.
    Stop(NamesArgs),
    /// Stop pods and remove everything that belongs to them.
    Rm(RmArgs),
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The manifest, in YAML or JSON; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Stop and remove the pod of this name first, if there is one.
    #[arg(long)]
    pub replace: bool,
    /// The cluster's name servers, for dnsPolicy ClusterFirst, which is the default; without them
    /// the node's are used.
    #[arg(long, env = "RUSSET_CLUSTER_DNS", value_delimiter = ',', value_name = "IP,...")]
    pub cluster_dns: Vec<IpAddr>,
    /// The cluster's domain, below which short names are resolved.
    #[arg(long, env = "RUSSET_CLUSTER_DOMAIN", default_value = "cluster.local", value_name = "DOMAIN")]
    pub cluster_domain: String,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The pod.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The program of this host, and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The pod.
    #[arg(value_name = "POD")]
    pub pod: String,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct NamesArgs {
    /// The pods.
    #[arg(value_name = "POD", required = true)]
    pub pods: Vec<String>,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    /// The pods.
    #[arg(value_name = "POD", required_unless_present = "all", conflicts_with = "all")]
    pub pods: Vec<String>,
    /// Remove all pods.
    #[arg(long)]
    pub all: bool,
    /// Do not fail if a pod does not exist.
    #[arg(long)]
    pub if_exists: bool,
}
