//! What decided at one end of a flow, in few words: for lists of flows.

use std::net::IpAddr;
use std::sync::Arc;

use super::{names, reason};
use crate::evaluator::{EndTrace, Reason};
use crate::ir::Policy;
use crate::snapshot::Snapshot;

/// What decided at one end of a flow.
#[derive(Debug, Clone, PartialEq)]
pub struct Decider {
    /// The policy whose rule decided, or those that a tier had for the end, none of which has a rule that
    /// matches, in order; none if no policy decided.
    pub policies: Vec<Arc<Policy>>,
    /// The place of the rule in its object.
    pub rule: Option<Arc<str>>,
    /// The same as text.
    pub text: String,
}

// === impl Decider ===

impl Decider {
    /// What decided in a trace.
    pub fn of(end: &EndTrace) -> Self {
        let (policies, rule) = match &end.reason {
            Reason::Rule { policy, index } => {
                let rule = policy.rules(end.direction).get(*index).map(|rule| Arc::clone(&rule.path));
                (vec![Arc::clone(policy)], rule)
            }
            Reason::EndOfTier(name) => {
                let tiers = end.tiers.iter().filter(|tier| tier.name == *name);
                (tiers.flat_map(|tier| &tier.policies).map(|it| Arc::clone(&it.policy)).collect(), None)
            }
            _ => (Vec::new(), None),
        };
        Self { policies, rule, text: reason(end) }
    }
}

/// What an address is, as an operator names it: a pod, a node, or itself.
pub fn name_at(snapshot: &Snapshot, address: IpAddr) -> String {
    names::at(snapshot, address)
}
