//! Metrics of drift.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Kind, latency};

/// What other programs changed in the kernel, and how fast it was restored.
#[derive(Debug, Clone)]
pub struct DriftMetrics {
    repairs: Family<Kind, Counter>,
    seconds: Histogram,
    last: Gauge,
}

// === impl DriftMetrics ===

impl DriftMetrics {
    /// Counts a repair.
    pub fn repaired(&self, kinds: &BTreeMap<String, u64>, took: Duration, now: SystemTime) {
        for (kind, count) in kinds {
            self.repairs.get_or_create(&Kind { kind: kind.clone() }).inc_by(*count);
        }
        self.seconds.observe(took.as_secs_f64());
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.last.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "drift_repairs",
            "Kernel objects of ours that something else had changed and that were restored, by kind",
            self.repairs.clone(),
        );
        registry.register(
            "drift_repair_seconds",
            "Time from the kernel's notification of drift until it was repaired",
            self.seconds.clone(),
        );
        registry.register(
            "drift_last_timestamp_seconds",
            "When drift was repaired last, in seconds since 1970; 0: never",
            self.last.clone(),
        );
    }
}

impl Default for DriftMetrics {
    fn default() -> Self {
        Self { repairs: Family::default(), seconds: latency(), last: Gauge::default() }
    }
}
