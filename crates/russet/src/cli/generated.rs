//! The command lines of what is made from the command line's own definition: completions and manual pages.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

pub const COMPLETIONS_EXAMPLES: &str = "Examples:
  russet completions bash > /etc/bash_completion.d/russet.bash
  russet completions zsh > /usr/local/share/zsh/site-functions/_russet
  russet completions fish > /etc/fish/completions/russet.fish

A shell reads these files when it starts. In a running bash, `source <(russet completions bash)` has the same effect. The .deb and
.rpm packages contain all three.";

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell that will read the script.
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// A shell for which a script can be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// The directory of the pages, which is made if it is not there; files of the same names are replaced.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}
