//! Rules about nodes and Services that are not known: such a rule is closed (policy.md section 1.11). An allowing one
//! matches nothing, and another denies everything in its direction. Pure; commands judge by it, too.

use std::sync::Arc;

use russet_verdict::ir::{Action, Direction, Entity, Policy, Problem, Rule};

use super::kind::{Kind, Source, Wants};

/// How many rules of a policy are named.
const NAMED_MAX: usize = 100;

/// The policy without the rules that allow by what is unknown, and with the others denying everything.
pub(super) fn closed(policy: &Policy, unknown: Wants) -> Policy {
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

/// What is not enforced of a policy because a source never has what its rules ask about.
pub(super) fn unanswered(source: Source, policy: &Policy) -> Vec<Problem> {
    let never = source.never_known();
    let rules = [Direction::Ingress, Direction::Egress].into_iter().flat_map(|it| policy.rules(it));
    let asking = rules.filter(|rule| never.meets(Wants::of_rule(rule)));
    asking.take(NAMED_MAX).map(|rule| problem(never, rule)).collect()
}

fn problem(never: Wants, rule: &Rule) -> Problem {
    let what = if never.services && Wants::of_rule(rule).services { "services" } else { "nodes" };
    let instead = match rule.action {
        Action::Allow => "the rule allows nothing",
        Action::Log => "the rule logs nothing",
        Action::Deny | Action::Pass => "the rule denies everything in its direction",
    };
    let text = format!("{what} are not known with this store: {instead}");
    Problem { path: Arc::clone(&rule.path), text: text.into() }
}

/// A policy as an agent enforces it whose store is not in the Kubernetes API, with what differs among its problems; none
/// if it enforces the policy as it is written.
pub fn enforced_from_records(policy: &Policy) -> Option<Policy> {
    let unanswered = unanswered(Source::Records, policy);
    (!unanswered.is_empty()).then(|| Policy {
        problems: [&policy.problems[..], &unanswered].concat(),
        ..closed(policy, Source::Records.never_known())
    })
}

// === impl Wants ===

impl Wants {
    pub(super) fn of(policy: &Policy) -> Self {
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

// === impl Source ===

impl Source {
    /// What policies may ask about and is never known, because its objects are not watched.
    fn never_known(self) -> Wants {
        let lacks = |kind| !self.kinds().contains(&kind);
        Wants { peers: false, nodes: lacks(Kind::Nodes), services: lacks(Kind::EndpointSlices) }
    }
}

#[cfg(test)]
mod tests {
    use russet_verdict::translate::document;
    use russet_verdict::world::Update;
    use serde_json::{Value, json};

    use super::*;

    fn policy(spec: &Value) -> Policy {
        let policy = json!({ "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": { "name": "p" }, "spec": spec });
        let updates = document(&policy).unwrap().updates;
        let [Update::Policy(_, Some(policy))] = updates.as_slice() else { panic!("{updates:?}") };
        (**policy).clone()
    }

    fn about_services() -> Policy {
        let of = |name: &str| json!({ "services": { "name": name, "namespace": "x" } });
        policy(
            &json!({ "ingress": [{ "action": "Allow", "source": of("a") }, { "action": "Allow", "source": { "nets": ["10.0.0.0/8"] } }],
                "egress": [{ "action": "Pass", "destination": of("b") }, { "action": "Deny", "destination": of("c") }, { "action": "Allow" }] }),
        )
    }

    #[test]
    fn rules_about_unlisted_services_are_closed() {
        let policy = about_services();
        assert_eq!(Wants::of(&policy), Wants { services: true, ..Wants::default() });
        let services = Wants { services: true, ..Wants::default() };
        let found = closed(&policy, services);
        let deny = |path: &str| Rule::any(Action::Deny, path);
        assert_eq!(found.ingress, [policy.ingress[1].clone()]);
        assert_eq!(found.egress, [deny("spec.egress[0]"), deny("spec.egress[1]"), policy.egress[2].clone()]);
        let nodes = Wants { nodes: true, ..Wants::default() };
        assert_eq!(closed(&policy, nodes), policy, "nothing asks about nodes");
    }

    #[test]
    fn a_store_without_services_names_each_rule_that_asks_about_one_and_what_it_does_instead() {
        let written = about_services();
        let found = enforced_from_records(&written).unwrap();
        let problems: Vec<_> = found.problems.iter().map(|it| format!("{}: {}", it.path, it.text)).collect();
        let not_known = "services are not known with this store: the rule";
        assert_eq!(
            problems,
            [
                format!("spec.ingress[0]: {not_known} allows nothing"),
                format!("spec.egress[0]: {not_known} denies everything in its direction"),
                format!("spec.egress[1]: {not_known} denies everything in its direction"),
            ]
        );
        let services = Wants { services: true, ..Wants::default() };
        assert_eq!(Policy { problems: Vec::new(), ..found.clone() }, closed(&written, services));
        assert_eq!(enforced_from_records(&found), None, "nothing asks any more");
        assert_eq!(enforced_from_records(&policy(&json!({ "ingress": [{ "action": "Allow" }] }))), None);
        assert!(unanswered(Source::Kubernetes, &written).is_empty());
    }
}
