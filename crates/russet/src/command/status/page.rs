//! The page of `russet status`: problems with the next step, then facts, then the other nodes. Pure.

use std::time::Duration;

use russet_agent::peers::{PeerReport, PeerState, PeersReport};
use russet_agent::status::AgentStatus;

use crate::output::{age, table, visible};

/// What is wrong, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub what: String,
    pub next: String,
}

/// Rows of the table of nodes that fit on a screen with the rest.
const ROWS_MAX: usize = 12;
/// Problems of other nodes that are listed one by one.
const PEERS_MAX: usize = 5;
/// The agent asks its store at least every 10 s.
const SILENCE_MAX_S: u64 = 45;
/// What explains conditions.
const CONDITIONS: &str = "what each condition means: docs/troubleshooting.md";

/// What is wrong on this node and between it and others, most urgent first.
pub fn problems(status: &AgentStatus) -> Vec<Problem> {
    let mut problems: Vec<Problem> = status
        .unmet()
        .map(|(name, reason)| Problem {
            what: format!("not ready: {name}: {reason}"),
            next: CONDITIONS.to_owned(),
        })
        .collect();
    let silence = status.datastore.silence_s;
    if problems.is_empty() && silence > SILENCE_MAX_S {
        problems.push(Problem {
            what: format!(
                "the datastore {} has been silent for {}",
                status.store,
                age(Duration::from_secs(silence))
            ),
            next: "`russet doctor` examines it; `journalctl -u russet-agent` has the error".to_owned(),
        });
    }
    if let Some(routes) = status.routes.as_ref().filter(|it| it.present < it.expected) {
        problems.push(Problem {
            what: format!(
                "{} of {} routes to other nodes are missing",
                routes.expected - routes.present,
                routes.expected
            ),
            next: "the agent restores them within a minute; `russet drift` names them, and what removed them"
                .to_owned(),
        });
    }
    problems.extend(peer_problems(&status.peers));
    problems.extend(
        status.remarks.iter().map(|remark| Problem { what: remark.clone(), next: CONDITIONS.to_owned() }),
    );
    problems
}

/// Nodes that are not reached as they should be.
pub fn peer_problems(peers: &PeersReport) -> Vec<Problem> {
    let mut problems: Vec<Problem> = peers.peers.iter().filter_map(peer_problem).take(PEERS_MAX).collect();
    let counts = peers.counts;
    let more = (counts.unreachable + counts.small_packets_only).saturating_sub(problems.len());
    if more > 0 {
        problems.push(Problem {
            what: format!("and {more} more are not reached as they should be"),
            next: "russet status -o json; what many nodes have in common is the cause".to_owned(),
        });
    }
    if let Some(reason) = peers.not_probed.as_ref().filter(|_| peers.at_a_time > 0) {
        problems.push(Problem {
            what: format!("other nodes are not probed: {reason}"),
            next: "docs/status.md".to_owned(),
        });
    }
    problems
}

/// What is wrong with the way to one node, if it is not reached as it should be.
pub fn peer_problem(peer: &PeerReport) -> Option<Problem> {
    let is_bad = matches!(peer.state, PeerState::Unreachable | PeerState::SmallPacketsOnly);
    is_bad.then(|| Problem {
        what: format!(
            "{}: {}",
            subject(peer),
            peer.reason.as_deref().unwrap_or("the reason is not known yet")
        ),
        next: next_step(peer),
    })
}

fn subject(peer: &PeerReport) -> String {
    let version = peer.ip_version;
    match peer.state {
        PeerState::SmallPacketsOnly => {
            format!("node {} is reached by small packets only (IPv{version})", peer.node)
        }
        _ => format!("node {} is not reached (IPv{version}, {})", peer.node, peer.path.as_str()),
    }
}

/// A command, where there is one.
fn next_step(peer: &PeerReport) -> String {
    let address = peer.underlay.as_deref().unwrap_or(&peer.probed);
    match peer.state {
        PeerState::SmallPacketsOnly => {
            let size = peer.carries_bytes.unwrap_or_default().saturating_sub(28);
            format!("compare: ping -M do -s {size} {}", peer.probed)
        }
        _ => format!("ping {address}, and on that node: russet status"),
    }
}

/// The whole page.
pub fn text(status: &AgentStatus, is_wide: bool) -> String {
    let problems = problems(status);
    let mut lines = vec![heading(status, problems.len())];
    for Problem { what, next } in &problems {
        lines.push(format!("! {}", visible(what)));
        lines.push(format!("    {}", visible(next)));
    }
    lines.push(String::new());
    lines.extend(facts(status));
    let mut text = lines.join("\n") + "\n";
    let shown = if is_wide { status.peers.peers.len() } else { ROWS_MAX.min(status.peers.peers.len()) };
    if shown > 0 {
        text.push('\n');
        text.push_str(&peers(&status.peers.peers[..shown]));
        let counts = status.peers.counts;
        let all = counts.reachable + counts.unreachable + counts.small_packets_only + counts.unknown;
        if all > shown {
            text.push_str(&format!("and {} more\n", all - shown));
        }
    }
    text
}

/// The node, whether it is ready, and how many problems there are.
pub fn heading(status: &AgentStatus, problems: usize) -> String {
    let ready = if status.unmet().next().is_some() { "not ready" } else { "ready" };
    let up = age(Duration::from_secs(status.uptime_s));
    let found = match problems {
        0 => "no problems".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    format!("{}: {ready}, {found} (agent {}, up {up})", visible(&status.node), visible(&status.version))
}

/// What else is known of the node, a line each.
pub fn facts(status: &AgentStatus) -> Vec<String> {
    let mut lines = Vec::new();
    let mut fact = |name: &str, text: String| lines.push(format!("{name:<10} {}", visible(&text)));
    let latency = match (status.datastore.latency_us, status.datastore.answered_s_ago) {
        (Some(us), Some(ago)) => format!(", {} ({} ago)", milliseconds(us), age(Duration::from_secs(ago))),
        _ => String::new(),
    };
    fact("datastore", format!("{}{latency}", status.store));
    fact("pods", format!("{} interfaces", status.endpoints));
    if let Some(routes) = &status.routes {
        let path = |path: &russet_agent::status::PathStatus| {
            let mtu = path.mtu_bytes.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
            match &path.device {
                Some(device) => format!("IPv{} {} ({device}{mtu})", path.ip_version, path.encapsulation),
                None => format!("IPv{} plain routes", path.ip_version),
            }
        };
        fact("paths", routes.paths.iter().map(path).collect::<Vec<_>>().join("; "));
        let refused = if routes.refused > 0 {
            format!("; {} facts of other nodes are refused, see the log", routes.refused)
        } else {
            String::new()
        };
        fact("routes", format!("{} of {} present{refused}", routes.present, routes.expected));
    }
    let last = status.drift.last_repair.as_ref().map(|at| format!(", the last at {at}")).unwrap_or_default();
    fact("repairs", format!("{} since the agent's start{last}", status.drift.repairs_total));
    fact("nodes", nodes(&status.peers));
    lines.extend(status.unknown.iter().map(|line| format!("not read: {}", visible(line))));
    lines
}

fn nodes(peers: &PeersReport) -> String {
    if let Some(reason) = &peers.not_probed {
        return format!("not probed: {reason}");
    }
    let counts = peers.counts;
    let turns = if peers.known > peers.at_a_time {
        format!("; {} are probed at a time", peers.at_a_time)
    } else {
        String::new()
    };
    let by_state = [
        (counts.reachable, "reachable"),
        (counts.small_packets_only, "by small packets only"),
        (counts.unreachable, "unreachable"),
        (counts.unknown, "not judged yet"),
    ];
    let states: Vec<String> = by_state
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, state)| format!("{count} {state}"))
        .collect();
    let states = if states.is_empty() { "none probed".to_owned() } else { states.join(", ") };
    format!("{} others; {states}{turns}", peers.known)
}

fn peers(peers: &[PeerReport]) -> String {
    let dash = || "-".to_owned();
    let row = |peer: &PeerReport| {
        vec![
            peer.node.clone(),
            peer.state.as_str().to_owned(),
            peer.path.as_str().to_owned(),
            peer.probed.clone(),
            peer.underlay.clone().unwrap_or_else(dash),
            peer.rtt_us.map_or_else(dash, milliseconds),
            format!("{}/{}", peer.lost, peer.lost_of),
        ]
    };
    table(
        &["NODE", "STATE", "PATH", "PROBED", "UNDERLAY", "RTT", "LOST"],
        &peers.iter().map(row).collect::<Vec<_>>(),
    )
}

/// A time in milliseconds.
pub fn milliseconds(us: u64) -> String {
    format!("{}.{:02} ms", us / 1000, us % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(extra: serde_json::Value) -> AgentStatus {
        let mut status = json!({
            "schema": 1, "version": "0.1.0", "node": "node-a", "store": "etcd:http://10.0.0.1:2379", "pid": 7, "uptime_s": 3700,
            "conditions": [{"name": "store"}], "remarks": [],
            "datastore": {"latency_us": 840, "answered_s_ago": 3, "silence_s": 3},
            "endpoints": 2,
            "routes": {"expected": 3, "present": 3, "refused": 0,
                "paths": [{"ip_version": 4, "encapsulation": "vxlan", "device": "vxlan.calico", "mtu_bytes": 1450}]},
        });
        status.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(status).unwrap()
    }

    fn peers(state: &str, count: usize) -> serde_json::Value {
        let peer = |n: usize| {
            json!({"node": format!("node-{n}"), "ip_version": 4, "path": "tunnel", "probed": "10.244.1.1", "underlay": "10.0.0.2",
            "state": state, "lost": 3, "lost_of": 9, "reason": "its tunnel is closed", "age_s": 1})
        };
        let counts = json!({"reachable": 0, "unreachable": 0, "small_packets_only": 0, "unknown": 0});
        let mut report = json!({"known": count, "at_a_time": 16, "interval_ms": 5000, "counts": counts, "peers": (0..count.min(64)).map(peer).collect::<Vec<_>>()});
        report["counts"][state] = count.into();
        json!({ "peers": report })
    }

    #[test]
    fn a_healthy_node_is_a_few_lines() {
        let page = text(&status(peers("reachable", 3)), false);
        assert!(page.starts_with("node-a: ready, no problems (agent 0.1.0, up 1h1m)\n"), "{page}");
        assert!(page.contains("etcd:http://10.0.0.1:2379, 0.84 ms (3s ago)"), "{page}");
        assert!(
            page.contains("3 of 3 present") && page.contains("IPv4 vxlan (vxlan.calico, MTU 1450)"),
            "{page}"
        );
        assert!(page.contains("3 others; 3 reachable"), "{page}");
    }

    #[test]
    fn problems_come_first_with_the_next_step_and_fit_on_a_screen() {
        let page = text(&status(peers("unreachable", 3000)), false);
        let lines: Vec<&str> = page.lines().collect();
        assert!(
            lines[1].starts_with("! node node-0 is not reached (IPv4, tunnel): its tunnel is closed"),
            "{page}"
        );
        assert!(lines[2].starts_with("    ping 10.0.0.2"), "{page}");
        assert!(page.contains("and 2995 more are not reached"), "{page}");
        assert!(lines.len() <= 40, "{} lines", lines.len());
        assert_eq!(problems(&status(peers("unreachable", 1))).len(), 1);
    }

    #[test]
    fn conditions_routes_and_a_silent_datastore_are_problems() {
        let unmet = status(json!({"conditions": [{"name": "store", "reason": "no answer"}]}));
        assert_eq!(problems(&unmet)[0].what, "not ready: store: no answer");
        let routes = status(json!({"routes": {"expected": 3, "present": 1, "refused": 0, "paths": []}}));
        assert!(problems(&routes)[0].what.starts_with("2 of 3 routes"));
        let silent = status(json!({"datastore": {"silence_s": 50}}));
        assert!(problems(&silent)[0].what.contains("silent for 50s"));
        assert_eq!(problems(&status(json!({}))), []);
    }

    #[test]
    fn an_older_agents_answer_is_a_page_and_control_characters_are_escaped() {
        let old: AgentStatus = serde_json::from_value(
            json!({"schema": 1, "version": "0.0.9\u{1b}[2J", "node": "n", "store": "embedded", "pid": 1,
            "uptime_s": 0, "conditions": [], "remarks": []}),
        )
        .unwrap();
        let page = text(&old, false);
        assert!(!page.contains('\u{1b}') && problems(&old).is_empty(), "{page:?}");
    }
}
