//! One compilation for all layers: `cargo test --no-run` with clippy in the place of rustc. It gives the warnings of the lint layer and the executables that the
//! other layers run. One selection of packages means one set of features, so nothing is compiled twice.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::artifacts;
use crate::error::{Error, Result};
use crate::process::{self, Ended};

/// Where cargo looks for the program that compiles the workspace's own crates.
const WRAPPER_VARIABLE: &str = "RUSTC_WORKSPACE_WRAPPER";

/// A compiled test executable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executable {
    pub package: String,
    /// The directory of its package, in which cargo would run it.
    pub directory: PathBuf,
    pub kind: Kind,
    /// The target's name.
    pub name: String,
    pub path: PathBuf,
}

/// Where the tests of an executable are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In the package's sources.
    Unit,
    /// In the package's directory `tests`.
    Integration,
}

/// What a compilation gave.
#[derive(Debug, Default)]
pub struct Build {
    pub executables: Vec<Executable>,
    /// One line for each warning or error.
    pub complaints: Vec<String>,
    pub succeeded: bool,
}

/// Compiles and lints the tests of `packages`, or of the workspace when there are none. Diagnostics are printed as they come.
pub fn build(packages: &[String], silence_limit: Duration) -> Result<Build> {
    let mut cargo = cargo_test(packages)?;
    cargo.args(["--no-run", "--all-targets", "--message-format", "json"]);
    let mut build = Build::default();
    let ended = process::watch(&mut cargo, silence_limit, |line| build.read(line))?;
    if let Ended::Silence(limit) = ended {
        let why = format!("killed: no output for {} s", limit.as_secs());
        return Err(Error::Program { command: process::shown(&cargo), why });
    }
    Ok(build)
}

/// `cargo test` over `packages`, or the workspace, with the same compiler and features as [`build`].
pub fn cargo_test(packages: &[String]) -> Result<Command> {
    let mut cargo = artifacts::cargo();
    cargo.arg("test").env(WRAPPER_VARIABLE, clippy_driver()?);
    if packages.is_empty() {
        cargo.arg("--workspace");
    }
    packages.iter().for_each(|package| _ = cargo.args(["-p", package]));
    Ok(cargo)
}

fn clippy_driver() -> Result<PathBuf> {
    let sysroot = process::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let driver = Path::new(String::from_utf8_lossy(&sysroot).trim()).join("bin/clippy-driver");
    if driver.exists() {
        return Ok(driver);
    }
    Err(Error::Found(format!("{} is missing: `rustup component add clippy` installs it", driver.display())))
}

// === impl Build ===

impl Build {
    /// Takes in one of cargo's messages; lines that are none are printed.
    fn read(&mut self, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else { return println!("{line}") };
        match message["reason"].as_str() {
            Some("compiler-message") => self.read_diagnostic(&message["message"]),
            Some("compiler-artifact") => self.executables.extend(Executable::read(&message)),
            Some("build-finished") => self.succeeded = message["success"].as_bool().unwrap_or(false),
            _ => {}
        }
    }

    fn read_diagnostic(&mut self, diagnostic: &Value) {
        let level = diagnostic["level"].as_str().unwrap_or_default();
        // Without a position it is only a count of the others.
        let Some(span) = diagnostic["spans"].as_array().and_then(|spans| spans.first()) else { return };
        if !matches!(level, "warning" | "error") {
            return;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        println!("{}", text(&diagnostic["rendered"]).trim_end());
        let complaint =
            format!("{}:{}: {}", text(&span["file_name"]), span["line_start"], text(&diagnostic["message"]));
        // A file of a library is compiled with and without its tests.
        if !self.complaints.contains(&complaint) {
            self.complaints.push(complaint);
        }
    }
}

// === impl Executable ===

impl Executable {
    /// The test executable of a message of cargo's about an artifact, if it is one.
    fn read(artifact: &Value) -> Option<Self> {
        if artifact["profile"]["test"] != Value::Bool(true) {
            return None;
        }
        let path = PathBuf::from(artifact["executable"].as_str()?);
        let manifest = Path::new(artifact["manifest_path"].as_str()?);
        let directory = manifest.parent()?.to_owned();
        let target = &artifact["target"];
        let is_integration = target["kind"].as_array()?.iter().any(|kind| kind == "test");
        let kind = if is_integration { Kind::Integration } else { Kind::Unit };
        let package = package_name(artifact["package_id"].as_str()?, &directory)?;
        Some(Self { package, directory, kind, name: target["name"].as_str()?.to_owned(), path })
    }

    /// The command that runs it as `cargo test` would.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.directory);
        command.env("CARGO_MANIFEST_DIR", &self.directory).env("CARGO_PKG_NAME", &self.package);
        command
    }

    /// How it is called in messages.
    pub fn shown(&self) -> String {
        match self.kind {
            Kind::Unit => format!("{} (sources of {})", self.package, self.name),
            Kind::Integration => format!("{} (tests/{})", self.package, self.name),
        }
    }
}

/// The package's name in `path+file:///work/crates/addr#russet-addr@0.1.0`, or `path+file:///work/xtask#0.1.0` where it is that of its directory.
fn package_name(id: &str, directory: &Path) -> Option<String> {
    let fragment = id.rsplit_once('#')?.1;
    match fragment.split_once('@') {
        Some((name, _version)) => Some(name.to_owned()),
        None => Some(directory.file_name()?.to_str()?.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARTIFACT: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/addr#russet-addr@0.1.0","manifest_path":"/w/crates/addr/Cargo.toml","target":{"kind":["lib"],"name":"russet_addr"},"profile":{"test":true},"executable":"/w/target/debug/deps/russet_addr-1"}"#;
    const WARNING: &str = r#"{"reason":"compiler-message","message":{"level":"warning","message":"unused variable: `x`","rendered":"warning: unused","spans":[{"file_name":"src/lib.rs","line_start":7}]}}"#;
    const COUNT: &str = r#"{"reason":"compiler-message","message":{"level":"warning","message":"1 warning emitted","rendered":"1 warning","spans":[]}}"#;

    #[test]
    fn executables_warnings_and_the_end_are_read() {
        let mut build = Build::default();
        let plain = ARTIFACT.replace(r#""test":true"#, r#""test":false"#);
        let end = r#"{"reason":"build-finished","success":true}"#;
        for line in [ARTIFACT, plain.as_str(), WARNING, WARNING, COUNT, end] {
            build.read(line);
        }
        let expected = Executable {
            package: "russet-addr".into(),
            directory: "/w/crates/addr".into(),
            kind: Kind::Unit,
            name: "russet_addr".into(),
            path: "/w/target/debug/deps/russet_addr-1".into(),
        };
        assert_eq!(build.executables, [expected]);
        assert_eq!(build.complaints, ["src/lib.rs:7: unused variable: `x`"]);
        assert!(build.succeeded);
    }

    #[test]
    fn a_package_that_is_called_as_its_directory_has_a_name() {
        let name = package_name("path+file:///w/xtask#0.1.0", Path::new("/w/xtask"));
        assert_eq!(name.as_deref(), Some("xtask"));
    }
}
