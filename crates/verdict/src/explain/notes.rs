//! What an operator should know besides the verdict.

use super::{OtherPods, hosts, names};
use crate::evaluator::{self, EndTrace, Reason, Trace};
use crate::ir::{Policy, Rule};
use crate::snapshot::Snapshot;

/// All notes about a flow.
pub(super) fn of(snapshot: &Snapshot, trace: &Trace, others: &OtherPods, judged: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    if trace.flow.source == trace.flow.destination && trace.egress.endpoint.is_some() {
        notes.push(
            "a pod reaches its own address inside its own network namespace, where no policy counts; \
                    this is the verdict for a connection through a Service that leads back to the pod (hairpin)"
                .to_owned(),
        );
    }
    if is_judged_by_address(snapshot, trace) {
        notes.push(
            "the rules for ingress ask for addresses: a connection through a NodePort or load balancer of another node \
             than the pod's has the address of that node here and not the client's, unless externalTrafficPolicy of the \
             Service is Local"
                .to_owned(),
        );
    }
    if snapshot.policies.values().any(|policy| policy.staged.is_some()) {
        let with = snapshot.with_staged();
        let mut pending = evaluator::ask(&with, &trace.flow);
        let is_comparable = hosts::judge(&with, others, &mut pending) == judged;
        if is_comparable && pending.allowed() != trace.allowed() {
            let verdict = if pending.allowed() { "allowed" } else { "denied" };
            notes.push(format!("with the staged policies in force it would be {verdict}"));
        }
    }
    for end in [&trace.egress, &trace.ingress] {
        notes.extend(decided_without_http(snapshot, end));
        notes.extend(problems(end));
    }
    notes.extend(hosts::note(snapshot, &trace.flow, others, judged));
    notes.dedup();
    notes
}

/// Whether the addresses that rules for ingress name may be hidden by a node: the source is no pod.
fn is_judged_by_address(snapshot: &Snapshot, trace: &Trace) -> bool {
    let asks = |rule: &Rule| rule.source.nets.is_some() || !rule.source.not_nets.is_empty();
    let mut policies = trace.ingress.tiers.iter().flat_map(|tier| &tier.policies);
    let is_of_pods = snapshot.workload_at(trace.flow.destination).is_some();
    is_of_pods
        && snapshot.workload_at(trace.flow.source).is_none()
        && policies.any(|asked| asked.policy.ingress.iter().any(asks))
}

/// The rule with `http` that decided, and the name of what has it.
fn http_rule<'a>(snapshot: &'a Snapshot, end: &'a EndTrace) -> Option<(&'a Rule, String)> {
    let (rule, name) = match &end.reason {
        Reason::Rule { policy, index } => (policy.rules(end.direction).get(*index)?, names::policy(policy)),
        Reason::ProfileRule { profile, index } => {
            let rules = snapshot.profiles.get(profile)?.rules(end.direction);
            (rules.get(*index)?, format!("Profile {profile}"))
        }
        _ => return None,
    };
    rule.http.then_some((rule, name))
}

/// The only part of a rule that is left out and not closed, so that more is allowed than is written.
fn decided_without_http(snapshot: &Snapshot, end: &EndTrace) -> Option<String> {
    let (rule, name) = http_rule(snapshot, end)?;
    Some(format!(
        "http not enforced: {} of {name} allows this by its other members, whatever the method and the path are",
        rule.path
    ))
}

/// What of the policies that were asked is not enforced as it is written.
fn problems(end: &EndTrace) -> impl Iterator<Item = String> {
    let policies = end.tiers.iter().flat_map(|tier| &tier.policies);
    policies.flat_map(move |asked| {
        let policy = &asked.policy;
        let others = policy.problems.iter().filter(move |it| !is_noted(end, policy, &it.path));
        others.map(move |it| format!("{} {}: {}", names::policy(policy), it.path, it.text))
    })
}

/// Whether a problem is that of the rule about which [`decided_without_http`] has a note.
fn is_noted(end: &EndTrace, policy: &Policy, path: &str) -> bool {
    let Reason::Rule { policy: decided, index } = &end.reason else { return false };
    let rule = decided.rules(end.direction).get(*index).filter(|rule| rule.http);
    decided.id == policy.id && rule.is_some_and(|rule| path.strip_suffix(".http") == Some(&*rule.path))
}
