//! The agent: whether it runs, what it misses, and what differs from what it wants.

use std::time::Duration;

use russet_agent::Paths;
use russet_agent::drift::{DRIFT_PATH, DriftReport};
use russet_agent::status::{AgentStatus, STATUS_PATH};
use serde_json::json;

use crate::command::ask::{AskError, ask};
use crate::command::findings::{FindingKind, Findings};
use crate::command::status::{Problem, peer_problems};

/// The agent answers from memory.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// A comparison of a large node takes a fraction of a second; requests for pods may be before it.
const DRIFT_TIMEOUT: Duration = Duration::from_secs(30);
/// This command's version.
const OWN: &str = env!("CARGO_PKG_VERSION");
/// The differences that a finding shows.
const SHOWN: usize = 3;

/// Asks the agent.
pub fn look(paths: &Paths, report: &mut Findings) {
    report.looked_at.push("agent");
    let socket = paths.cni_socket();
    let status: AgentStatus =
        match ask(&socket, (STATUS_PATH, AgentStatus::SCHEMA), &json!({}), STATUS_TIMEOUT) {
            Ok(status) => status,
            Err(AskError::NoAgent(socket)) => {
                report.found(
                    FindingKind::Agent,
                    socket,
                    "no agent runs: pods start slowly, and routes and policies do not follow the cluster",
                    "start it: systemctl start russet-agent; why it ended: journalctl -u russet-agent",
                );
                return;
            }
            Err(AskError::Earlier(_)) => return other_version("of an earlier version", report),
            Err(error) => {
                report.unknown.push(format!("the agent: {error}"));
                return;
            }
        };
    if status.version != OWN {
        other_version(&status.version, report);
    }
    for (name, reason) in status.unmet() {
        // What another look has found already.
        if report.findings.iter().any(|known| known.problem == reason) {
            continue;
        }
        report.found(
            FindingKind::Agent,
            format!("agent: {name}"),
            format!("the node is not ready: {reason}"),
            "what each condition means: docs/troubleshooting.md",
        );
    }
    for remark in &status.remarks {
        report.found(
            FindingKind::Agent,
            "agent",
            remark,
            "what it means: docs/troubleshooting.md; of policies: `russet policy ls`",
        );
    }
    for Problem { what, next } in peer_problems(&status.peers) {
        report.found(FindingKind::Peer, "other nodes", what, next);
    }
    match ask(&socket, (DRIFT_PATH, DriftReport::SCHEMA), &json!({}), DRIFT_TIMEOUT) {
        Ok(drift) => differences(&drift, report),
        Err(error) => report.unknown.push(format!("differences from the desired state: {error}")),
    }
}

fn other_version(which: &str, report: &mut Findings) {
    let problem = format!("the running agent is {which}, and this command is {OWN}");
    report.found(FindingKind::AgentVersion, "agent", problem, "restart it: systemctl restart russet-agent");
}

fn differences(drift: &DriftReport, report: &mut Findings) {
    // An unmet condition is among the differences, too.
    let is_new = |line: &&String| !report.findings.iter().any(|known| known.problem.ends_with(line.as_str()));
    let new: Vec<&String> = drift.differences.iter().filter(is_new).collect();
    if let Some(more) = new.len().checked_sub(1) {
        let shown: Vec<&str> = new.iter().take(SHOWN).map(|line| line.as_str()).collect();
        let rest = match (more + 1).saturating_sub(SHOWN) {
            0 => String::new(),
            rest => format!("; and {rest} more"),
        };
        report.found(
            FindingKind::Drift,
            "desired state",
            format!("the kernel differs from it: {}{rest}", shown.join("; ")),
            "the agent repairs it by itself; if it stays, `russet drift` shows what changes it, and the log why it cannot be repaired",
        );
    }
    report.unknown.extend(drift.unknown.iter().cloned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ask::testing::asked;

    #[test]
    fn an_agent_that_was_not_restarted_after_an_upgrade_is_a_finding_even_if_it_cannot_say_its_version() {
        let mut report = Findings::default();
        asked(("404 Not Found", ""), |paths| look(paths, &mut report));
        assert!(report.unknown.is_empty(), "{report:?}");
        let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [FindingKind::AgentVersion]);
        assert!(report.findings[0].problem.starts_with("the running agent is of an earlier version, and"));
    }
}
