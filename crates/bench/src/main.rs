//! The workers of `cargo xtask bench`, one for each subcommand. The benchmarks (xtask/src/bench) start
//! them, decide the order of samples, and report.
//!
//! `ipam`, `calico`, `overlay`, `kubernetes` and `policy` answer each line of standard input with one line of JSON; `cri`
//! works once and prints one line. The floor of `bench cni` is an executable of its own (floor.rs):
//! what it measures is its start, too, and this one is large.

mod cri;
mod ipam;
mod kubernetes;
mod overlay;
mod policy;

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use serde_json::Value;

type BoxError = Box<dyn Error + Send + Sync>;
type Result<T> = std::result::Result<T, BoxError>;

const USAGE: &str = "usage: russet-bench ipam DIRECTORY SYNC_DELAY_US PLAIN_URL SLOW_URL | calico URL | overlay | kubernetes \
                     | policy | cri SOCKET COUNT AT_ONCE";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["ipam", directory, delay_us, plain, slow] => ipam::run(directory, delay_us, plain, slow),
        ["calico", url] => ipam::calico::run(url),
        ["overlay"] => overlay::run(),
        ["kubernetes"] => kubernetes::run(),
        ["policy"] => policy::run(),
        ["cri", socket, count, at_once] => cri::run(socket, count, at_once),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("russet-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers each line of standard input with a line on standard output, until the input ends.
fn answer_lines(mut answer: impl FnMut(&str) -> Result<Value>) -> Result<()> {
    for line in io::stdin().lock().lines() {
        let answer = answer(&line?)?;
        writeln!(io::stdout(), "{answer}")?;
    }
    Ok(())
}
