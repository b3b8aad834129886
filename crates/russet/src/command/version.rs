//! `russet version`.

use std::time::Duration;

use russet_agent::Paths;
use russet_agent::status::{AgentStatus, STATUS_PATH};
use serde::Serialize;
use serde_json::json;

use super::Failure;
use super::ask::{AskError, ask};
use crate::cli::VersionArgs;
use crate::output;

/// A version is worth no longer wait.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Versions of this build and of its interfaces; `schema` grows when a member changes its meaning.
#[derive(Serialize)]
struct Version {
    schema: u32,
    version: &'static str,
    cni_versions: Vec<String>,
    agent_protocol: u32,
    datastores: [&'static str; 4],
    /// The agent that runs on this node; none if there is none, or if it does not answer this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<RunningAgent>,
}

/// The running agent, which may be older or newer than this command.
#[derive(Serialize)]
struct RunningAgent {
    version: String,
    node: String,
}

/// Prints the version.
pub fn run(args: VersionArgs) -> Result<(), Failure> {
    let version = Version {
        schema: 1,
        version: env!("CARGO_PKG_VERSION"),
        cni_versions: russet_cni_spec::Version::ALL.iter().map(ToString::to_string).collect(),
        agent_protocol: russet_cni_spec::relay::RelayRequest::VERSION,
        datastores: ["embedded", "unix", "etcd", "kubernetes"],
        agent: running_agent(&Paths::new(&args.root)),
    };
    output::print_as(args.output.format, &version, || {
        let agent = version.agent.as_ref();
        let agent = agent.map(|it| format!("agent {} (node {})\n", it.version, output::visible(&it.node)));
        let (own, cni) = (version.version, version.cni_versions.join(" "));
        format!("russet {own}\nCNI {cni}\n{}", agent.unwrap_or_default())
    });
    Ok(())
}

fn running_agent(paths: &Paths) -> Option<RunningAgent> {
    let question = (STATUS_PATH, AgentStatus::SCHEMA);
    let answer: Result<AgentStatus, AskError> = ask(&paths.cni_socket(), question, &json!({}), TIMEOUT);
    answer.ok().map(|status| RunningAgent { version: status.version, node: status.node })
}
