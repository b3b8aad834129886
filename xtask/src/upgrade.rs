//! `cargo xtask upgrade`: an upgrade from an earlier release and back, under traffic (crates/russet/tests/whole/upgrade.rs).
//!
//! The executables of the earlier release are built from its commit once, and kept outside of the target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lexopt::prelude::{Long, ValueExt};

use crate::artifacts;
use crate::error::{Error, Result};
use crate::kubernetes;
use crate::packages;
use crate::process;

/// The release before this one: the last commit that users were asked to run.
const PREVIOUS: &str = "11f4cab50784266ca663eb3d3d0136be7df883ee";
/// What a node gets of a release.
const EXECUTABLES: [&str; 2] = ["russet", "russet-cni"];
/// The part of the tests' names.
const TESTS: &str = "upgrade::";
/// Where the tests look for the executables of the earlier release.
const VARIABLE: &str = "RUSSET_PREVIOUS_RELEASE";

/// What the command line asks for.
#[derive(Default)]
pub struct Options {
    /// The commit of the earlier release.
    from: Option<String>,
}

/// Builds the earlier release and runs the tests; true when none failed.
pub fn run(options: &Options) -> Result<bool> {
    if !packages::is_root() {
        return Err(Error::Found("nodes in namespaces of their own need root".to_owned()));
    }
    packages::ensure()?;
    let earlier = release(options.from.as_deref().unwrap_or(PREVIOUS))?;
    println!("from the release in {}", earlier.display());
    let mut tests = artifacts::cargo();
    tests.args(["test", "-p", "russet", "--test", "whole", "--", "--ignored", "--nocapture", TESTS]);
    match process::run(tests.env(VARIABLE, &earlier)) {
        Ok(()) => Ok(true),
        // The tests have said why.
        Err(Error::Program { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The directory of the executables that `commit` gives, built if they are not there.
fn release(commit: &str) -> Result<PathBuf> {
    let mut parse = Command::new("git");
    parse.current_dir(artifacts::workspace()).args(["rev-parse", "--verify", "--end-of-options"]);
    let hash = process::output(parse.arg(format!("{commit}^{{commit}}")))?;
    let hash = String::from_utf8_lossy(&hash).trim().to_owned();
    let directory = kubernetes::cache_dir()?.join("releases").join(&hash);
    if EXECUTABLES.iter().all(|name| directory.join(name).exists()) {
        return Ok(directory);
    }
    let sources = directory.join("sources");
    println!("building the release of {hash}");
    fs::create_dir_all(&sources).map_err(Error::io(format!("make {}", sources.display())))?;
    let mut archive = Command::new("git");
    archive.current_dir(artifacts::workspace()).args(["archive", "--format=tar", &hash]);
    let archive = process::output(&mut archive)?;
    process::filter(Command::new("tar").arg("-x").arg("-C").arg(&sources), archive)?;
    build(&sources)?;
    for name in EXECUTABLES {
        let (from, to) = (sources.join("target/release").join(name), directory.join(name));
        fs::copy(&from, &to).map_err(Error::io(format!("copy {} to {}", from.display(), to.display())))?;
    }
    fs::remove_dir_all(&sources).map_err(Error::io(format!("remove {}", sources.display())))?;
    Ok(directory)
}

fn build(sources: &Path) -> Result<()> {
    let mut build = artifacts::cargo();
    build.current_dir(sources).args(["build", "--release", "--target-dir", "target"]);
    EXECUTABLES.iter().for_each(|name| _ = build.args(["-p", name]));
    process::run(&mut build)
}

// === impl Options ===

impl Options {
    /// Reads what follows `upgrade`.
    pub fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        let mut options = Self::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("from") => options.from = Some(parser.value()?.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(options)
    }
}
