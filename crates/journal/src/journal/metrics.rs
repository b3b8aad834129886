//! The journal's metrics, for the registry of the agent.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The metrics. Clones share the numbers.
#[derive(Debug, Clone, Default)]
pub struct JournalMetrics {
    pub bytes: Gauge,
    pub records: Gauge,
    pub write_failures: Counter,
}

// === impl JournalMetrics ===

impl JournalMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("journal_bytes", "Used bytes of the journal", self.bytes.clone());
        registry.register("journal_records", "Records in the journal", self.records.clone());
        let failures = self.write_failures.clone();
        registry.register("journal_write_failures", "Attempts to write the journal that failed", failures);
    }
}
