//! The page's content, from what the agent has in memory.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use russet_addr::{Family, IpNet, host_net};
use russet_journal::{Endpoint, EndpointTable};
use russet_model::time::rfc3339;
use russet_view::map::{Facts, Map, NodeFacts, NodeState, counted};
use russet_view::page::{FlowRow, NodePage, PeerRow, PodRow, RepairRow};

use super::cluster::ClusterView;
use crate::controllers::Controllers;
use crate::drift::Repair;
use crate::flows::{FlowLog, FlowRecord, FlowsRequest};
use crate::operations::RecentOperations;
use crate::peers::{PeerReport, PeerState, Targets};
use crate::status::{AgentStatus, StatusSource};

/// What the page is made of. Clones share it.
#[derive(Clone)]
pub struct Sources {
    pub status: StatusSource,
    pub controllers: Controllers,
    pub endpoints: EndpointTable,
    /// None where the agent enforces no policies.
    pub flows: Option<FlowLog>,
    pub operations: RecentOperations,
    pub cluster: ClusterView,
}

/// Nodes on the map; a picture of more takes long to draw and is too small to read.
const NODES_MAX: usize = 200;
const PODS_MAX: usize = 150;
const FLOWS_MAX: usize = 50;
const REPAIRS_MAX: usize = 20;

// === impl Sources ===

impl Sources {
    /// The page now. Reads nothing but memory.
    pub fn gather(&self) -> NodePage {
        let status = self.status.in_memory();
        let (map, map_note) = self.map(&status);
        let endpoints = self.endpoints.attached();
        let (flows, flows_note) = self.flows();
        let (repairs_total, repairs) = self.controllers.recent_repairs(REPAIRS_MAX);
        let peers_note = match &status.peers.not_probed {
            Some(reason) => Some(format!("Other nodes are not probed: {reason}")),
            None => Some(format!(
                "{}; at most {} are probed at a time.",
                counted(status.peers.known, "other node"),
                status.peers.at_a_time
            )),
        };
        NodePage {
            schema: NodePage::SCHEMA,
            node: status.node.clone(),
            version: status.version.clone(),
            at: rfc3339(SystemTime::now()),
            uptime_s: status.uptime_s,
            datastore: status.store.clone(),
            latency_us: status.datastore.latency_us,
            problems: problems(&status),
            map,
            map_note,
            peers: status.peers.peers.iter().map(peer).collect(),
            peers_note,
            pods_total: endpoints.len(),
            pods: endpoints.iter().take(PODS_MAX).map(pod).collect(),
            flows,
            flows_note,
            operations: self.operations.rows(),
            repairs: repairs.iter().map(repair).collect(),
            repairs_total,
        }
    }

    fn map(&self, status: &AgentStatus) -> (Map, Option<String>) {
        let known = self.cluster.get();
        let Facts { nodes, pools, blocks } = known.facts.clone();
        let (nodes, left_out) = nodes_of(nodes, own(status), &self.controllers.peer_targets());
        let left_out =
            (left_out > 0).then(|| format!("{left_out} nodes are left out; `russet map` shows all."));
        let notes: Vec<String> = left_out.into_iter().chain(known.note.clone()).collect();
        (Map::new(Facts { nodes, pools, blocks }), (!notes.is_empty()).then(|| notes.join(" ")))
    }

    fn flows(&self) -> (Vec<FlowRow>, Option<String>) {
        let Some(flows) = &self.flows else {
            return (Vec::new(), Some("This agent enforces no policies.".to_owned()));
        };
        let report = flows.report(&FlowsRequest { limit: FLOWS_MAX, ..FlowsRequest::default() });
        let note = match report.unread {
            Some(reason) => format!("Flows are not seen: {reason}"),
            None => "Connections that pass are recorded only while `russet flows -f` runs.".to_owned(),
        };
        (report.flows.iter().rev().map(flow).collect(), Some(note))
    }
}

/// This node, as it is now.
fn own(status: &AgentStatus) -> NodeFacts {
    let of = |state: PeerState| {
        let peers = status.peers.peers.iter().filter(|peer| peer.state == state);
        peers.map(|peer| peer.node.clone()).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let reasons: Vec<String> = status.unmet().map(|(name, reason)| format!("{name}: {reason}")).collect();
    NodeFacts {
        name: status.node.clone(),
        state: if reasons.is_empty() { NodeState::Ready } else { NodeState::NotReady },
        addresses: Vec::new(),
        pods: Some(status.endpoints),
        version: Some(status.version.clone()),
        age_s: Some(0),
        reasons,
        unreachable: of(PeerState::Unreachable),
        small_packets_only: of(PeerState::SmallPacketsOnly),
    }
}

/// The nodes of the map, and how many are left out: this node, what its records say of the others, and the others that only this node's overlay
/// knows. Those with problems are kept first.
fn nodes_of(mut nodes: Vec<NodeFacts>, own: NodeFacts, targets: &Targets) -> (Vec<NodeFacts>, usize) {
    nodes.retain(|node| node.name != own.name);
    let names: BTreeSet<String> = nodes.iter().map(|node| node.name.clone()).collect();
    for peer in targets.peers.iter().filter(|peer| !names.contains(peer.name.as_str())) {
        nodes.push(NodeFacts { name: peer.name.to_string(), ..NodeFacts::default() });
    }
    for node in &mut nodes {
        let Ok(found) = targets.peers.binary_search_by(|peer| peer.name.as_str().cmp(&node.name)) else {
            continue;
        };
        let peer = targets.peers.get(found);
        let addresses = |family| peer.and_then(|peer| peer.target(family)).and_then(|target| target.underlay);
        node.addresses = Family::BOTH.into_iter().filter_map(addresses).map(host_net).collect::<Vec<IpNet>>();
    }
    let is_named = |node: &NodeFacts| {
        own.unreachable.contains(&node.name) || own.small_packets_only.contains(&node.name)
    };
    let is_good = |node: &NodeFacts| {
        let reaches_all = node.unreachable.is_empty() && node.small_packets_only.is_empty();
        reaches_all && !is_named(node) && matches!(node.state, NodeState::Ready | NodeState::NoRecord)
    };
    nodes.sort_by_cached_key(|node| (is_good(node), node.name.clone()));
    let left_out = (nodes.len() + 1).saturating_sub(NODES_MAX);
    nodes.truncate(NODES_MAX - 1);
    nodes.push(own);
    (nodes, left_out)
}

fn problems(status: &AgentStatus) -> Vec<String> {
    let unmet = status.unmet().map(|(name, reason)| format!("not ready: {name}: {reason}"));
    let is_bad =
        |peer: &&PeerReport| matches!(peer.state, PeerState::Unreachable | PeerState::SmallPacketsOnly);
    let peers = status.peers.peers.iter().filter(is_bad).map(|peer| {
        let reason = peer.reason.as_deref().unwrap_or("the reason is not known yet");
        format!("node {} (IPv{}): {}: {reason}", peer.node, peer.ip_version, peer.state.as_str())
    });
    unmet.chain(peers).chain(status.remarks.iter().cloned()).collect()
}

fn peer(peer: &PeerReport) -> PeerRow {
    PeerRow {
        node: peer.node.clone(),
        ip_version: peer.ip_version,
        state: peer.state.as_str().into(),
        path: peer.path.as_str().into(),
        probed: peer.probed.clone(),
        rtt_us: peer.rtt_us,
        lost: peer.lost,
        lost_of: peer.lost_of,
        reason: peer.reason.clone(),
    }
}

fn pod(endpoint: &Endpoint) -> PodRow {
    let id = &endpoint.subject.id;
    let addresses = endpoint.wired.as_ref().map(|wired| wired.addresses()).unwrap_or_default();
    PodRow {
        name: endpoint.pod.clone().unwrap_or_else(|| id.container.to_string()),
        interface: id.ifname.to_string(),
        network: id.network.to_string(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        since: rfc3339(SystemTime::UNIX_EPOCH + Duration::from_millis(endpoint.since_ms)),
    }
}

fn flow(flow: &FlowRecord) -> FlowRow {
    let decision = &flow.decision;
    FlowRow {
        last: flow.last.clone(),
        verdict: flow.verdict.clone(),
        direction: decision.direction.clone(),
        from: decision.source.name.clone(),
        to: decision.destination.name.clone(),
        what: decision.what(),
        packets: flow.packets,
        policies: decision.policies.iter().map(ToString::to_string).collect(),
        reason: decision.reason.clone(),
    }
}

fn repair(repair: &Repair) -> RepairRow {
    RepairRow {
        at: repair.at.clone(),
        what: repair.what.clone(),
        more: repair.more,
        by: repair.who.iter().map(ToString::to_string).collect(),
        ms: repair.ms,
        errors: repair.errors.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: String, unreachable: &[&str]) -> NodeFacts {
        let unreachable = unreachable.iter().map(ToString::to_string).collect();
        NodeFacts { name, state: NodeState::Ready, unreachable, ..NodeFacts::default() }
    }

    #[test]
    fn of_a_large_cluster_this_node_and_those_with_problems_are_on_the_map() {
        let mut nodes: Vec<NodeFacts> = (0..5000).map(|n| node(format!("n{n:04}"), &[])).collect();
        nodes[4998].unreachable = vec!["n0001".to_owned()];
        nodes[4997].state = NodeState::NoSign;
        let own = node("n4999".to_owned(), &["n4996"]);
        let (nodes, left_out) = nodes_of(nodes, own, &Targets::default());
        assert_eq!((nodes.len(), left_out), (NODES_MAX, 5000 - NODES_MAX));
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names[..4], ["n4996", "n4997", "n4998", "n0000"]);
        assert_eq!(names.last(), Some(&"n4999"));
        let (few, left_out) =
            nodes_of(vec![node("a".to_owned(), &[])], node("b".to_owned(), &[]), &Targets::default());
        assert_eq!((few.len(), left_out), (2, 0));
    }
}
