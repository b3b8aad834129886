//! NetworkPolicy v1 (policy.md section 1.2), and Calico's staged form of it.
//!
//! All its rules allow, so what cannot be read allows nothing: a peer or port is left out, and if a
//! rule had others, they remain. The policy isolates in any case.

use std::collections::BTreeMap;

use russet_model::Selector;

use crate::ir::{
    Action, Direction, Directions, Entity, HostUse, Order, Policy, PolicyKind, Port, Problem, Protocol, Rule,
};
use crate::translate::calico::staged_action;
use crate::translate::read::{At, Problems, policy_id};
use crate::translate::{DEFAULT_TIER, RULES_PER_POLICY_MAX, labels, limited, ports};

/// The place of NetworkPolicies in the tier `default`.
const ORDER: f64 = 1000.0;

/// Ports of a protocol. `None` is every one.
type Ports = (Option<Protocol>, Option<Vec<Port>>);

/// Reads a NetworkPolicy, or a StagedKubernetesNetworkPolicy, whose spec is a NetworkPolicy's and an
/// action.
pub(in crate::translate) fn network_policy(document: &At<'_>, kind: PolicyKind) -> Result<Policy, Problem> {
    let metadata = document.metadata()?;
    let namespace = metadata.wanted_namespace()?;
    let mut problems = Problems::default();
    let missing = serde_json::Value::Null;
    let spec = document.member("spec").unwrap_or_else(|| At::root(&missing));
    if document.member("spec").is_some() {
        problems.keep(spec.object());
    }
    let (subject, readable) = subject(&spec, namespace, &mut problems)?;
    let directions = directions(&spec, &mut problems);
    let mut rules = |direction, counts: bool| match counts && readable {
        true => all_rules(&spec, direction, namespace, &mut problems),
        false => Vec::new(),
    };
    let ingress = rules(Direction::Ingress, directions.ingress);
    let egress = rules(Direction::Egress, directions.egress);
    let staged = (kind != kind.enforced()).then(|| staged_action(&spec, &mut problems));
    Ok(limited(Policy {
        id: policy_id(kind, &metadata)?,
        name: metadata.name.into(),
        tier: DEFAULT_TIER.into(),
        order: Order::new(Some(ORDER)),
        subject,
        directions,
        staged,
        host_use: HostUse::Normal,
        ingress,
        egress,
        problems: problems.finish(),
    }))
}

/// The pods that the policy selects. If a part of the selector cannot be read, the others select
/// more pods than were meant; those are isolated, and nothing is allowed to them.
fn subject(spec: &At<'_>, namespace: &str, problems: &mut Problems) -> Result<(Selector, bool), Problem> {
    let refused = |error: russet_model::SelectorError| spec.problem(error.problem);
    let mut wanted = vec![labels::kubernetes().map_err(refused)?];
    let mut readable = true;
    for requirement in spec.member("podSelector").map(|at| labels::requirements(&at, "")).unwrap_or_default()
    {
        match problems.keep(requirement) {
            Some(selector) => wanted.push(selector),
            None => readable = false,
        }
    }
    let own = labels::in_namespace(namespace).map_err(refused)?;
    Ok((Selector::and([Selector::and(wanted), own]), readable))
}

/// The directions in which it isolates. What cannot be read isolates in both.
fn directions(spec: &At<'_>, problems: &mut Problems) -> Directions {
    let both = Directions { ingress: true, egress: true };
    let Some(types) = problems.keep(spec.list("policyTypes")) else { return both };
    if types.is_empty() {
        // What is not a list counts as one with entries.
        let egress = spec.list("egress").map_or(true, |rules| !rules.is_empty());
        return Directions { ingress: true, egress };
    }
    let mut directions = Directions::default();
    for at in types {
        match problems.keep(at.text()) {
            Some("Ingress") => directions.ingress = true,
            Some("Egress") => directions.egress = true,
            other => {
                if let Some(other) = other {
                    problems.push(at.problem(format!("{other:?} is not Ingress or Egress")));
                }
                directions = both;
            }
        }
    }
    directions
}

fn all_rules(spec: &At<'_>, direction: Direction, namespace: &str, problems: &mut Problems) -> Vec<Rule> {
    let (list, peers) = match direction {
        Direction::Ingress => ("ingress", "from"),
        Direction::Egress => ("egress", "to"),
    };
    let mut rules = Vec::new();
    for at in problems.keep_or_default(spec.list(list)) {
        if problems.keep(at.only(&[peers, "ports"])).is_none() {
            continue;
        }
        let peers = self::peers(&at, peers, namespace, problems);
        let ports = self::ports(&at, problems);
        for (peer, path) in &peers {
            let left = (RULES_PER_POLICY_MAX + 1).saturating_sub(rules.len());
            rules.extend(ports.iter().take(left).map(|ports| rule(direction, peer, ports, path)));
        }
    }
    rules
}

fn rule(direction: Direction, peer: &Entity, (protocol, ports): &Ports, path: &str) -> Rule {
    let mut rule = Rule { protocol: *protocol, ..Rule::any(Action::Allow, path) };
    match direction {
        Direction::Ingress => rule.source = peer.clone(),
        Direction::Egress => rule.destination = peer.clone(),
    }
    rule.destination.ports.clone_from(ports);
    rule
}

/// The peers of a rule. No peers in the object are everything; peers of which none can be read are
/// nothing.
fn peers(rule: &At<'_>, member: &str, namespace: &str, problems: &mut Problems) -> Vec<(Entity, String)> {
    let Some(peers) = problems.keep(rule.list(member)) else { return Vec::new() };
    if peers.is_empty() {
        return vec![(Entity::default(), rule.path().to_owned())];
    }
    let read = |at: &At<'_>| Some((problems.keep(peer(at, namespace))?, at.path().to_owned()));
    peers.iter().filter_map(read).collect()
}

fn peer(at: &At<'_>, namespace: &str) -> Result<Entity, Problem> {
    at.only(&["podSelector", "namespaceSelector", "ipBlock"])?;
    let (pods, namespaces) = (at.member("podSelector"), at.member("namespaceSelector"));
    match (at.member("ipBlock"), pods.is_some() || namespaces.is_some()) {
        (Some(_), true) => Err(at.problem("a peer with an ipBlock cannot have selectors")),
        (Some(block), false) => ip_block(&block),
        (None, false) => Err(at.problem("the peer has no member")),
        (None, true) => {
            let selector = labels::pods(at, Some(namespace), namespaces.as_ref(), pods.as_ref())?;
            Ok(Entity { selector: Some(selector), ..Entity::default() })
        }
    }
}

fn ip_block(at: &At<'_>) -> Result<Entity, Problem> {
    at.only(&["cidr", "except"])?;
    let cidr = at.member("cidr").ok_or_else(|| at.problem("it has no cidr"))?.net()?;
    let except = at.list("except")?.iter().map(At::net).collect::<Result<_, _>>()?;
    Ok(Entity { nets: Some(vec![cidr]), not_nets: except, ..Entity::default() })
}

/// The ports of a rule, by protocol. No ports in the object are every protocol; ports of which none
/// can be read are nothing.
fn ports(rule: &At<'_>, problems: &mut Problems) -> Vec<Ports> {
    let Some(list) = problems.keep(rule.list("ports")) else { return Vec::new() };
    if list.is_empty() {
        return vec![(None, None)];
    }
    let mut by_protocol: BTreeMap<Protocol, Option<Vec<Port>>> = BTreeMap::new();
    for (protocol, port) in list.iter().filter_map(|at| problems.keep(self::port(at))) {
        let ports = by_protocol.entry(protocol).or_insert_with(|| Some(Vec::new()));
        match (ports.as_mut(), port) {
            (Some(ports), Some(port)) => ports.push(port),
            _ => *ports = None,
        }
    }
    by_protocol.into_iter().map(|(protocol, ports)| (Some(protocol), ports.map(ports::merged))).collect()
}

fn port(at: &At<'_>) -> Result<(Protocol, Option<Port>), Problem> {
    at.only(&["protocol", "port", "endPort"])?;
    let protocol = ports::kubernetes_protocol(at)?;
    let port = match (at.member("port"), at.member("endPort")) {
        (None, None) => None,
        (None, Some(end)) => return Err(end.problem("it needs a port")),
        (Some(port), Some(end)) if port.is_text() => return Err(end.problem("it needs a port's number")),
        (Some(port), None) if port.is_text() => Some(ports::name(&port)?),
        (Some(port), end) => {
            let first = ports::number(&port)?;
            let last = end.as_ref().map_or(Ok(first), |end| end.whole(first, u16::MAX))?;
            Some(Port::Range(first, last))
        }
    };
    Ok((protocol, port))
}

#[cfg(test)]
mod tests;
