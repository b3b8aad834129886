//! `cargo xtask bench agents`: what a cluster of 200 agents on one etcd takes: the time of `russet status --cluster`, and what the probes of each
//! node send.
//!
//! A whole-program test (crates/russet/tests/whole/many_agents.rs) has the cluster and measures; this side says how many agents, with which
//! executable, and compares with the goals. The test alone asserts no times.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use crate::artifacts::{self, Profile};
use crate::bench::rows::{Goal, Rows, Table};
use crate::bench::statistics::Conditions;
use crate::bench::{FoundReport, Options};
use crate::error::{Error, Result};
use crate::{chaos, packages, process};

/// The agents, and the larger cluster for which probes are computed.
const AGENTS: u32 = 200;
const MANY: u32 = 5_000;
/// The test, which has these variables.
const TEST: &str = "a_cluster_of_many_agents_is_on_one_screen_and_each_probes_a_few_others";
const VARIABLES: [&str; 3] = ["RUSSET_AGENTS", "RUSSET_COMMAND", "RUSSET_MEASURED"];

/// All namespaces of a machine share the kernel's table of neighbours, and lose packets while it is full.
const NEIGHBOURS: &str = "/proc/sys/net/ipv4/neigh/default/gc_thresh3";
const NEIGHBOURS_MIN: u64 = 65_536;
const RAISED: &str = "sysctl -w net.ipv4.neigh.default.gc_thresh3=65536 net.ipv4.neigh.default.gc_thresh2=32768 net.ipv4.neigh.default.gc_thresh1=8192";

const START: &str = "start";
const STATUS: [&str; 2] = ["status --cluster", "status --cluster, longest"];
const PACKETS: &str = "packets of a node";
const BYTES: &str = "bytes of a node";
const COMPUTED: [&str; 2] = ["5,000 nodes, computed: packets", "5,000 nodes, computed: bytes"];

static TABLE: Table = Table { bench: "agents", goals: &GOALS, unit };

const GOALS: [Goal; 2] = [
    Goal { test: STATUS[0], at_most: 1_000.0, reason: "200 nodes on one screen within a second" },
    Goal { test: STATUS[1], at_most: 1_000.0, reason: "200 nodes on one screen within a second" },
];

fn unit(test: &str) -> &'static str {
    match test {
        START => "s",
        _ if STATUS.contains(&test) => "ms",
        _ if test.ends_with("bytes") || test == BYTES => "B/s",
        _ => "1/s",
    }
}

/// Notes that explain the table.
const NOTES: [&str; 4] = [
    "cluster: 200 agents in network namespaces of one machine, with one etcd; start: until the record of each says that it is ready",
    "status --cluster: the process, its start included, on one node after the other; longest: the longest of a round",
    "packets, bytes of a node: what its tunnel device sends in a second, its probes and its answers to others', among them the large ones of the first hour; one sample for each node",
    "5,000 nodes, computed: the same from the settings' defaults (docs/status.md), IPv4, not measured",
];

/// What the probes of a node and its answers to those of others are, in a second.
#[derive(Debug, PartialEq)]
struct Probes {
    packets: f64,
    bytes: f64,
}

/// Builds the agent; then the test measures, once a round.
pub fn run(options: &Options) -> Result<FoundReport> {
    options.check_subjects([])?;
    if !packages::is_root() {
        return Err(Error::Found("bench agents makes network namespaces: it needs root".to_owned()));
    }
    let limit = fs::read_to_string(NEIGHBOURS).map_err(Error::io(format!("read {NEIGHBOURS}")))?;
    check_neighbours(&limit)?;
    if !options.no_build {
        packages::ensure()?;
        artifacts::dynamic("russet", Profile::Optimized)?;
    }
    let file = artifacts::target_dir().join(format!("bench-agents-{}.json", std::process::id()));
    let (mut quiet, mut findings) = (options.quiet(), Rows::new(&TABLE));
    for round in 1..=options.rounds {
        quiet.wait();
        let measured = measure(&file);
        let _ = fs::remove_file(&file);
        add(&mut findings, &measured?)?;
        eprintln!("agents: round {round} of {} done", options.rounds);
    }
    let Probes { packets, bytes } = Probes::among(MANY);
    findings.add(COMPUTED[0], packets);
    findings.add(COMPUTED[1], bytes);
    findings.conditions =
        Conditions::new(format!("{} rounds of {AGENTS} agents", options.rounds), &NOTES, quiet);
    Ok(Some(Box::new(findings)))
}

/// Refuses a machine on which packets of that many agents would be lost.
fn check_neighbours(limit: &str) -> Result<()> {
    match limit.trim().parse::<u64>() {
        Ok(limit) if limit >= NEIGHBOURS_MIN => Ok(()),
        _ => Err(Error::Found(format!(
            "{NEIGHBOURS} is {}, and {AGENTS} agents on one machine need {NEIGHBOURS_MIN}: {RAISED}",
            limit.trim()
        ))),
    }
}

/// Runs the test, and returns what it measured. Standard output is the report's.
fn measure(file: &PathBuf) -> Result<Value> {
    let [agents, command, measured] = VARIABLES;
    let mut tests = chaos::whole_tests();
    tests.arg(TEST).env(agents, AGENTS.to_string()).env(measured, file);
    tests.env(command, artifacts::dynamic_path("russet", Profile::Optimized));
    process::run(tests.stdin(Stdio::null()).stdout(io::stderr()))?;
    let text = fs::read_to_string(file).map_err(Error::io(format!("read {}", file.display())))?;
    serde_json::from_str(&text).map_err(|error| Error::Found(format!("{}: {error}", file.display())))
}

/// Adds what the test measured in a round.
fn add(findings: &mut Rows, measured: &Value) -> Result<()> {
    let numbers = |member: &str| -> Result<Vec<f64>> {
        let all: Vec<f64> =
            measured[member].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        match all.is_empty() {
            true => Err(Error::Found(format!("the test measured no {member:?}"))),
            false => Ok(all),
        }
    };
    numbers("start_s")?.into_iter().for_each(|value| findings.add(START, value));
    let times = numbers("status_ms")?;
    times.iter().for_each(|value| findings.add(STATUS[0], *value));
    findings.add(STATUS[1], times.into_iter().fold(0.0, f64::max));
    numbers("packets_per_s")?.into_iter().for_each(|value| findings.add(PACKETS, value));
    numbers("bytes_per_s")?.into_iter().for_each(|value| findings.add(BYTES, value));
    Ok(())
}

// === impl Probes ===

impl Probes {
    /// The nodes that are probed at a time, how often each, and how many answers make room for the next.
    const AT_A_TIME: f64 = 16.0;
    const EVERY_S: f64 = 5.0;
    const ANSWERS: f64 = 3.0;
    /// A node is proven with a large echo once within this.
    const PROVEN_S: f64 = 3_600.0;
    /// An echo over IPv4, and one of the size of pods' largest packets, with the header of Ethernet that a tunnel device counts.
    const SMALL_BYTES: f64 = 44.0 + 14.0;
    const LARGE_BYTES: f64 = 1450.0 + 14.0;

    /// In a cluster of that many nodes, all of which answer, after some time.
    fn among(nodes: u32) -> Self {
        let others = f64::from(nodes.saturating_sub(1));
        let small = others.min(Self::AT_A_TIME) / Self::EVERY_S;
        let turns = Self::AT_A_TIME / (Self::EVERY_S * Self::ANSWERS);
        let large = if others > Self::AT_A_TIME { turns } else { f64::INFINITY }.min(others / Self::PROVEN_S);
        // Others probe this node as often as it probes them.
        let bytes = 2.0 * (small * Self::SMALL_BYTES + large * Self::LARGE_BYTES);
        Self { packets: 2.0 * (small + large), bytes }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::Printed as _;

    fn measured(status_ms: &[f64]) -> Value {
        json!({ "start_s": [12.5], "status_ms": status_ms, "packets_per_s": [8.0, 9.0, 10.0], "bytes_per_s": [3000.0, 3500.0, 4000.0] })
    }

    #[test]
    fn a_cluster_that_takes_longer_than_a_second_to_show_misses_the_goal() {
        let mut findings = Rows::new(&TABLE);
        add(&mut findings, &measured(&[10.0, 15.0, 20.0])).unwrap();
        let json = findings.json();
        assert_eq!((&json["goals_met"], &json["goals"][0]["p50"]), (&json!(true), &json!(15.0)));
        assert_eq!(json["goals"].as_array().unwrap().len(), 2);
        assert_eq!((&json["rows"][3]["n"], &json["rows"][4]["p50"]), (&json!(3), &json!(3500.0)));
        // One that takes longer is enough.
        let mut findings = Rows::new(&TABLE);
        add(&mut findings, &measured(&[10.0, 15.0, 1001.0])).unwrap();
        assert_eq!(findings.json()["goals_met"], false);
    }

    #[test]
    fn a_round_without_figures_is_an_error() {
        let mut findings = Rows::new(&TABLE);
        assert!(add(&mut findings, &measured(&[])).unwrap_err().to_string().contains("status_ms"));
        assert!(add(&mut findings, &json!(null)).is_err());
    }

    #[test]
    fn probes_of_a_node_do_not_grow_with_a_large_cluster() {
        let (some, many) = (Probes::among(10_000), Probes::among(MANY));
        assert_eq!(some, many);
        assert!((many.packets - 8.53).abs() < 0.01 && (many.bytes - 3494.4).abs() < 1.0, "{many:?}");
        // All of a small cluster are probed all the time, and proven once an hour.
        let few = Probes::among(11);
        assert!((few.packets - 2.0 * (2.0 + 10.0 / 3600.0)).abs() < 1e-9, "{few:?}");
        assert_eq!(Probes::among(1), Probes { packets: 0.0, bytes: 0.0 });
    }

    #[test]
    fn a_table_of_neighbours_that_is_too_small_is_named_with_the_remedy() {
        assert!(check_neighbours("65536\n").is_ok());
        let error = check_neighbours("1024\n").unwrap_err().to_string();
        assert!(error.contains("gc_thresh3 is 1024") && error.contains(RAISED), "{error}");
        assert!(check_neighbours("").is_err());
    }

    #[test]
    fn the_test_is_there_and_has_the_variables() {
        // With a name that matches no test, the harness runs nothing and reports success.
        let file = artifacts::workspace().join("crates/russet/tests/whole/many_agents.rs");
        let text = fs::read_to_string(file).unwrap();
        assert!(text.contains(&format!("fn {TEST}")));
        VARIABLES.iter().for_each(|name| assert!(text.contains(&format!("\"{name}\"")), "{name}"));
    }
}
