//! The command line of `russet doctor`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;
use super::store::StoreChoice;

pub const EXAMPLES: &str = "Examples:
  russet doctor                what is wrong on this node, with what was seen and what to do
  russet doctor --fix          repair what a setting of the kernel repairs, and show the rest
  russet doctor -o json        the same for programs
  russet doctor --store kubernetes:/root/.kube/config    look at the cluster, too

It examines the kernel and its settings, network configurations, routes, the way to the other nodes, firewalls, the clock, the settings that
agent and plugins use, the datastore and the rights there, the agent, and the versions of the other nodes' agents. Without --fix it changes
nothing. Before the first start of an agent it examines what the default settings need.

Exit codes: 0 nothing found, or everything found was repaired; 1 something could not be examined, and nothing else was found; 3 there are
findings. What each finding means: docs/troubleshooting.md.";

#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub store: StoreChoice,
    /// Where the container runtime looks for networks, below the root.
    #[arg(long, default_value = "/etc/cni/net.d", value_name = "DIR")]
    pub cni_conf_dir: PathBuf,
    /// Repair what a setting of the kernel repairs: forwarding, reverse path filters. The settings last until the next boot.
    #[arg(long)]
    pub fix: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}
