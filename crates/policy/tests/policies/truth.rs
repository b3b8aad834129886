//! The truth table: generated policy sets on two nodes. Each flow between two ends is judged by the
//! evaluator and then tried with real packets (policy.md section 6.2).

mod ends;
mod nodeports;
mod nodes;
pub mod packets;

use std::fmt::Write as _;
use std::sync::Arc;

use russet_testkit::Random;
use russet_verdict::evaluator;
use russet_verdict::explain::{Explanation, Probe};
use russet_verdict::flow::Flow;
use russet_verdict::generate::{self, Case, FEATURES};
use russet_verdict::ir::Protocol;
use russet_verdict::snapshot::Snapshot;
use russet_verdict::translate::Translator;
use russet_verdict::world::{EndpointKey, Update};
use serde_json::Value;

use ends::{Ends, Packets};
use nodes::Lab;

/// As many policy sets exist; of these, so many are tried unless `RUSSET_POLICY_SETS` says
/// otherwise.
const CASES: usize = 300;
const TRIED: usize = 40;
/// A failure prints its case; this seed makes the same cases.
const SEED: u64 = 0x7a11;
/// The pod that the change `add-pod` adds.
const ADDED: (&str, &str) = ("x", "f");
/// A port that no generated rule names, beside those of [`generate::probes`].
const OTHER_PORT: u16 = 82;
/// More differences than these would hide the first ones.
const SHOWN_MAX: usize = 4;

/// A flow that is tried, and the place of its source in [`Ends`].
pub struct Try {
    pub from: usize,
    pub flow: Flow,
    name: String,
}

#[test]
#[ignore = "kernel: nf_tables, veth, raw sockets, root; tools: ip"]
fn packets_of_generated_policy_sets_pass_where_the_evaluator_lets_them() {
    // policy.md P01 to P03, P08, P09, P11, P18 to P21, P24, P106
    let cases = drawn();
    russet_testkit::in_netns_with_loopback(|| {
        let mut lab = Lab::new();
        let mut ends = Ends::open(&lab);
        let tries = tries(&ends);
        let (mut snapshot, mut documents) = (Snapshot::default(), Vec::new());
        let mut verdicts = [0_usize; 2];
        for (index, case) in cases.iter().enumerate() {
            let is_anew = index % 2 == 0;
            let mut before = match is_anew {
                true => Vec::new(),
                false => removals(&documents),
            };
            if is_anew {
                snapshot = Snapshot::default();
                lab.forget();
            }
            for state in case.states() {
                before.extend(state.updates.into_iter().map(nodes::dual_stack));
                for update in std::mem::take(&mut before) {
                    lab.apply(&update);
                    snapshot.apply(update);
                }
                lab.flush();
                let seen = ends.send(&tries);
                let wrong = compare(&snapshot, &tries, &seen, &mut verdicts);
                let number = index + 1;
                assert!(wrong.is_empty(), "set {number}: {case}\n{wrong}\n{:#?}", state.documents);
                documents = state.documents;
            }
        }
        println!("{} sets, {} packets denied, {} allowed", cases.len(), verdicts[0], verdicts[1]);
        assert!(verdicts.iter().all(|count| *count > 100 * cases.len()), "{verdicts:?}");
    });
}

/// The cases that are tried; each value of each feature is in one of them.
fn drawn() -> Vec<Case> {
    let wanted = std::env::var("RUSSET_POLICY_SETS").ok().and_then(|text| text.parse().ok());
    let wanted: usize = wanted.unwrap_or(TRIED).clamp(1, CASES);
    let mut random = Random::new(SEED);
    let cases = generate::cases(CASES, &mut |below| random.below(below));
    let cases: Vec<Case> = cases.into_iter().step_by(CASES / wanted).take(wanted).collect();
    let names: String = cases.iter().fold(String::new(), |all, case| all + &case.to_string() + " ");
    for (feature, values) in FEATURES.iter().filter(|_| wanted >= TRIED) {
        for value in *values {
            assert!(names.contains(&format!("{feature}={value} ")), "no case has {feature}={value}");
        }
    }
    cases
}

/// Every flow between two ends of which one is a pod.
fn tries(ends: &Ends) -> Vec<Try> {
    let others = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];
    let others = others.map(|protocol| Probe { protocol, port: OTHER_PORT });
    let probes: Vec<Probe> = generate::probes().into_iter().chain(others).collect();
    let mut found = Vec::new();
    for (from, source) in ends.all().iter().enumerate() {
        for target in ends.all() {
            if source.name == target.name || !(source.is_pod || target.is_pod) {
                continue;
            }
            for probe in &probes {
                let Some(flow) = probe.flow(source.address, target.address) else { continue };
                let name = format!("{} -> {} {probe}", source.name, target.name);
                found.push(Try { from, flow, name });
            }
        }
    }
    found
}

/// What removes a case's documents and the pod that it may have added.
fn removals(documents: &[Value]) -> Vec<Update> {
    let mut translator = Translator::default();
    let removed = documents.iter().flat_map(|document| translator.remove(document).updates);
    let added = Update::Endpoint(EndpointKey(Arc::from(format!("{}/{}", ADDED.0, ADDED.1))), None);
    removed.chain([added]).collect()
}

/// Where what was seen differs from what the evaluator says, with its explanation.
fn compare(snapshot: &Snapshot, tries: &[Try], seen: &Packets, verdicts: &mut [usize; 2]) -> String {
    let (mut text, mut wrong) = (String::new(), 0);
    for (index, Try { flow, name, .. }) in tries.iter().enumerate() {
        let allowed = evaluator::ask(snapshot, flow).allowed();
        verdicts[usize::from(allowed)] += 1;
        let (arrived, connected) = (seen.arrived.contains(&index), seen.connected.contains(&index));
        if arrived == allowed && (connected == allowed || flow.protocol != Protocol::TCP) {
            continue;
        }
        wrong += 1;
        if wrong <= SHOWN_MAX {
            let explanation = Explanation::new(snapshot, flow);
            writeln!(text, "{name}: arrived: {arrived}, connected: {connected}\n{explanation}").unwrap();
        }
    }
    if wrong > 0 {
        writeln!(text, "{wrong} of {} flows differ", tries.len()).unwrap();
    }
    text
}
