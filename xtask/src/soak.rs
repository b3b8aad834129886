//! `cargo xtask soak`: what takes longer than `test` may: simulated clusters, then kill -9 at random moments of real ones.

use std::process::Command;

use crate::artifacts;
use crate::error::{Error, Result};
use crate::packages;
use crate::process;
use crate::sim;

/// Moments at which something is killed, for each plugin.
const MOMENTS: &str = "200";

/// Runs both, the second even if the first finds something; true when neither did.
pub fn run(options: &sim::Options) -> Result<bool> {
    if !packages::is_root() {
        return Err(Error::Found(
            "killing agents needs root (`cargo xtask sim --seeds 2000` does not)".to_owned(),
        ));
    }
    packages::ensure()?;
    let simulated = sim::run(options)?;
    let killed = match process::run(&mut chaos()) {
        Ok(()) => true,
        // The test has told its seed.
        Err(Error::Program { .. }) => false,
        Err(error) => return Err(error),
    };
    Ok(simulated && killed)
}

fn chaos() -> Command {
    let mut cargo = artifacts::cargo();
    cargo.args([
        "test",
        "-p",
        "russet",
        "--test",
        "whole",
        "--",
        "--ignored",
        "--nocapture",
        "--test-threads",
        "1",
        "chaos::",
    ]);
    cargo.env("RUSSET_CHAOS_MOMENTS", MOMENTS);
    cargo
}
