//! The layers of `cargo xtask test`, in the order in which they run: cheap and informative ones first.

use std::cell::OnceCell;
use std::process::Command;
use std::time::Duration;

use crate::artifacts;
use crate::dist;
use crate::e2e;
use crate::error::Result;
use crate::kubernetes;
use crate::process::{self, Ended};
use crate::sim;
use crate::suite::executables::{self, Build, Executable, Kind};
use crate::suite::report::Tally;
use crate::suite::supply;
use crate::upgrade;

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
    packages: Vec<String>,
    build: OnceCell<Result<Build>>,
}

pub const LAYERS: &[Layer] = &[
    Layer { name: "format", about: "cargo fmt --check", needs_root: false, run: format },
    Layer {
        name: "lint",
        about: "everything compiled by clippy, every warning an error",
        needs_root: false,
        run: lint,
    },
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
        name: "kubernetes",
        about: "Kubernetes' programs for the next layers, built by Go unless they are in the cache",
        needs_root: false,
        run: build_kubernetes,
    },
    Layer {
        name: "kernel",
        about: "the ignored tests: real kernel and tools",
        needs_root: true,
        run: kernel,
    },
    Layer { name: "program", about: "whole programs, several nodes", needs_root: true, run: program },
    Layer {
        name: "cluster",
        about: "a whole Kubernetes cluster of three nodes, in its smallest form",
        needs_root: true,
        run: cluster,
    },
];

/// The packages whose tests start API servers.
const USE_KUBERNETES: [&str; 3] = ["russet-kube", "russet-testkit", "russet"];

/// The package whose integration tests are the program layer.
const PROGRAM_PACKAGE: &str = "russet";

/// No test of a healthy tree is silent for this long, not even the first, before which everything is compiled; a hung test
/// must not eat the time in which the others could report (the whole of `test` has 90 minutes in CI).
const SILENCE_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Kernel tests mostly wait for RCU, so they outnumber the cores.
const KERNEL_TEST_THREADS: &str = "4";
/// Whole-program tests mostly wait, too, but start several agents each.
const PROGRAM_TEST_THREADS: &str = "3";
/// Whole-program tests that look at all network namespaces of the machine, or measure gaps in traffic: they run one at a time, after the others.
const ALONE: [&str; 6] =
    ["any_state::", "chaos::", "kubernetes::gaps::", "openshift_drift::", "recovery::", "repair::"];

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
    let Some(build) = scope.build(tally) else { return };
    tally.failures.extend(build.complaints.iter().cloned());
    if build.complaints.is_empty() {
        tally.passed += 1;
    }
}

fn unit(scope: &Scope, tally: &mut Tally) {
    let Some(build) = scope.build(tally) else { return };
    for executable in &build.executables {
        run_tests(executable, &[], None, tally);
    }
    let mut documentation = executables::cargo_test(&scope.packages);
    match documentation.as_mut() {
        Ok(test) => tests(test.args(["--doc", "--no-fail-fast"]), tally),
        Err(error) => tally.failures.push(error.to_string()),
    }
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

fn build_kubernetes(scope: &Scope, tally: &mut Tally) {
    if USE_KUBERNETES.iter().any(|package| scope.includes(package)) {
        match kubernetes::ensure() {
            Ok(()) => tally.passed += 1,
            Err(error) => tally.failures.push(error.to_string()),
        }
    }
}

fn kernel(scope: &Scope, tally: &mut Tally) {
    let Some(build) = scope.build(tally) else { return };
    for executable in build.executables.iter().filter(|executable| !is_of_programs(executable)) {
        run_tests(executable, &["--ignored"], Some(KERNEL_TEST_THREADS), tally);
    }
}

/// The tests run the executables that cargo built beside them, in the dev profile: a release build of everything
/// would take longer than all tests together.
fn program(scope: &Scope, tally: &mut Tally) {
    let Some(build) = scope.build(tally) else { return };
    let programs = build.executables.iter().filter(|executable| is_of_programs(executable));
    for executable in programs.filter(|executable| executable.name != e2e::TESTS) {
        let others = ALONE.iter().chain([&upgrade::TESTS]).flat_map(|name| ["--skip", *name]);
        let others: Vec<&str> = std::iter::once("--ignored").chain(others).collect();
        run_tests(executable, &others, Some(PROGRAM_TEST_THREADS), tally);
        let alone: Vec<&str> = std::iter::once("--ignored").chain(ALONE).collect();
        run_tests(executable, &alone, Some("1"), tally);
    }
}

/// The rest of these tests takes much longer: `cargo xtask e2e`.
fn cluster(scope: &Scope, tally: &mut Tally) {
    let Some(build) = scope.build(tally) else { return };
    let tests = build.executables.iter().filter(|executable| is_of_programs(executable));
    for executable in tests.filter(|executable| executable.name == e2e::TESTS) {
        run_tests(executable, &["--ignored", e2e::SMALLEST], Some("1"), tally);
    }
}

fn is_of_programs(executable: &Executable) -> bool {
    executable.package == PROGRAM_PACKAGE && executable.kind == Kind::Integration
}

/// Runs the tests of an executable and counts what it reports.
fn run_tests(executable: &Executable, options: &[&str], threads: Option<&str>, tally: &mut Tally) {
    println!("\n     {}", executable.shown());
    let mut command = executable.command();
    command.args(["--show-output", "-Z", "unstable-options", "--report-time"]).args(options);
    // The harness of the stable compiler takes `--report-time` only with this.
    command.env("RUSTC_BOOTSTRAP", "1");
    threads.into_iter().for_each(|threads| _ = command.env("RUST_TEST_THREADS", threads));
    tests(&mut command, tally);
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

/// Runs a program of tests and counts what the harness reports.
fn tests(command: &mut Command, tally: &mut Tally) {
    let mut report = tally.reader();
    let ended = process::watch(command, SILENCE_LIMIT, |line| {
        if report.read(line) {
            println!("{line}");
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
    pub fn new(packages: Vec<String>) -> Self {
        Self { packages, build: OnceCell::new() }
    }

    fn includes(&self, package: &str) -> bool {
        self.packages.is_empty() || self.packages.iter().any(|name| name == package)
    }

    /// What was compiled for all layers, by the first that needs it. Its failure is counted once for each layer that needs it.
    fn build(&self, tally: &mut Tally) -> Option<&Build> {
        match self.build.get_or_init(|| executables::build(&self.packages, SILENCE_LIMIT)) {
            Ok(build) if build.succeeded => Some(build),
            Ok(build) => {
                tally.failures.push("the tests do not compile".to_owned());
                tally.failures.extend(build.complaints.iter().cloned());
                None
            }
            Err(error) => {
                tally.failures.push(error.to_string());
                None
            }
        }
    }
}
