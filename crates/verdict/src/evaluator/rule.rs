//! Whether a rule matches a flow, and if not, which members do not.

use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::Family;
use russet_model::Selector;

use crate::flow::Flow;
use crate::ir::{Entity, Icmp, Port, Protocol, Rule};
use crate::snapshot::Snapshot;
use crate::world::{Endpoint, EndpointKey, EndpointKind, NetworkSet};

/// The member of a rule that does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// The family.
    Family,
    /// The protocol.
    Protocol,
    /// The protocol that must not be.
    NotProtocol,
    /// The ICMP message.
    Icmp,
    /// The ICMP message that must not be.
    NotIcmp,
    /// A member of the source or the destination.
    Entity(Side, Part),
}

/// A side of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `source`, `from`.
    Source,
    /// `destination`, `to`.
    Destination,
}

/// A member of one side of a rule; [`Entity`] has their meanings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `nets`.
    Nets,
    /// `not_nets`.
    NotNets,
    /// `selector`, with `not_selector` if both are there.
    Selector,
    /// `not_selector` alone.
    NotSelector,
    /// `nodes`.
    Nodes,
    /// `service`.
    Service,
    /// `ports`.
    Ports,
    /// `not_ports`.
    NotPorts,
}

/// Whether a selector matches something.
type Matches<'a> = &'a dyn Fn(&Selector) -> bool;

/// A flow, and who has its addresses: that is looked for once, however many rules are asked.
#[derive(Debug)]
pub struct Asked<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) flow: Flow,
    pub(super) source: Owners<'a>,
    pub(super) destination: Owners<'a>,
}

/// Who has an address.
#[derive(Debug)]
pub(super) struct Owners<'a> {
    /// Of several workloads, the youngest; of equally old ones, the one with the greatest key.
    pub(super) workload: Option<(&'a EndpointKey, &'a Arc<Endpoint>)>,
    /// The host endpoints that are expected to have it.
    hosts: Vec<&'a Arc<Endpoint>>,
    sets: Vec<&'a Arc<NetworkSet>>,
}

/// One side of a flow.
struct End<'a> {
    snapshot: &'a Snapshot,
    entity: &'a Entity,
    side: Side,
    owners: &'a Owners<'a>,
    address: IpAddr,
    port: u16,
    protocol: Protocol,
}

/// The members of a rule that do not match a flow; none if the rule matches.
pub fn mismatches<'a>(asked: &'a Asked<'a>, rule: &'a Rule) -> impl Iterator<Item = Mismatch> + 'a {
    use Mismatch::{Family, Icmp, NotIcmp, NotProtocol, Protocol};
    let Asked { snapshot, flow, source: from, destination: to } = asked;
    let Flow { source, destination, protocol, source_port, destination_port } = *flow;
    let end =
        |side, entity, owners, address, port| End { snapshot, entity, side, owners, address, port, protocol };
    let from = end(Side::Source, &rule.source, from, source, source_port);
    let to = end(Side::Destination, &rule.destination, to, destination, destination_port);
    [Family, Protocol, NotProtocol, Icmp, NotIcmp]
        .into_iter()
        .filter(move |member| !head_fits(rule, flow, *member))
        .chain(from.mismatches())
        .chain(to.mismatches())
}

/// Whether a member of the rule itself, and not of its sides, fits.
fn head_fits(rule: &Rule, flow: &Flow, member: Mismatch) -> bool {
    let Flow { source, protocol, destination_port: message, .. } = *flow;
    let is_icmp = matches!(protocol, Protocol::ICMP | Protocol::ICMPV6);
    match member {
        Mismatch::Family => rule.family.is_none_or(|wanted| wanted == Family::of(source)),
        Mismatch::Protocol => rule.protocol.is_none_or(|wanted| wanted == protocol),
        Mismatch::NotProtocol => rule.not_protocol != Some(protocol),
        Mismatch::Icmp => rule.icmp.is_none_or(|icmp| is_icmp && icmp_is(icmp, message)),
        Mismatch::NotIcmp => rule.not_icmp.is_none_or(|icmp| is_icmp && !icmp_is(icmp, message)),
        Mismatch::Entity(..) => true,
    }
}

/// `message` is type * 256 + code.
fn icmp_is(icmp: Icmp, message: u16) -> bool {
    let [kind, code] = message.to_be_bytes();
    icmp.kind == kind && icmp.code.is_none_or(|wanted| wanted == code)
}

// === impl Asked ===

impl<'a> Asked<'a> {
    /// Looks for who has the addresses.
    pub fn new(snapshot: &'a Snapshot, flow: &Flow) -> Self {
        let owners = |address| Owners::new(snapshot, address);
        Self { snapshot, flow: *flow, source: owners(flow.source), destination: owners(flow.destination) }
    }
}

// === impl Owners ===

impl<'a> Owners<'a> {
    fn new(snapshot: &'a Snapshot, address: IpAddr) -> Self {
        let mut workload: Option<(&EndpointKey, &Arc<Endpoint>)> = None;
        let mut hosts = Vec::new();
        for (key, endpoint) in snapshot.endpoints.iter().filter(|(_, it)| it.addresses.contains(&address)) {
            match endpoint.kind {
                EndpointKind::Workload => {
                    // Keys come in order.
                    let is_older = |(_, other): &(&EndpointKey, &Arc<Endpoint>)| endpoint.age < other.age;
                    workload = workload.filter(is_older).or(Some((key, endpoint)));
                }
                EndpointKind::Host { .. } => hosts.push(endpoint),
            }
        }
        Self { workload, hosts, sets: snapshot.sets_at(address).map(|(_, set)| set).collect() }
    }

    /// The endpoints that the address means in a rule.
    fn endpoints(&self) -> impl Iterator<Item = &'a Arc<Endpoint>> {
        self.workload.map(|(_, endpoint)| endpoint).into_iter().chain(self.hosts.iter().copied())
    }
}

// === impl Part ===

impl Part {
    const ALL: [Self; 8] = [
        Self::Nets,
        Self::NotNets,
        Self::Selector,
        Self::NotSelector,
        Self::Nodes,
        Self::Service,
        Self::Ports,
        Self::NotPorts,
    ];
}

// === impl End ===

impl<'a> End<'a> {
    fn mismatches(self) -> impl Iterator<Item = Mismatch> + 'a {
        let side = self.side;
        let wrong = Part::ALL.into_iter().filter(move |part| !self.fits(*part));
        wrong.map(move |part| Mismatch::Entity(side, part))
    }

    fn fits(&self, part: Part) -> bool {
        let Entity { nets, not_nets, selector, not_selector, ports, not_ports, .. } = self.entity;
        match part {
            Part::Nets => nets.as_ref().is_none_or(|nets| nets.iter().any(|net| net.contains(&self.address))),
            Part::NotNets => !not_nets.iter().any(|net| net.contains(&self.address)),
            // With both, one and the same endpoint or set must match the first and not the second.
            Part::Selector => selector.as_ref().is_none_or(|wanted| {
                self.any_matches(&|matches| matches(wanted) && !not_selector.as_ref().is_some_and(matches))
            }),
            Part::NotSelector => match (selector, not_selector) {
                (None, Some(unwanted)) => !self.any_matches(&|matches| matches(unwanted)),
                _ => true,
            },
            Part::Nodes => self.is_of_nodes(),
            Part::Service => self.is_of_service(),
            Part::Ports => ports.as_ref().is_none_or(|ports| ports.iter().any(|port| self.is_at(port))),
            Part::NotPorts => !not_ports.iter().any(|port| self.is_at(port)),
        }
    }

    /// Whether a test holds for one of the endpoints and sets at the address. The test is given
    /// whether a selector matches the labels of that one.
    fn any_matches(&self, test: &dyn Fn(Matches<'_>) -> bool) -> bool {
        let snapshot = self.snapshot;
        let endpoint = |it: &Arc<Endpoint>| test(&|selector| snapshot.selects(selector, it));
        let set = |it: &Arc<NetworkSet>| test(&|selector| snapshot.selects_set(selector, it));
        self.owners.endpoints().any(endpoint) || self.owners.sets.iter().copied().any(set)
    }

    fn is_of_nodes(&self) -> bool {
        let Some(selector) = &self.entity.nodes else { return true };
        self.snapshot.nodes.values().any(|node| {
            node.addresses.contains(&self.address)
                && selector.matches_with(&|name| node.labels.get(name).map(|value| &**value))
        })
    }

    fn is_of_service(&self) -> bool {
        let Some(id) = &self.entity.service else { return true };
        let Some(service) = self.snapshot.services.get(id) else { return false };
        match self.side {
            Side::Source => service.addresses.contains(&self.address),
            Side::Destination => service.endpoints.contains(&(self.address, self.protocol, self.port)),
        }
    }

    fn is_at(&self, port: &Port) -> bool {
        let counts = |endpoint: &Endpoint| {
            self.entity.selector.as_ref().is_none_or(|selector| self.snapshot.selects(selector, endpoint))
        };
        match port {
            Port::Range(first, last) => self.protocol.has_ports() && (*first..=*last).contains(&self.port),
            Port::Named(name) => self
                .owners
                .endpoints()
                .filter(|endpoint| counts(endpoint))
                .flat_map(|endpoint| &endpoint.ports)
                .any(|it| it.name == *name && it.protocol == self.protocol && it.port == self.port),
        }
    }
}
