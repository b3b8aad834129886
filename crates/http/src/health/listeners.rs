//! The metrics of a daemon's listeners.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::listener::{Admission, Reason};

/// The listeners of this process, read at each scrape.
#[derive(Debug)]
pub struct Listeners(pub Vec<Arc<Admission>>);

// === impl Listeners ===

impl Collector for Listeners {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Connections that are open, by listener";
        let mut open = encoder.encode_descriptor("listener_connections", help, None, MetricType::Gauge)?;
        for admission in &self.0 {
            let count = ConstGauge::new(admission.connections() as u64);
            count.encode(open.encode_family(&[("listener", admission.limits().name)])?)?;
        }
        let help = "Connections that were refused or closed by a limit, by listener and reason";
        let mut closed =
            encoder.encode_descriptor("listener_connections_closed", help, None, MetricType::Counter)?;
        for admission in &self.0 {
            for reason in Reason::ALL {
                let labels = [("listener", admission.limits().name), ("reason", reason.name())];
                let count = ConstCounter::new(admission.closed(reason));
                count.encode(closed.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
