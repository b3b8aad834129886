//! What the agents of both ends' nodes say of each other: the record of each in the datastore has what its probes found when it was
//! written, and what its tunnels had counted. A record is up to a few minutes old, so it is a note and no finding.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use russet_agent::{HealthRecord, Loss};
use russet_verdict::snapshot::Snapshot;
use russet_view::map::NodeState;

use super::path::node_at;
use super::report::Report;
use crate::command::place::Place;
use crate::command::status::cluster;
use crate::output::age;

/// The kind of the notes.
const RECORD: &str = "record";

/// Reports what the agents of each pair of nodes have recorded. What cannot be read is a note: the datastore may not allow it.
pub async fn compare(
    place: &Place,
    snapshot: &Snapshot,
    pairs: impl IntoIterator<Item = (IpAddr, IpAddr)>,
    report: &mut Report,
) {
    let node = |address| match snapshot.workload_at(address) {
        Some((_, endpoint)) => Some(endpoint.node.to_string()),
        None => node_at(snapshot, address).map(str::to_owned),
    };
    let pairs: BTreeSet<[String; 2]> = pairs
        .into_iter()
        .filter_map(|(source, destination)| Some([node(source)?, node(destination)?]))
        .filter(|[source, destination]| source != destination)
        .collect();
    let mut records = BTreeMap::new();
    for name in pairs.iter().flatten() {
        if records.contains_key(name) {
            continue;
        }
        match cluster::record_of(place, name).await {
            Ok(record) => _ = records.insert(name.clone(), record),
            Err(error) => {
                report.note(RECORD, format!("the record of node {name}'s agent cannot be read: {error}"));
                return;
            }
        }
    }
    for names in &pairs {
        let of = |name: &String| records.get(name).and_then(Option::as_ref);
        recorded(names.each_ref().map(String::as_str), names.each_ref().map(of), SystemTime::now(), report);
    }
}

/// What the records of two nodes say, from the source's on.
fn recorded(names: [&str; 2], records: [Option<&HealthRecord>; 2], now: SystemTime, report: &mut Report) {
    let mut counters = Vec::new();
    for (at, (name, record)) in names.into_iter().zip(records).enumerate() {
        let Some(record) = record else {
            report.note(
                RECORD,
                format!("node {name} has no record of an agent: what its probes find is not known"),
            );
            continue;
        };
        let since = record
            .age_s(now)
            .map_or_else(|| "an unknown time".to_owned(), |age_s| age(Duration::from_secs(age_s)));
        let mut said = Vec::new();
        match record.state(now) {
            NodeState::NoSign | NodeState::NoRecord => {
                report.note(RECORD, format!("the agent of node {name} has given no sign since {since}: it does not run, or does not reach the datastore"));
                continue;
            }
            NodeState::NotReady => said.push(format!("it is not ready ({})", record.reasons.join("; "))),
            NodeState::Ready => {}
        }
        let other = names[1 - at];
        if record.unreachable.iter().any(|it| it == other) {
            said.push(format!("its probes do not reach node {other}"));
        }
        if record.small_packets_only.iter().any(|it| it == other) {
            said.push(format!("only its small probes reach node {other}"));
        }
        if !said.is_empty() {
            report.note(RECORD, format!("node {name} said {since} ago: {}", said.join("; ")));
        }
        counters.extend(counted(name, record).map(|text| format!("{text} ({since} ago)")));
    }
    if let [Some(source), Some(destination)] = records {
        lost(source, destination, now, report);
        lost(destination, source, now, report);
    }
    if !counters.is_empty() {
        report.fact(format!("packets in tunnels since they were made: {}", counters.join("; ")));
    }
}

/// Where packets from one node to the other are lost, as the counters of both say.
fn lost(from: &HealthRecord, to: &HealthRecord, now: SystemTime, report: &mut Report) {
    if let Some(Loss { what, next, .. }) = Loss::between(from, to, now) {
        report.note(RECORD, format!("node {} does not reach node {}: {what}: {next}", from.node, to.node));
    }
}

fn counted(name: &str, record: &HealthRecord) -> Option<String> {
    let devices = record.tunnels.iter();
    let texts: Vec<String> = devices
        .map(|(device, traffic)| format!("{device} {} sent, {} received", traffic.sent, traffic.received))
        .collect();
    (!texts.is_empty()).then(|| format!("node {name} {}", texts.join(", ")))
}

#[cfg(test)]
mod tests {
    use russet_agent::CountedNode;
    use russet_agent::peers::Encapsulated;
    use russet_model::time;

    use super::*;

    const NOW_S: u64 = 1_000_000;

    fn record(node: &str, written_s_ago: u64) -> HealthRecord {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW_S - written_s_ago);
        HealthRecord {
            schema: HealthRecord::SCHEMA,
            node: node.to_owned(),
            at: time::rfc3339(at),
            every_s: 60,
            ready: true,
            ..HealthRecord::default()
        }
    }

    fn of_records(a: Option<&HealthRecord>, b: Option<&HealthRecord>) -> Report {
        let mut report = Report::default();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW_S);
        recorded(["a", "b"], [a, b], now, &mut report);
        report
    }

    fn notes(report: &Report) -> Vec<&str> {
        report.notes.iter().map(|it| it.text.as_str()).collect()
    }

    #[test]
    fn the_counters_of_both_tunnels_are_shown_together() {
        let (mut a, mut b) = (record("a", 12), record("b", 0));
        a.tunnels = serde_json::from_str(r#"{"vxlan.calico": {"sent": 7, "received": 5}}"#).unwrap();
        b.tunnels = serde_json::from_str(r#"{"vxlan.calico": {"sent": 5, "received": 0}}"#).unwrap();
        let report = of_records(Some(&a), Some(&b));
        let line = "packets in tunnels since they were made: node a vxlan.calico 7 sent, 5 received (12s ago); \
                    node b vxlan.calico 5 sent, 0 received (0s ago)";
        assert_eq!(report.path, [line]);
        assert!(report.findings.is_empty() && report.notes.is_empty(), "{report}");
    }

    #[test]
    fn a_record_that_names_the_other_node_is_a_note_with_its_age() {
        let healthy = record("a", 0);
        let mut other = record("b", 40);
        other.unreachable = vec!["c".to_owned()];
        assert_eq!(notes(&of_records(Some(&healthy), Some(&other))), [""; 0], "c is neither of them");
        other.unreachable = vec!["a".to_owned()];
        let report = of_records(Some(&healthy), Some(&other));
        assert_eq!(notes(&report), ["node b said 40s ago: its probes do not reach node a"]);
        assert!(report.findings.is_empty(), "it may be over: {report}");
        (other.ready, other.reasons) = (false, vec!["store: it does not answer".to_owned()]);
        let said = "node b said 40s ago: it is not ready (store: it does not answer); its probes do not reach node a";
        assert_eq!(notes(&of_records(Some(&healthy), Some(&other))), [said]);
    }

    #[test]
    fn counters_of_both_nodes_say_on_which_side_packets_are_lost() {
        let with = |node: &str, other: &str, [sent, received, decapsulated]: [u64; 3]| {
            let packets = Encapsulated { sent, received, decapsulated, for_s: 30 };
            let encapsulated = vec![CountedNode { at: 0, ip_version: 4, packets }];
            HealthRecord { unreachable: vec![other.to_owned()], encapsulated, ..record(node, 3) }
        };
        let (a, b) = (with("a", "b", [12, 6, 6]), with("b", "a", [6, 11, 0]));
        let report = of_records(Some(&a), Some(&b));
        let said = notes(&report);
        let lost = "note: record: node a does not reach node b: a has sent 12 encapsulated packets in 30s; 11 arrived at b in 30s, and none came \
                    out of its tunnel: b drops them and does not answer: on b: russet status";
        assert!(report.to_string().contains(lost), "{report}");
        assert!(said[3].starts_with("node b does not reach node a: a receives b's packets"), "{said:?}");
        let late = record("b", 3600);
        assert!(notes(&of_records(Some(&a), Some(&late))).iter().all(|it| !it.contains("encapsulated")));
    }

    #[test]
    fn a_record_that_is_too_old_says_nothing_about_others() {
        let mut late = record("a", 3600);
        late.unreachable = vec!["b".to_owned()];
        let report = of_records(Some(&late), None);
        let [no_sign, no_record] = notes(&report)[..] else { panic!("{report}") };
        assert!(no_sign.contains("no sign since 1h"), "{no_sign}");
        assert!(no_record.contains("node b has no record"), "{no_record}");
    }
}
