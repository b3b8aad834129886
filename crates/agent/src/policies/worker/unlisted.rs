//! Rules about nodes and Services, which are watched only once a policy names them. Until they are
//! listed, and always where the source has none, such a rule is closed.

use std::sync::Arc;

use russet_verdict::ir::{Policy, PolicyId};
use russet_verdict::world::Update;

use super::Worker;
use crate::policies::closed::closed;
use crate::policies::kind::{Kind, Wants};

// === impl Worker ===

impl Worker {
    /// Applies a policy that can be enforced, with its rules about what is not listed closed.
    pub(super) fn apply_policy(&mut self, id: PolicyId, policy: Option<Arc<Policy>>) {
        let enforced = policy.as_deref().filter(|policy| policy.staged.is_none());
        let asks = enforced.map(Wants::of).unwrap_or_default();
        match policy.as_ref().filter(|_| asks != Wants::default()) {
            Some(policy) => _ = self.asking.insert(id.clone(), Arc::clone(policy)),
            None => _ = self.asking.remove(&id),
        }
        self.wants = self.wants.and(asks);
        let unknown = self.unknown();
        let policy = policy.map(|policy| match unknown.meets(asks) {
            true => Arc::new(closed(&policy, unknown)),
            false => policy,
        });
        self.engine.apply(Update::Policy(id, policy));
    }

    /// Applies policies as they are written once what they ask about is listed.
    pub(super) fn listed(&mut self, kind: Kind) {
        if matches!(kind, Kind::Nodes | Kind::EndpointSlices) {
            for (id, policy) in self.asking.clone() {
                self.apply_policy(id, Some(policy));
            }
        }
    }

    /// What policies may ask about and is not known.
    fn unknown(&self) -> Wants {
        let is_unknown = |kind| !self.is_listed(kind);
        Wants { nodes: is_unknown(Kind::Nodes), services: is_unknown(Kind::EndpointSlices), peers: false }
    }
}
