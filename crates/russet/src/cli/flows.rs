//! The command line of `russet flows`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

pub const EXAMPLES: &str = "Examples:
  russet flows                             the last flows that policies denied on this node, and what decided
  russet flows --pod shop/db --last 20
  russet flows --policy shop/db-in -o json
  russet flows -f                          go on as they come, with new connections that pass; with -o json one object a line
  russet flows -f --denied                 the same without those

The agent keeps the last 2048 flows; retries within a minute are one. Flows that pass are recorded only while they are followed
(new connections, at most 100 a second in each direction), and where a rule of Calico's policies has the action Log. Of these a line says
which path their packets take, `kernel` or `fast` (docs/fast-path.md), and what the fast path has carried; a connection begins on the kernel's. Exit codes: 0 good; 1 the agent does not answer, enforces no policies, or cannot read what the kernel logs; 2 usage. docs/policy.md.";

#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Only denied flows; with --follow, connections that pass are not logged then.
    #[arg(long)]
    pub denied: bool,
    /// Only flows from or to this pod or address.
    #[arg(long, value_name = "NAMESPACE/POD|ADDRESS")]
    pub pod: Option<String>,
    /// Only flows about which this policy decided, or would decide if it was not staged.
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    pub policy: Option<String>,
    /// Go on with further flows until it is interrupted.
    #[arg(short, long)]
    pub follow: bool,
    /// How many of the last flows to show, at most 500.
    #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=500))]
    pub last: u16,
    /// The root directory of the node whose agent answers.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}
