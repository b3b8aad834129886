//! The command line of `russet status`.

use clap::Args;

use super::OutputArgs;
use super::store::StoreChoice;

pub const EXAMPLES: &str = "Examples:
  russet status                 this node: problems first, then datastore, routes, and which other nodes answer
  russet status --watch         the same, again every two seconds
  russet status --cluster       all nodes: when each was heard of last, what it misses, and which nodes it does not reach
  russet status -o json         the same for programs
  russet status || page-on-call

The agent of this node answers; with --cluster the records that all agents leave in the datastore every minute. Other nodes are probed through the data path of pods: docs/status.md.

Exit codes: 0 nothing is wrong; 3 there are problems; 1 no agent answers, or the datastore does not.";

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub place: StoreChoice,
    /// Show all nodes of the cluster, as the datastore knows them.
    #[arg(long)]
    pub cluster: bool,
    /// Print it again every two seconds, until it is interrupted.
    #[arg(long)]
    pub watch: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}
