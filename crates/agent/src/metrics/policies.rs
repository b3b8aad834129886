//! Metrics of network policies.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use russet_overlay::fast_path::Carried;

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
    /// Packets that the kernel denied.
    pub denied: Counter,
    /// Those of them that its limit did not log.
    pub suppressed: Counter,
    /// Logged ones that were lost before they were named.
    pub lost: Counter,
    denied_flows: Family<Policy, Counter>,
    pending_flows: Family<Staged, Counter>,
    /// What the fast path carried of flows that a policy let pass.
    carried_packets: Family<Policy, Counter>,
    carried_bytes: Family<Policy, Counter>,
    /// The policies that have counters of their own.
    named: Arc<Mutex<BTreeSet<String>>>,
}

/// What let a flow pass that the fast path carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policed {
    By(String),
    /// No policy decided.
    ByNone,
    /// It is not known how its connection began.
    Unknown,
}

/// A policy that decided about flows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Policy {
    policy: String,
}

/// A staged policy, and what it would do to flows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Staged {
    policy: String,
    verdict: String,
}

/// The most policies that have counters of their own; the first ones that decide.
const NAMED_MAX: usize = 50;
/// All further ones.
const OTHER: &str = "other";
/// Denied flows that no policy decided, such as those of pods that are held.
const NONE: &str = "none";
/// Flows of which it is not known what decided.
const UNKNOWN: &str = "unknown";

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
            denied: Counter::default(),
            suppressed: Counter::default(),
            lost: Counter::default(),
            denied_flows: Family::default(),
            pending_flows: Family::default(),
            carried_packets: Family::default(),
            carried_bytes: Family::default(),
            named: Arc::default(),
        }
    }
}

impl PolicyMetrics {
    /// Counts a flow that a policy denied, or none.
    pub fn denied_flow(&self, policy: Option<String>) {
        let policy = policy.map_or_else(|| NONE.to_owned(), |policy| self.label(policy));
        self.denied_flows.get_or_create(&Policy { policy }).inc();
    }

    /// Counts a flow that a staged policy would deny or allow.
    pub fn pending_flow(&self, policy: String, verdict: &str) {
        let policy = self.label(policy);
        self.pending_flows.get_or_create(&Staged { policy, verdict: verdict.to_owned() }).inc();
    }

    /// Counts what the fast path has carried of flows.
    pub fn carried(&self, policed: Policed, carried: Carried) {
        let policy = match policed {
            Policed::By(policy) => self.label(policy),
            Policed::ByNone => NONE.to_owned(),
            Policed::Unknown => UNKNOWN.to_owned(),
        };
        self.carried_packets.get_or_create(&Policy { policy: policy.clone() }).inc_by(carried.packets);
        self.carried_bytes.get_or_create(&Policy { policy }).inc_by(carried.bytes);
    }

    /// Packets and bytes that are counted for a policy.
    #[cfg(test)]
    pub fn carried_of(&self, policy: &str) -> (u64, u64) {
        let of = |family: &Family<Policy, Counter>| {
            family.get_or_create(&Policy { policy: policy.to_owned() }).get()
        };
        (of(&self.carried_packets), of(&self.carried_bytes))
    }

    /// The label of a policy: a cluster may have any number of them.
    fn label(&self, policy: String) -> String {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if !named.contains(&policy) {
            if named.len() >= NAMED_MAX {
                return OTHER.to_owned();
            }
            named.insert(policy.clone());
        }
        policy
    }

    fn register_flows(&self, registry: &mut Registry) {
        let help = "Packets that policies denied";
        registry.register("policy_denied_packets", help, self.denied.clone());
        registry.register(
            "policy_denied_packets_suppressed",
            "Denied packets that the kernel's limit did not log",
            self.suppressed.clone(),
        );
        registry.register(
            "policy_denied_packets_lost",
            "Logged packets that were lost before their flow was named",
            self.lost.clone(),
        );
        registry.register(
            "policy_denied_flows",
            "Denied flows that were named, by the policy that decided",
            self.denied_flows.clone(),
        );
        registry.register(
            "policy_pending_flows",
            "Named flows that a staged policy would decide, by its verdict",
            self.pending_flows.clone(),
        );
        registry.register(
            "policy_fast_path_packets",
            "Packets that the fast path carried of flows that a policy let pass, by the policy that decided",
            self.carried_packets.clone(),
        );
        let help = "Bytes of these packets, from their IP headers on";
        registry.register("policy_fast_path_bytes", help, self.carried_bytes.clone());
    }

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
        self.register_flows(registry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_beyond_a_limit_are_counted_together() {
        let metrics = PolicyMetrics::default();
        for number in 0..NAMED_MAX * 3 {
            metrics.denied_flow(Some(format!("NetworkPolicy shop/p{number}")));
            metrics.pending_flow(format!("StagedNetworkPolicy shop/s{number}"), "denied");
        }
        metrics.denied_flow(None);
        let count =
            |policy: &str| metrics.denied_flows.get_or_create(&Policy { policy: policy.to_owned() }).get();
        let [first, last] = [0, NAMED_MAX / 2 - 1].map(|number| format!("NetworkPolicy shop/p{number}"));
        assert_eq!((count(&first), count(&last), count(NONE)), (1, 1, 1));
        assert_eq!(count(OTHER), NAMED_MAX as u64 * 3 - NAMED_MAX as u64 / 2);
        // One that has a counter keeps it.
        metrics.denied_flow(Some(first.clone()));
        assert_eq!(count(&first), 2);
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("policy_") && line.contains("policy=\""));
        assert_eq!(lines.count(), NAMED_MAX + 3, "{text}");
    }
}
