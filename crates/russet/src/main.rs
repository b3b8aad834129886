//! `russet`: the command. It parses arguments and calls the other crates.

mod cli;
mod command;
mod demo;
mod in_process;
mod install;
mod output;
mod owned;
mod resources;
mod sandbox;
mod settings;
mod uninstall;

use std::process::ExitCode;

use russet_cni_spec::relay;

/// Exit code for an invalid command line (ARCHITECTURE.md, "Names and places").
const USAGE: u8 = 2;

fn main() -> ExitCode {
    // A runtime starts plugins without arguments and with CNI_COMMAND set; users never do. The
    // names of Calico's and the reference plugins select those plugins.
    let by_runtime = std::env::args_os().len() == 1 && std::env::var_os("CNI_COMMAND").is_some();
    if by_runtime || std::env::args_os().next().is_some_and(|name| relay::is_plugin(&name)) {
        return relay::main(std::env::args_os(), relay::Executable::Command);
    }
    if let Some(words) = flanneld_words() {
        return command::flanneld::run(words);
    }
    // `cni-direct` runs once for each pod: building the command line's definition would be a tenth of its processor time.
    let parsed = match command::netavark::words(std::env::args_os()) {
        Some(words) => cli::parse_words(words),
        None if is_cni_direct() => cli::cni_direct(),
        None => cli::parse(),
    };
    match parsed {
        Ok(arguments) => command::run(arguments),
        Err(error) => {
            // clap reports help and version as errors too, with code 0.
            let code = if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
            // A closed terminal does not change the exit code.
            let _ = error.print();
            if let Some(instead) = instead(&error) {
                output::progress(&format!("\nhint: {instead}"));
            }
            code
        }
    }
}

/// A hint, if the first word is a verb of kubectl or calicoctl.
fn instead(error: &clap::Error) -> Option<&'static str> {
    use clap::error::{ContextKind, ContextValue};
    match error.get(ContextKind::InvalidSubcommand)? {
        ContextValue::String(word) => cli::unknown::instead_of_verb(word),
        _ => None,
    }
}

/// Whether the arguments are exactly `cni-direct`, as the plugin gives them.
fn is_cni_direct() -> bool {
    let mut words = std::env::args_os().skip(1);
    words.next().is_some_and(|word| word == relay::DIRECT_COMMAND) && words.next().is_none()
}

/// The words of flannel's daemon, when that is what was called: by its own name, or as the first word. They are in a syntax of their own.
fn flanneld_words() -> Option<Vec<String>> {
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let name = words.next()?;
    let named = std::path::Path::new(&name).file_name().is_some_and(|file| file == "flanneld");
    (named || words.next()? == "flanneld").then(|| words.collect())
}
