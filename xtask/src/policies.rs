//! Parts of `cargo xtask soak`: network policies by more random histories, and more real packets, than in `test`.
//!
//! The tests print their seeds, and after a failure the policy set and the explanation.

use std::process::Command;

use crate::chaos::{all_well, whole_tests};
use crate::error::Result;
use crate::{artifacts, kubernetes};

/// Generated policy sets, and the pods that start together under a policy.
const SETS: &str = "300";
/// Random histories of objects for the engine, beside the evaluator.
const SEEDS: &str = "2000";
const PODS: &str = "100";
/// The beginning of the names of the tests of properties.
const PROPERTIES: &str = "engine::tests::p10";
/// The explanation of every cell of the truth table.
const EXPLAINED: &str =
    "explain::tests::p131_the_explanation_of_each_probe_agrees_with_its_verdict_and_names_a_rule_that_exists";
/// The names of the tests.
const TRUTH: &str = "truth::packets_of_generated_policy_sets_pass_where_the_evaluator_lets_them";
const GAPS: &str =
    "kubernetes::gaps::no_denied_packet_passes_at_the_start_of_pods_nor_while_the_agent_is_killed";

/// Runs all, also after a failure; true when nothing was found.
pub fn run() -> Result<bool> {
    kubernetes::ensure()?;
    let properties = all_well(of_the_engine(PROPERTIES).env("RUSSET_SEEDS", SEEDS))?;
    let explained = all_well(of_the_engine(EXPLAINED).env("RUSSET_POLICY_SETS", SETS))?;
    let sets = all_well(&mut truth_table())?;
    let gaps = all_well(whole_tests().arg(GAPS).env("RUSSET_POLICY_PODS", PODS))?;
    Ok(properties && explained && sets && gaps)
}

fn of_the_engine(filter: &str) -> Command {
    let mut cargo = artifacts::cargo();
    cargo.args(["test", "--release", "-p", "russet-verdict", "--lib", filter]);
    cargo
}

fn truth_table() -> Command {
    let mut cargo = artifacts::cargo();
    cargo.args(["test", "-p", "russet-policy", "--test", "policies", "--", "--ignored", "--nocapture"]);
    cargo.arg(TRUTH).env("RUSSET_POLICY_SETS", SETS);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_names_a_test_that_there_is() {
        for (file, filter) in [
            ("crates/verdict/src/explain/tests.rs", EXPLAINED),
            ("crates/policy/tests/policies/truth.rs", TRUTH),
            ("crates/russet/tests/whole/kubernetes/gaps.rs", GAPS),
        ] {
            let text = std::fs::read_to_string(artifacts::workspace().join(file)).unwrap();
            let name = filter.rsplit("::").next().unwrap();
            assert!(text.contains(&format!("fn {name}()")), "{filter}");
        }
    }
}
