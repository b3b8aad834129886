//! The command line of `russet top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::span::Span;

pub const EXAMPLES: &str = "Examples:
  russet top                    this node, until `q`; `?` shows the keys
  russet top --interval 10s     ask the agent less often
  russet top --once             everything once, as text
  ssh -t NODE russet top

The agent of this node answers at its sockets, which only root can reach. NO_COLOR switches colours off; every colour has a word beside it. A terminal is
wanted: `russet status --watch` needs none, and `russet status -o json` is for programs. docs/ui.md has all keys.

Exit codes: 0 it was ended; with --once 3 if there are problems; 1 no agent runs; 2 usage, or no terminal.";

#[derive(Debug, Args)]
pub struct TopArgs {
    /// How often the agent is asked.
    #[arg(long, default_value_t = Span(Duration::from_secs(2)), value_name = "TIME")]
    pub interval: Span,
    /// Print everything once as text, and end.
    #[arg(long, conflicts_with = "interval")]
    pub once: bool,
    /// The root directory of the node whose agent it is.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
}
