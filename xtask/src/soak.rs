//! `cargo xtask soak`: tests that take longer than `test` may: simulated clusters, network policies
//! against real packets, an earlier release's executables beside these, an older kernel and the fast path as on one, then
//! kill -9 at random in real clusters.

use crate::chaos::{self, all_well, whole_tests};
use crate::debian_kernel::{self, DebianKernel};
use crate::error::{Error, Result};
use crate::packages;
use crate::policies;
use crate::sim;
use crate::upgrade;

/// Runs all of it, also after a failure; true if nothing failed.
pub fn run(options: &sim::Options) -> Result<bool> {
    if !packages::is_root() {
        return Err(Error::Found(
            "killing agents needs root (`cargo xtask sim --seeds 2000` does not)".to_owned(),
        ));
    }
    packages::ensure()?;
    let simulated = sim::run(options)?;
    let enforced = policies::run()?;
    let upgraded = upgrade::run(&upgrade::Options::default())?;
    let aged = debian_kernel::run(DebianKernel::Old)?;
    let renewed = debian_kernel::run(DebianKernel::New)?;
    let attached = all_well(whole_tests().arg("fast_path::").env("RUSSET_TCX", "off"))?;
    let stormed = chaos::moments()?;
    let tried = chaos::run(&chaos::Options::soak())?;
    Ok(simulated && enforced && upgraded && aged && renewed && attached && stormed && tried)
}
