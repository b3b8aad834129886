//! The way to addresses that are not on this node.

use std::net::IpAddr;

use russet_addr::{Family, NodeName};
use russet_agent::IpamMode;
use russet_agent::controllers::tunnel_faults;
use russet_agent::peers::PeerState;
use russet_netlink::{NetlinkError, RouteKind, RouteLookup};
use russet_overlay::{Hop, Node, Subject, device_name};

use super::super::path::longest;
use super::super::reachable::{self, Answer};
use super::super::report::Report;
use super::{End, ThisNode, host_network};
use crate::command::Failure;
use crate::command::policy::datastore::Datastore;
use crate::command::status::peer_problem;

// === impl ThisNode ===

impl ThisNode {
    /// The way to an address that is not on this node.
    pub(super) fn towards(
        &mut self,
        data: &Datastore,
        end: &End<'_>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let found = self.socket.route_to(end.address);
        let in_pool = self.desired.masquerade.pools.iter().any(|pool| pool.contains(&end.address));
        let routes = self.desired.routes.iter().map(|(net, hop)| (*net, *hop));
        match longest(routes, end.address) {
            _ if self.config.ipam == IpamMode::Node => {
                report.fact(format!("{} goes {}", end.address, self.shown(found.as_ref())));
            }
            Some((_, Hop::Blackhole)) => {
                report.fact(format!(
                    "{} is of a block of this node, and no pod's: its packets are dropped",
                    end.address
                ));
            }
            Some((net, hop)) => {
                let behind = || self.node_behind(hop).map(ToString::to_string);
                let node =
                    end.node.map(str::to_owned).or_else(behind).unwrap_or_else(|| "unknown".to_owned());
                let want = self.next_hop(hop);
                let is_good = found.as_ref().is_ok_and(|route| {
                    route.kind == RouteKind::Unicast && (route.oif, route.gateway) == want
                });
                if !is_good {
                    let found = self.shown(found.as_ref());
                    report.finding("route", format!("the route to {net} of node {node} is missing or another ({hop} is wanted): {found}"));
                }
                self.other_node(data, (end, hop), &node, report)?;
            }
            None if in_pool => {
                let refused = self.refusal(end);
                let why = refused.unwrap_or_else(|| "no node has claimed its block".to_owned());
                report.finding("route", format!("there is no route to {} wanted: {why}", end.address));
            }
            None => self.outside(end, found.as_ref(), report),
        }
        Ok(())
    }

    fn outside(&mut self, end: &End<'_>, found: Result<&RouteLookup, &NetlinkError>, report: &mut Report) {
        let shown = self.shown(found);
        match found {
            Ok(RouteLookup { kind: RouteKind::Unicast | RouteKind::Local, .. }) => {
                report.fact(format!("{} goes {shown}", end.address));
            }
            _ => report.finding("route", format!("this node has no route to {}: {shown}", end.address)),
        }
        host_network(end, report);
        if let Some(node) = end.node
            && let Answer::Away(error) = reachable::ask(&mut self.socket, end.address)
        {
            report.finding("node", format!("node {node} ({}) does not answer: {error}", end.address));
        }
    }

    /// Link and gateway of a wanted route.
    fn next_hop(&self, hop: Hop) -> (Option<u32>, Option<IpAddr>) {
        let device = |family| self.observed.devices.get(&family).map(|device| device.ifindex);
        match hop {
            Hop::Tunnel(gateway) => (device(Family::of(gateway)), Some(gateway)),
            Hop::Connected => (device(Family::V4), None),
            Hop::Underlay { ifindex, gateway } => (Some(ifindex), Some(gateway)),
            Hop::Link(ifindex) => (Some(ifindex), None),
            Hop::Blackhole => (None, None),
        }
    }

    /// The address by which the node behind a hop is reached.
    fn outer(&self, hop: Hop) -> Option<IpAddr> {
        match hop {
            Hop::Tunnel(gateway) => {
                let mac = self.desired.neighbours.get(&gateway)?;
                self.desired.fdb.get(&(Family::of(gateway), *mac)).copied()
            }
            Hop::Underlay { gateway, .. } => Some(gateway),
            _ => None,
        }
    }

    fn node_behind(&self, hop: Hop) -> Option<&NodeName> {
        let outer = self.outer(hop)?;
        let mut nodes = self.inputs.nodes.iter();
        let has = |node: &Node| {
            [node.v4.underlay, node.v6.underlay].iter().flatten().any(|net| net.addr() == outer)
        };
        nodes.find(|(_, node)| has(node)).map(|(name, _)| name)
    }

    /// The tunnel or link to the node of a pod, and whether the node answers.
    fn other_node(
        &mut self,
        data: &Datastore,
        (end, hop): (&End<'_>, Hop),
        node: &str,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let outer = self.outer(hop);
        match (hop, outer) {
            (Hop::Tunnel(gateway), Some(outer)) => self.tunnel(gateway, (node, outer), report),
            (Hop::Underlay { gateway, .. }, _) => report
                .fact(format!("{} is on node {node}, reached by {gateway} without a tunnel", end.address)),
            _ => {}
        }
        if matches!(hop, Hop::Tunnel(_)) {
            for line in tunnel_faults(&self.inputs)? {
                let kind = if line.contains(" drops packets ") { "firewall" } else { "link" };
                report.finding(kind, line);
            }
        }
        if let Some(reason) = data.not_ready.get(node) {
            report.finding("node", format!("the API server says that node {node} is not ready: {reason}"));
        }
        self.probed(Family::of(end.address), node, report);
        let Some(outer) = outer else { return Ok(()) };
        match reachable::ask(&mut self.socket, outer) {
            Answer::Present => {}
            Answer::Away(error) => {
                report.finding("node", format!("node {node} ({outer}) does not answer: {error}"));
            }
            Answer::Silent => report.note("node", format!("node {node} ({outer}) does not refuse a datagram to a closed port: it is away, or filters")),
        }
        Ok(())
    }

    /// What the agent's probes say of a node. A reason that was found here already is not repeated.
    fn probed(&self, of: Family, node: &str, report: &mut Report) {
        let ip_version = match of {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        for peer in self.peers.iter().filter(|it| it.node == node && it.ip_version == ip_version) {
            let Some(problem) = peer_problem(peer) else { continue };
            if !report.findings.iter().any(|it| problem.what.ends_with(&it.text)) {
                let kind = if peer.state == PeerState::SmallPacketsOnly { "mtu" } else { "peer" };
                report.finding(kind, problem.what);
            }
        }
    }

    /// The tunnel's device and its entries for a node.
    fn tunnel(&self, gateway: IpAddr, (node, outer): (&str, IpAddr), report: &mut Report) {
        let (of, desired) = (Family::of(gateway), &self.desired);
        let (Some(wanted), Some(mac)) = (desired.devices.get(&of), desired.neighbours.get(&gateway).copied())
        else {
            return;
        };
        let name = device_name(of);
        let Some(device) = self.observed.devices.get(&of) else {
            report.finding("tunnel", format!("the tunnel device {name} does not exist"));
            return;
        };
        report.fact(format!(
            "node {node} ({outer}) is reached through {name} (MTU {}, UDP port {})",
            device.mtu, wanted.port
        ));
        if !device.up {
            report.finding("tunnel", format!("the tunnel device {name} is down"));
        }
        if device.mtu != wanted.mtu {
            report.finding("mtu", format!("{name} has MTU {} and should have {}", device.mtu, wanted.mtu));
        }
        if self.observed.neighbours.get(&gateway).is_none_or(|it| it.mac != Some(mac)) {
            report.finding(
                "tunnel",
                format!("the neighbour {gateway} of {name}, which is node {node}, is missing or another"),
            );
        }
        let entries = self.observed.fdb.get(&(of, mac));
        if !entries.is_some_and(|all| all.iter().any(|entry| entry.dst == Some(outer))) {
            report.finding(
                "tunnel",
                format!(
                    "the forwarding entry of {name} for node {node} ({mac} to {outer}) is missing or another"
                ),
            );
        }
    }

    /// Why there is no route to an address that a node should have.
    fn refusal(&self, end: &End<'_>) -> Option<String> {
        let concerns = |subject: &Subject| match subject {
            Subject::Pool(net) | Subject::Block(net) => net.contains(&end.address),
            Subject::Borrowed(address) => *address == end.address,
            _ => false,
        };
        self.desired.refusals.iter().find(|it| concerns(&it.subject)).map(ToString::to_string)
    }

    /// Whether packets that leave the pools get the node's address.
    pub(super) fn masquerade(&mut self, source: IpAddr, destination: IpAddr, report: &mut Report) {
        let has = |nets: &[russet_addr::IpNet], address: IpAddr| {
            nets.iter().find(|net| net.contains(&address)).copied()
        };
        let Some(pool) = has(&self.desired.masquerade.nat, source) else { return };
        if has(&self.desired.masquerade.pools, destination).is_some() {
            return;
        }
        let by = self.socket.route_to(destination).ok().and_then(|route| route.source);
        let by = by.map_or_else(|| "an address of this node".to_owned(), |address| address.to_string());
        report.note("masquerade", format!("the source is translated: {destination} sees {by} and not {source}, because pool {pool} has natOutgoing and {destination} is in no pool"));
    }
}
