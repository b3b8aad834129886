//! Benchmarks with pods run in a network and a mount namespace of their own: they start themselves again there.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::artifacts;
use crate::bench::{FoundReport, Options, Printed};
use crate::error::{Error, Result};
use crate::{packages, process};

/// Builds what is measured, then starts the same benchmark again in namespaces of its own; there, measures. The process
/// that has the report prints it.
pub fn run<P: Printed + 'static>(
    options: &Options,
    build: impl FnOnce(&Options) -> Result<()>,
    measure: impl FnOnce(&Options, &Path) -> Result<P>,
) -> Result<FoundReport> {
    match &options.inside {
        Some(directory) => Ok(Some(Box::new(measure(options, directory)?))),
        None => enter(options, build).map(|()| None),
    }
}

/// Starts the same benchmark again in fresh namespaces, with an empty directory of its own.
fn enter(options: &Options, build: impl FnOnce(&Options) -> Result<()>) -> Result<()> {
    let name = options.bench.name;
    if !packages::is_root() {
        return Err(Error::Found(format!("bench {name} makes network namespaces: it needs root")));
    }
    if !options.no_build {
        build(options)?;
    }
    let directory = artifacts::target_dir().join("bench").join(name);
    // Leftovers of a killed run; usually there are none.
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).map_err(Error::io(format!("create {}", directory.display())))?;
    let program = std::env::current_exe().map_err(Error::io("find this program"))?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "--propagation", "private"]).arg(program);
    let done = process::run(unshare.args(options.inside_arguments(&directory)));
    match &done {
        Ok(()) => _ = fs::remove_dir_all(&directory),
        Err(_) => eprintln!("what it wrote stays in {}", directory.display()),
    }
    done
}
