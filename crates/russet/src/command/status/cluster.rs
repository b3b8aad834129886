//! `russet status --cluster`: what the records of all agents say together. An agent that stopped writing is found by the age
//! of its record, and a node that others do not reach by theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use russet_agent::{HealthRecord, Loss, LossPlace};
use russet_kube::{HEARTBEAT_NAMESPACE, Heartbeat};
use russet_model::{KeyKind, Prefix};
use russet_store::Revision;
use russet_view::map::{NodeFacts, NodeState};
use serde::Serialize;

use super::page::Problem;
use crate::command::Failure;
use crate::command::place::Place;
use crate::output::{age, table, visible};

/// All nodes, for programs.
#[derive(Debug, Serialize)]
pub struct ClusterStatus {
    schema: u32,
    /// Sorted: those with problems first, then by name.
    pub nodes: Vec<NodeHealth>,
    /// What is wrong, for people, most urgent first.
    pub problems: Vec<ProblemText>,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeHealth {
    node: String,
    state: NodeState,
    /// Seconds since its last record.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_s: Option<u64>,
    /// The nodes that did not reach it when they wrote their records.
    unreached_by: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<HealthRecord>,
}

/// A record, and when it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    pub record: HealthRecord,
    /// Orders the writes of a store; none in the Kubernetes API, whose objects' revisions are not numbers for clients.
    pub revision: Option<Revision>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProblemText {
    what: String,
    next: String,
}

/// For the lease of one agent.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Rows of the table, and names in one line, without `-o wide`.
const ROWS_MAX: usize = 24;
const NAMES_MAX: usize = 3;
/// Problems of one kind that are listed one by one.
const PROBLEMS_MAX: usize = 8;

/// Reads all records.
pub async fn read(place: &Place) -> Result<ClusterStatus, Failure> {
    let names = names_of_nodes(place).await?;
    let records = records(place).await?.into_iter().map(|written| written.record).collect();
    Ok(ClusterStatus::new(names, records, SystemTime::now()))
}

pub async fn names_of_nodes(place: &Place) -> Result<BTreeSet<String>, Failure> {
    let mut names = BTreeSet::new();
    for key in place.store.keys(&Prefix::nodes()).await? {
        if let KeyKind::Node(name) = key.kind() {
            names.insert(name.to_string());
        }
    }
    Ok(names)
}

/// The records of all agents, also of nodes that are gone.
pub async fn records(place: &Place) -> Result<Vec<Written>, Failure> {
    if let Some(client) = place.kubernetes() {
        let of_lease = |record| Written { record, revision: None };
        return Ok(HealthRecord::of_leases(&client).await?.into_iter().map(of_lease).collect());
    }
    let found = place.store.list(&HealthRecord::prefix()).await?.records;
    let decoded = found.iter().filter_map(|it| {
        let record = HealthRecord::decode(&it.value)?;
        Some(Written { record, revision: Some(it.revision) })
    });
    Ok(decoded.collect())
}

/// The record of one node's agent, if it has written one.
pub async fn record_of(place: &Place, node: &str) -> Result<Option<HealthRecord>, Failure> {
    match place.kubernetes() {
        Some(client) => {
            let lease = client.lease(HEARTBEAT_NAMESPACE, &Heartbeat::name_of(node), TIMEOUT).await?;
            Ok(lease.as_ref().and_then(HealthRecord::of_lease))
        }
        None => {
            let found = place.store.get(&HealthRecord::key(node)).await?;
            Ok(found.and_then(|record| HealthRecord::decode(&record.value)))
        }
    }
}

// === impl ClusterStatus ===

impl ClusterStatus {
    fn new(names: BTreeSet<String>, records: Vec<HealthRecord>, now: SystemTime) -> Self {
        let mut unreached: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let is_current =
            |record: &&HealthRecord| record.age_s(now).is_none_or(|age_s| !record.is_late(age_s));
        for record in records.iter().filter(is_current) {
            for node in &record.unreachable {
                unreached.entry(node.clone()).or_default().push(record.node.clone());
            }
        }
        let mut by_name: BTreeMap<String, HealthRecord> =
            records.into_iter().map(|record| (record.node.clone(), record)).collect();
        // A record of a node that is no node any more is no news.
        by_name.retain(|name, _| names.contains(name));
        let mut nodes: Vec<NodeHealth> = names
            .into_iter()
            .map(|node| {
                let record = by_name.remove(&node);
                let age_s = record.as_ref().and_then(|record| record.age_s(now));
                let state = record.as_ref().map_or(NodeState::NoRecord, |record| record.state(now));
                let unreached_by = unreached.remove(&node).unwrap_or_default();
                NodeHealth { node, state, age_s, unreached_by, record }
            })
            .collect();
        nodes.sort_by(|a, b| {
            let urgency = |it: &NodeHealth| (it.state, std::cmp::Reverse(it.unreached_by.len()));
            urgency(a).cmp(&urgency(b)).then_with(|| a.node.cmp(&b.node))
        });
        let problems = problems(&nodes, now);
        Self { schema: 1, nodes, problems }
    }
}

// === impl NodeHealth ===

impl NodeHealth {
    /// The node, as a map needs it, without its addresses.
    pub fn facts(&self) -> NodeFacts {
        let facts = NodeFacts {
            name: self.node.clone(),
            state: self.state,
            age_s: self.age_s,
            ..NodeFacts::default()
        };
        match &self.record {
            Some(record) => record.add_to(facts),
            None => facts,
        }
    }
}

fn problems(nodes: &[NodeHealth], now: SystemTime) -> Vec<ProblemText> {
    let records = nodes.iter().filter_map(|node| Some((node.node.as_str(), node.record.as_ref()?)));
    let records: BTreeMap<&str, &HealthRecord> = records.collect();
    let mut problems = Vec::new();
    let mut add = |found: Vec<Problem>, many: &str| {
        let more = found.len().saturating_sub(PROBLEMS_MAX);
        problems.extend(
            found.into_iter().take(PROBLEMS_MAX).map(|Problem { what, next }| ProblemText { what, next }),
        );
        if more > 0 {
            let next = "russet status --cluster -o wide".to_owned();
            problems.push(ProblemText { what: format!("and {more} more {many}"), next });
        }
    };
    let of = |state: NodeState| nodes.iter().filter(move |node| node.state == state);
    add(of(NodeState::NoSign).map(no_sign).collect(), "without a sign");
    let unreached = nodes.iter().filter(|node| !node.unreached_by.is_empty());
    let not_reached = |node| not_reached(node, &records, now);
    add(unreached.map(not_reached).collect(), "that others do not reach");
    add(of(NodeState::NotReady).map(not_ready).collect(), "that are not ready");
    let small =
        nodes.iter().filter(|node| node.record.as_ref().is_some_and(|it| !it.small_packets_only.is_empty()));
    add(small.map(small_packets).collect(), "that large packets do not leave");
    problems
}

fn no_sign(node: &NodeHealth) -> Problem {
    let since =
        node.age_s.map_or_else(|| "an unknown time".to_owned(), |age_s| age(Duration::from_secs(age_s)));
    Problem {
        what: format!(
            "{}: no sign since {since}: its agent does not run, or does not reach the datastore",
            node.node
        ),
        next: format!("on {}: systemctl status russet-agent; russet status", node.node),
    }
}

fn not_reached(node: &NodeHealth, records: &BTreeMap<&str, &HealthRecord>, now: SystemTime) -> Problem {
    let what = format!("{} is not reached by {}", node.node, names(&node.unreached_by));
    match loss(node, records, now) {
        Some((loss, 1)) => Problem { what: format!("{what}: {}", loss.what), next: loss.next },
        Some((loss, count)) => Problem {
            what: format!("{what}: {} (counters say the same of {count} of them)", loss.what),
            next: loss.next,
        },
        None => {
            let others = "the reason is there and in `russet status` of the others";
            Problem { what, next: format!("on {}: russet status; {others}", node.node) }
        }
    }
}

/// Where packets to a node are lost, as most of those say that do not reach it, and how many these are.
fn loss(
    node: &NodeHealth,
    records: &BTreeMap<&str, &HealthRecord>,
    now: SystemTime,
) -> Option<(Loss, usize)> {
    let own = node.record.as_ref()?;
    let mut found: BTreeMap<LossPlace, (Loss, usize)> = BTreeMap::new();
    for by in &node.unreached_by {
        let record = records.get(by.as_str());
        if let Some(loss) = record.and_then(|record| Loss::between(record, own, now)) {
            found.entry(loss.place).or_insert((loss, 0)).1 += 1;
        }
    }
    // Of as many, the first place on the way.
    found.into_values().rev().max_by_key(|(_, count)| *count)
}

fn not_ready(node: &NodeHealth) -> Problem {
    let reasons = node.record.as_ref().map(|record| record.reasons.join("; ")).unwrap_or_default();
    Problem {
        what: format!("{} is not ready: {reasons}", node.node),
        next: format!("on {}: russet status; docs/troubleshooting.md", node.node),
    }
}

fn small_packets(node: &NodeHealth) -> Problem {
    let others = node.record.as_ref().map(|record| names(&record.small_packets_only)).unwrap_or_default();
    Problem {
        what: format!("large packets of {} do not arrive at {others}", node.node),
        next: format!("on {}: russet status", node.node),
    }
}

fn names(all: &[String]) -> String {
    let shown: Vec<&str> = all.iter().take(NAMES_MAX).map(String::as_str).collect();
    match all.len().saturating_sub(NAMES_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The page.
pub fn text(status: &ClusterStatus, is_wide: bool) -> String {
    let ready = status.nodes.iter().filter(|node| node.state == NodeState::Ready).count();
    let mut lines =
        vec![format!("{} nodes, {ready} ready, {} problems", status.nodes.len(), status.problems.len())];
    for ProblemText { what, next } in &status.problems {
        lines.push(format!("! {}", visible(what)));
        lines.push(format!("    {}", visible(next)));
    }
    let shown = if is_wide { status.nodes.len() } else { ROWS_MAX.min(status.nodes.len()) };
    let rows: Vec<Vec<String>> = status.nodes.iter().take(shown).map(row).collect();
    let mut text = lines.join("\n") + "\n\n";
    text.push_str(&table(&["NODE", "STATE", "AGE", "VERSION", "PODS", "REACHES", "NOT REACHED"], &rows));
    if status.nodes.len() > shown {
        text.push_str(&format!("and {} more\n", status.nodes.len() - shown));
    }
    text
}

fn row(node: &NodeHealth) -> Vec<String> {
    let dash = || "-".to_owned();
    let state = node.state.as_str();
    let age = node.age_s.map_or_else(dash, |age_s| age(Duration::from_secs(age_s)));
    let Some(record) = &node.record else {
        return vec![node.node.clone(), state.to_owned(), age, dash(), dash(), dash(), dash()];
    };
    let unreached = if record.unreachable.is_empty() { dash() } else { names(&record.unreachable) };
    vec![
        node.node.clone(),
        state.to_owned(),
        age,
        record.version.clone(),
        record.endpoints.to_string(),
        record.reachable.to_string(),
        unreached,
    ]
}

#[cfg(test)]
mod tests {
    use russet_agent::CountedNode;
    use russet_agent::peers::Encapsulated;
    use russet_kube::Client;
    use russet_kube::testing::Server;
    use russet_model::time;

    use super::*;

    fn record(node: &str, written_s_ago: u64, unreachable: &[&str]) -> HealthRecord {
        HealthRecord {
            schema: HealthRecord::SCHEMA,
            node: node.to_owned(),
            version: "0.1.0".to_owned(),
            at: time::rfc3339(now() - Duration::from_secs(written_s_ago)),
            every_s: 60,
            ready: true,
            unreachable: unreachable.iter().map(ToString::to_string).collect(),
            ..HealthRecord::default()
        }
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn cluster(names: &[&str], records: Vec<HealthRecord>) -> ClusterStatus {
        ClusterStatus::new(names.iter().map(ToString::to_string).collect(), records, now())
    }

    #[test]
    fn an_old_record_is_no_sign_and_what_it_says_of_others_does_not_count() {
        let status = cluster(
            &["a", "b", "c"],
            vec![record("a", 30, &[]), record("b", 400, &["a"]), record("c", 170, &["b"])],
        );
        let states: Vec<(&str, NodeState)> =
            status.nodes.iter().map(|node| (node.node.as_str(), node.state)).collect();
        assert_eq!(states, [("b", NodeState::NoSign), ("a", NodeState::Ready), ("c", NodeState::Ready)]);
        let whats: Vec<&str> = status.problems.iter().map(|problem| problem.what.as_str()).collect();
        assert_eq!(
            whats[0],
            "b: no sign since 6m40s: its agent does not run, or does not reach the datastore"
        );
        assert_eq!(whats[1], "b is not reached by c");
        assert_eq!(whats.len(), 2);
    }

    /// The record of a node that does not reach another one, with sent, received and decapsulated packets.
    fn counted(node: &str, other: &str, [sent, received, decapsulated]: [u64; 3]) -> HealthRecord {
        let packets = Encapsulated { sent, received, decapsulated, for_s: 30 };
        let encapsulated = vec![CountedNode { at: 0, ip_version: 4, packets }];
        HealthRecord { encapsulated, ..record(node, 5, &[other]) }
    }

    #[test]
    fn counters_of_both_ends_say_where_packets_are_lost_and_what_to_do_there() {
        let [a, b] = [counted("a", "b", [12, 6, 6]), counted("b", "a", [6, 0, 0])];
        let page = text(&cluster(&["a", "b"], vec![a.clone(), b.clone()]), false);
        let firewall = "none arrived at b: the network, or a firewall before b's nf_tables, drops them\n    let the tunnel's UDP port pass from a to b";
        let there = "! b is not reached by a: a has sent 12 encapsulated packets in 30s, and ";
        assert!(page.contains(&format!("{there}{firewall}")), "{page}");
        let back = "! a is not reached by b: a receives b's packets and has sent 12 encapsulated packets back in 30s, and ";
        assert!(page.contains(&format!("{back}{firewall}")), "{page}");
        // An older agent's record has no counters.
        let plain = cluster(&["a", "b"], vec![a, record("b", 5, &["a"])]);
        let whats: Vec<&str> = plain.problems.iter().map(|it| it.what.as_str()).collect();
        assert_eq!(whats, ["a is not reached by b", "b is not reached by a"]);
    }

    #[test]
    fn what_the_counters_of_most_others_say_of_a_node_is_shown_once() {
        let b = HealthRecord {
            unreachable: ["a", "c", "d"].map(str::to_owned).to_vec(),
            encapsulated: (0..3)
                .map(|at| CountedNode {
                    at,
                    ip_version: 4,
                    packets: Encapsulated { sent: 6, received: 3, decapsulated: 0, for_s: 30 },
                })
                .collect(),
            ..record("b", 5, &[])
        };
        let others =
            [counted("a", "b", [0, 0, 0]), counted("c", "b", [4, 0, 0]), counted("d", "b", [5, 0, 0])];
        let status = cluster(&["a", "b", "c", "d"], [vec![b], others.to_vec()].concat());
        let of_b = status.problems.iter().find(|it| it.what.starts_with("b is not reached by ")).unwrap();
        let what = "b is not reached by a, c, d: c has sent 4 encapsulated packets in 30s; 3 arrived at b in 30s, and none came out of its \
                    tunnel: b drops them and does not answer (counters say the same of 2 of them)";
        assert_eq!(
            (of_b.what.as_str(), of_b.next.as_str()),
            (what, "on b: russet status; russet drift; nft list ruleset")
        );
    }

    #[test]
    fn nodes_without_a_record_and_records_without_a_node_are_no_problems() {
        let status = cluster(&["a", "go-calico"], vec![record("a", 1, &[]), record("gone", 1, &[])]);
        assert!(status.problems.is_empty(), "{:?}", status.problems);
        let page = text(&status, false);
        assert!(page.starts_with("2 nodes, 1 ready, 0 problems\n") && page.contains("no record"), "{page}");
        assert!(!page.contains("gone"), "{page}");
    }

    #[test]
    fn a_large_cluster_fits_on_a_screen_and_the_cause_comes_first() {
        let names: Vec<String> = (0..5000).map(|n| format!("node-{n}")).collect();
        let records =
            names.iter().map(|name| record(name, 10, if name == "node-7" { &[] } else { &["node-7"] }));
        let status = ClusterStatus::new(names.iter().cloned().collect(), records.collect(), now());
        let page = text(&status, false);
        assert!(page.lines().count() < 50, "{}", page.lines().count());
        assert!(page.contains("! node-7 is not reached by node-0, node-1, node-2 and 4996 more"), "{page}");
    }

    #[tokio::test]
    async fn records_in_the_kubernetes_api_are_annotations_of_agents_leases() {
        let server = Server::start();
        let client = Client::new(server.source()).unwrap();
        let written = record("n1", 1, &["n2"]);
        let text = serde_json::to_string(&written).unwrap();
        let with = |text: String| move || Some(text.clone());
        Heartbeat::new(client.clone(), "n1")
            .with_annotation(HealthRecord::ANNOTATION, with(text))
            .renew(None)
            .await
            .unwrap();
        // An older agent, and an annotation that is no record.
        Heartbeat::new(client.clone(), "n2").renew(None).await.unwrap();
        let other = with("[]".to_owned());
        Heartbeat::new(client.clone(), "n3")
            .with_annotation(HealthRecord::ANNOTATION, other)
            .renew(None)
            .await
            .unwrap();
        assert_eq!(HealthRecord::of_leases(&client).await.unwrap(), [written]);
    }

    #[test]
    fn a_node_that_is_not_ready_says_why_and_control_characters_are_escaped() {
        let reasons = vec!["store: \u{1b}[2J".to_owned()];
        let status = cluster(&["a"], vec![HealthRecord { ready: false, reasons, ..record("a", 1, &[]) }]);
        let page = text(&status, false);
        assert!(page.contains("! a is not ready: store: ") && !page.contains('\u{1b}'), "{page:?}");
    }
}
