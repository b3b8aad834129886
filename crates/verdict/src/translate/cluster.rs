//! ClusterNetworkPolicy v1alpha2, and its predecessors (policy.md section 1.3).
//!
//! Members that are not known fail closed: an accepting rule matches nothing for the peers or
//! protocols that cannot be read, any other rule denies everything in its direction.

mod predecessor;

use russet_model::Selector;

use super::read::{At, Problems};
use super::{Refused, denying, labels, limited, ports};
use crate::ir::{
    Action, Direction, Directions, Entity, HostUse, Order, Policy, PolicyId, PolicyKind, Port, Problem,
    Protocol, Rule,
};

/// The tier of policies with `tier: Admin`, before NetworkPolicies.
pub const ADMIN_TIER: &str = "kube-admin";
/// The tier of policies with `tier: Baseline`, after NetworkPolicies.
pub const BASELINE_TIER: &str = "kube-baseline";

/// The largest value of `spec.priority`.
const PRIORITY_MAX: u16 = 1000;

/// A protocol and its ports; `None` is every one.
type Ports = (Option<Protocol>, Option<Vec<Port>>);

/// Reads a ClusterNetworkPolicy, or one of its predecessors.
pub(super) fn policy(document: &At<'_>, kind: PolicyKind) -> Result<Policy, Refused> {
    if kind == PolicyKind::ClusterNetworkPolicy {
        return read(document, kind);
    }
    let converted = predecessor::converted(document.value(), kind);
    read(&At::root(&converted), kind)
}

fn read(document: &At<'_>, kind: PolicyKind) -> Result<Policy, Refused> {
    let metadata = document.metadata()?;
    let spec = document.member("spec").ok_or_else(|| document.problem_of("spec", "it is missing"))?;
    let mut policy = Policy {
        id: PolicyId { kind, namespace: None, name: metadata.name.into() },
        name: metadata.name.into(),
        tier: ADMIN_TIER.into(),
        order: Order::LAST,
        subject: subject(&spec)?,
        directions: Directions { ingress: true, egress: true },
        staged: None,
        host_use: HostUse::Normal,
        ingress: Vec::new(),
        egress: Vec::new(),
        problems: Vec::new(),
    };
    match place(&spec) {
        Ok((tier, order)) => (policy.tier, policy.order) = (tier.into(), order),
        Err(problem) => return Err(Refused::instead(problem, denying(policy))),
    }
    let mut problems = Problems::default();
    policy.ingress = all_rules(&spec, Direction::Ingress, &mut problems);
    policy.egress = all_rules(&spec, Direction::Egress, &mut problems);
    policy.problems = problems.finish();
    Ok(limited(policy))
}

fn place(spec: &At<'_>) -> Result<(&'static str, Order), Problem> {
    spec.only(&["tier", "priority", "subject", "ingress", "egress"])?;
    let tier = match spec.opt_text("tier")? {
        Some("Admin") => ADMIN_TIER,
        Some("Baseline") => BASELINE_TIER,
        _ => return Err(spec.problem_of("tier", "Admin or Baseline is wanted")),
    };
    let priority = spec.member("priority").ok_or_else(|| spec.problem_of("priority", "it is missing"))?;
    Ok((tier, Order::new(Some(priority.whole(0, PRIORITY_MAX)?.into()))))
}

fn subject(spec: &At<'_>) -> Result<Selector, Problem> {
    let subject = spec.member("subject").ok_or_else(|| spec.problem_of("subject", "it is missing"))?;
    match subject.members()?.as_slice() {
        [(kind @ ("namespaces" | "pods"), at)] => pods(kind, at),
        _ => Err(subject.problem("one of namespaces and pods is wanted")),
    }
}

/// Pods, which are of `kind` `namespaces` or `pods`.
fn pods(kind: &str, at: &At<'_>) -> Result<Selector, Problem> {
    if kind == "namespaces" {
        return labels::pods(at, None, Some(at), None);
    }
    at.only(&["namespaceSelector", "podSelector"])?;
    let (namespaces, pods) = (at.member("namespaceSelector"), at.member("podSelector"));
    labels::pods(at, None, namespaces.as_ref(), pods.as_ref())
}

fn all_rules(spec: &At<'_>, direction: Direction, problems: &mut Problems) -> Vec<Rule> {
    let name = if direction == Direction::Ingress { "ingress" } else { "egress" };
    match spec.list(name) {
        Ok(rules) => rules.iter().flat_map(|at| rules_of(at, direction, problems)).collect(),
        Err(problem) => {
            let path = std::sync::Arc::clone(&problem.path);
            problems.push(problem);
            vec![Rule::any(Action::Deny, path)]
        }
    }
}

/// The rules that one rule becomes.
fn rules_of(at: &At<'_>, direction: Direction, problems: &mut Problems) -> Vec<Rule> {
    let action = match at.opt_text("action") {
        Ok(Some("Accept")) => Some(Action::Allow),
        Ok(Some("Deny")) => Some(Action::Deny),
        Ok(Some("Pass")) => Some(Action::Pass),
        _ => None,
    };
    let Some(action) = action else {
        problems.push(at.problem_of("action", "Accept, Deny or Pass is wanted; everything is denied"));
        return vec![Rule::any(Action::Deny, at.path())];
    };
    match matches(at, direction, action == Action::Allow, problems) {
        Ok(matches) => matches.into_iter().map(|matched| rule(action, direction, matched, at)).collect(),
        Err(problem) => {
            problems.push(problem);
            match action {
                Action::Allow => Vec::new(),
                _ => vec![Rule::any(Action::Deny, at.path())],
            }
        }
    }
}

fn rule(
    action: Action,
    direction: Direction,
    (peer, (protocol, ports)): (Entity, Ports),
    at: &At<'_>,
) -> Rule {
    let mut rule = Rule { protocol, ..Rule::any(action, at.path()) };
    match direction {
        Direction::Ingress => rule.source = peer,
        Direction::Egress => rule.destination = peer,
    }
    rule.destination.ports = ports;
    rule
}

/// Each peer with each protocol. Only if the rule accepts, what cannot be read may be left out.
fn matches(
    at: &At<'_>,
    direction: Direction,
    accepts: bool,
    problems: &mut Problems,
) -> Result<Vec<(Entity, Ports)>, Problem> {
    let peers = if direction == Direction::Ingress { "from" } else { "to" };
    at.only(&["name", "action", "protocols", peers])?;
    let list = at.list(peers)?;
    if list.is_empty() {
        return Err(at.problem_of(peers, "it is missing"));
    }
    let mut left_out = |problem| {
        if accepts {
            problems.push(problem);
            return Ok(());
        }
        Err(problem)
    };
    let mut entities = Vec::new();
    for at in &list {
        match peer(at, direction) {
            Ok(entity) => entities.push(entity),
            Err(problem) => left_out(problem)?,
        }
    }
    let list = at.list("protocols")?;
    let mut protocols = Vec::new();
    for at in &list {
        match protocol(at) {
            Ok(ports) => protocols.push((ports, at)),
            Err(problem) => left_out(problem)?,
        }
    }
    if list.is_empty() {
        return Ok(entities.into_iter().map(|entity| (entity, (None, None))).collect());
    }
    let mut all = Vec::new();
    for entity in &entities {
        for (ports, at) in &protocols {
            // Names are of pods: an address or a node has none.
            if ports.0.is_none() && entity.selector.is_none() {
                left_out(at.problem("a named port needs peers that are pods"))?;
            } else {
                all.push((entity.clone(), ports.clone()));
            }
        }
    }
    Ok(all)
}

fn peer(at: &At<'_>, direction: Direction) -> Result<Entity, Problem> {
    let members = at.members()?;
    let [(kind, member)] = members.as_slice() else {
        return Err(at.problem("a peer has exactly one member"));
    };
    match (*kind, direction) {
        ("namespaces" | "pods", _) => Ok(Entity { selector: Some(pods(kind, member)?), ..Entity::default() }),
        ("networks", Direction::Egress) => {
            let nets: Vec<_> = member.items()?.iter().map(At::net).collect::<Result<_, _>>()?;
            match nets.is_empty() {
                true => Err(member.problem("it is empty")),
                false => Ok(Entity { nets: Some(nets), ..Entity::default() }),
            }
        }
        ("nodes", Direction::Egress) => {
            Ok(Entity { nodes: Some(labels::label_selector(member, "")?), ..Entity::default() })
        }
        ("domainNames", Direction::Egress) => Err(member.problem("domainNames are not enforced")),
        _ => Err(member.problem("this kind of peer is not known")),
    }
}

fn protocol(at: &At<'_>) -> Result<Ports, Problem> {
    let members = at.members()?;
    let [(kind, member)] = members.as_slice() else {
        return Err(at.problem("a protocol has exactly one member"));
    };
    let protocol = match *kind {
        "destinationNamedPort" => return Ok((None, Some(vec![ports::name(member)?]))),
        "tcp" => Protocol::TCP,
        "udp" => Protocol::UDP,
        "sctp" => Protocol::SCTP,
        _ => return Err(member.problem("this protocol is not known")),
    };
    member.only(&["destinationPort"])?;
    let port = member.member("destinationPort").ok_or_else(|| member.problem("it is empty"))?;
    Ok((Some(protocol), Some(vec![self::port(&port)?])))
}

fn port(at: &At<'_>) -> Result<Port, Problem> {
    let members = at.members()?;
    match members.as_slice() {
        [("number", number)] => ports::number(number).map(|number| Port::Range(number, number)),
        [("range", range)] => {
            range.only(&["start", "end"])?;
            let bound = |name| range.member(name).ok_or_else(|| range.problem_of(name, "it is missing"));
            let start = ports::number(&bound("start")?)?;
            // The API refuses a range of one port.
            let end = bound("end")?.whole(start.saturating_add(1), u16::MAX)?;
            Ok(Port::Range(start, end))
        }
        _ => Err(at.problem("a number or a range is wanted")),
    }
}

#[cfg(test)]
mod tests;
