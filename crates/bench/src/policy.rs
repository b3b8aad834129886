//! The worker of `cargo xtask bench policy`: the engine and the kernel's table of decisions in a large
//! cluster (`russet_verdict::scale`), packets through that table, and the tools to compare with. Each
//! measurement has network namespaces of its own. It answers a line of standard input with a line of JSON:
//!
//! * `engine`, `kernel`: the times of single changes, without and with their transactions
//! * `load COUNT`: the first load of so many decisions
//! * `flip COUNT`: the time of one transaction that changes one of so many decisions
//! * `churn KIND SECONDS`: changes at a fixed rate; `policies`, `active` policies or `pods`
//! * `recheck COUNT`: changes that forbid something, with so many connections in progress
//! * `memory`, `elements COUNT`: of this process, which has to be a new one, and of the kernel's maps
//! * `explain`: the time of one question
//! * `what-if`: the time to find the pairs of pods that the deletion of a policy changes
//! * `packets WAY`, `connect WAY`: the cost of packets and of connections
//! * `peer PROGRAM`: the load of a chain for each of 10,000 policies, and of one more

pub(crate) mod packets;
mod peer;
mod table;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use russet_verdict::evaluator;
use russet_verdict::explain::Probe;
use russet_verdict::flow::Flow;
use russet_verdict::ir::{PolicyId, Protocol};
use russet_verdict::scale::{Cost, Scale};
use russet_verdict::snapshot::Snapshot;
use russet_verdict::what_if::changed_pairs;
use russet_verdict::world::Update;
use serde_json::{Value, json};

use crate::overlay::NICENESS;
use crate::overlay::stage::Stage;
use crate::{Result, answer_lines};
use packets::Way;

/// Questions of `explain`.
const QUESTIONS: u32 = 200;

/// Answers requests until the input ends.
pub fn run() -> Result<()> {
    rustix::process::setpriority_process(None, NICENESS)?;
    let mut stages: BTreeMap<Way, Stage> = BTreeMap::new();
    answer_lines(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["engine"] => Ok(costs(&engine())),
            ["kernel"] => table::changes().map(|found| costs(&found)),
            ["load", count] => table::load(count.parse()?),
            ["flip", count] => table::flip(count.parse()?),
            ["churn", kind, seconds] => table::churn(kind.parse()?, Duration::from_secs(seconds.parse()?)),
            ["recheck", count] => table::recheck(count.parse()?),
            ["memory"] => table::memory(),
            ["elements", count] => table::elements(count.parse()?),
            ["explain"] => explain(),
            ["what-if"] => what_if(),
            ["peer", program] => peer::load(program),
            ["packets", way] => packets::cost(packets::stage(&mut stages, way.parse()?)?),
            ["connect", way] => packets::connect(packets::stage(&mut stages, way.parse()?)?),
            _ => Err(format!("unknown request {line:?}").into()),
        }
    })
}

fn engine() -> Vec<Cost> {
    let begun = Instant::now();
    Scale::LARGE.measure(&mut || begun.elapsed()).1
}

/// Medians and 99th percentiles in microseconds, by the names of the changes.
fn costs(costs: &[Cost]) -> Value {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let cost = |cost: &Cost| {
        let found = json!({ "p50": us(cost.percentile(50)), "p99": us(cost.percentile(99)) });
        (cost.name.to_owned(), found)
    };
    costs.iter().map(cost).collect::<serde_json::Map<_, _>>().into()
}

/// Asks the evaluator about packets from pods of other nodes to those of this one.
fn explain() -> Result<Value> {
    let mut snapshot = Snapshot::default();
    Scale::LARGE.updates().into_iter().for_each(|update| snapshot.apply(update));
    let address = |pod: u32| IpAddr::V4(Ipv4Addr::from((10 << 24) + pod + 1));
    let mut times = Vec::new();
    for question in 0..QUESTIONS {
        let first = question % Scale::LARGE.namespaces * Scale::LARGE.pods;
        let flow = Flow {
            source: address(first + 1 + question % (Scale::LARGE.pods - 1)),
            destination: address(first),
            protocol: Protocol::TCP,
            source_port: 40_000,
            destination_port: 80,
        };
        let begun = Instant::now();
        let trace = std::hint::black_box(evaluator::ask(&snapshot, &flow));
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        if trace.ingress.endpoint.is_none() {
            return Err(format!("no pod has {}", flow.destination).into());
        }
    }
    Ok(json!({ "p50_us": percentile(&mut times, 50), "p99_us": percentile(&mut times, 99) }))
}

/// Looks for the pairs that change at one port when one policy of the cluster is deleted.
fn what_if() -> Result<Value> {
    let mut before = Snapshot::default();
    Scale::LARGE.updates().into_iter().for_each(|update| before.apply(update));
    let mut after = before.clone();
    let is_first = |id: &&PolicyId| *id.name == *"policy-0";
    let deleted = before.policies.keys().find(is_first).cloned().ok_or("there is no policy")?;
    after.apply(Update::Policy(deleted, None));
    let port = Probe { protocol: Protocol::TCP, port: 80 };
    let begun = Instant::now();
    let changed = changed_pairs(&before, &after, &[port]).map_err(|error| format!("{error:?}"))?;
    let us = begun.elapsed().as_secs_f64() * 1e6;
    Ok(json!({ "us": us, "pairs": changed.len() }))
}

/// The value that so many of a hundred do not exceed.
fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get(last * percent / 100).copied().unwrap_or_default()
}
