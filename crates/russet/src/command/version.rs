//! `russet version`.

use std::time::Duration;

use russet_agent::Paths;
use russet_agent::status::{AgentStatus, STATUS_PATH};
use serde::{Deserialize, Serialize};
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
    /// The agent that runs on this node; none if there is none, or if its version is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<RunningAgent>,
    /// Why the version of the agent that runs is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_unknown: Option<String>,
}

/// The running agent, which may be older or newer than this command: of its answer nothing else has to be known.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RunningAgent {
    version: String,
    node: String,
}

/// Prints the version.
pub fn run(args: VersionArgs) -> Result<(), Failure> {
    let (agent, agent_unknown) = match running_agent(&Paths::new(&args.root)) {
        Ok(agent) => (agent, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let version = Version {
        schema: 1,
        version: env!("CARGO_PKG_VERSION"),
        cni_versions: russet_cni_spec::Version::ALL.iter().map(ToString::to_string).collect(),
        agent_protocol: russet_cni_spec::relay::RelayRequest::VERSION,
        datastores: ["embedded", "unix", "etcd", "kubernetes"],
        agent,
        agent_unknown,
    };
    output::print_as(args.output.format, &version, || version.for_people());
    Ok(())
}

/// None if no agent runs.
fn running_agent(paths: &Paths) -> Result<Option<RunningAgent>, AskError> {
    let question = (STATUS_PATH, AgentStatus::SCHEMA);
    match ask(&paths.cni_socket(), question, &json!({}), TIMEOUT) {
        Err(AskError::NoAgent(_)) => Ok(None),
        answer => answer.map(Some),
    }
}

// === impl Version ===

impl Version {
    fn for_people(&self) -> String {
        let agent = match (&self.agent, &self.agent_unknown) {
            (Some(it), _) => {
                format!("agent {} (node {})\n", output::visible(&it.version), output::visible(&it.node))
            }
            (None, Some(why)) => {
                format!("agent: it runs, and its version is not known: {}\n", output::visible(why))
            }
            (None, None) => String::new(),
        };
        format!("russet {}\nCNI {}\n{agent}", self.version, self.cni_versions.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ask::testing::asked;

    fn shown(agent: Result<Option<RunningAgent>, AskError>) -> String {
        let (agent, agent_unknown) = match agent {
            Ok(agent) => (agent, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let version = Version {
            schema: 1,
            version: "2.0.0",
            cni_versions: vec!["1.1.0".to_owned()],
            agent_protocol: 1,
            datastores: [""; 4],
            agent,
            agent_unknown,
        };
        version.for_people()
    }

    #[test]
    fn the_version_is_that_of_the_agent_that_runs_whatever_else_it_says() {
        let answer = ("200 OK", r#"{"schema":1,"version":"0.0.9","node":"node-a","later":[1]}"#);
        assert_eq!(
            shown(asked(answer, running_agent)),
            "russet 2.0.0\nCNI 1.1.0\nagent 0.0.9 (node node-a)\n"
        );
        let nowhere = tempfile::tempdir().unwrap();
        assert_eq!(shown(running_agent(&Paths::new(nowhere.path()))), "russet 2.0.0\nCNI 1.1.0\n");
    }

    #[test]
    fn an_agent_whose_version_is_not_known_is_not_passed_over() {
        for (status, body, reason) in [
            ("404 Not Found", "", "it is of an earlier version than this command"),
            ("200 OK", r#"{"schema":2,"version":"9.0.0","node":"a"}"#, "its schema is 2"),
            ("200 OK", "nonsense", "no report"),
        ] {
            let text = shown(asked((status, body), running_agent));
            let wanted = "\nagent: it runs, and its version is not known: ";
            assert!(text.contains(wanted) && text.contains(reason), "{text}");
        }
    }
}
