//! What a whole agent takes, measured by whole-program tests of the package `russet`: its memory among many policies and pods, and its processor time
//! while packets are denied. The tests alone assert no times.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, io};

use serde_json::Value;

use crate::artifacts::{self, Profile};
use crate::bench::rows::Rows;
use crate::error::{Error, Result};
use crate::{chaos, process};

pub const MEMORY: &str = "agent: memory, 10,000 policies";
pub const FLOOD: &str = "agent: 100,000 denied packets a second, processor";
const MOST: &str = "agent: memory, 10,000 policies, at most";
const IN_FORCE: &str = "agent: start, 10,000 policies applied and in force";
const PACKETS: &str = "agent: denied packets";

/// A test, with the variable that says how much it does, and the rows of the members that it measures.
struct Measured {
    test: &'static str,
    variable: &'static str,
    value: &'static str,
    rows: &'static [(&'static str, &'static str)],
}

const TESTS: [Measured; 2] = [
    Measured {
        test: "policy_memory::an_agent_among_many_pods_and_policies_stays_small",
        variable: "RUSSET_PODS",
        value: "10000",
        rows: &[(MEMORY, "rss_mb"), (MOST, "most_mb"), (IN_FORCE, "in_force_s")],
    },
    Measured {
        test: "denied_flood::in_a_flood_of_denied_packets_the_agent_counts_what_is_not_logged_and_misses_nothing_else",
        variable: "RUSSET_FLOOD_S",
        value: "10",
        rows: &[(FLOOD, "cpu_percent"), (PACKETS, "packets_per_s")],
    },
];
const COMMAND: &str = "RUSSET_COMMAND";
const MEASURED: &str = "RUSSET_MEASURED";

pub fn unit(test: &str) -> &'static str {
    match test {
        FLOOD => "% CPU",
        PACKETS => "1/s",
        IN_FORCE => "s",
        _ => "MB",
    }
}

/// Builds the agent, and the tests.
pub fn build() -> Result<()> {
    artifacts::dynamic("russet", Profile::Optimized)?;
    let mut tests = artifacts::cargo();
    process::run(tests.args(["test", "-p", "russet", "--test", "whole", "--no-run"]))
}

/// Runs both tests and adds what they measured.
pub fn measure(findings: &mut Rows) -> Result<()> {
    let file = artifacts::target_dir().join(format!("bench-policy-{}.json", std::process::id()));
    for test in &TESTS {
        let measured = test.run(&file);
        let _ = fs::remove_file(&file);
        test.add(findings, &measured?)?;
    }
    Ok(())
}

// === impl Measured ===

impl Measured {
    /// Standard output is the report's.
    fn run(&self, file: &Path) -> Result<Value> {
        process::run(self.command(file).stdin(Stdio::null()).stdout(io::stderr()))?;
        let text = fs::read_to_string(file).map_err(Error::io(format!("read {}", file.display())))?;
        serde_json::from_str(&text).map_err(|error| Error::Found(format!("{}: {error}", file.display())))
    }

    fn command(&self, file: &Path) -> Command {
        let mut tests = chaos::whole_tests();
        tests.arg(self.test).env(self.variable, self.value).env(MEASURED, file);
        tests.env(COMMAND, artifacts::dynamic_path("russet", Profile::Optimized));
        tests
    }

    fn add(&self, findings: &mut Rows, measured: &Value) -> Result<()> {
        for (row, member) in self.rows {
            let missing = || Error::Found(format!("{}: {measured} has no number {member:?}", self.test));
            findings.add(row, measured[*member].as_f64().ok_or_else(missing)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::Printed as _;

    #[test]
    fn what_the_tests_measured_is_compared_with_goals_and_what_they_did_not_is_an_error() {
        let mut findings = Rows::new(&super::super::TABLE);
        TESTS[0].add(&mut findings, &json!({ "rss_mb": 79.0, "most_mb": 81.0, "in_force_s": 9.5 })).unwrap();
        assert_eq!(findings.json()["goals_met"], true);
        TESTS[1].add(&mut findings, &json!({ "cpu_percent": 5.5, "packets_per_s": 99_000.0 })).unwrap();
        let json = findings.json();
        assert_eq!((json["goals"].as_array().unwrap().len(), &json["goals_met"]), (2, &json!(false)));
        let units: Vec<&str> =
            json["rows"].as_array().unwrap().iter().map(|row| row["unit"].as_str().unwrap()).collect();
        assert_eq!(units, ["MB", "MB", "s", "% CPU", "1/s"]);
        let error = TESTS[1].add(&mut findings, &json!({ "cpu_percent": null })).unwrap_err();
        assert!(error.to_string().contains("cpu_percent"), "{error}");
    }

    #[test]
    fn the_tests_are_there_and_have_the_variables() {
        // With a name that matches no test, the harness runs nothing and reports success.
        for test in &TESTS {
            let (module, name) = test.test.split_once("::").unwrap();
            let file = artifacts::workspace().join(format!("crates/russet/tests/whole/{module}.rs"));
            let text = fs::read_to_string(file).unwrap();
            assert!(text.contains(&format!("fn {name}()")), "{name}");
            for variable in [test.variable, COMMAND, MEASURED] {
                assert!(text.contains(&format!("\"{variable}\"")), "{name}: {variable}");
            }
        }
    }
}
