//! The worker of `cargo xtask bench overlay`: it holds pairs of nodes in network namespaces, one
//! pair for each data path between their pods, and takes one sample for each line on stdin.
//!
//! A line `sample WAY TEST` is answered with a line of JSON: `{"value": ...}`, in the unit of the
//! test, and for a stream `cpu_ns_per_kib`. It ends with its stdin, and its unnamed namespaces with
//! their devices are deleted with it. Started by xtask/src/bench/overlay.rs; dataplane.md section
//! 2.1 is the method.

mod agent;
pub(crate) mod cores;
mod cpu;
mod fast;
mod flanneld;
pub(crate) mod load;
mod metadata;
mod naive;
pub(crate) mod node;
pub(crate) mod stage;

use serde_json::json;

use crate::{Result, answer_lines};
use load::Test;
use stage::{Stage, Way};

/// So that others on the machine disturb less.
pub(crate) const NICENESS: i32 = -15;

/// Answers requests for samples.
pub fn run() -> Result<()> {
    rustix::process::setpriority_process(None, NICENESS)?;
    let mut stages: Vec<Stage> = Vec::new();
    answer_lines(|line| {
        let ["sample", way, test] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("not understood: {line:?}").into());
        };
        let (way, test): (Way, Test) = (way.parse()?, test.parse()?);
        let which = match stages.iter().position(|stage| stage.way == way) {
            Some(which) => which,
            None => {
                stages.push(Stage::set(way).map_err(|error| format!("{way:?}: {error}"))?);
                stages.len() - 1
            }
        };
        stages[which].refresh()?;
        let sample = load::sample(&stages[which], test).map_err(|error| format!("{line}: {error}"))?;
        Ok(json!({ "value": sample.value, "cpu_ns_per_kib": sample.cpu_ns_per_kib }))
    })
}
