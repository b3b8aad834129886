//! `russet-swarm`: many processes assign and release addresses in one real etcd cluster, whose
//! members are killed one after another; at the end no address may have two owners. The test in
//! `tests/` runs it with 5,000 operations; by hand it runs with any number (docs/testing.md).
//!
//! The simulator (`russet-sim`) generates every interleaving that a model of a store allows; this
//! shows the same rules on the real one.

mod expected_owners;
mod observed;
mod ownership_check;
mod swarm;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::prelude::{Long, Short, Value, ValueExt};

const USAGE: &str = "\
usage: russet-swarm [--seed S] [--processes N] [--operations N] [--pause-ms N]

Starts three etcd members and N processes, which together do --operations assigns and releases, each after a pause of up to
--pause-ms; kills a member every 5 seconds; compares what the processes believe with what is stored. The seed decides what
each process tries, not when: the same seed need not meet the same race. RUSSET_SWARM_SEED gives it, too.
";

/// Where the seed may come from.
const SEED_VARIABLE: &str = "RUSSET_SWARM_SEED";

/// What the command line asks for.
enum Command {
    Help,
    Swarm(swarm::Options),
    Worker(worker::Options),
}

fn main() -> ExitCode {
    let command = match parse(lexopt::Parser::from_env()) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("russet-swarm: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("russet-swarm: start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        match command {
            Command::Help => {
                print!("{USAGE}");
                Ok(())
            }
            Command::Swarm(options) => swarm::run(&options).await.map_err(|error| error.to_string()),
            Command::Worker(options) => worker::run(options).await.map_err(|error| error.to_string()),
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("russet-swarm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut parser: lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut options = swarm::Options::default();
    if let Some(seed) = std::env::var_os(SEED_VARIABLE) {
        options.seed = seed.parse()?;
    }
    let mut first = true;
    while let Some(argument) = parser.next()? {
        match argument {
            Value(name) if first && name == "worker" => return parse_worker(parser).map(Command::Worker),
            Long("help") | Short('h') => return Ok(Command::Help),
            Long("seed") => options.seed = parser.value()?.parse()?,
            Long("processes") => options.processes = parser.value()?.parse()?,
            Long("operations") => options.operations = parser.value()?.parse()?,
            Long("pause-ms") => options.pause_ms = parser.value()?.parse()?,
            other => return Err(other.unexpected()),
        }
        first = false;
    }
    Ok(Command::Swarm(options))
}

/// `worker LOCATION SEED NUMBER OPERATIONS PAUSE_MS FILE`: the parent's arguments for its children;
/// not for people.
fn parse_worker(mut parser: lexopt::Parser) -> Result<worker::Options, lexopt::Error> {
    let location = parser.value()?.string()?;
    let seed = parser.value()?.parse()?;
    let number = parser.value()?.parse()?;
    let operations = parser.value()?.parse()?;
    let pause_ms = parser.value()?.parse()?;
    let file = PathBuf::from(parser.value()?);
    Ok(worker::Options { location, seed, number, operations, pause_ms, file })
}
