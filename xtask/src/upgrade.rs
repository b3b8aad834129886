//! `cargo xtask upgrade`, also a part of `cargo xtask soak`: this build beside the executables of an earlier release (crates/russet/tests/whole/previous.rs).
//!
//! The executables of the earlier release are built from its commit once, in a directory of their own, and kept outside of the target directory: a build takes
//! longer than all of these tests, so `cargo xtask test` has none of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lexopt::prelude::{Long, ValueExt};

use crate::artifacts;
use crate::chaos::{all_well, whole_tests};
use crate::error::{Error, Result};
use crate::kubernetes;
use crate::packages;
use crate::process;

/// The release before this one: the last commit that users were asked to run.
const PREVIOUS: &str = "11f4cab50784266ca663eb3d3d0136be7df883ee";
/// What a node gets of a release.
const EXECUTABLES: [&str; 2] = ["russet", "russet-cni"];
/// The part of the tests' names; `cargo xtask test` leaves these out.
pub const TESTS: &str = "previous::";
/// Names the command of the earlier release for the tests, with its plugin beside it. If it is set already, nothing is built.
const VARIABLE: &str = "RUSSET_PREVIOUS";

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
    let earlier = match (std::env::var_os(VARIABLE), &options.from) {
        (Some(command), None) => PathBuf::from(command),
        (_, from) => release(from.as_deref().unwrap_or(PREVIOUS))?.join("russet"),
    };
    println!("from the release of {}", earlier.display());
    all_well(whole_tests().arg(TESTS).env(VARIABLE, &earlier))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_that_need_an_earlier_release_have_a_module_of_their_own() {
        let tests = artifacts::workspace().join("crates/russet/tests/whole");
        let module = TESTS.trim_end_matches(':');
        let text = fs::read_to_string(tests.join("main.rs")).unwrap();
        assert_eq!(text.lines().filter(|line| line.ends_with(&format!("{module};"))).count(), 1);
        let text = fs::read_to_string(tests.join(format!("{module}.rs"))).unwrap();
        assert!(text.contains(VARIABLE) && text.contains("#[test]"), "{module}.rs");
    }
}
