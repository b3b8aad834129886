//! Readiness as metrics.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::health::Readiness;

/// The agent's conditions, read at each scrape.
#[derive(Debug)]
pub(super) struct Conditions(pub(super) Readiness);

// === impl Conditions ===

impl Collector for Conditions {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let conditions = self.0.conditions();
        let ready = ConstGauge::new(i64::from(conditions.iter().all(|(_, met)| *met)));
        let help = "1 when every condition is met";
        ready.encode(encoder.encode_descriptor("agent_ready", help, None, ready.metric_type())?)?;
        let help = "1 when a condition of readiness is met, by condition";
        let mut all: MetricEncoder<'_> =
            encoder.encode_descriptor("agent_condition_met", help, None, MetricType::Gauge)?;
        for (condition, met) in conditions {
            let met = ConstGauge::new(i64::from(met));
            met.encode(all.encode_family(&[("condition", condition)])?)?;
        }
        Ok(())
    }
}
