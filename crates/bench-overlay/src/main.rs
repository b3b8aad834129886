//! The worker of `cargo xtask bench overlay`: it holds pairs of nodes in network namespaces, one
//! pair for each data path between their pods, and takes one sample for each line on stdin.
//!
//! A line `sample WAY TEST` is answered with a line of JSON: `{"value": ...}`, in the unit of the
//! test, and for a stream `cpu_ns_per_kib`. It ends with its stdin, and its unnamed namespaces with
//! their devices are deleted with it. Started by xtask/src/bench/overlay.rs; dataplane.md section
//! 2.1 is the method.

mod cores;
mod cpu;
mod load;
mod naive;
mod node;
mod stage;

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use serde_json::json;

use load::Test;
use stage::{Stage, Way};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// So that others on the machine disturb less.
const NICENESS: i32 = -15;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-overlay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    rustix::process::setpriority_process(None, NICENESS)?;
    let mut stages: Vec<Stage> = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let ["sample", way, test] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("not understood: {line:?}").into());
        };
        let (way, test): (Way, Test) = (way.parse()?, test.parse()?);
        if !stages.iter().any(|stage| stage.way == way) {
            stages.push(Stage::set(way).map_err(|error| format!("{way:?}: {error}"))?);
        }
        let Some(stage) = stages.iter().find(|stage| stage.way == way) else { continue };
        let sample = load::sample(stage, test).map_err(|error| format!("{line}: {error}"))?;
        let answer = json!({ "value": sample.value, "cpu_ns_per_kib": sample.cpu_ns_per_kib });
        writeln!(io::stdout(), "{answer}")?;
    }
    Ok(())
}
