//! Metrics of the fast path.

use std::fmt;
use std::sync::{Arc, OnceLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use russet_overlay::fast_path::{Carried, Content, Counter};

/// Clones share the numbers.
#[derive(Debug, Clone, Default)]
pub struct FastPathMetrics {
    /// Addresses of pods on the fast path.
    endpoints: Gauge,
    /// Prefixes of other nodes.
    prefixes: Gauge,
    /// None while the fast path is off.
    counter: Arc<OnceLock<Counter>>,
}

// === impl FastPathMetrics ===

impl FastPathMetrics {
    /// Has what is carried be read from here.
    pub fn count_by(&self, counter: Counter) {
        // It is loaded once.
        let _ = self.counter.set(counter);
    }

    /// Shows what the maps hold; none if the fast path is off.
    pub fn show(&self, content: Option<&Content>) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.endpoints.set(content.map_or(0, |content| count(content.endpoints.len())));
        self.prefixes.set(content.map_or(0, |content| count(content.prefixes.len())));
    }

    /// What was carried since the agent's start.
    fn carried(&self) -> Carried {
        self.counter.get().and_then(|counter| counter.read().ok()).unwrap_or_default()
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Pods' addresses to which the fast path carries packets";
        registry.register("fast_path_endpoints", help, self.endpoints.clone());
        let help = "Prefixes of other nodes to which the fast path carries packets";
        registry.register("fast_path_prefixes", help, self.prefixes.clone());
        registry.register_collector(Box::new(self.clone()));
    }
}

impl Collector for FastPathMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Carried { packets, bytes } = self.carried();
        let counters = [
            ("fast_path_packets", "Packets that the fast path has carried", packets),
            ("fast_path_bytes", "Bytes of these packets, from their IP headers on", bytes),
        ];
        for (name, help, count) in counters {
            let counter = ConstCounter::new(count);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}
