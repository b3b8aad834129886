//! What this node's kernel does with packets between two addresses, compared with what the node's
//! agent would make.

mod away;
mod compare;
mod pod;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use russet_addr::NodeName;
use russet_agent::peers::PeerReport;
use russet_agent::status::{AgentStatus, STATUS_PATH};
use russet_agent::{Config, OverlayInputsError, Paths, overlay_inputs};
use russet_journal::Attachment;
use russet_netlink::{Link, NetlinkError, RouteKind, RouteLookup, Socket};
use russet_overlay::{Desired, Inputs, Observed, desired, observe};
use russet_verdict::snapshot::Snapshot;
use serde_json::json;

use super::egress;
use super::path::node_at;
use super::report::Report;
use crate::command::Failure;
use crate::command::ask::{AskError, ask};
use crate::command::place::Place;
use crate::command::policy::datastore::{Datastore, pod_name};
use crate::settings::recorded;

/// This node, as its last agent was configured, and its kernel.
pub struct ThisNode {
    config: Config,
    inputs: Inputs,
    pod_mtu_bytes: u32,
    desired: Desired,
    observed: Observed,
    links: BTreeMap<u32, Link>,
    /// The node's own addresses.
    own: BTreeSet<IpAddr>,
    attachments: Vec<Attachment>,
    /// What the agent's probes say of other nodes; empty without an agent.
    peers: Vec<PeerReport>,
    socket: Socket,
}

/// One end of a flow, as the policies' view knows it.
struct End<'a> {
    address: IpAddr,
    name: String,
    /// The node of the pod, or the node itself.
    node: Option<&'a str>,
    is_pod: bool,
}

/// The agent answers from memory.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

// === impl ThisNode ===

impl ThisNode {
    /// None on a machine on which no agent has run, or without the interface to the other nodes.
    pub async fn read(
        place: &Place,
        node: Option<&NodeName>,
        report: &mut Report,
    ) -> Result<Option<Self>, Failure> {
        let Some(known) = recorded::look(&place.paths).known else {
            let name = node.map_or("this machine", NodeName::as_str);
            report.note(
                "node",
                format!(
                    "no agent has run on {name}: routes, interfaces and the kernel's decisions are not known"
                ),
            );
            return Ok(None);
        };
        let config = known.config(place.paths.clone())?;
        let (inputs, pod_mtu_bytes) = match overlay_inputs(&config, &*place.store).await {
            Err(OverlayInputsError::Underlay(error)) => {
                report.finding("link", error.to_string());
                return Ok(None);
            }
            inputs => inputs?,
        };
        let desired = desired(&inputs);
        let mut socket = Socket::route()?;
        let observed = observe(&mut socket, &desired)?;
        let links = socket.links()?.into_iter().map(|link| (link.index, link)).collect();
        let own = socket.addresses()?.into_iter().map(|address| address.net.addr()).collect();
        let journal = russet_journal::view(&place.paths.journal_file())?;
        let attachments = journal.map(|view| view.attachments).unwrap_or_default();
        let peers = probed(&place.paths, report);
        Ok(Some(Self {
            config,
            inputs,
            pod_mtu_bytes,
            desired,
            observed,
            links,
            own,
            attachments,
            peers,
            socket,
        }))
    }

    /// Follows the way between two addresses as far as this node knows it.
    pub fn path(
        &mut self,
        data: &Datastore,
        (source, destination): (IpAddr, IpAddr),
        report: &mut Report,
    ) -> Result<(), Failure> {
        let ends = [source, destination].map(|address| self.end(&data.cluster.snapshot, address));
        let own = self.config.node_name.as_str().to_owned();
        let is_here = |end: &End<'_>| end.node == Some(own.as_str()) || self.own.contains(&end.address);
        let here = ends.iter().map(is_here).collect::<Vec<_>>();
        if !here.contains(&true) {
            report.note("node", format!("neither end is on this node ({own}): ask there, too"));
            return Ok(());
        }
        for (end, here) in ends.iter().zip(&here) {
            match here {
                true if egress::is_pod(data, end.address) => {}
                true if end.is_pod => self.local_pod(end, report)?,
                true => {
                    report.fact(format!("{} is this node", end.address));
                    host_network(end, report);
                }
                false => self.towards(data, end, report)?,
            }
        }
        if let [true, false] = here[..] {
            self.masquerade(source, destination, report);
        }
        let away = ends.iter().zip(&here).filter(|(end, here)| !**here && end.is_pod);
        for (end, _) in away {
            let node = end.node.unwrap_or_default();
            report.note(
                "node",
                format!("what the kernel of node {node} holds is not known here: ask there, too"),
            );
        }
        Ok(())
    }

    fn end<'a>(&self, snapshot: &'a Snapshot, address: IpAddr) -> End<'a> {
        match snapshot.workload_at(address) {
            Some((_, endpoint)) => {
                End { address, name: pod_name(endpoint), node: Some(&endpoint.node), is_pod: true }
            }
            None => {
                End { address, name: address.to_string(), node: node_at(snapshot, address), is_pod: false }
            }
        }
    }

    /// What a route lookup says, as a clause.
    fn shown(&self, found: Result<&RouteLookup, &NetlinkError>) -> String {
        let route = match found {
            Ok(route) => route,
            Err(error) => return format!("the kernel has no route ({error})"),
        };
        let link = route.oif.and_then(|index| self.links.get(&index));
        let on = link.map(|link| format!(" on {}", link.name)).unwrap_or_default();
        match (route.kind, route.gateway) {
            (RouteKind::Unicast, Some(gateway)) => format!("via {gateway}{on}"),
            (RouteKind::Unicast, None) => format!("directly{on}"),
            (kind, _) => format!("into a route of kind {kind:?}").to_lowercase(),
        }
    }
}

/// What the agent's probes say of other nodes.
fn probed(paths: &Paths, report: &mut Report) -> Vec<PeerReport> {
    let question = (STATUS_PATH, AgentStatus::SCHEMA);
    match ask::<AgentStatus>(&paths.cni_socket(), question, &json!({}), STATUS_TIMEOUT) {
        Ok(status) => return status.peers.peers,
        Err(AskError::NoAgent(_)) => report.note(
            "agent",
            "no agent runs on this node: nothing restores what differs, and no probe says whether packets arrive at other nodes".to_owned(),
        ),
        Err(error) => report.note("agent", error.to_string()),
    }
    Vec::new()
}

/// The address of a node is also that of pods, which only the Kubernetes API knows by their names.
fn host_network(end: &End<'_>, report: &mut Report) {
    let Some(node) = end.node.filter(|_| report.notes.iter().all(|it| it.kind != "host-network")) else {
        return;
    };
    report.note(
        "host-network",
        format!(
            "{} is node {node}, and each pod that uses its network: no policy selects such a pod, and rules see the node's address",
            end.address
        ),
    );
}
