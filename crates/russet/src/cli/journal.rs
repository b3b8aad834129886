//! The command line of `russet journal`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

const EXAMPLES: &str = "Examples:
  russet journal
  russet journal -o json | jq '.unfinished[] | {verb, container, effects}'

Reads the file /run/russet/journal, whether an agent runs or not. While an agent runs, unfinished operations are in progress; otherwise
the next agent finishes them (DEL, GC) or undoes them (ADD) before it serves requests.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct JournalArgs {
    /// The directory below which the node's files are.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}
