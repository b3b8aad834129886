//! The command line of `russet ipam repair`, and the agent's settings for the same repair.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use russet_addr::NodeName;

use super::OutputArgs;
use super::span::{LeakRepair, Span};

const EXAMPLES: &str = "Examples:
  russet ipam repair --dry-run
  russet ipam repair --grace 30s
  russet ipam repair -o json > repaired.json

Run it on the node. If an agent runs, the agent does it. An address is released when two comparisons, --grace apart, find no evidence that
it is in use: no link, route or interface in any network namespace of the machine, no attachment in a runtime's cache, no workload endpoint,
no node's record. Evidence that cannot be read ends the repair. A runtime must not take longer than --grace between an IPAM plugin's answer
and the pod's wiring.

Exit codes: 0 no leak remains; 1 something could not be read, and nothing was released; 3 leaks remain, or with --dry-run there are any.";

/// Two minutes: no request to a plugin of Russet or Calico takes longer.
const DEFAULT_GRACE: Span = Span(Duration::from_secs(120));

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RepairArgs {
    /// Print what is leaked, and release nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// The time between the two checks, and the minimum age of an address that is released.
    #[arg(long, value_name = "TIME", default_value_t = DEFAULT_GRACE)]
    pub grace: Span,
    /// Repair the addresses of nodes that have no record in the store any more, instead of this
    /// node's. Only endpoint records can prove their owners: make sure that these machines are off.
    #[arg(long)]
    pub gone_nodes: bool,
    /// This node's name, if no agent runs; by default the name that the agent would use.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<NodeName>,
    #[command(flatten)]
    pub caches: CacheArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Where runtimes keep the results of attachments.
#[derive(Debug, Default, Args)]
pub struct CacheArgs {
    /// A directory in which a container runtime keeps the results of CNI, in `results/`; several times for several runtimes
    /// [default: /var/lib/cni].
    #[arg(long = "cni-cache-dir", env = "RUSSET_CNI_CACHE_DIRS", value_name = "DIR", value_delimiter = ',')]
    pub cni_cache_dirs: Vec<PathBuf>,
}

/// How an agent handles leaks.
#[derive(Debug, Default, Args)]
pub struct LeakArgs {
    /// Whether, or how often, the agent looks for leaked addresses and releases them: on, off or a
    /// time; a leak is released after a second check at the same interval [default: on, every 10m].
    #[arg(long, env = "RUSSET_LEAK_REPAIR", value_name = "on|off|TIME")]
    pub leak_repair: Option<LeakRepair>,
    #[command(flatten)]
    pub caches: CacheArgs,
}
