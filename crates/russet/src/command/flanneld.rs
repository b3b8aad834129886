//! `russet flanneld`, and `russet` called as `flanneld`: the arguments are parsed by flannel's own
//! syntax.

use std::io::Write as _;
use std::process::ExitCode;

use russet_flanneld::docker_opts;
use russet_flanneld::flags::{self, Request};
use tracing_subscriber::filter::LevelFilter;

use super::{FAILED, failed, runtime};

/// The argument that requests docker's options instead of the daemon.
const DOCKER_OPTS: &str = "docker-opts";

/// Runs with the arguments after `flanneld`.
pub fn run(words: impl IntoIterator<Item = String>) -> ExitCode {
    let mut words = words.into_iter().peekable();
    if words.next_if(|word| word == DOCKER_OPTS).is_some() {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        return docker_opts::run(words, &environment.collect())
            .map_or_else(|error| failed(error.into()), |()| ExitCode::SUCCESS);
    }
    match flags::parse("flanneld", words, |name| std::env::var(name).ok()) {
        Request::Usage(text) => say(&text),
        Request::Version => say(&format!("v{} (Russet)\n", env!("CARGO_PKG_VERSION"))),
        Request::Run(options, notes) => daemon(*options, &notes),
    }
}

/// Prints to standard error and returns exit code 0, as flannel does.
fn say(text: &str) -> ExitCode {
    // If the terminal is gone, there is no way to report that.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn daemon(options: flags::Options, notes: &[String]) -> ExitCode {
    let level = match options.verbosity {
        i64::MIN..=0 => LevelFilter::INFO,
        1..=3 => LevelFilter::DEBUG,
        4.. => LevelFilter::TRACE,
    };
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    log.with_target(false).with_ansi(false).init();
    for note in notes {
        tracing::error!("{note}");
    }
    let outcome = runtime().map(|runtime| {
        let outcome = runtime.block_on(russet_flanneld::run(options));
        // A thread that resolves a name or waits for the kernel must not keep a stopped daemon from
        // ending.
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            tracing::error!(%error, "flanneld ends");
            ExitCode::from(FAILED)
        }
        Err(error) => failed(error.into()),
    }
}
