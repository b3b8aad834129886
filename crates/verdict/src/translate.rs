//! Translates the documents of each API into updates (policy.md sections 1.2 to 1.10).
//!
//! The documents are the JSON of an API server or a datastore. Nothing in them may end the process,
//! and what cannot be read never opens anything: an allowing rule that cannot be read matches
//! nothing, a denying one denies everything in its direction.

mod calico;
mod cluster;
mod kubernetes;
mod labels;
mod openshift;
mod ports;
mod read;
mod records;
mod translator;

use std::sync::Arc;

use serde_json::Value;

use crate::ir::{Action, Directions, Order, Policy, Problem, Rule, Tier, TierDefault};
use crate::world::Update;

pub use cluster::{ADMIN_TIER, BASELINE_TIER};
pub(crate) use labels::NAMESPACE;
pub use translator::Translator;

/// The tier of NetworkPolicies, and of Calico's policies that name none.
pub const DEFAULT_TIER: &str = "default";

/// The largest number of rules of one policy, in both directions together. A rule here is one of
/// the intermediate form. A policy with more denies everything in its directions (policy.md section 2.4).
pub const RULES_PER_POLICY_MAX: usize = 10_000;

/// What a document says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Translated {
    /// The changes.
    pub updates: Vec<Update>,
    /// What could not be read, apart from the problems that policies carry themselves.
    pub problems: Vec<Problem>,
}

/// An object that cannot be read as a whole. If there was a good form of it, that stays in force.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}: {}", problem.path, problem.text)]
pub struct Refused {
    /// What is wrong.
    pub problem: Problem,
    /// What to apply if there was no good form: nothing, or a policy that denies everything to the
    /// subject.
    pub instead: Option<Arc<Policy>>,
}

/// Translates a document alone, by its `apiVersion` and `kind`; of a list, all its items.
pub fn document(value: &Value) -> Result<Translated, Refused> {
    Translator::default().try_put(value)
}

/// The tiers that Calico creates in every cluster. Those of the same name in a datastore are the
/// same.
pub fn built_in_tiers() -> [Update; 3] {
    [
        (ADMIN_TIER, 1_000.0, TierDefault::Pass),
        (DEFAULT_TIER, 1_000_000.0, TierDefault::Deny),
        (BASELINE_TIER, 10_000_000.0, TierDefault::Pass),
    ]
    .map(|(name, order, default_action)| {
        Update::Tier(name.into(), Some(Tier { order: Order::new(Some(order)), default_action }))
    })
}

/// A policy that denies everything in its directions if it has too many rules.
fn limited(mut policy: Policy) -> Policy {
    if policy.ingress.len() + policy.egress.len() > RULES_PER_POLICY_MAX {
        policy.problems.push(Problem {
            path: "spec".into(),
            text: format!("more than {RULES_PER_POLICY_MAX} rules: all are ignored, everything is denied")
                .into(),
        });
        deny_all(&mut policy);
    }
    policy
}

/// Replaces the rules by ones that deny everything.
fn deny_all(policy: &mut Policy) {
    let Directions { ingress, egress } = policy.directions;
    let deny = |counts: bool| counts.then(|| Rule::any(Action::Deny, "spec")).into_iter().collect();
    (policy.ingress, policy.egress) = (deny(ingress), deny(egress));
}

/// A policy that denies everything to its subject before other policies of its tier.
fn denying(mut policy: Policy) -> Policy {
    policy.order = Order::FIRST;
    deny_all(&mut policy);
    policy
}

// === impl Refused ===

impl Refused {
    /// A refusal with a policy for the case that there was no good form.
    fn instead(problem: Problem, mut policy: Policy) -> Self {
        policy.problems.push(problem.clone());
        Self { problem, instead: Some(Arc::new(policy)) }
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self { problem, instead: None }
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod verdicts;
