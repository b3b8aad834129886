//! `cargo xtask e2e`: whole Kubernetes clusters, to which Russet's manifests are applied (crates/russet/tests/cluster).
//!
//! The tests print how long each step took. Names on the command line choose among them.

use lexopt::prelude::{Value, ValueExt};

use crate::artifacts;
use crate::error::{Error, Result};
use crate::kubernetes;
use crate::packages;
use crate::process;

/// What the command line asks for.
#[derive(Default)]
pub struct Options {
    /// Parts of tests' names; all when empty.
    names: Vec<String>,
}

/// The test executable of the package `russet`.
pub const TESTS: &str = "cluster";
/// The part of the names of those that the layer `cluster` runs.
pub const SMALLEST: &str = "smallest_";

/// Runs the tests; true when none failed.
pub fn run(options: &Options) -> Result<bool> {
    if !packages::is_root() {
        return Err(Error::Found("nodes in namespaces of their own need root".to_owned()));
    }
    packages::ensure()?;
    kubernetes::ensure()?;
    // The tests need executables of other packages, too: those of the image.
    let mut build = artifacts::cargo();
    process::run(build.args(["build", "--workspace"]))?;
    let mut tests = artifacts::cargo();
    tests.args([
        "test",
        // Another package has tests of this name.
        "-p",
        "russet",
        "--test",
        TESTS,
        "--",
        "--ignored",
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    match process::run(tests.args(&options.names)) {
        Ok(()) => Ok(true),
        // The tests have said why.
        Err(Error::Program { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

// === impl Options ===

impl Options {
    /// Reads what follows `e2e`.
    pub fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        let mut options = Self::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Value(name) => options.names.push(name.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layer_runs_at_least_one_test() {
        // With a name that matches no test, the harness runs nothing and reports success.
        let directory = artifacts::workspace().join("crates/russet/tests").join(TESTS);
        let text = std::fs::read_to_string(directory.join("flannel.rs")).unwrap();
        assert!(text.contains(&format!("fn {SMALLEST}")));
    }
}
