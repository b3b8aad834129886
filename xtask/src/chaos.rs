//! `cargo xtask chaos`, and parts of `cargo xtask soak`: kill -9 at random and power cuts in real clusters.
//!
//! The whole-program tests of the package `russet` do it; the options reach them as environment
//! variables. They print the seed first, and after a failure the operations, the difference and the
//! directory of the artefacts.

use std::process::Command;

use lexopt::prelude::{Long, ValueExt};

use crate::artifacts;
use crate::error::{Error, Result};
use crate::kubernetes;
use crate::packages;
use crate::process;

/// The parsed command line.
pub struct Options {
    ops: u64,
    kills: u64,
    cuts: u64,
    seed: Option<u64>,
    /// The places of the trials; all when empty.
    fields: Vec<&'static Field>,
}

/// Where a trial takes place.
struct Field {
    name: &'static str,
    /// The part of its tests' names.
    filter: &'static str,
}

/// As many as a soak does in each place.
const OPS: u64 = 10_000;
const KILLS: u64 = 500;
const CUTS: u64 = 40;
/// Moments of a burst of ADD and DEL at which a process is killed, for each plugin.
const MOMENTS: &str = "200";
/// The part of these tests' names.
const STORM: &str = "chaos::chaos_kill_minus_nine";

const FIELDS: &[Field] = &[
    Field {
        name: "embedded",
        filter: "chaos::trial::kills_at_random_leave_no_trace_on_a_node_with_its_own_store",
    },
    Field { name: "etcd", filter: "chaos::trial::kills_at_random_leave_no_trace_on_two_nodes_of_an_etcd" },
    Field { name: "calico", filter: "chaos::trial::kills_at_random_leave_no_trace_of_calicos_plugin" },
    Field {
        name: "kubernetes",
        filter: "chaos::trial::kills_at_random_leave_no_trace_on_four_nodes_of_a_kubernetes_cluster",
    },
    Field {
        name: "power-embedded",
        filter: "power_cuts_lose_nothing_that_was_answered_and_leave_no_trace_on_a_node_with_its_own_store",
    },
    Field {
        name: "power-etcd",
        filter: "power_cuts_lose_nothing_that_was_answered_and_leave_no_trace_on_two_nodes_of_an_etcd",
    },
];

/// Runs the trials; true when nothing was found.
pub fn run(options: &Options) -> Result<bool> {
    if !packages::is_root() {
        return Err(Error::Found("killing agents in network namespaces of their own needs root".to_owned()));
    }
    packages::ensure()?;
    let fields: Vec<&Field> =
        if options.fields.is_empty() { FIELDS.iter().collect() } else { options.fields.clone() };
    if fields.iter().any(|field| field.name == "kubernetes") {
        kubernetes::ensure()?;
    }
    let mut tests = whole_tests();
    tests.args(fields.iter().map(|field| field.filter));
    tests.env("RUSSET_CHAOS_OPS", options.ops.to_string());
    tests.env("RUSSET_CHAOS_KILLS", options.kills.to_string());
    tests.env("RUSSET_CHAOS_CUTS", options.cuts.to_string());
    if let Some(seed) = options.seed {
        tests.env("RUSSET_CHAOS_SEED", seed.to_string());
    }
    all_well(&mut tests)
}

/// Bursts of ADD and DEL with kills at moments.
pub fn moments() -> Result<bool> {
    let mut tests = whole_tests();
    tests.arg(STORM).env("RUSSET_CHAOS_MOMENTS", MOMENTS);
    all_well(&mut tests)
}

pub fn all_well(tests: &mut Command) -> Result<bool> {
    match process::run(tests) {
        Ok(()) => Ok(true),
        // The test has printed its seed.
        Err(Error::Program { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The whole-program tests, of which the caller names some.
pub fn whole_tests() -> Command {
    let mut cargo = artifacts::cargo();
    cargo.args(["test", "-p", "russet", "--test", "whole", "--", "--ignored", "--nocapture"]);
    cargo.args(["--test-threads", "1"]);
    cargo
}

// === impl Options ===

impl Options {
    /// What follows `chaos`.
    pub fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        let mut options = Self::soak();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("ops") => options.ops = parser.value()?.parse()?,
                Long("kills") => options.kills = parser.value()?.parse()?,
                Long("cuts") => options.cuts = parser.value()?.parse()?,
                Long("seed") => options.seed = Some(parser.value()?.parse()?),
                Long("field") => options.fields.push(field(&parser.value()?.string()?)?),
                other => return Err(other.unexpected().into()),
            }
        }
        if options.ops == 0 || options.cuts == 0 {
            return Err(Error::Usage("--ops 0 and --cuts 0 show nothing".to_owned()));
        }
        Ok(options)
    }

    /// Everything a soak does.
    pub fn soak() -> Self {
        Self { ops: OPS, kills: KILLS, cuts: CUTS, seed: None, fields: Vec::new() }
    }
}

fn field(name: &str) -> Result<&'static Field> {
    FIELDS.iter().find(|field| field.name == name).ok_or_else(|| {
        let known = FIELDS.iter().map(|field| field.name).collect::<Vec<_>>().join(", ");
        Error::Usage(format!("no field {name:?}; there are {known}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_names_a_test_that_there_is() {
        // With a name that matches no test, the harness runs nothing and reports success.
        let dir = artifacts::workspace().join("crates/russet/tests/whole");
        let files = ["chaos.rs", "chaos/trial.rs", "chaos/trial/power.rs"];
        let text: String =
            files.iter().map(|file| std::fs::read_to_string(dir.join(file)).unwrap()).collect();
        for filter in FIELDS.iter().map(|field| field.filter).chain([STORM]) {
            let name = filter.rsplit("::").next().unwrap();
            assert!(text.contains(&format!("fn {name}")), "{filter}");
        }
    }
}
