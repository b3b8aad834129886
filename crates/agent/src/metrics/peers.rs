//! Metrics of the probes of other nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::STAGE_BUCKETS_S;
use crate::peers::{PeerState, PeersReport};

/// Whether other nodes answer through the data path.
#[derive(Debug, Clone)]
pub struct PeerMetrics {
    peers: Family<StateLabel, Gauge>,
    reachable: Family<PeerLabels, Gauge>,
    probes: Family<Outcome, Counter>,
    seconds: Histogram,
    /// Messages with the probes' identifier that answer none of them.
    pub foreign: Counter,
    /// The series of `reachable`.
    shown: Arc<Mutex<BTreeMap<PeerLabels, i64>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct PeerLabels {
    node: String,
    ip_version: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

const ANSWERED: &str = "answered";
const LOST: &str = "lost";

// === impl PeerMetrics ===

impl PeerMetrics {
    /// Counts outcomes of probes: the round trip of those that were answered.
    pub fn count(&self, outcomes: &[Option<Duration>]) {
        for outcome in outcomes {
            let label = Outcome { outcome: if outcome.is_some() { ANSWERED } else { LOST } };
            self.probes.get_or_create(&label).inc();
            if let Some(rtt) = outcome {
                self.seconds.observe(rtt.as_secs_f64());
            }
        }
    }

    /// Sets what is known now. Where nodes take turns (`all` is false), only those that do not answer have a series, so
    /// that a large cluster does not make one for each node on each other.
    pub fn set(&self, report: &PeersReport, all: bool) {
        let counts = report.counts;
        for (state, count) in [
            (PeerState::Reachable, counts.reachable),
            (PeerState::SmallPacketsOnly, counts.small_packets_only),
            (PeerState::Unreachable, counts.unreachable),
            (PeerState::Unknown, counts.unknown),
        ] {
            let label = StateLabel { state: state.as_str() };
            self.peers.get_or_create(&label).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let judged = report.peers.iter().filter(|peer| peer.state != PeerState::Unknown);
        let new: BTreeMap<PeerLabels, i64> = judged
            .filter(|peer| all || peer.state == PeerState::Unreachable)
            .map(|peer| {
                let labels = PeerLabels { node: peer.node.clone(), ip_version: peer.ip_version.into() };
                (labels, i64::from(peer.state != PeerState::Unreachable))
            })
            .collect();
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in shown.keys().filter(|labels| !new.contains_key(labels)) {
            self.reachable.remove(gone);
        }
        for (labels, value) in &new {
            self.reachable.get_or_create(labels).set(*value);
        }
        *shown = new;
    }

    /// Gives the family with a series for each node one.
    #[cfg(test)]
    pub(super) fn use_all(&self) {
        self.reachable.get_or_create(&PeerLabels { node: "n".to_owned(), ip_version: 4 }).set(1);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "peers",
            "Other nodes, in each family, that are probed now or did not answer, by state",
            self.peers.clone(),
        );
        registry.register(
            "peer_reachable",
            "Whether another node answers through the data path, of those that are shown",
            self.reachable.clone(),
        );
        registry.register(
            "peer_probes",
            "Probes of other nodes through the data path, by outcome",
            self.probes.clone(),
        );
        registry.register(
            "peer_round_trip_seconds",
            "Time from a probe of another node to its answer",
            self.seconds.clone(),
        );
        registry.register(
            "peer_foreign_answers",
            "ICMP messages with the identifier of the probes that answer none of them",
            self.foreign.clone(),
        );
    }
}

impl Default for PeerMetrics {
    fn default() -> Self {
        let probes: Family<Outcome, Counter> = Family::default();
        // Both are there from the start: a part of lost probes cannot be computed from a series that is missing.
        for outcome in [ANSWERED, LOST] {
            probes.get_or_create(&Outcome { outcome }).inc_by(0);
        }
        Self {
            peers: Family::default(),
            reachable: Family::default(),
            probes,
            seconds: Histogram::new(STAGE_BUCKETS_S),
            foreign: Counter::default(),
            shown: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{Path, PeerReport};

    fn report(states: &[(&str, PeerState)]) -> PeersReport {
        let peer = |(node, state): &(&str, PeerState)| PeerReport {
            node: (*node).to_owned(),
            ip_version: 4,
            path: Path::Tunnel,
            probed: String::new(),
            underlay: None,
            state: *state,
            rtt_us: None,
            lost: 0,
            lost_of: 0,
            carries_bytes: None,
            encapsulated: None,
            reason: None,
            age_s: 0,
        };
        PeersReport { peers: states.iter().map(peer).collect(), ..PeersReport::default() }
    }

    #[test]
    fn nodes_that_take_turns_have_a_series_only_while_they_do_not_answer() {
        let metrics = PeerMetrics::default();
        let shown = || {
            let mut registry = Registry::default();
            registry.register("peer", "", metrics.reachable.clone());
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text.lines().filter(|line| !line.starts_with('#')).count()
        };
        let states = [("a", PeerState::Unreachable), ("b", PeerState::Reachable), ("c", PeerState::Unknown)];
        metrics.set(&report(&states), true);
        assert_eq!(shown(), 2);
        metrics.set(&report(&states), false);
        assert_eq!(shown(), 1);
        metrics.set(&report(&[]), false);
        assert_eq!(shown(), 0);
    }
}
