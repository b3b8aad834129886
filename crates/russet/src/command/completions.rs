//! `russet completions`.

use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_complete::{Generator, shells};

use crate::cli::Cli;
use crate::cli::generated::{CompletionsArgs, Shell};
use crate::install::COMMAND;
use crate::output;

pub fn run(args: &CompletionsArgs) -> ExitCode {
    output::print(&script(args.shell));
    ExitCode::SUCCESS
}

fn script(shell: Shell) -> String {
    // Not clap_complete's own type for shells, which would link the scripts of two more.
    match shell {
        Shell::Bash => generated(shells::Bash),
        Shell::Zsh => generated(shells::Zsh),
        Shell::Fish => generated(shells::Fish),
    }
}

fn generated(generator: impl Generator) -> String {
    let mut script = Vec::new();
    clap_complete::generate(generator, &mut visible(&Cli::command()), COMMAND, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The command without its hidden verbs, which the generator would offer as all others.
fn visible(command: &Command) -> Command {
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned();
    let shown = Command::new(COMMAND).version(env!("CARGO_PKG_VERSION"));
    shown.args(command.get_arguments().cloned()).subcommands(verbs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_have_the_visible_verbs_and_no_hidden_ones() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            for verb in Cli::command().get_subcommands() {
                let words = script.split(|c: char| !(c.is_alphanumeric() || c == '-'));
                let has = words.into_iter().any(|word| word == verb.get_name());
                // `man` is also a word of texts.
                let is_expected = !verb.is_hide_set() || verb.get_name() == "man";
                assert_eq!(has || verb.get_name() == "man", is_expected, "{shell:?}: {}", verb.get_name());
            }
        }
    }
}
