//! The command line of `russet report`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;
use super::span::Span;

pub const EXAMPLES: &str = "Examples:
  russet report                             russet-report-NODE-TIME.tar.gz in this directory
  russet report --file /tmp/node7.tar.gz --force
  russet report --log /var/log/russet.log   where the agent's log is not in systemd's journal
  russet report -o json | jq '.parts[] | select(.error)'
  tar -xOzf russet-report-NODE-TIME.tar.gz russet-report/report.json

The archive has the state of this node for a reader elsewhere: versions, settings, status, doctor's findings, journal, drift, configurations
of networks, rules, routes, interfaces, counters of the kernel, log and metrics of the agent. Passwords, tokens and private keys are
replaced by [removed]; names of nodes and pods, and addresses, stay. Look into it before you publish it. docs/capture-and-report.md
says what is in it, and what is not.

Nothing waits for longer than --time-limit, and what could not be had is a line of the index. A part that is longer than --part-limit is
cut, at its beginning or its end, and says so in its last line and in the index.

Exit codes: 0 the archive is written, also if parts are missing; 1 it could not be written; 2 usage.";

/// A size of so many MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mebibytes(pub u64);

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Where to write the archive [default: russet-report-NODE-TIME.tar.gz in the current directory].
    #[arg(long, short = 'w', value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Replace the file if it exists.
    #[arg(long)]
    pub force: bool,
    /// The most that the archive may have, compressed, in MiB.
    #[arg(long, default_value = "20", value_name = "MIB", value_parser = mebibytes)]
    pub size_limit: Mebibytes,
    /// The most that one part may have, before it is compressed, in MiB.
    #[arg(long, default_value = "4", value_name = "MIB", value_parser = mebibytes)]
    pub part_limit: Mebibytes,
    /// How long one part may take.
    #[arg(long, default_value = "20s", value_name = "TIME")]
    pub time_limit: Span,
    /// A file with the agent's log, where it is not in systemd's journal.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Where the container runtime looks for networks, below the root.
    #[arg(long, default_value = "/etc/cni/net.d", value_name = "DIR")]
    pub cni_conf_dir: PathBuf,
    /// The root directory of the node.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The archive is in memory until it is written.
const LIMIT_MAX_MIB: u64 = 200;

fn mebibytes(text: &str) -> Result<Mebibytes, String> {
    match text.parse() {
        Ok(count @ 1..=LIMIT_MAX_MIB) => Ok(Mebibytes(count)),
        _ => Err(format!("a number of MiB from 1 to {LIMIT_MAX_MIB} is wanted")),
    }
}
