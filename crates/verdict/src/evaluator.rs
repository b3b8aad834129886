//! Answers one question straight from the policies: may this flow begin, and why (policy.md
//! section 1.1)?
//!
//! It has no index and no identities, and shares nothing with the engine, of which it is the oracle. Its
//! traces are also what explanations print.

mod host;
#[cfg(test)]
mod rows;
mod rule;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::flow::Flow;
use crate::ir::{Action, Direction, HostUse, Order, Policy, PolicyId, Profile, Protocol, Rule, TierDefault};
use crate::snapshot::Snapshot;
use crate::world::{EgressPeer, Endpoint, EndpointKey, EndpointKind, EndpointToHost};

pub use host::{HostInterface, Stage, host_endpoint, judge_host, judge_local};
pub use rule::{Asked, Mismatch, Part, Side, mismatches};

/// The answer for both ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The question.
    pub flow: Flow,
    /// What the policies of the source say of its egress.
    pub egress: EndTrace,
    /// What the policies of the destination say of its ingress.
    pub ingress: EndTrace,
}

/// The answer for one end.
#[derive(Debug, Clone, PartialEq)]
pub struct EndTrace {
    /// The endpoint; `None` if the address is of none.
    pub endpoint: Option<EndpointKey>,
    /// The direction, seen from it.
    pub direction: Direction,
    /// Whether the flow is allowed.
    pub allowed: bool,
    /// Whether a rule with the action Log matched.
    pub logged: bool,
    /// The tiers that have policies for this end, in order, up to the one that decided.
    pub tiers: Vec<TierTrace>,
    /// The profiles, if no tier decided, up to the one that decided.
    pub profiles: Vec<ProfileTrace>,
    /// What decided.
    pub reason: Reason,
}

/// What decided.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// There is no endpoint at the address, so no policy counts.
    NoEndpoint,
    /// The source is an address of the node that the destination is on.
    OwnNode,
    /// A rule of a policy.
    Rule {
        /// The policy.
        policy: Arc<Policy>,
        /// The place of the rule in the policy's list of this direction.
        index: usize,
    },
    /// Policies of this tier select the endpoint, and no rule of them matched.
    EndOfTier(Arc<str>),
    /// A rule of a profile.
    ProfileRule {
        /// The profile.
        profile: Arc<str>,
        /// The place of the rule.
        index: usize,
    },
    /// The endpoint names a profile that does not exist.
    UnknownProfile(Arc<str>),
    /// No rule matched, and none was left.
    Default,
    /// A rule of the namespace's EgressNetworkPolicy.
    EgressFirewall {
        /// Its name.
        name: Arc<str>,
        /// The place of the rule.
        index: usize,
    },
    /// The namespace has several EgressNetworkPolicies.
    SeveralEgressFirewalls,
    /// A failsafe port of a host endpoint.
    Failsafe,
    /// The source is a pod of the node that the destination is.
    EndpointToHost {
        /// The FelixConfiguration that says what becomes of its packets.
        configuration: Arc<str>,
        /// What it says.
        action: EndpointToHost,
    },
}

/// What a tier does with a flow.
#[derive(Debug, Clone, PartialEq)]
pub struct TierTrace {
    /// Its name.
    pub name: Arc<str>,
    /// What happens if none of its rules matches.
    pub default_action: TierDefault,
    /// Its policies that select the endpoint in this direction, in order, up to the one that decided.
    pub policies: Vec<PolicyTrace>,
}

/// What a policy does with a flow.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyTrace {
    /// The policy.
    pub policy: Arc<Policy>,
    /// For each of its rules that was asked, in order, why it does not match.
    pub rules: Vec<Option<Mismatch>>,
}

/// What a profile does with a flow.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileTrace {
    /// Its name.
    pub name: Arc<str>,
    /// For each of its rules that was asked, in order, why it does not match.
    pub rules: Vec<Option<Mismatch>>,
}

/// A tier with policies that select an endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectedTier<'a> {
    /// Its name.
    pub name: Arc<str>,
    /// These policies, in order.
    pub policies: Vec<&'a Arc<Policy>>,
}

/// The profile that allows everything and is never stored.
const ALLOW_ALL_PROFILE: &str = "projectcalico-default-allow";
/// The port of DNS, to which an EgressNetworkPolicy never closes the own node.
const DNS_PORT: u16 = 53;

/// Judges a flow at both its ends. An end that is no workload allows.
pub fn ask(snapshot: &Snapshot, flow: &Flow) -> Trace {
    let asked = Asked::new(snapshot, flow);
    let end = |workload: Option<(&EndpointKey, &Arc<Endpoint>)>, direction| match workload {
        Some((key, endpoint)) => judge_endpoint(&asked, key, endpoint, direction),
        None => EndTrace::new(None, direction).decided(true, Reason::NoEndpoint),
    };
    let mut ingress = end(asked.destination.workload, Direction::Ingress);
    if is_from_own_node(&asked) {
        ingress = EndTrace::new(ingress.endpoint, Direction::Ingress).decided(true, Reason::OwnNode);
    } else if let Some((configuration, action)) = to_own_node(&asked) {
        let is_spared = flow.protocol == Protocol::ICMPV6
            && EndpointToHost::spares(flow.destination_port.to_be_bytes()[0]);
        let allowed = action != EndpointToHost::Drop || is_spared;
        ingress = ingress.decided(allowed, Reason::EndpointToHost { configuration, action });
    }
    Trace { flow: *flow, egress: end(asked.source.workload, Direction::Egress), ingress }
}

/// Judges a flow by the policies of one workload; `None` if there is no such workload.
pub fn judge(snapshot: &Snapshot, key: &EndpointKey, direction: Direction, flow: &Flow) -> Option<EndTrace> {
    let endpoint = snapshot.endpoints.get(key)?;
    Some(judge_endpoint(&Asked::new(snapshot, flow), key, endpoint, direction))
}

/// The enforced policies that select an endpoint in one direction and that count there: tiers in
/// order, and in each its policies in order.
pub fn policies_for<'a>(
    snapshot: &'a Snapshot,
    endpoint: &Endpoint,
    direction: Direction,
    counts: &dyn Fn(HostUse) -> bool,
) -> Vec<SelectedTier<'a>> {
    let mut tiers: Vec<SelectedTier<'a>> = Vec::new();
    for policy in snapshot.policies.values() {
        let in_force = policy.staged.is_none() && policy.directions.has(direction) && counts(policy.host_use);
        if !in_force || !snapshot.selects(&policy.subject, endpoint) {
            continue;
        }
        match tiers.iter_mut().find(|tier| tier.name == policy.tier) {
            Some(tier) => tier.policies.push(policy),
            None => tiers.push(SelectedTier { name: policy.tier.clone(), policies: vec![policy] }),
        }
    }
    for tier in &mut tiers {
        tier.policies.sort_by_cached_key(|policy| (policy.order, policy.id.sort_key()));
    }
    // Tiers that do not exist are after all others, also after those without an order.
    tiers.sort_by_key(|tier| {
        let known = snapshot.tiers.get(&tier.name);
        (known.is_none(), known.map_or(Order::LAST, |known| known.order), tier.name.clone())
    });
    tiers
}

fn judge_endpoint(
    asked: &Asked<'_>,
    key: &EndpointKey,
    endpoint: &Endpoint,
    direction: Direction,
) -> EndTrace {
    let counts = |host_use| matches!(host_use, HostUse::Normal | HostUse::Forward);
    let trace = EndTrace::new(Some(key.clone()), direction);
    let trace = match by_tiers(asked, endpoint, &counts, trace) {
        Walk::Decided(trace) => trace,
        Walk::Undecided(trace) => by_profiles(asked, endpoint, trace),
    };
    match egress_firewall(asked.snapshot, endpoint, &asked.flow)
        .filter(|_| trace.allowed && direction == Direction::Egress)
    {
        Some((allowed, reason)) => trace.decided(allowed, reason),
        None => trace,
    }
}

/// A trace that is complete, or one that the next part goes on with.
enum Walk {
    Decided(EndTrace),
    Undecided(EndTrace),
}

fn by_tiers(
    asked: &Asked<'_>,
    endpoint: &Endpoint,
    counts: &dyn Fn(HostUse) -> bool,
    mut trace: EndTrace,
) -> Walk {
    let (snapshot, direction) = (asked.snapshot, trace.direction);
    'tiers: for SelectedTier { name, policies } in policies_for(snapshot, endpoint, direction, counts) {
        let default_action = snapshot.tiers.get(&name).map_or(TierDefault::Deny, |tier| tier.default_action);
        trace.tiers.push(TierTrace { name: name.clone(), default_action, policies: Vec::new() });
        for policy in policies {
            let (rules, found) = first_match(asked, policy.rules(direction), &mut trace.logged);
            if let Some(tier) = trace.tiers.last_mut() {
                tier.policies.push(PolicyTrace { policy: policy.clone(), rules });
            }
            let reason = |index| Reason::Rule { policy: policy.clone(), index };
            match found {
                Some((index, Action::Allow)) => return Walk::Decided(trace.decided(true, reason(index))),
                Some((index, Action::Deny)) => return Walk::Decided(trace.decided(false, reason(index))),
                Some((_, Action::Pass)) => continue 'tiers,
                Some((_, Action::Log)) | None => {}
            }
        }
        if default_action == TierDefault::Deny {
            return Walk::Decided(trace.decided(false, Reason::EndOfTier(name)));
        }
    }
    Walk::Undecided(trace)
}

fn by_profiles(asked: &Asked<'_>, endpoint: &Endpoint, mut trace: EndTrace) -> EndTrace {
    let snapshot = asked.snapshot;
    let everything = vec![Rule::any(Action::Allow, "")];
    let allow_all = Profile { ingress: everything.clone(), egress: everything, ..Profile::default() };
    for name in &endpoint.profiles {
        let profile = match snapshot.profiles.get(name) {
            Some(profile) => profile,
            None if &**name == ALLOW_ALL_PROFILE => &allow_all,
            None => return trace.decided(false, Reason::UnknownProfile(name.clone())),
        };
        let (rules, found) = first_match(asked, profile.rules(trace.direction), &mut trace.logged);
        trace.profiles.push(ProfileTrace { name: name.clone(), rules });
        let reason = |index| Reason::ProfileRule { profile: name.clone(), index };
        match found {
            Some((index, Action::Allow)) => return trace.decided(true, reason(index)),
            Some((index, Action::Deny)) => return trace.decided(false, reason(index)),
            Some((_, Action::Pass | Action::Log)) | None => {}
        }
    }
    // Kubernetes' pods are open without a policy, and host endpoints are not.
    let is_open = endpoint.kind == EndpointKind::Workload && snapshot.config.allow_without_profile;
    let allowed = endpoint.profiles.is_empty() && is_open;
    trace.decided(allowed, Reason::Default)
}

/// The first rule that matches and does not only log, and why each rule before it does not match.
fn first_match(
    asked: &Asked<'_>,
    rules: &[Rule],
    logged: &mut bool,
) -> (Vec<Option<Mismatch>>, Option<(usize, Action)>) {
    let mut reasons = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let mismatch = mismatches(asked, rule).next();
        reasons.push(mismatch);
        match (mismatch, rule.action) {
            (Some(_), _) => {}
            (None, Action::Log) => *logged = true,
            (None, action) => return (reasons, Some((index, action))),
        }
    }
    (reasons, None)
}

/// What the EgressNetworkPolicy of the endpoint's namespace says of a flow that leaves the
/// cluster (policy.md section 1.10); `None` if it says nothing.
fn egress_firewall(snapshot: &Snapshot, endpoint: &Endpoint, flow: &Flow) -> Option<(bool, Reason)> {
    let namespace = endpoint.namespace.as_ref()?;
    let config = &snapshot.config;
    if config.cluster_nets.iter().any(|net| net.contains(&flow.destination))
        || is_dns_of_node(snapshot, endpoint, flow)
    {
        return None;
    }
    // One without rules has no effect, and does not count as a second one.
    let mut firewalls = snapshot
        .egress_firewalls
        .iter()
        .filter(|((of, _), firewall)| of == namespace && !firewall.rules.is_empty());
    let ((_, name), firewall) = firewalls.next()?;
    if firewalls.next().is_some() {
        return Some((false, Reason::SeveralEgressFirewalls));
    }
    let covers = |peer: &EgressPeer| match peer {
        EgressPeer::Net(net) => net.contains(&flow.destination),
        EgressPeer::Name(_, addresses) => addresses.contains(&flow.destination),
    };
    let index = firewall.rules.iter().position(|(_, peer)| covers(peer))?;
    let (allowed, _) = firewall.rules.get(index)?;
    Some((*allowed, Reason::EgressFirewall { name: name.clone(), index }))
}

fn is_dns_of_node(snapshot: &Snapshot, endpoint: &Endpoint, flow: &Flow) -> bool {
    let is_dns = matches!(flow.protocol, Protocol::TCP | Protocol::UDP) && flow.destination_port == DNS_PORT;
    is_dns && is_address_of(snapshot, &endpoint.node, flow.destination)
}

/// A node always reaches its own pods, for the probes of kubelet.
fn is_from_own_node(asked: &Asked<'_>) -> bool {
    let Asked { snapshot, flow, destination, .. } = asked;
    destination.workload.is_some_and(|(_, endpoint)| is_address_of(snapshot, &endpoint.node, flow.source))
}

/// What becomes of a packet of a pod to its own node, if something says it.
fn to_own_node(asked: &Asked<'_>) -> Option<(Arc<str>, EndpointToHost)> {
    let Asked { snapshot, flow, source, destination } = asked;
    let (_, pod) = source.workload.filter(|_| destination.workload.is_none())?;
    let (configuration, action) = snapshot.endpoint_to_host(&pod.node)?;
    is_address_of(snapshot, &pod.node, flow.destination).then(|| (Arc::clone(configuration), action))
}

fn is_address_of(snapshot: &Snapshot, node: &str, address: std::net::IpAddr) -> bool {
    let config = &snapshot.config;
    let of_node =
        || snapshot.nodes.iter().any(|(name, it)| name.as_str() == node && it.addresses.contains(&address));
    (*config.node == *node && config.own_addresses.contains(&address)) || of_node()
}

// === impl Trace ===

impl Trace {
    /// Whether both ends allow the flow.
    pub fn allowed(&self) -> bool {
        self.egress.allowed && self.ingress.allowed
    }
}

// === impl EndTrace ===

impl EndTrace {
    fn new(endpoint: Option<EndpointKey>, direction: Direction) -> Self {
        Self {
            endpoint,
            direction,
            allowed: false,
            logged: false,
            tiers: Vec::new(),
            profiles: Vec::new(),
            reason: Reason::Default,
        }
    }

    fn decided(self, allowed: bool, reason: Reason) -> Self {
        Self { allowed, reason, ..self }
    }

    /// The policy whose rule decided, if one did.
    pub fn policy(&self) -> Option<&PolicyId> {
        match &self.reason {
            Reason::Rule { policy, .. } => Some(&policy.id),
            _ => None,
        }
    }
}
