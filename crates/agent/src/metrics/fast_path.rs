//! Metrics of the fast path.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use russet_journal::EndpointTable;
use russet_overlay::fast_path::{Carried, Content, EpochState, FlowEpoch, Traffic};

use crate::fast_path::View;

/// Clones share the numbers.
#[derive(Debug, Clone, Default)]
pub struct FastPathMetrics {
    /// Addresses of pods on the fast path.
    endpoints: Gauge,
    /// Prefixes of other nodes.
    prefixes: Gauge,
    /// None before the fast path is started.
    seen: Arc<OnceLock<View>>,
    epoch: Arc<OnceLock<FlowEpoch>>,
    /// Names the pods.
    table: Arc<OnceLock<EndpointTable>>,
}

/// The most pods with series of their own; all others are counted together.
const PODS_MAX: usize = 250;
/// All further ones.
const OTHER: &str = "other";
/// A host end that no pod's name is known of, as of an interface that is being wired or removed.
const UNKNOWN: &str = "unknown";

// === impl FastPathMetrics ===

impl FastPathMetrics {
    /// Has what is carried, and how often flows had to be learnt anew, be read from here.
    pub fn show_from(&self, view: View, epoch: FlowEpoch) {
        // It is started once.
        let _ = (self.seen.set(view), self.epoch.set(epoch));
    }

    /// Has pods be named by this table.
    pub fn name_by(&self, table: EndpointTable) {
        let _ = self.table.set(table);
    }

    /// Shows what the maps hold; none if the fast path is off.
    pub fn show(&self, content: Option<&Content>) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.endpoints.set(content.map_or(0, |content| count(content.endpoints.len())));
        self.prefixes.set(content.map_or(0, |content| count(content.prefixes.len())));
    }

    /// What was carried since the agent's start.
    fn carried(&self) -> Carried {
        let observer = self.seen.get().and_then(View::observer);
        observer.and_then(|observer| observer.carried().ok()).unwrap_or_default()
    }

    /// What was carried of each pod.
    fn of_pods(&self) -> BTreeMap<String, Traffic> {
        let traffic = self.seen.get().map(View::traffic).unwrap_or_default();
        if traffic.is_empty() {
            return BTreeMap::new();
        }
        let attached = self.table.get().map(EndpointTable::attached).unwrap_or_default();
        let names: BTreeMap<&str, &str> = attached
            .iter()
            .filter_map(|it| Some((it.wired.as_deref()?.host_name().as_str(), it.pod.as_deref()?)))
            .collect();
        named(traffic.iter().map(|(host_end, traffic)| (names.get(host_end.as_str()).copied(), *traffic)))
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Pods' addresses to which the fast path carries packets";
        registry.register("fast_path_endpoints", help, self.endpoints.clone());
        let help = "Prefixes of other nodes to which the fast path carries packets";
        registry.register("fast_path_prefixes", help, self.prefixes.clone());
        registry.register_collector(Box::new(self.clone()));
    }
}

/// Adds up interfaces of one pod, and those beyond the limit.
fn named<'a>(interfaces: impl Iterator<Item = (Option<&'a str>, Traffic)>) -> BTreeMap<String, Traffic> {
    let mut pods: BTreeMap<String, Traffic> = BTreeMap::new();
    for (pod, traffic) in interfaces {
        let pod = pod.unwrap_or(UNKNOWN);
        let is_full = pods.len() >= PODS_MAX && !pods.contains_key(pod);
        let sum = pods.entry(if is_full { OTHER } else { pod }.to_owned()).or_default();
        *sum = Traffic {
            from_pod: sum.from_pod.plus(traffic.from_pod),
            to_pod: sum.to_pod.plus(traffic.to_pod),
        };
    }
    pods
}

impl Collector for FastPathMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Carried { packets, bytes } = self.carried();
        let EpochState { current, is_suspended, suspensions } =
            self.epoch.get().map(FlowEpoch::state).unwrap_or_default();
        let help =
            "1 while all packets take the kernel's path because routes, addresses or links have changed";
        let suspended = ConstGauge::new(i64::from(is_suspended));
        suspended.encode(encoder.encode_descriptor(
            "fast_path_suspended",
            help,
            None,
            MetricType::Gauge,
        )?)?;
        let counters = [
            ("fast_path_packets", "Packets that the fast path has carried", packets),
            ("fast_path_bytes", "Bytes of these packets, from their IP headers on", bytes),
            (
                "fast_path_epochs",
                "Times that all flows had to be learnt, because something may be allowed no longer",
                current.into(),
            ),
            (
                "fast_path_suspensions",
                "Times that all packets took the kernel's path until routes, addresses and links were read",
                suspensions,
            ),
        ];
        for (name, help, count) in counters {
            let counter = ConstCounter::new(count);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let pods = self.of_pods();
        let of_packets: fn(Carried) -> u64 = |it| it.packets;
        let of_bytes: fn(Carried) -> u64 = |it| it.bytes;
        let families = [
            ("fast_path_pod_packets", "Packets that the fast path has carried from or to a pod", of_packets),
            ("fast_path_pod_bytes", "Bytes of these packets, from their IP headers on", of_bytes),
        ];
        for (name, help, of) in families {
            let mut all = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (pod, Traffic { from_pod, to_pod }) in &pods {
                for (direction, carried) in [("from_pod", from_pod), ("to_pod", to_pod)] {
                    let labels = [("pod", pod.as_str()), ("direction", direction)];
                    ConstCounter::new(of(*carried)).encode(all.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_beyond_a_limit_are_counted_together_and_so_are_interfaces_of_one_pod() {
        let one = Carried { packets: 1, bytes: 100 };
        let traffic = Traffic { from_pod: one, to_pod: one.plus(one) };
        let names: Vec<String> = (0..PODS_MAX + 20).map(|number| format!("shop/web-{number}")).collect();
        let interfaces = names.iter().chain(&names[..1]).map(|name| (Some(name.as_str()), traffic));
        let pods = named(interfaces.chain([(None, traffic)]));
        assert_eq!(pods.len(), PODS_MAX + 1);
        assert_eq!((pods[&names[0]].from_pod.packets, pods[OTHER].to_pod.packets), (2, 42));
        assert_eq!(named([(None, traffic)].into_iter()), [(UNKNOWN.to_owned(), traffic)].into());
    }
}
