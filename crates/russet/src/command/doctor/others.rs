//! What the records of other nodes' agents say beside this node's: versions and clocks.

use std::collections::BTreeMap;
use std::time::SystemTime;

use russet_addr::NodeName;
use russet_model::time;

use super::clock::{self, Ahead, SYNCHRONIZE, Stamp};
use crate::command::Failure;
use crate::command::findings::{FindingKind, Findings};
use crate::command::place::Place;
use crate::command::status::cluster::{self, Written};

/// The records of agents.
#[derive(Debug, Default)]
struct Agents {
    own: Option<Written>,
    others: Vec<Written>,
}

/// What a finding lists of many.
const SHOWN: usize = 3;
/// Versions are shorter; the record may be of any client of the store.
const VERSION_MAX_CHARS: usize = 40;

/// Reads the records, and compares them.
pub async fn look(place: &Place, own: Option<&NodeName>, report: &mut Findings) {
    let read = Agents::read(place, own.map(NodeName::as_str)).await;
    let now = SystemTime::now();
    let api_server = place.kubernetes();
    match &read {
        Ok(agents) => {
            agents.versions(now, report);
            if api_server.is_none() {
                agents.clocks(now, report);
            }
        }
        Err(error) => report.unknown.push(format!("versions of other nodes' agents: {error}")),
    }
    if let Some(client) = api_server {
        clock::look_at_api_server(&client, report).await;
    }
}

// === impl Agents ===

impl Agents {
    async fn read(place: &Place, own: Option<&str>) -> Result<Self, Failure> {
        let names = cluster::names_of_nodes(place).await?;
        let mut agents = Self::default();
        for written in cluster::records(place).await? {
            let node = written.record.node.as_str();
            match own == Some(node) {
                true => agents.own = Some(written),
                // That of a node that is gone says nothing of the cluster.
                false if names.contains(node) => agents.others.push(written),
                false => {}
            }
        }
        Ok(agents)
    }

    /// Agents that write and have another version than this node's.
    fn versions(&self, now: SystemTime, report: &mut Findings) {
        let writes = |it: &&Written| it.record.age_s(now).is_some_and(|age_s| !it.record.is_late(age_s));
        let command = env!("CARGO_PKG_VERSION");
        let own = self.own.as_ref().filter(writes).map_or(command, |own| own.record.version.as_str());
        let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let others: Vec<&Written> = self.others.iter().filter(writes).collect();
        for Written { record, .. } in others.iter().filter(|it| it.record.version != own) {
            by_version.entry(&record.version).or_default().push(&record.node);
        }
        let count: usize = by_version.values().map(Vec::len).sum();
        if count == 0 {
            return;
        }
        let mut groups: Vec<(&str, Vec<&str>)> = by_version.into_iter().collect();
        // The versions of most nodes first.
        groups.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
        let texts: Vec<String> = groups
            .iter()
            .map(|(version, nodes)| {
                let version: String = version.chars().take(VERSION_MAX_CHARS).collect();
                format!("{version} on {} ({})", nodes.len(), shown(nodes, ", "))
            })
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        report.found(
            FindingKind::MixedVersions,
            "agents' versions",
            format!("{count} of the {} other nodes' agents are not {own}, as this node's is: {}", others.len(), shown(&texts, "; ")),
            "complete the upgrade, or go back on the nodes that have it (docs/install.md, docs/kubernetes.md); only a release and the one after it are meant to work together",
        );
    }

    /// Clocks that are not this node's, by the times of records. Only where their writes have an order.
    fn clocks(&self, now: SystemTime, report: &mut Findings) {
        let stamp =
            |it: &Written| Some(Stamp { at: time::parse_rfc3339(&it.record.at)?, revision: it.revision? });
        let own = self.own.as_ref().and_then(stamp);
        let compared: Vec<(&str, Option<Ahead>)> = self
            .others
            .iter()
            .filter_map(|it| Some((it.record.node.as_str(), clock::of_records(own, stamp(it)?, now))))
            .collect();
        // Without records, such as those of Calico's own programs' nodes, there is nothing to compare with.
        if compared.is_empty() && !self.others.is_empty() {
            report.unknown.push("the clock: the records of other nodes' agents have no time".to_owned());
        }
        let far: Vec<(&str, Ahead)> =
            compared.iter().filter_map(|(name, ahead)| Some((*name, ahead.filter(Ahead::is_far)?))).collect();
        let texts: Vec<String> =
            far.iter().map(|(name, ahead)| format!("that of {name} is at least {ahead} it")).collect();
        if texts.is_empty() {
            return;
        }
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        report.found(
            FindingKind::Clock,
            "clock",
            format!("this node's is not the same as on {} of {} other nodes, by the records of their agents and the order in which the datastore got these: {}. The ages of addresses and records are wrong, and tokens and certificates may be refused",
                far.len(), compared.len(), shown(&texts, "; ")),
            SYNCHRONIZE,
        );
    }
}

/// The first of many.
fn shown(all: &[&str], between: &str) -> String {
    let some = all.iter().take(SHOWN).copied().collect::<Vec<_>>().join(between);
    match all.len().saturating_sub(SHOWN) {
        0 => some,
        more => format!("{some}{between}and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use russet_agent::HealthRecord;
    use russet_store::Revision;

    use super::*;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn written(node: &str, version: &str, s_ago: u64, revision: u64) -> Written {
        let record = HealthRecord {
            node: node.to_owned(),
            version: version.to_owned(),
            at: time::rfc3339(now() - Duration::from_secs(s_ago)),
            every_s: 60,
            ..HealthRecord::default()
        };
        Written { record, revision: Some(Revision(revision)) }
    }

    fn looked(agents: &Agents) -> Findings {
        let mut report = Findings::default();
        agents.versions(now(), &mut report);
        agents.clocks(now(), &mut report);
        report
    }

    #[test]
    fn agents_of_other_versions_are_grouped_and_the_text_is_short_for_any_number() {
        let mut agents = Agents { own: Some(written("a", "2.0.0", 1, 9)), ..Agents::default() };
        agents.others = vec![written("b", "2.0.0", 1, 9), written("gone", "1.0.0", 600, 1)];
        assert_eq!(looked(&agents).findings, [], "an agent that does not write has no version");
        agents.others.push(written("c", "1.9.0", 1, 9));
        let report = looked(&agents);
        assert_eq!(report.findings[0].kind, FindingKind::MixedVersions);
        assert_eq!(
            report.findings[0].problem,
            "1 of the 2 other nodes' agents are not 2.0.0, as this node's is: 1.9.0 on 1 (c)"
        );
        let many = |n: u32| written(&format!("n{n}"), &format!("1.{}.0{}", n % 50, "x".repeat(9000)), 1, 9);
        agents.others.extend((0..5000).map(many));
        let problem = looked(&agents).findings.remove(0).problem;
        assert!(problem.starts_with("5001 of the 5002 other nodes' agents "), "{problem}");
        assert!(problem.ends_with(" and 97 more); and 48 more") && problem.len() < 400, "{problem}");
    }

    #[test]
    fn an_agent_that_has_ended_leaves_the_version_of_the_command() {
        let own = Some(written("a", "0.0.1", 600, 1));
        let others = vec![written("b", env!("CARGO_PKG_VERSION"), 1, 9)];
        assert_eq!(looked(&Agents { own, others }).findings, []);
    }

    #[test]
    fn clocks_that_differ_are_named() {
        let own = Some(written("a", "1", 10, 7));
        let mut agents = Agents { own, ..Agents::default() };
        assert!(looked(&agents).unknown.is_empty(), "there is no other to differ from");
        agents.others = vec![written("b", "1", 5, 8), written("c", "1", 40, 6)];
        let report = looked(&agents);
        assert!(report.findings.is_empty() && report.unknown.is_empty(), "{report:?}");
        agents.others.extend([written("d", "1", 40, 9), written("e", "1", 14, 9)]);
        let report = looked(&agents);
        assert_eq!(report.findings[0].kind, FindingKind::Clock);
        let problem = &report.findings[0].problem;
        assert!(problem.contains("not the same as on 1 of 4 other nodes"), "e is within 5 s: {problem}");
        assert!(problem.contains(": that of d is at least 29 s behind it. "), "{problem}");
    }

    #[test]
    fn times_that_are_none_are_no_source() {
        let mut other = written("b", "1", 5, 8);
        other.record.at = "soon".to_owned();
        let agents = Agents { own: None, others: vec![other] };
        assert_eq!(looked(&agents).unknown.len(), 1);
    }
}
