//! The command line of `russet status`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

pub const EXAMPLES: &str = "Examples:
  russet status                 this node: problems first, then datastore, routes, and which other nodes answer
  russet status --watch         the same, again every two seconds
  russet status -o json         the same for programs
  russet status || page-on-call

The agent of this node answers. Other nodes are probed through the data path of pods: docs/status.md.

Exit codes: 0 nothing is wrong; 3 there are problems; 1 no agent answers.";

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The root directory of the node whose agent answers.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Print it again every two seconds, until it is interrupted.
    #[arg(long)]
    pub watch: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}
