//! Says why a flow is allowed or denied, as text for a screen and as JSON (policy.md section 5.2).
//!
//! All facts are those of the evaluator's trace; nothing is decided here.

mod decider;
mod hosts;
mod json;
mod names;
mod notes;
mod question;
mod screen;
#[cfg(test)]
mod tests;
mod why;

use std::net::IpAddr;
use std::sync::Arc;

use crate::evaluator::{self, Asked, EndTrace, Mismatch, Reason, Trace, mismatches};
use crate::flow::Flow;
use crate::ir::{Action, Direction, Policy, Protocol};
use crate::snapshot::Snapshot;
use crate::world::{EndpointKind, EndpointToHost};

pub use decider::{Decider, name_at};
pub use hosts::OtherPods;
pub use names::{Peer, PeerError, Probe, ProbeError};
pub use question::{Question, QuestionError};

/// Why a flow is allowed or denied.
#[derive(Debug, Clone)]
pub struct Explanation<'a> {
    snapshot: &'a Snapshot,
    /// The steps of both ends.
    pub trace: Trace,
    /// Rules that would allow the flow if one condition changed, at most [`NEAREST_MAX`].
    pub nearest: Vec<Nearest>,
    /// What else an operator should know.
    pub notes: Vec<String>,
}

/// A rule that would allow the flow if one condition changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Nearest {
    /// The end that denies.
    pub direction: Direction,
    /// The policy.
    pub policy: Arc<Policy>,
    /// The place of the rule.
    pub index: usize,
    /// The only member that does not match.
    pub mismatch: Mismatch,
}

/// More suggestions would hide the first ones.
pub const NEAREST_MAX: usize = 3;

// === impl Explanation ===

impl<'a> Explanation<'a> {
    /// Judges a flow and explains the verdict.
    pub fn new(snapshot: &'a Snapshot, flow: &Flow) -> Self {
        Self::beside(&OtherPods::new(), snapshot, flow)
    }

    /// The same in a cluster with pods that no endpoint describes. These say where a flow passes, and nothing else.
    pub fn beside(others: &OtherPods, snapshot: &'a Snapshot, flow: &Flow) -> Self {
        let mut trace = evaluator::ask(snapshot, flow);
        let judged = hosts::judge(snapshot, others, &mut trace);
        let mut nearest = Vec::new();
        for end in [&trace.egress, &trace.ingress] {
            nearest.extend(nearest_of(snapshot, flow, end));
        }
        nearest.truncate(NEAREST_MAX);
        let notes = notes::of(snapshot, &trace, others, &judged);
        Self { snapshot, trace, nearest, notes }
    }

    /// The end that denies: the source's first, as its node judges first.
    pub fn denied_at(&self) -> Option<&EndTrace> {
        [&self.trace.egress, &self.trace.ingress].into_iter().find(|end| !end.allowed)
    }

    /// What decided at an end, as a clause; of a node it names the host endpoint.
    fn reason(&self, end: &EndTrace) -> String {
        let endpoint = end.endpoint.as_ref().and_then(|key| self.snapshot.endpoints.get(key));
        match endpoint.filter(|endpoint| endpoint.kind != EndpointKind::Workload) {
            Some(host) => format!("HostEndpoint {}: {}", host.name, reason(end)),
            None => reason(end),
        }
    }

    /// The address of an end.
    fn address(&self, direction: Direction) -> IpAddr {
        match direction {
            Direction::Egress => self.trace.flow.source,
            Direction::Ingress => self.trace.flow.destination,
        }
    }
}

/// Rules before the decision that would allow if their only member that does not match did.
fn nearest_of(snapshot: &Snapshot, flow: &Flow, end: &EndTrace) -> Vec<Nearest> {
    let mut found = Vec::new();
    if end.allowed {
        return found;
    }
    let asked_of = Asked::new(snapshot, flow);
    for asked in end.tiers.iter().flat_map(|tier| &tier.policies) {
        let rules = asked.policy.rules(end.direction).iter().enumerate().zip(&asked.rules);
        for ((index, rule), mismatch) in rules {
            let Some(mismatch) = *mismatch else { continue };
            if rule.action == Action::Allow && mismatches(&asked_of, rule).count() == 1 {
                let (direction, policy) = (end.direction, asked.policy.clone());
                found.push(Nearest { direction, policy, index, mismatch });
            }
        }
    }
    found
}

/// What decided, as a clause.
fn reason(end: &EndTrace) -> String {
    let selected = if end.tiers.is_empty() { "no policy selects it; " } else { "" };
    match &end.reason {
        Reason::NoEndpoint => "it is no pod, so no policy counts".to_owned(),
        Reason::OwnNode => "a node always reaches its own pods".to_owned(),
        Reason::Rule { policy, index } => {
            let path = policy.rules(end.direction).get(*index).map_or("", |rule| &rule.path);
            format!("{path} of {}, tier {}", names::policy(policy), policy.tier)
        }
        Reason::EndOfTier(tier) => format!("no rule matches, and tier {tier} denies at its end"),
        Reason::ProfileRule { profile, index } => {
            format!("{selected}rule {} of profile {profile}", index + 1)
        }
        Reason::UnknownProfile(profile) => format!("{selected}its profile {profile} does not exist"),
        Reason::Default if end.allowed => format!("{selected}it has no profile"),
        Reason::Default => format!("{selected}no rule of its profiles allows it"),
        Reason::EgressFirewall { name, index } => {
            format!("spec.egress[{index}] of EgressNetworkPolicy {name}")
        }
        Reason::SeveralEgressFirewalls => {
            "the namespace has several EgressNetworkPolicies, so nothing outside the cluster is allowed"
                .to_owned()
        }
        Reason::Failsafe => "a failsafe port".to_owned(),
        Reason::EndpointToHost { configuration, action } => {
            let (member, name) = (EndpointToHost::MEMBER, action.name());
            let rest = match action {
                EndpointToHost::Return => ": other rules of the node decide",
                EndpointToHost::Drop if end.allowed => ", and this message of ICMPv6 passes all the same",
                EndpointToHost::Accept | EndpointToHost::Drop => "",
            };
            format!("{member} of FelixConfiguration {configuration} is {name}{rest}")
        }
    }
}

/// The name of a protocol, as operators write it.
pub fn protocol_name(protocol: Protocol) -> String {
    let known = names::PROTOCOLS.iter().find(|(_, number)| *number == protocol);
    known.map_or_else(|| protocol.0.to_string(), |(name, _)| (*name).to_owned())
}
