//! Metrics of network policies.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::stage;

/// What policies decide on this node. Clones share the numbers.
#[derive(Debug, Clone)]
pub struct PolicyMetrics {
    pub policies: Gauge,
    pub identities: Gauge,
    pub decisions: Gauge,
    pub held: Gauge,
    /// Limits of the table that are exceeded, of one address or of all.
    pub exceeded: Gauge,
    /// Decisions that are denied because the kernel's map of source ports has no room.
    pub denied_by_limit: Gauge,
    pub apply_seconds: Histogram,
    pub advances: Counter,
    pub errors: Counter,
}

// === impl PolicyMetrics ===

impl Default for PolicyMetrics {
    fn default() -> Self {
        Self {
            policies: Gauge::default(),
            identities: Gauge::default(),
            decisions: Gauge::default(),
            held: Gauge::default(),
            exceeded: Gauge::default(),
            denied_by_limit: Gauge::default(),
            apply_seconds: stage(),
            advances: Counter::default(),
            errors: Counter::default(),
        }
    }
}

impl PolicyMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("policy_policies", "Policies in force in the cluster", self.policies.clone());
        registry.register(
            "policy_identities",
            "Addresses and prefixes that decisions tell apart",
            self.identities.clone(),
        );
        registry.register(
            "policy_decisions",
            "Decisions in the kernel for pods of this node",
            self.decisions.clone(),
        );
        registry.register(
            "policy_held_addresses",
            "Addresses of pods that nothing but the node reaches until decisions about them are in force",
            self.held.clone(),
        );
        registry.register(
            "policy_limits_exceeded",
            "Limits that decisions exceed: packets are denied that policies may allow",
            self.exceeded.clone(),
        );
        registry.register(
            "policy_decisions_denied_by_limit",
            "Decisions by source port that are denied, because the kernel's map of them has no room",
            self.denied_by_limit.clone(),
        );
        registry.register(
            "policy_apply_seconds",
            "Time from changed objects to decisions in the kernel",
            self.apply_seconds.clone(),
        );
        let help = "Times that all connections were judged again, because a change forbids something";
        registry.register("policy_epoch_bumps", help, self.advances.clone());
        registry.register(
            "policy_apply_errors",
            "Changes of decisions that the kernel did not take at once",
            self.errors.clone(),
        );
    }
}
