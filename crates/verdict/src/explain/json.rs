//! An explanation as JSON, whose members stay (policy.md section 5.2).

use serde_json::{Value, json};

use super::screen::side;
use super::{Explanation, names, protocol_name, why};
use crate::evaluator::EndTrace;
use crate::ir::PolicyId;

impl Explanation<'_> {
    /// The explanation for programs.
    pub fn to_json(&self) -> Value {
        let flow = &self.trace.flow;
        let node =
            |address| self.snapshot.workload_at(address).map(|(_, endpoint)| endpoint.node.to_string());
        let end = |address| json!({"name": names::at(self.snapshot, address), "address": address, "node": node(address)});
        let decided_at = self.denied_at().map(|denied| {
            json!({"node": node(self.address(denied.direction)), "direction": side(denied.direction)})
        });
        let nearest = self.nearest.iter().map(|nearest| {
            json!({
                "direction": side(nearest.direction),
                "policy": policy(&nearest.policy.id),
                "ruleIndex": nearest.index,
                "path": self.path(nearest),
                "condition": self.clause(nearest),
            })
        });
        json!({
            "src": end(flow.source),
            "dst": end(flow.destination),
            "proto": protocol_name(flow.protocol),
            "port": flow.protocol.has_ports().then_some(flow.destination_port),
            "verdict": verdict(self.trace.allowed()),
            "decidedAt": decided_at,
            "directions": [self.direction(&self.trace.egress), self.direction(&self.trace.ingress)],
            "nearest": nearest.collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    fn direction(&self, end: &EndTrace) -> Value {
        json!({
            "direction": side(end.direction),
            "endpoint": names::at(self.snapshot, self.address(end.direction)),
            "verdict": verdict(end.allowed),
            "steps": self.steps(end),
            "end": self.reason(end),
            "logged": end.logged,
        })
    }

    fn steps(&self, end: &EndTrace) -> Vec<Value> {
        let mut steps = Vec::new();
        for asked in end.tiers.iter().flat_map(|tier| &tier.policies) {
            let rules = asked.policy.rules(end.direction).iter().zip(&asked.rules);
            for (index, (rule, mismatch)) in rules.enumerate() {
                let clause = mismatch.map(|it| why::clause(self.snapshot, rule, &self.trace.flow, it));
                steps.push(json!({
                    "tier": asked.policy.tier,
                    "policy": policy(&asked.policy.id),
                    "ruleIndex": index,
                    "path": rule.path,
                    "action": format!("{:?}", rule.action),
                    "match": clause.unwrap_or_else(|| "ok".to_owned()),
                }));
            }
            if asked.rules.is_empty() {
                steps.push(json!({
                    "tier": asked.policy.tier,
                    "policy": policy(&asked.policy.id),
                    "match": "it has no rules in this direction",
                }));
            }
        }
        steps
    }
}

fn policy(id: &PolicyId) -> Value {
    json!({"kind": id.kind.name(), "namespace": id.namespace, "name": id.name})
}

fn verdict(allowed: bool) -> &'static str {
    if allowed { "allowed" } else { "denied" }
}
