//! `cargo xtask soak`: what takes longer than `test` may: simulated clusters, then kill -9 at random in real ones.

use crate::chaos;
use crate::error::{Error, Result};
use crate::packages;
use crate::sim;

/// Runs all of it, the rest even if the first finds something; true when nothing did.
pub fn run(options: &sim::Options) -> Result<bool> {
    if !packages::is_root() {
        return Err(Error::Found(
            "killing agents needs root (`cargo xtask sim --seeds 2000` does not)".to_owned(),
        ));
    }
    packages::ensure()?;
    let simulated = sim::run(options)?;
    let stormed = chaos::moments()?;
    let tried = chaos::run(&chaos::Options::soak())?;
    Ok(simulated && stormed && tried)
}
