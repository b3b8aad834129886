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

A pod is named by its name, by NAMESPACE/NAME, or by its ID or the beginning of it.
Of a manifest counts what concerns network, names and kernel parameters; what has no effect is told. No container is started.

Exit codes: 0 good; 1 failed; 2 usage. `exec` has those of its program, 127 when there is none such and 126 when it cannot be executed.";

/// `russet sandbox`.
#[derive(Debug, Args)]
pub struct SandboxArgs {
    /// Where things are.
    #[command(flatten)]
    pub place: PodPlaceArgs,
    /// What to do.
    #[command(subcommand)]
    pub verb: SandboxVerb,
}

/// The verbs of `russet sandbox`.
#[derive(Debug, Subcommand)]
pub enum SandboxVerb {
    /// Make a pod as a manifest says, with its network; it is ready when this returns.
    Run(RunArgs),
    /// Run a program of this host inside a pod: its network, IPC and host name, resolv.conf, hosts and /dev/shm.
    Exec(ExecArgs),
    /// List pods.
    #[command(visible_alias = "list")]
    Ls(OutputArgs),
    /// Show everything about a pod.
    Inspect(InspectArgs),
    /// Stop a pod: its programs end, its addresses are given back.
    Stop(NamesArgs),
    /// Stop pods and remove everything of them.
    Rm(RmArgs),
}

/// `russet sandbox run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The manifest, in YAML or JSON; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Stop and remove the pod of this name first, if there is one.
    #[arg(long)]
    pub replace: bool,
    /// The cluster's name servers, for dnsPolicy ClusterFirst, which is the default; without them the node's are taken.
    #[arg(long, env = "RUSSET_CLUSTER_DNS", value_delimiter = ',', value_name = "IP,...")]
    pub cluster_dns: Vec<IpAddr>,
    /// The cluster's domain, below which short names are looked for.
    #[arg(long, env = "RUSSET_CLUSTER_DOMAIN", default_value = "cluster.local", value_name = "DOMAIN")]
    pub cluster_domain: String,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `russet sandbox exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The pod.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The program of this host, and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<OsString>,
}

/// `russet sandbox inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The pod.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `russet sandbox stop`.
#[derive(Debug, Args)]
pub struct NamesArgs {
    /// The pods.
    #[arg(value_name = "POD", required = true)]
    pub pods: Vec<String>,
}

/// `russet sandbox rm`.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// The pods.
    #[arg(value_name = "POD", required_unless_present = "all", conflicts_with = "all")]
    pub pods: Vec<String>,
    /// All of them.
    #[arg(long)]
    pub all: bool,
    /// A pod that does not exist is no failure.
    #[arg(long)]
    pub if_exists: bool,
}
