//! `russet policy`: the policies of a cluster, what a change would do, and tables of expectations.

pub mod datastore;
pub mod egress;
pub mod enforcement;
pub mod files;
mod list;
mod recommend;
mod what_if;

use std::process::ExitCode;

use russet_verdict::expect::{self, Difference, Expectation};
use russet_verdict::explain::Explanation;
use serde_json::{Value, json};

use super::{Failure, PROBLEMS, runtime};
use crate::cli::policy::{PolicyArgs, PolicyVerb, TestArgs};
use crate::output;
use files::Cluster;

#[derive(Debug, thiserror::Error)]
enum TestError {
    /// The files have no table.
    #[error("there is no document of kind {} in the files: docs/policy.md has an example", expect::KIND)]
    NoTable,
    /// A table cannot be read.
    #[error("{origin}: {source}")]
    Table { origin: String, source: expect::TableError },
}

/// Runs a verb of `russet policy`.
pub fn run(args: PolicyArgs) -> Result<ExitCode, Failure> {
    match args.verb {
        PolicyVerb::Test(args) => test(args),
        PolicyVerb::Ls(args) => runtime()?.block_on(list::list(args)),
        PolicyVerb::Show(args) => runtime()?.block_on(list::show(args)),
        PolicyVerb::WhatIf(args) => runtime()?.block_on(what_if::run(args)),
        PolicyVerb::Recommend(args) => runtime()?.block_on(recommend::run(args)),
    }
}

fn test(args: TestArgs) -> Result<ExitCode, Failure> {
    let cluster = Cluster::read(&args.files)?;
    let mut expected = Vec::new();
    for (origin, document) in &cluster.tests {
        let origin = origin.clone();
        expected.extend(expect::parse(document).map_err(|source| TestError::Table { origin, source })?);
    }
    if cluster.tests.is_empty() {
        return Err(TestError::NoTable.into());
    }
    let differences = expect::differences(&cluster.snapshot, &expected);
    let problems = &cluster.problems;
    let json = json!({
        "expectations": expected.len(),
        "differences": differences.iter().map(|it| difference_json(&cluster, it)).collect::<Vec<_>>(),
        "problems": problems,
    });
    output::print_as(args.output.format, &json, || {
        let mut lines: Vec<String> = problems.iter().map(|problem| format!("problem: {problem}")).collect();
        lines.extend(differences.iter().flat_map(|it| difference_lines(&cluster, it)));
        lines.push(format!("{} expectations, {} differences", expected.len(), differences.len()));
        lines.iter().map(|line| output::visible(line) + "\n").collect()
    });
    let good = differences.is_empty() && problems.is_empty();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(PROBLEMS) })
}

fn difference_json(cluster: &Cluster, difference: &Difference) -> Value {
    let Difference { expected, found } = difference;
    let (explanation, error) = match found {
        Ok(flow) => (Some(Explanation::new(&cluster.snapshot, flow).to_json()), None),
        Err(error) => (None, Some(error)),
    };
    json!({
        "from": expected.from.to_string(),
        "to": expected.to.to_string(),
        "port": expected.probe.to_string(),
        "expected": word(expected.allowed),
        "explanation": explanation,
        "error": error,
    })
}

fn difference_lines(cluster: &Cluster, difference: &Difference) -> Vec<String> {
    let Expectation { from, to, probe, allowed } = &difference.expected;
    let head = format!("{from} -> {to} {probe}: expected {}", word(*allowed));
    match &difference.found {
        Err(error) => vec![format!("{head}, but {error}")],
        Ok(flow) => {
            let explanation = Explanation::new(&cluster.snapshot, flow).to_string();
            let lines = explanation.lines().map(|line| format!("  {line}"));
            [format!("{head}, is {}", word(!allowed))].into_iter().chain(lines).collect()
        }
    }
}

fn word(allowed: bool) -> &'static str {
    if allowed { "allowed" } else { "denied" }
}
