//! `cargo xtask sim`, and the first half of `cargo xtask soak`: the simulated cluster of `russet-sim`, optimised, for as many seeds as wanted.
//!
//! The simulation is a program of its own: a task must run, and report, when one of our crates does not compile.

use std::ffi::OsString;
use std::process::Command;

use crate::artifacts;
use crate::error::{Error, Result};
use crate::process;

/// Seeds of each kind in a soak.
const SOAK_SEEDS: &str = "2000";

/// Seeds of each kind in `cargo xtask test`.
const SUITE_SEEDS: &str = "200";

/// What to hand to the simulation.
pub struct Options(Vec<OsString>);

/// Runs the simulation; true when no seed failed.
pub fn run(options: &Options) -> Result<bool> {
    match process::run(&mut command(&options.0)) {
        Ok(()) => Ok(true),
        // The program has printed the seed, and how to repeat it.
        Err(Error::Program { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The layer of `test`: `cargo xtask sim --seeds 200`.
pub fn suite() -> Command {
    command(&["--seeds", SUITE_SEEDS].map(OsString::from))
}

/// Optimised: 200 seeds of each kind take half a minute, without optimisation ten times that.
fn command(arguments: &[OsString]) -> Command {
    let mut cargo = artifacts::cargo();
    cargo.args(["run", "--quiet", "--release", "-p", "russet-sim", "--"]).args(arguments);
    cargo
}

// === impl Options ===

impl Options {
    /// What follows `sim` is the program's business: `--seeds N [--seed S] [--writers ours|mixed] [--mode atomic|one-by-one]`.
    pub fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        Ok(Self(parser.raw_args()?.collect()))
    }

    /// 2,000 seeds of each kind, and whatever else is asked for.
    pub fn soak(mut parser: lexopt::Parser) -> Result<Self> {
        let defaults = ["--seeds", SOAK_SEEDS].map(OsString::from);
        Ok(Self(defaults.into_iter().chain(parser.raw_args()?).collect()))
    }
}
