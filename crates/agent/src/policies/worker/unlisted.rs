//! Rules about nodes and Services, which are watched only once a policy names them. Until they are
//! listed, and always where the source has none, such a rule is closed (policy.md section 1.11): an
//! allowing one matches nothing, and another denies everything in its direction.

use std::sync::Arc;

use russet_verdict::ir::{Action, Entity, Policy, PolicyId, Problem, Rule};
use russet_verdict::world::Update;

use super::Worker;
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
        let is_unknown = |kind| !self.known.get(&kind).is_some_and(|known| known.is_listed);
        Wants { nodes: is_unknown(Kind::Nodes), services: is_unknown(Kind::EndpointSlices), peers: false }
    }

    /// What the log says of a policy that asks about something which the source never has.
    pub(super) fn unanswered(&self, policy: &Policy) -> Option<Problem> {
        let kinds = self.shared.source.kinds();
        (Wants::of(policy).services && !kinds.contains(&Kind::EndpointSlices)).then(|| Problem {
            path: "spec".into(),
            text: "services are not known with this store: rules that name one allow nothing, or deny everything"
                .into(),
        })
    }
}

/// The policy without the rules that allow by what is unknown, and with the others denying everything.
fn closed(policy: &Policy, unknown: Wants) -> Policy {
    let close = |rules: &[Rule]| -> Vec<Rule> {
        let rules =
            rules.iter().filter_map(|rule| match (unknown.meets(Wants::of_rule(rule)), rule.action) {
                (false, _) => Some(rule.clone()),
                (true, Action::Allow | Action::Log) => None,
                (true, Action::Deny | Action::Pass) => Some(Rule::any(Action::Deny, Arc::clone(&rule.path))),
            });
        rules.collect()
    };
    Policy { ingress: close(&policy.ingress), egress: close(&policy.egress), ..policy.clone() }
}

// === impl Wants ===

impl Wants {
    fn of(policy: &Policy) -> Self {
        let rules = policy.ingress.iter().chain(&policy.egress);
        rules.map(Self::of_rule).fold(Self::default(), Self::and)
    }

    fn of_rule(rule: &Rule) -> Self {
        let asks = |what: fn(&Entity) -> bool| what(&rule.source) || what(&rule.destination);
        Self {
            peers: false,
            nodes: asks(|entity| entity.nodes.is_some()),
            services: asks(|entity| entity.service.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_verdict::translate::document;
    use serde_json::json;

    #[test]
    fn rules_about_unlisted_services_are_closed() {
        let of = |name: &str| json!({ "services": { "name": name, "namespace": "x" } });
        let spec = json!({ "ingress": [{ "action": "Allow", "source": of("a") }, { "action": "Allow", "source": { "nets": ["10.0.0.0/8"] } }],
            "egress": [{ "action": "Pass", "destination": of("b") }, { "action": "Deny", "destination": of("c") }, { "action": "Allow" }] });
        let policy = json!({ "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": { "name": "p" }, "spec": spec });
        let updates = document(&policy).unwrap().updates;
        let [Update::Policy(_, Some(policy))] = updates.as_slice() else { panic!("{updates:?}") };
        assert_eq!(Wants::of(policy), Wants { services: true, ..Wants::default() });
        let services = Wants { services: true, ..Wants::default() };
        let found = closed(policy, services);
        let deny = |path: &str| Rule::any(Action::Deny, path);
        assert_eq!(found.ingress, [policy.ingress[1].clone()]);
        assert_eq!(found.egress, [deny("spec.egress[0]"), deny("spec.egress[1]"), policy.egress[2].clone()]);
        let nodes = Wants { nodes: true, ..Wants::default() };
        assert_eq!(closed(policy, nodes), **policy, "nothing asks about nodes");
    }
}
