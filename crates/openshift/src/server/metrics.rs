//! The stock server's metrics under its names (cni-runtime.md section 4.3), as far as they apply
//! here: there is no Open vSwitch and there are no egress addresses. Latencies are in microseconds,
//! as in the original.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The metrics. Clones share the numbers.
#[derive(Debug, Clone)]
pub struct SdnMetrics {
    /// Allocated addresses.
    pub pod_ips: Gauge,
    /// Failed lookups of a namespace's network ID. A gauge, because the stock names of counters do
    /// not end in `_total`.
    pub vnid_not_found: Gauge,
    errors: Family<OperationLabel, Gauge>,
    latency: Family<OperationLabel, Histogram>,
}

/// An operation on a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// ADD.
    Setup,
    /// DEL.
    Teardown,
    /// A change of the network ID.
    Update,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation_type: &'static str,
}

/// Upper bounds in microseconds.
const LATENCY_BUCKETS_US: [f64; 10] = [1e3, 2e3, 5e3, 10e3, 20e3, 50e3, 100e3, 500e3, 1e6, 10e6];

// === impl SdnMetrics ===

impl SdnMetrics {
    /// Registers the metrics in a registry without a prefix.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            pod_ips: Gauge::default(),
            vnid_not_found: Gauge::default(),
            errors: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS_US)),
        };
        let it = &metrics;
        let sdn = registry.sub_registry_with_prefix("openshift_sdn");
        sdn.register("pod_ips", "Number of allocated pod IPs", it.pod_ips.clone());
        sdn.register("vnid_not_found_errors", "Number of VNID-not-found errors", it.vnid_not_found.clone());
        sdn.register(
            "pod_operations_errors",
            "Cumulative number of SDN operation errors by operation type",
            it.errors.clone(),
        );
        sdn.register(
            "pod_operations_latency",
            "Latency in microseconds of SDN operations by operation type",
            it.latency.clone(),
        );
        metrics
    }

    /// Counts an operation that succeeded: `work` is its duration, `all` includes the wait for its
    /// lock.
    pub fn took(&self, operation: Operation, work: Duration, all: Duration) {
        let (name, whole) = operation.names();
        for (name, time) in [(name, work), (whole, all)] {
            let micros = time.as_secs_f64() * 1e6;
            self.latency.get_or_create(&OperationLabel { operation_type: name }).observe(micros);
        }
    }

    /// Counts an operation that failed; none if it did not get its lock.
    pub fn failed(&self, operation: Option<Operation>) {
        let Some(operation) = operation else { return };
        self.errors.get_or_create(&OperationLabel { operation_type: operation.names().0 }).inc();
    }
}

// === impl Operation ===

impl Operation {
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Setup => ("setup", "e2esetup"),
            Self::Teardown => ("teardown", "e2eteardown"),
            Self::Update => ("update", "e2eupdate"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_stock_server() {
        // cni-runtime.md section 4.3: metrics
        let mut registry = Registry::default();
        let metrics = SdnMetrics::register(&mut registry);
        metrics.pod_ips.set(3);
        metrics.vnid_not_found.inc();
        metrics.took(Operation::Setup, Duration::from_millis(3), Duration::from_millis(4));
        metrics.failed(Some(Operation::Teardown));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "openshift_sdn_pod_ips 3",
            "openshift_sdn_vnid_not_found_errors 1",
            "openshift_sdn_pod_operations_errors{operation_type=\"teardown\"} 1",
            "openshift_sdn_pod_operations_latency_sum{operation_type=\"setup\"} 3000.0",
            "openshift_sdn_pod_operations_latency_count{operation_type=\"e2esetup\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
    }
}
