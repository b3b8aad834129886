//! The command line of `russet drift`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

pub const EXAMPLES: &str = "Examples:
  russet drift                  what differs now, and the last repairs with the processes that caused them
  russet drift -o json          the same for programs
  russet drift || page-on-call

The agent compares and answers. Exit codes: 0 nothing differs now; 3 something does; 1 the agent does not answer, or could not compare everything.
Metrics: docs/drift.md.";

#[derive(Debug, Args)]
pub struct DriftArgs {
    /// The root directory of the node whose agent answers.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// How many of the last repairs to show.
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    pub last: usize,
    #[command(flatten)]
    pub output: OutputArgs,
}
