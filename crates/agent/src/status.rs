//! What an agent says of itself on its socket, for `russet status` and `russet doctor`.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::health::Readiness;

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
    pub fn new(config: &Config, readiness: &Readiness) -> Self {
        let (node, store) = (config.node_name.to_string(), config.store.to_string());
        Self { readiness: readiness.clone(), node, store, started: Instant::now() }
    }

    pub fn status(&self) -> AgentStatus {
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
        }
    }
}
