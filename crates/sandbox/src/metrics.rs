//! Metrics of sandboxes: kubelet's three operations on a pod's network, and results of creations.

use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Every metric of sandboxes; clones share the same numbers.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Operations on pods' networks.
    pub operations: Family<Operation, Counter>,
    /// Those that failed.
    pub errors: Family<Operation, Counter>,
    /// How long they took.
    pub seconds: Family<Operation, Histogram>,
    /// How long whole creations took, failed ones included.
    pub run_seconds: Histogram,
    /// Creations that failed.
    pub run_errors: Counter,
    /// Sandboxes that an earlier process had started to make and this one has removed.
    pub undone: Counter,
}

/// An operation on a pod's network, under kubelet's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Operation {
    /// `set_up_pod`, `tear_down_pod` or `get_pod_network_status`.
    pub operation: &'static str,
}

pub(crate) const SET_UP: Operation = Operation { operation: "set_up_pod" };
pub(crate) const TEAR_DOWN: Operation = Operation { operation: "tear_down_pod" };
pub(crate) const STATUS: Operation = Operation { operation: "get_pod_network_status" };

/// Upper bounds of the buckets, in seconds: reading addresses takes microseconds, a chain of Go plugins a tenth of a second, a hanging one a minute.
const BUCKETS_S: [f64; 14] =
    [0.000_1, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];

// === impl Metrics ===

impl Metrics {
    /// All numbers are 0.
    pub fn new() -> Self {
        Self {
            operations: Family::default(),
            errors: Family::default(),
            seconds: Family::new_with_constructor(latency),
            run_seconds: latency(),
            run_errors: Counter::default(),
            undone: Counter::default(),
        }
    }

    /// Registers them under names that begin with `russet_sandbox_`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("russet_sandbox");
        registry.register("network_operations", "Operations on pods' networks", self.operations.clone());
        registry.register("network_operations_errors", "Those that failed", self.errors.clone());
        registry.register("network_operation_seconds", "How long they took", self.seconds.clone());
        registry.register("run_seconds", "How long creations of sandboxes took", self.run_seconds.clone());
        registry.register("run_errors", "Creations of sandboxes that failed", self.run_errors.clone());
        registry.register("undone", "Sandboxes of an earlier life that were undone", self.undone.clone());
    }

    /// Counts and times `work`.
    pub(crate) fn observe<T, E>(
        &self,
        operation: &Operation,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let result = work();
        self.operations.get_or_create(operation).inc();
        self.seconds.get_or_create(operation).observe(began.elapsed().as_secs_f64());
        if result.is_err() {
            self.errors.get_or_create(operation).inc();
        }
        result
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn latency() -> Histogram {
    Histogram::new(BUCKETS_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successes_and_failures_are_counted_and_timed() {
        // cni-runtime.md section 3.1: count, latency, errors
        let metrics = Metrics::new();
        metrics.observe(&SET_UP, || Ok::<_, ()>(())).unwrap();
        metrics.observe(&SET_UP, || Err::<(), _>(())).unwrap_err();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "russet_sandbox_network_operations_total{operation=\"set_up_pod\"} 2",
            "russet_sandbox_network_operations_errors_total{operation=\"set_up_pod\"} 1",
            "russet_sandbox_network_operation_seconds_count{operation=\"set_up_pod\"} 2",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
