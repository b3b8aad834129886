//! `cargo xtask test`: every layer of tests, one after the other, and one count at the end.
//!
//! A layer that fails does not stop the next one. The last line of the output is `N passed, N failed` and
//! nothing else, because machines read it.

pub mod executables;
mod layer;
mod report;
mod skips;
mod supply;

use std::time::Instant;

use lexopt::prelude::{Long, Short, ValueExt};

use crate::error::{Error, Result};
use crate::packages;
use crate::suite::layer::{LAYERS, Layer, Scope};
use crate::suite::report::{Tally, TestTime};
use crate::suite::skips::Allowed;
use crate::text_table::TextTable;

/// Tests whose times the summary shows.
const SLOWEST: usize = 10;

/// What the command line asks for.
#[derive(Default)]
pub struct Options {
    /// Layers to run; all when empty.
    only: Vec<String>,
    /// Packages to test; the workspace when empty.
    packages: Vec<String>,
}

/// What one layer came to.
struct Outcome {
    layer: &'static str,
    tally: Tally,
    seconds: f64,
}

/// Runs the layers; true when nothing failed.
pub fn run(options: &Options) -> Result<bool> {
    let chosen = options.layers()?;
    let scope = Scope::new(options.packages.clone());
    if chosen.iter().any(|layer| layer.needs_root) {
        if !packages::is_root() {
            return Err(Error::Found(
                "the kernel and program layers need root (others: --only format --only lint --only unit)"
                    .to_owned(),
            ));
        }
        packages::ensure()?;
    }
    let allowed = Allowed::read()?;
    let outcomes: Vec<Outcome> = chosen.iter().map(|layer| run_layer(layer, &scope, &allowed)).collect();
    Ok(conclude(&outcomes))
}

fn run_layer(layer: &Layer, scope: &Scope, allowed: &Allowed) -> Outcome {
    println!("\n==> {}: {}", layer.name, layer.about);
    let began = Instant::now();
    let mut tally = Tally::default();
    (layer.run)(scope, &mut tally);
    tally.judge_skips(allowed);
    Outcome { layer: layer.name, tally, seconds: began.elapsed().as_secs_f64() }
}

/// Prints the summary, whose last line is the count; true when nothing failed and something passed.
fn conclude(outcomes: &[Outcome]) -> bool {
    let mut table = TextTable::new(1, ["layer", "passed", "failed", "skipped", "seconds"]);
    for Outcome { layer, tally, seconds } in outcomes {
        let counts = [tally.passed, tally.failed(), tally.skipped].map(|count| count.to_string());
        let [passed, failed, skipped] = counts;
        table.row([(*layer).to_owned(), passed, failed, skipped, format!("{seconds:.1}")]);
    }
    println!("\n{table}");
    let mut times: Vec<&TestTime> = outcomes.iter().flat_map(|outcome| &outcome.tally.times).collect();
    times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("the slowest tests:");
    for TestTime { test, seconds } in times.iter().take(SLOWEST) {
        println!("{seconds:7.1} s  {test}");
    }
    for outcome in outcomes {
        for skip in &outcome.tally.skips {
            println!("skipped {}: {}: {}", outcome.layer, skip.test, skip.feature);
        }
        for failure in &outcome.tally.failures {
            println!("failed {}: {failure}", outcome.layer);
        }
    }
    let passed: usize = outcomes.iter().map(|outcome| outcome.tally.passed).sum();
    let failed: usize = outcomes.iter().map(|outcome| outcome.tally.failed()).sum();
    println!("{passed} passed, {failed} failed");
    failed == 0 && passed > 0
}

// === impl Options ===

impl Options {
    /// Reads what follows `test`.
    pub fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        let mut options = Self::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("only") => options.only.push(parser.value()?.string()?),
                Short('p') | Long("package") => options.packages.push(parser.value()?.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(options)
    }

    fn layers(&self) -> Result<Vec<&'static Layer>> {
        if let Some(unknown) = self.only.iter().find(|name| !LAYERS.iter().any(|layer| layer.name == **name))
        {
            let known = LAYERS.iter().map(|layer| layer.name).collect::<Vec<_>>().join(", ");
            return Err(Error::Usage(format!("no layer {unknown:?}; there are {known}")));
        }
        let wanted = |layer: &&Layer| self.only.is_empty() || self.only.iter().any(|name| name == layer.name);
        Ok(LAYERS.iter().filter(wanted).collect())
    }
}
