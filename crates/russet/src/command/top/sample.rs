//! What `russet top` knows of a node: what its agent answers at both of its sockets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use russet_agent::Paths;
use russet_agent::flows::{FLOWS_PATH, FlowsReport, FlowsRequest};
use russet_agent::page::PREFIX;
use russet_agent::status::{AgentStatus, STATUS_PATH};
use russet_http::local::Relay;
use russet_view::page::NodePage;
use serde_json::json;
use tokio::time::timeout;

use crate::command::ask::{AskError, ask};

/// The agent's answers of about one moment. The sockets' clients limit their sizes.
#[derive(Debug, Clone)]
pub struct Sample {
    pub status: AgentStatus,
    pub page: NodePage,
    /// None where the agent enforces no policies.
    pub flows: Option<FlowsReport>,
}

/// Asks one agent.
#[derive(Debug, Clone)]
pub struct Asker {
    socket: PathBuf,
    page: Relay,
}

/// The agent answers from memory, and from one dump of routes. Both questions together take at most twice this.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The newest flows that are shown.
const FLOWS_MAX: usize = 200;

// === impl Sample ===

impl Sample {
    /// Whether it has blocks of addresses.
    pub fn has_blocks(&self) -> bool {
        let map = &self.page.map;
        !map.blocks_without_node.is_empty() || map.nodes.iter().any(|node| !node.blocks.is_empty())
    }
}

// === impl Asker ===

impl Asker {
    pub fn new(paths: &Paths) -> Self {
        Self { socket: paths.cni_socket(), page: Relay::new(paths.health_socket()) }
    }

    /// Asks for everything; of flows for the last ones, or for the last ones that were denied.
    pub async fn ask(&self, denied: bool) -> Result<Sample, String> {
        let socket = self.socket.clone();
        // This client of the socket blocks.
        let asked = tokio::task::spawn_blocking(move || status_and_flows(&socket, denied));
        let (status, flows) =
            asked.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let path = format!("{PREFIX}/data.json");
        let page = match timeout(TIMEOUT, self.page.get(&path)).await {
            Ok(answer) => answer.and_then(|body| read_page(&body)),
            Err(_elapsed) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
        };
        let page = page.map_err(|error| format!("ask the agent for its page: {error}"))?;
        Ok(Sample { status, page, flows })
    }
}

fn status_and_flows(socket: &Path, denied: bool) -> Result<(AgentStatus, Option<FlowsReport>), AskError> {
    let status = ask(socket, (STATUS_PATH, AgentStatus::SCHEMA), &json!({}), TIMEOUT)?;
    let request = FlowsRequest { limit: FLOWS_MAX, denied, ..FlowsRequest::default() };
    let flows = match ask(socket, (FLOWS_PATH, FlowsReport::SCHEMA), &request, TIMEOUT) {
        Ok(report) => Some(report),
        // It enforces no policies; its page says so. An earlier one may know no flows.
        Err(AskError::Refused { .. } | AskError::Earlier(_)) => None,
        Err(error) => return Err(error),
    };
    Ok((status, flows))
}

fn read_page(body: &[u8]) -> Result<NodePage, String> {
    let page: NodePage = serde_json::from_slice(body)
        .map_err(|error| format!("{error}; is the agent as new as this command?"))?;
    if page.schema == NodePage::SCHEMA {
        Ok(page)
    } else {
        Err(format!("its schema is {}, this version reads {}", page.schema, NodePage::SCHEMA))
    }
}
