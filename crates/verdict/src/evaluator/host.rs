//! Host endpoints: what a node's own interfaces may carry (policy.md section 1.8).

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Asked, EndTrace, Reason, Walk, by_profiles, by_tiers};
use crate::felix::{Failsafe, FailsafePort};
use crate::flow::Flow;
use crate::ir::{Direction, HostUse};
use crate::snapshot::Snapshot;
use crate::world::{Endpoint, EndpointKey, EndpointKind};

/// Where in the node a packet is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Before connection tracking, in both directions. Replies are judged like first packets.
    Untracked,
    /// As it comes in, before its destination is translated.
    PreDnat,
    /// To or from a process of the node, behind the translation of the destination.
    Local,
    /// On its way through the node.
    Forward,
}

/// An interface of a node that is not a workload's.
#[derive(Debug, Clone, Copy)]
pub struct HostInterface<'a> {
    /// The node.
    pub node: &'a str,
    /// The interface's name.
    pub name: &'a str,
    /// Its addresses.
    pub addresses: &'a BTreeSet<IpAddr>,
}

/// The host endpoint of an interface: of those that name it, or of those that are expected to have
/// one of its addresses, or of those for all interfaces, the one with the smallest key.
pub fn host_endpoint<'a>(
    snapshot: &'a Snapshot,
    interface: &HostInterface<'_>,
) -> Option<(&'a EndpointKey, &'a Endpoint)> {
    let by = |test: &dyn Fn(&str, &Endpoint) -> bool| {
        snapshot.endpoints.iter().map(|(key, endpoint)| (key, &**endpoint)).find(|(_, endpoint)| {
            let EndpointKind::Host { interface: wanted } = &endpoint.kind else { return false };
            *endpoint.node == *interface.node && test(wanted, endpoint)
        })
    };
    by(&|wanted, _| wanted == interface.name)
        .or_else(|| by(&|wanted, it| wanted.is_empty() && !it.addresses.is_disjoint(interface.addresses)))
        .or_else(|| by(&|wanted, _| wanted == "*"))
}

/// Judges a packet at one stage of a host's interface. An interface without a host endpoint allows.
pub fn judge_host(
    snapshot: &Snapshot,
    interface: &HostInterface<'_>,
    failsafe: &Failsafe,
    stage: Stage,
    direction: Direction,
    flow: &Flow,
) -> EndTrace {
    match host_endpoint(snapshot, interface) {
        Some(host) => judge_at(snapshot, host, failsafe, (stage, direction), flow),
        None => EndTrace::new(None, direction).decided(true, Reason::NoEndpoint),
    }
}

/// Judges a packet of a node's own process on its whole way through an interface with this host endpoint.
pub fn judge_local(
    snapshot: &Snapshot,
    host: (&EndpointKey, &Endpoint),
    direction: Direction,
    flow: &Flow,
) -> EndTrace {
    let failsafe = snapshot.failsafe(&host.1.node);
    let at = |stage| judge_at(snapshot, host, &failsafe, (stage, direction), flow);
    let untracked = at(Stage::Untracked);
    // What a rule allows there is not asked about behind.
    if !untracked.allowed || matches!(untracked.reason, Reason::Rule { .. }) {
        return untracked;
    }
    let translated = (direction == Direction::Ingress).then(|| at(Stage::PreDnat));
    translated.filter(|trace| !trace.allowed).unwrap_or_else(|| at(Stage::Local))
}

fn judge_at(
    snapshot: &Snapshot,
    (key, endpoint): (&EndpointKey, &Endpoint),
    failsafe: &Failsafe,
    (stage, direction): (Stage, Direction),
    flow: &Flow,
) -> EndTrace {
    let trace = EndTrace::new(Some(key.clone()), direction);
    if stage != Stage::Forward && failsafe.admits(stage, direction, flow) {
        return trace.decided(true, Reason::Failsafe);
    }
    let asked = Asked::new(snapshot, flow);
    match by_tiers(&asked, endpoint, &|host_use| stage.counts(host_use), trace) {
        // Before connection tracking and before the translation, only rules decide: what no rule
        // names is judged at the later stages.
        Walk::Decided(trace)
            if matches!(stage, Stage::Untracked | Stage::PreDnat)
                && matches!(trace.reason, Reason::EndOfTier(_)) =>
        {
            trace.decided(true, Reason::Default)
        }
        Walk::Decided(trace) => trace,
        Walk::Undecided(trace) if stage == Stage::Local => by_profiles(&asked, endpoint, trace),
        Walk::Undecided(trace) => trace.decided(true, Reason::Default),
    }
}

// === impl Stage ===

impl Stage {
    fn counts(self, host_use: HostUse) -> bool {
        match self {
            Self::Untracked => host_use == HostUse::Untracked,
            Self::PreDnat => host_use == HostUse::PreDnat,
            Self::Local => matches!(host_use, HostUse::Normal | HostUse::Forward),
            Self::Forward => host_use == HostUse::Forward,
        }
    }
}

// === impl Failsafe ===

impl Failsafe {
    fn admits(&self, stage: Stage, direction: Direction, flow: &Flow) -> bool {
        let (requests, replies, peer) = match direction {
            Direction::Ingress => (&self.inbound, &self.outbound, flow.source),
            Direction::Egress => (&self.outbound, &self.inbound, flow.destination),
        };
        let has = |ports: &[FailsafePort], port| ports.iter().any(|it| it.is(flow.protocol, port, peer));
        // Without connection tracking, the reply of an admitted flow is a packet of its own.
        has(requests, flow.destination_port) || (stage == Stage::Untracked && has(replies, flow.source_port))
    }
}
