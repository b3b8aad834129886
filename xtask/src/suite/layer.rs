//! The layers of `cargo xtask test`, in the order in which they run: cheap and telling ones first.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::artifacts;
use crate::dist;
use crate::process::{self, Ended};
use crate::sim;
use crate::suite::report::Tally;
use crate::suite::supply;

/// One kind of test and how to run it.
pub struct Layer {
    pub name: &'static str,
    pub about: &'static str,
    pub needs_root: bool,
    pub run: fn(&Scope, &mut Tally),
}

/// Which packages the layers look at.
pub struct Scope {
    /// None means the workspace.
    pub packages: Vec<String>,
}

pub const LAYERS: &[Layer] = &[
    Layer { name: "format", about: "cargo fmt --check", needs_root: false, run: format },
    Layer { name: "lint", about: "clippy, every warning an error", needs_root: false, run: lint },
    Layer { name: "unit", about: "plain cargo test: no root, no tools", needs_root: false, run: unit },
    Layer {
        name: "supply",
        about: "dependencies: sources, refused crates, licences, advisories",
        needs_root: false,
        run: supply_chain,
    },
    Layer {
        name: "sim",
        about: "simulated clusters, ours and mixed: 200 seeds of each kind",
        needs_root: false,
        run: simulate,
    },
    Layer {
        name: "budget",
        about: "russet-cni as users get it: static and small",
        needs_root: false,
        run: budget,
    },
    Layer {
        name: "kernel",
        about: "the ignored tests: real kernel and tools",
        needs_root: true,
        run: kernel,
    },
    Layer { name: "program", about: "whole programs, several nodes", needs_root: true, run: program },
];

/// The package whose integration tests are the program layer.
const PROGRAM_PACKAGE: &str = "russet";

/// No test of a healthy tree is silent for this long, not even the first, before which everything is compiled; a hung test
/// must not eat the time in which the others could report (the whole of `test` has 90 minutes in CI).
const SILENCE_LIMIT: Duration = Duration::from_secs(15 * 60);
/// A test of the program layer that takes longer has its time told beside it.
const SLOW: Duration = Duration::from_secs(10);

/// Kernel tests mostly wait for RCU, so they outnumber the cores.
const KERNEL_TEST_THREADS: &str = "4";
/// Whole-program tests time what they see, and start several agents each.
const PROGRAM_TEST_THREADS: &str = "1";

fn format(scope: &Scope, tally: &mut Tally) {
    let mut fmt = artifacts::cargo();
    fmt.arg("fmt");
    match scope.packages.as_slice() {
        [] => _ = fmt.arg("--all"),
        packages => packages.iter().for_each(|package| _ = fmt.args(["-p", package])),
    }
    step(fmt.arg("--check"), tally);
}

fn lint(scope: &Scope, tally: &mut Tally) {
    let mut clippy = scope.cargo("clippy", None);
    step(clippy.args(["--all-targets", "--", "-D", "warnings"]), tally);
}

fn unit(scope: &Scope, tally: &mut Tally) {
    let mut test = scope.cargo("test", None);
    tests(test.arg("--no-fail-fast").args(["--", "--show-output"]), tally);
}

fn supply_chain(scope: &Scope, tally: &mut Tally) {
    if scope.packages.is_empty() {
        supply::run(tally);
    }
}

fn simulate(scope: &Scope, tally: &mut Tally) {
    if scope.includes("russet-sim") {
        step(&mut sim::suite(), tally);
    }
}

fn budget(scope: &Scope, tally: &mut Tally) {
    if scope.includes("russet-cni") {
        match dist::check_plugin() {
            Ok(()) => tally.passed += 1,
            Err(error) => tally.failures.push(error.to_string()),
        }
    }
}

/// Doc tests stay out: to rustdoc, `ignored` means examples that are not meant to run.
fn kernel(scope: &Scope, tally: &mut Tally) {
    if let Some(mut test) = scope.cargo_without(PROGRAM_PACKAGE) {
        test.env("RUST_TEST_THREADS", KERNEL_TEST_THREADS).args(["--tests", "--no-fail-fast"]);
        tests(test.args(["--", "--ignored", "--show-output"]), tally);
    }
    if scope.includes(PROGRAM_PACKAGE) {
        let mut test = scope.cargo("test", Some(PROGRAM_PACKAGE));
        test.env("RUST_TEST_THREADS", KERNEL_TEST_THREADS).args(["--bins", "--no-fail-fast"]);
        tests(test.args(["--", "--ignored", "--show-output"]), tally);
    }
}

/// The tests run the executable that cargo built beside them, in the dev profile: a release build of everything
/// would take longer than all tests together.
fn program(scope: &Scope, tally: &mut Tally) {
    if !scope.includes(PROGRAM_PACKAGE) || !has_integration_tests(PROGRAM_PACKAGE) {
        return;
    }
    let mut test = scope.cargo("test", Some(PROGRAM_PACKAGE));
    test.env("RUST_TEST_THREADS", PROGRAM_TEST_THREADS).args(["--test", "*", "--no-fail-fast"]);
    let mut last = Instant::now();
    let timed = |line: &str| {
        let took = std::mem::replace(&mut last, Instant::now()).elapsed();
        let slow = took >= SLOW && line.starts_with("test ");
        if slow { println!("{line} ({} s)", took.as_secs()) } else { println!("{line}") }
    };
    tests_shown(test.args(["--", "--ignored", "--show-output"]), tally, timed);
}

/// Asked for `--test '*'` where there is none, cargo fails.
fn has_integration_tests(package: &str) -> bool {
    let tests = artifacts::workspace().join("crates").join(package).join("tests");
    let entries = std::fs::read_dir(tests).into_iter().flatten().flatten();
    let is_test =
        |path: &Path| path.extension().is_some_and(|end| end == "rs") || path.join("main.rs").exists();
    entries.map(|entry| entry.path()).any(|path| is_test(&path))
}

/// Runs a command that is one check: it counts as 1.
pub(super) fn step(command: &mut Command, tally: &mut Tally) {
    match process::watch(command, SILENCE_LIMIT, |line| println!("{line}")) {
        Ok(Ended::Exit(status)) if status.success() => tally.passed += 1,
        Ok(Ended::Exit(status)) => tally.failures.push(format!("{}: {status}", process::shown(command))),
        Ok(Ended::Silence(limit)) => tally.failures.push(hung(command, limit)),
        Err(error) => tally.failures.push(error.to_string()),
    }
}

/// Runs `cargo test` and counts what its test binaries report.
fn tests(command: &mut Command, tally: &mut Tally) {
    tests_shown(command, tally, |line| println!("{line}"));
}

/// [`tests`], with its own way of printing a line.
fn tests_shown(command: &mut Command, tally: &mut Tally, mut show: impl FnMut(&str)) {
    let mut report = tally.reader();
    let ended = process::watch(command, SILENCE_LIMIT, |line| {
        if report.read(line) {
            show(line);
        }
    });
    let failed_tests = report.finish();
    match ended {
        Ok(Ended::Exit(status)) if status.success() || failed_tests > 0 => {}
        Ok(Ended::Exit(status)) => {
            let command = process::shown(command);
            tally
                .failures
                .push(format!("{command}: {status} with no failed test: no build, or a test binary died"));
        }
        Ok(Ended::Silence(limit)) => tally.failures.push(hung(command, limit)),
        Err(error) => tally.failures.push(error.to_string()),
    }
}

fn hung(command: &Command, limit: Duration) -> String {
    let limit = limit.as_secs();
    format!(
        "{}: killed, since it said nothing for {limit} s: see what it was at above",
        process::shown(command)
    )
}

// === impl Scope ===

impl Scope {
    fn includes(&self, package: &str) -> bool {
        self.packages.is_empty() || self.packages.iter().any(|name| name == package)
    }

    /// `cargo VERB` over `package`, or over the whole scope.
    fn cargo(&self, verb: &str, package: Option<&str>) -> Command {
        let mut cargo = artifacts::cargo();
        cargo.arg(verb);
        let packages =
            package.map_or_else(|| self.packages.iter().map(String::as_str).collect(), |one| vec![one]);
        if packages.is_empty() {
            cargo.arg("--workspace");
        }
        packages.iter().for_each(|package| _ = cargo.args(["-p", package]));
        cargo
    }

    /// `cargo test` over the scope without `excluded`; `None` when nothing remains.
    fn cargo_without(&self, excluded: &str) -> Option<Command> {
        if self.packages.is_empty() {
            let mut cargo = self.cargo("test", None);
            cargo.args(["--exclude", excluded]);
            return Some(cargo);
        }
        let packages: Vec<String> = self.packages.iter().filter(|name| *name != excluded).cloned().collect();
        (!packages.is_empty()).then(|| Self { packages }.cargo("test", None))
    }
}
