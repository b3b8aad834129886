//! What an agent says of itself on its socket, for `russet status` and `russet doctor`.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use russet_journal::EndpointTable;

use crate::config::Config;
use crate::controllers::Controllers;
use crate::health::Readiness;
use crate::metrics::StoreMetrics;
use crate::peers::{PeerProbes, PeersReport};

pub use crate::controllers::{PathStatus, RoutesStatus};

/// Path on the agent's socket.
pub const STATUS_PATH: &str = "/v1/status";

/// The state of a running agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Grows when a member changes its meaning.
    pub schema: u32,
    pub version: String,
    pub node: String,
    /// The store, without its password.
    pub store: String,
    pub pid: u32,
    /// Seconds since the agent's start.
    pub uptime_s: u64,
    /// The conditions for attaching pods.
    pub conditions: Vec<ConditionStatus>,
    /// Remarks that do not affect readiness.
    pub remarks: Vec<String>,
    // What follows is absent in answers of older agents.
    #[serde(default)]
    pub datastore: DatastoreStatus,
    /// Interfaces of pods that are attached.
    #[serde(default)]
    pub endpoints: usize,
    /// None before the store was read, and while other programs keep the routes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<RoutesStatus>,
    #[serde(default)]
    pub drift: DriftStatus,
    #[serde(default)]
    pub peers: PeersReport,
    /// What could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// How the datastore answers the agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DatastoreStatus {
    /// How long the last answered request took, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u64>,
    /// Seconds since that answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_s_ago: Option<u64>,
    /// Seconds since the last answer or event.
    pub silence_s: u64,
}

/// What the agent repaired.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriftStatus {
    /// Since the agent's start.
    pub repairs_total: u64,
    /// When the last one was, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_repair: Option<String>,
}

/// A condition for attaching pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionStatus {
    pub name: String,
    /// Why it is not met; absent if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Answers requests for the agent's state.
#[derive(Clone)]
pub struct StatusSource {
    readiness: Readiness,
    node: String,
    store: String,
    started: Instant,
    observed: Observed,
}

/// What the status is read from. Clones share it.
#[derive(Clone)]
pub struct Observed {
    pub store: StoreMetrics,
    pub endpoints: EndpointTable,
    pub controllers: Controllers,
    pub peers: PeerProbes,
}

// === impl AgentStatus ===

impl AgentStatus {
    pub const SCHEMA: u32 = 1;

    /// The conditions that are not met.
    pub fn unmet(&self) -> impl Iterator<Item = (&str, &str)> {
        self.conditions.iter().filter_map(|it| Some((it.name.as_str(), it.reason.as_deref()?)))
    }
}

// === impl StatusSource ===

impl StatusSource {
    pub fn new(config: &Config, readiness: &Readiness, observed: Observed) -> Self {
        let (node, store) = (config.node_name.to_string(), config.store.to_string());
        Self { readiness: readiness.clone(), node, store, started: Instant::now(), observed }
    }

    /// The state now. Blocks: it reads routes from the kernel.
    pub fn status(&self) -> AgentStatus {
        let mut status = self.in_memory();
        match self.observed.controllers.routes() {
            Some(Ok(routes)) => status.routes = Some(routes),
            Some(Err(error)) => status.unknown.push(format!("routes: {error}")),
            None => {}
        }
        status
    }

    /// The state without the routes, which in a large cluster are thousands: for callers that ask every few seconds.
    pub fn in_memory(&self) -> AgentStatus {
        let Observed { store, endpoints, controllers, peers } = &self.observed;
        let (repairs_total, last_repair) = controllers.repairs();
        let condition = |(name, reason): (&'static str, Option<String>)| ConditionStatus {
            name: name.to_owned(),
            reason,
        };
        AgentStatus {
            schema: AgentStatus::SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.node.clone(),
            store: self.store.clone(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            conditions: self.readiness.reasons().into_iter().map(condition).collect(),
            remarks: self.readiness.remarks(),
            datastore: DatastoreStatus::of(store),
            endpoints: endpoints.len(),
            routes: None,
            drift: DriftStatus { repairs_total, last_repair },
            peers: peers.report(),
            unknown: Vec::new(),
        }
    }
}

// === impl DatastoreStatus ===

impl DatastoreStatus {
    fn of(store: &StoreMetrics) -> Self {
        let answer = store.last_answer();
        Self {
            latency_us: answer.and_then(|(took, _)| u64::try_from(took.as_micros()).ok()),
            answered_s_ago: answer.map(|(_, ago)| ago.as_secs()),
            silence_s: store.silence().as_secs(),
        }
    }
}
