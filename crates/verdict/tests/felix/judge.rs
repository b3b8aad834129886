//! Russet's answers to the same questions.

use std::collections::BTreeSet;

use russet_verdict::evaluator::{HostInterface, Reason, Stage, judge, judge_host};
use russet_verdict::felix::Failsafe;
use russet_verdict::snapshot::Snapshot;
use russet_verdict::translate::{Translator, built_in_tiers};
use russet_verdict::world::{Config, EndpointKey, EndpointKind, Update};
use serde_json::Value;

use super::peer::{Answer, Felix, NODE, Probe};

/// What a store with these documents means. A document that cannot be read is a broken test: Calico reads it.
#[track_caller]
pub fn snapshot(documents: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    built_in_tiers().into_iter().for_each(|update| snapshot.apply(update));
    snapshot.apply(Update::Config(Config { node: NODE.into(), ..Config::default() }));
    let mut translator = Translator::default();
    for document in documents {
        let translated = translator.put(document);
        assert!(translated.problems.is_empty(), "{:?}: {document:#}", translated.problems);
        translated.updates.into_iter().for_each(|update| snapshot.apply(update));
    }
    snapshot
}

/// The answers of the evaluator.
pub fn answers(snapshot: &Snapshot, probes: &[Probe]) -> Vec<Answer> {
    probes.iter().map(|probe| answer(snapshot, probe)).collect()
}

fn answer(snapshot: &Snapshot, probe: &Probe) -> Answer {
    let Probe { direction, ref flow, .. } = *probe;
    let (key, interface) = end(snapshot, probe.end);
    let Some(stage) = probe.stage else {
        let trace = judge(snapshot, &key, direction, flow).unwrap();
        return if trace.allowed { Answer::Allowed } else { Answer::Denied };
    };
    let interface = HostInterface { node: NODE, name: &interface, addresses: &BTreeSet::new() };
    let trace = judge_host(snapshot, &interface, &Failsafe::default(), stage, direction, flow);
    assert_eq!(trace.endpoint, Some(key));
    match (trace.allowed, stage, trace.reason) {
        (false, ..) => Answer::Denied,
        (true, Stage::Untracked | Stage::PreDnat, Reason::Default) => Answer::GoesOn,
        (true, ..) => Answer::Allowed,
    }
}

/// The endpoint with a name, and the interface that it guards.
fn end(snapshot: &Snapshot, name: &str) -> (EndpointKey, String) {
    let is_it = |endpoint: &russet_verdict::world::Endpoint| match &endpoint.namespace {
        Some(namespace) => format!("{namespace}/{}", endpoint.name) == name,
        None => *endpoint.name == *name,
    };
    let (key, endpoint) = snapshot.endpoints.iter().find(|(_, endpoint)| is_it(endpoint)).unwrap();
    let interface = match &endpoint.kind {
        EndpointKind::Host { interface } => interface.to_string(),
        EndpointKind::Workload => String::new(),
    };
    (key.clone(), interface)
}

/// What Felix answers. A packet that is forwarded and that no rule of a host endpoint drops is not dropped by
/// Felix: behind the rule Pass there is no profile that it would ask.
pub fn felix_answers(
    felix: &mut Felix,
    documents: &[Value],
    probes: &[Probe],
) -> Result<Vec<Answer>, String> {
    let mut answers = felix.ask(documents, probes)?;
    for (answer, probe) in answers.iter_mut().zip(probes) {
        if probe.stage == Some(Stage::Forward) && *answer == Answer::GoesOn {
            *answer = Answer::Allowed;
        }
    }
    Ok(answers)
}

/// The first probe to which the two answer differently.
pub fn difference(felix: &mut Felix, documents: &[Value], probes: &[Probe]) -> Option<(Probe, String)> {
    let theirs = match felix_answers(felix, documents, probes) {
        Ok(answers) => answers,
        Err(error) => return Some((probes.first()?.clone(), format!("Felix: {error}"))),
    };
    let ours = answers(&snapshot(documents), probes);
    let place = theirs.iter().zip(&ours).position(|(theirs, ours)| theirs != ours)?;
    Some((probes[place].clone(), format!("Felix: {:?}, Russet: {:?}", theirs[place], ours[place])))
}

/// The documents without which the difference is another one: one after the other is left out.
pub fn reduced(felix: &mut Felix, documents: &[Value], probe: &Probe, what: &str) -> Vec<Value> {
    let mut left = documents.to_vec();
    let mut at = 0;
    while at < left.len() {
        let mut fewer = left.clone();
        let removed = fewer.remove(at);
        let pod = format!("{}/{}", removed["metadata"]["namespace"], removed["spec"]["pod"]).replace('"', "");
        let is_asked = pod == probe.end || removed["metadata"]["name"] == probe.end;
        let is_same = !is_asked
            && difference(felix, &fewer, std::slice::from_ref(probe)).is_some_and(|(_, other)| other == what);
        if is_same {
            left = fewer;
        } else {
            at += 1;
        }
    }
    left
}
