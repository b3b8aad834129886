//! Says of a flow that the kernel logged what decided, by the evaluator and the policies in force now.

mod at_host;

use std::sync::Arc;
use std::time::Instant;

use russet_policy::LoggedFlow;
use russet_verdict::evaluator::{self, EndTrace};
use russet_verdict::explain::{Decider, name_at, protocol_name};
use russet_verdict::ir::{Direction, Policy, Protocol, StagedAction};
use russet_verdict::snapshot::Snapshot;
use russet_verdict::world::Update;

use super::{Phase, Worker};
use crate::fast_path::Share;
use crate::flows::{Decision, FlowEnd, Pending, PolicyName, verdict};
use crate::metrics::Policed;

pub(super) use at_host::AtHosts;

/// As many flows are named before changes of objects are looked at again.
const NAMED_MAX: usize = 64;

/// What is said of a logged flow.
struct Judged {
    /// What is at its ends.
    snapshot: Snapshot,
    direction: Direction,
    decided: Decider,
    pending: Option<Pending>,
}

impl Worker {
    /// Names what the kernel has logged.
    pub(super) fn name_flows(&self) {
        let all = self.shared.take_logged(NAMED_MAX);
        if all.iter().any(|logged| logged.host.is_some()) {
            self.look_at_hosts();
        }
        for logged in all {
            let decision = self.decision(&logged);
            let (policies, pending) = (decision.policies.last().cloned(), decision.pending.clone());
            if !self.shared.flows.add(logged.allowed, &logged.flow, decision, Instant::now()) {
                continue;
            }
            if !logged.allowed {
                self.metrics.denied_flow(policies.map(|policy| policy.to_string()));
            }
            if let Some(Pending { verdict, policies }) = pending {
                policies.iter().for_each(|policy| self.metrics.pending_flow(policy.to_string(), &verdict));
            }
        }
    }

    /// Counts what the fast path has carried for the policies that let it pass.
    pub(super) fn count_carried(&self) {
        for Share { direction, flow, carried } in self.shared.take_carried(NAMED_MAX) {
            let Some(flow) = flow else {
                self.metrics.carried(Policed::Unknown, carried);
                continue;
            };
            let logged = LoggedFlow { direction, allowed: true, flow, host: None };
            let policies = self.judged_at_pod(&logged).decided.policies;
            let by = policies.last().map_or(Policed::ByNone, |policy| Policed::By(name(policy).to_string()));
            self.metrics.carried(by, carried);
        }
    }

    fn decision(&self, logged: &LoggedFlow) -> Decision {
        let flow = &logged.flow;
        let judged = match &logged.host {
            Some(entrances) => self.judged_at_host(logged, entrances),
            None => self.judged_at_pod(logged),
        };
        let Judged { snapshot, direction, decided, pending } = judged;
        let end = |address| FlowEnd { name: name_at(&snapshot, address), address };
        let [kind, code] = flow.destination_port.to_be_bytes();
        let is_icmp = matches!(flow.protocol, Protocol::ICMP | Protocol::ICMPV6);
        Decision {
            direction: match direction {
                Direction::Ingress => "ingress".to_owned(),
                Direction::Egress => "egress".to_owned(),
            },
            source: end(flow.source),
            destination: end(flow.destination),
            proto: protocol_name(flow.protocol),
            port: flow.protocol.has_ports().then_some(flow.destination_port),
            icmp: is_icmp.then(|| format!("{kind}/{code}")),
            policies: decided.policies.iter().map(|policy| name(policy)).collect(),
            rule: decided.rule.map(|rule| rule.to_string()),
            reason: decided.text,
            pending,
        }
    }

    fn judged_at_pod(&self, logged: &LoggedFlow) -> Judged {
        let snapshot = self.engine.around(&logged.flow);
        let trace = judge(&snapshot, logged);
        let decided = self.decided(logged, trace.as_ref());
        let pending = trace.and_then(|trace| self.pending(&snapshot, logged, &trace));
        Judged { snapshot, direction: logged.direction, decided, pending }
    }

    /// What decided; as text only, if it was no policy.
    fn decided(&self, logged: &LoggedFlow, trace: Option<&EndTrace>) -> Decider {
        let local = logged.local();
        if self.wanted.held.contains(&local) && !logged.allowed {
            return because("decisions about this pod are not in force yet".to_owned());
        }
        match trace {
            _ if self.phase != Phase::Enforcing => because(UNKNOWN.to_owned()),
            None => because(format!("no pod is known at {local}")),
            Some(trace) if trace.allowed == logged.allowed => Decider::of(trace),
            Some(_) => because(CHANGED.to_owned()),
        }
    }

    /// What the staged policies would do, if they would decide, or decide otherwise.
    fn pending(&self, snapshot: &Snapshot, logged: &LoggedFlow, now: &EndTrace) -> Option<Pending> {
        if self.staged.is_empty() {
            return None;
        }
        let mut with = snapshot.clone();
        for (id, policy) in &self.staged {
            with.apply(Update::Policy(id.clone(), Some(Arc::clone(policy))));
        }
        let then = judge(&with.with_staged(), logged)?;
        let is_staged = |policy: &Arc<Policy>| policy.id.kind.enforced() != policy.id.kind;
        let mut policies: Vec<PolicyName> = Decider::of(&then)
            .policies
            .iter()
            .filter(|policy| is_staged(policy))
            .map(|it| name(it))
            .collect();
        if then.allowed != now.allowed && policies.is_empty() {
            let removed = Decider::of(now).policies;
            policies =
                self.staged.values().filter(|it| removes_one(it, &removed)).map(|it| name(it)).collect();
        }
        let verdict = verdict(then.allowed).to_owned();
        (then.allowed != now.allowed || !policies.is_empty()).then_some(Pending { verdict, policies })
    }
}

/// Why no policy is named.
const CHANGED: &str = "the policies have changed since, or a limit is exceeded";
const UNKNOWN: &str = "the policies are not known yet";

/// A text in the place of a policy.
fn because(text: String) -> Decider {
    Decider { policies: Vec::new(), rule: None, text }
}

/// What the policies of the end that decided say.
fn judge(snapshot: &Snapshot, logged: &LoggedFlow) -> Option<EndTrace> {
    let (key, _) = snapshot.workload_at(logged.local())?;
    evaluator::judge(snapshot, key, logged.direction, &logged.flow)
}

/// Whether a staged policy removes one of these.
fn removes_one(staged: &Policy, policies: &[Arc<Policy>]) -> bool {
    let key = |policy: &Policy| (policy.id.namespace.clone(), policy.tier.clone(), policy.name.clone());
    let is_same =
        |policy: &Arc<Policy>| policy.id.kind == staged.id.kind.enforced() && key(policy) == key(staged);
    staged.staged == Some(StagedAction::Delete) && policies.iter().any(is_same)
}

fn name(policy: &Policy) -> PolicyName {
    PolicyName {
        kind: policy.id.kind.name().to_owned(),
        namespace: policy.id.namespace.as_ref().map(|namespace| namespace.to_string()),
        name: policy.name.to_string(),
    }
}

#[cfg(test)]
mod tests;
