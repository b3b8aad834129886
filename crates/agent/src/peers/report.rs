//! What the probes found, for `/v1/status`, metrics and readiness. Bounded, whatever the cluster's size.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::encapsulated::Encapsulated;
use super::prober::{Fits, Prober, Reached, State};
use super::reason;
use super::targets::Path;

/// What is known of the other nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PeersReport {
    /// Nodes known, without this one.
    pub known: usize,
    /// The setting: so many nodes are probed at a time.
    pub at_a_time: usize,
    pub interval_ms: u64,
    /// Of the nodes that are probed now, and of those that did not answer when they were: each in each family.
    pub counts: PeerCounts,
    /// Why nothing is probed, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_probed: Option<String>,
    /// At most [`Self::PEERS_MAX`], those with problems first.
    pub peers: Vec<PeerReport>,
}

/// Numbers of nodes and families by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerCounts {
    pub reachable: usize,
    pub unreachable: usize,
    /// Reachable, but pods' largest packets are lost.
    pub small_packets_only: usize,
    /// Not decided yet.
    pub unknown: usize,
}

/// One family of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    pub node: String,
    /// `4` or `6`.
    pub ip_version: u8,
    /// What was probed: the tunnel, the route to its block, or the underlay only.
    pub path: Path,
    pub probed: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay: Option<String>,
    pub state: PeerState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// Of the last [`Self::lost_of`] probes.
    pub lost: u32,
    pub lost_of: u32,
    /// The largest packet that arrives, if it is smaller than pods' largest ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carries_bytes: Option<u32>,
    /// While it does not answer through the tunnel: encapsulated packets between both nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encapsulated: Option<Encapsulated>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Seconds since the last outcome.
    pub age_s: u64,
}

/// The order is that of urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerState {
    Unreachable,
    SmallPacketsOnly,
    Unknown,
    Reachable,
}

// === impl PeersReport ===

impl PeersReport {
    /// A screen, and a few kilobytes.
    pub const PEERS_MAX: usize = 64;

    pub fn new(prober: &Prober, now: Instant) -> Self {
        let mut counts = PeerCounts::default();
        let mut peers: Vec<PeerReport> = prober
            .states()
            .map(|(name, family, state)| {
                let own = prober.targets().own(family);
                let small = own.and_then(|own| reason::small(state, own));
                let report = PeerReport::new(name.as_str(), state, small, now);
                counts.add(report.state);
                report
            })
            .collect();
        peers.sort_by(|a, b| (a.state, &a.node, a.ip_version).cmp(&(b.state, &b.node, b.ip_version)));
        peers.truncate(Self::PEERS_MAX);
        let settings = prober.settings();
        Self {
            known: prober.targets().peers.len(),
            at_a_time: settings.at_a_time,
            interval_ms: u64::try_from(settings.interval.as_millis()).unwrap_or(u64::MAX),
            counts,
            not_probed: None,
            peers,
        }
    }

    /// Nothing is probed, for this reason.
    pub fn not_probed(reason: impl Into<String>) -> Self {
        Self { not_probed: Some(reason.into()), ..Self::default() }
    }
}

// === impl PeerCounts ===

impl PeerCounts {
    fn add(&mut self, state: PeerState) {
        *match state {
            PeerState::Unreachable => &mut self.unreachable,
            PeerState::SmallPacketsOnly => &mut self.small_packets_only,
            PeerState::Unknown => &mut self.unknown,
            PeerState::Reachable => &mut self.reachable,
        } += 1;
    }

    /// Whether at least one node was probed to an end, and none answers.
    pub fn reaches_none(self) -> bool {
        self.unreachable > 0 && self.reachable == 0 && self.small_packets_only == 0
    }
}

// === impl PeerReport ===

impl PeerReport {
    fn new(node: &str, state: &State, small: Option<String>, now: Instant) -> Self {
        let (lost, lost_of) = state.loss();
        let carries_bytes = match state.fits() {
            Fits::UpTo(bytes) => Some(bytes),
            Fits::Unknown | Fits::All => None,
        };
        Self {
            node: node.to_owned(),
            ip_version: if state.target.address.is_ipv4() { 4 } else { 6 },
            path: state.target.path,
            probed: state.target.address.to_string(),
            underlay: state.target.underlay.map(|address| address.to_string()),
            state: PeerState::of(state),
            rtt_us: state.rtt.and_then(|rtt| u64::try_from(rtt.as_micros()).ok()),
            lost,
            lost_of,
            carries_bytes,
            encapsulated: state.encapsulated,
            reason: state.reason.clone().or(small),
            age_s: state.at.map_or(0, |at| now.saturating_duration_since(at).as_secs()),
        }
    }
}

// === impl PeerState ===

impl PeerState {
    pub fn of(state: &State) -> Self {
        match (state.reached, state.fits()) {
            (Reached::No, _) => Self::Unreachable,
            (Reached::Unknown, _) => Self::Unknown,
            (Reached::Yes, Fits::UpTo(_)) => Self::SmallPacketsOnly,
            (Reached::Yes, _) => Self::Reachable,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::SmallPacketsOnly => "small-packets-only",
            Self::Unknown => "unknown",
            Self::Reachable => "reachable",
        }
    }
}
