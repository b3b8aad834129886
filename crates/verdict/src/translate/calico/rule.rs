//! Rules of Calico's policies and profiles (calico-cni.md section 4P.3).

use std::sync::Arc;

use russet_addr::{Family, IpNet};
use russet_model::{Selector, SelectorError};

use crate::ir::{Action, Direction, Entity, Icmp, Port, Problem, Protocol, Rule, ServiceId};
use crate::translate::read::{At, Problems};
use crate::translate::{RULES_PER_POLICY_MAX, labels, ports};

/// Where rules stand.
#[derive(Debug, Clone, Copy)]
pub(in crate::translate) struct Scope<'a> {
    pub direction: Direction,
    /// The namespace to which selectors of a policy are confined.
    pub namespace: Option<&'a str>,
}

/// The rules of a direction. If they are not a list, everything is denied.
pub(in crate::translate) fn rules(spec: &At<'_>, scope: &Scope<'_>, problems: &mut Problems) -> Vec<Rule> {
    let name = if scope.direction == Direction::Ingress { "ingress" } else { "egress" };
    match spec.list(name) {
        Ok(list) => list
            .iter()
            .take(RULES_PER_POLICY_MAX + 1)
            .filter_map(|at| readable_or_closed(at, scope, problems))
            .collect(),
        Err(problem) => {
            let path = Arc::clone(&problem.path);
            problems.push(problem);
            vec![Rule::any(Action::Deny, path)]
        }
    }
}

/// A rule. If it cannot be read, it is nothing if it allows or logs, and denies everything otherwise.
fn readable_or_closed(at: &At<'_>, scope: &Scope<'_>, problems: &mut Problems) -> Option<Rule> {
    let action = match at.opt_text("action") {
        Ok(Some("Allow")) => Ok(Action::Allow),
        Ok(Some("Deny")) => Ok(Action::Deny),
        Ok(Some("Log")) => Ok(Action::Log),
        Ok(Some("Pass")) => Ok(Action::Pass),
        _ => Err(at.problem_of("action", "Allow, Deny, Log or Pass is wanted; everything is denied")),
    };
    let read = action.clone().and_then(|action| rule(at, action, scope, problems));
    match (problems.keep(read), action) {
        (Some(rule), _) => Some(rule),
        (None, Ok(Action::Allow | Action::Log)) => None,
        (None, _) => Some(Rule::any(Action::Deny, at.path())),
    }
}

fn rule(at: &At<'_>, action: Action, scope: &Scope<'_>, problems: &mut Problems) -> Result<Rule, Problem> {
    at.only(&[
        "action",
        "ipVersion",
        "protocol",
        "notProtocol",
        "icmp",
        "notICMP",
        "source",
        "destination",
        "http",
        "metadata",
    ])?;
    let read = |name| at.member(name).map(|at| protocol(&at)).transpose();
    let (protocol, not_protocol) = (read("protocol")?, read("notProtocol")?);
    let icmp = at.member("icmp").map(|at| self::icmp(&at)).transpose()?;
    if icmp.is_some() && !matches!(protocol, Some(Protocol::ICMP | Protocol::ICMPV6)) {
        return Err(at.problem_of("icmp", "it needs the protocol ICMP or ICMPv6"));
    }
    if let Some(http) = at.member("http") {
        if action != Action::Allow || scope.direction == Direction::Egress {
            return Err(http.problem("it can only be in a rule of ingress that allows"));
        }
        problems.push(http.problem("http is not enforced: the rule's other members decide"));
    }
    let mut rule = Rule {
        family: family(at)?,
        protocol,
        not_protocol,
        icmp,
        not_icmp: at.member("notICMP").map(|at| self::icmp(&at)).transpose()?,
        source: entity(at, "source", protocol, scope)?,
        destination: entity(at, "destination", protocol, scope)?,
        http: at.member("http").is_some(),
        ..Rule::any(action, at.path())
    };
    confine_to_family(&mut rule);
    Ok(rule)
}

fn family(at: &At<'_>) -> Result<Option<Family>, Problem> {
    let Some(version) = at.member("ipVersion") else { return Ok(None) };
    match version.whole(4_u8, 6)? {
        4 => Ok(Some(Family::V4)),
        6 => Ok(Some(Family::V6)),
        _ => Err(version.problem("4 or 6 is wanted")),
    }
}

/// ICMP is of IPv4, ICMPv6 of IPv6, and `notNets` of one family alone are of that: Felix leaves the rule out of
/// the other one, whatever its action is. A rule that says otherwise matches nothing.
fn confine_to_family(rule: &mut Rule) {
    let of_protocol = match rule.protocol {
        Some(Protocol::ICMP) => Some(Family::V4),
        Some(Protocol::ICMPV6) => Some(Family::V6),
        _ => None,
    };
    let of_not_nets = [family_of_not_nets(&rule.source), family_of_not_nets(&rule.destination)];
    for family in [of_protocol].into_iter().chain(of_not_nets).flatten() {
        if rule.family.is_some_and(|other| other != family) {
            rule.source.nets = Some(Vec::new());
        }
        rule.family = Some(family);
    }
}

/// The family of all `notNets`, if there are any and they have the same, unless the nets beside them have it anyway.
fn family_of_not_nets(entity: &Entity) -> Option<Family> {
    let of = |net: &IpNet| Family::of(net.addr());
    let family = of(entity.not_nets.first()?);
    let all_have_it = |nets: &[IpNet]| nets.iter().all(|net| of(net) == family);
    let is_said = entity.nets.as_ref().is_some_and(|nets| all_have_it(nets));
    (all_have_it(&entity.not_nets) && !is_said).then_some(family)
}

/// A protocol by name or number. v1 writes names in small letters.
pub(super) fn protocol(at: &At<'_>) -> Result<Protocol, Problem> {
    let Ok(name) = at.text() else { return at.whole(1, u8::MAX).map(Protocol) };
    match name {
        "TCP" => Ok(Protocol::TCP),
        "UDP" => Ok(Protocol::UDP),
        "ICMP" => Ok(Protocol::ICMP),
        "ICMPv6" => Ok(Protocol::ICMPV6),
        "SCTP" => Ok(Protocol::SCTP),
        "UDPLite" => Ok(Protocol::UDPLITE),
        other => match other.parse() {
            Ok(number @ 1..) => Ok(Protocol(number)),
            _ => Err(at.problem(format!("the protocol {other:.60?} is not known"))),
        },
    }
}

fn icmp(at: &At<'_>) -> Result<Icmp, Problem> {
    at.only(&["type", "code"])?;
    let kind = at.member("type").ok_or_else(|| at.problem_of("type", "it is missing"))?.whole(0, 254)?;
    Ok(Icmp { kind, code: at.member("code").map(|code| code.whole(0, u8::MAX)).transpose()? })
}

fn entity(
    rule: &At<'_>,
    side: &str,
    protocol: Option<Protocol>,
    scope: &Scope<'_>,
) -> Result<Entity, Problem> {
    let Some(at) = rule.member(side) else { return Ok(Entity::default()) };
    at.only(&[
        "nets",
        "notNets",
        "selector",
        "notSelector",
        "namespaceSelector",
        "ports",
        "notPorts",
        "serviceAccounts",
        "services",
    ])?;
    let nets = nets(&at, "nets")?;
    let ports = self::ports(&at, "ports", protocol)?;
    let mut entity = Entity {
        nets: (!nets.is_empty()).then_some(nets),
        not_nets: self::nets(&at, "notNets")?,
        selector: positive_selector(&at, scope)?,
        not_selector: selector(at.member("notSelector").as_ref())?,
        ports: (!ports.is_empty()).then_some(ports),
        not_ports: self::ports(&at, "notPorts", protocol)?,
        ..Entity::default()
    };
    if let Some(services) = at.member("services") {
        let alone = Entity { ports: None, not_ports: Vec::new(), ..entity.clone() } == Entity::default();
        let right_side = (side == "source") == (scope.direction == Direction::Ingress);
        let has_ports = entity.ports.is_some() || !entity.not_ports.is_empty();
        if !alone || !right_side || side == "destination" && has_ports {
            return Err(services.problem("services cannot stand here, or beside these members"));
        }
        entity.service = Some(service(&services, scope.namespace)?);
    }
    Ok(entity)
}

fn nets(at: &At<'_>, name: &str) -> Result<Vec<IpNet>, Problem> {
    at.list(name)?.iter().map(At::net_or_address).collect()
}

/// What the address must be of: a namespace, a service account, and what has these labels.
fn positive_selector(at: &At<'_>, scope: &Scope<'_>) -> Result<Option<Selector>, Problem> {
    let mut own = Vec::new();
    if let Some(accounts) = at.member("serviceAccounts") {
        service_accounts(&accounts, &mut own)?;
    }
    own.extend(selector(at.member("selector").as_ref())?);
    let namespaces = at.member("namespaceSelector").filter(|at| at.text() != Ok(""));
    let mut parts = Vec::new();
    match (&namespaces, scope.namespace) {
        (Some(at), _) => parts.push(namespace_selector(at)?),
        (None, Some(namespace)) if !own.is_empty() || at.opt_text("notSelector")?.is_some() => {
            parts.push(labels::in_namespace(namespace).map_err(|error| at.problem(error.problem))?);
        }
        (None, _) => {}
    }
    parts.extend(own);
    Ok((!parts.is_empty()).then(|| Selector::and(parts)))
}

/// The selector for namespaces in a rule, the only place where `global()` may stand, alone.
fn namespace_selector(at: &At<'_>) -> Result<Selector, Problem> {
    let parsed = Selector::parse(at.text()?).map_err(|error| at.problem(error))?;
    match parsed.mentions_global() && parsed.to_string() != "global()" {
        true => Err(at.problem("global() can only stand alone")),
        false => Ok(labels::of_namespaces(&parsed)),
    }
}

fn service_accounts(at: &At<'_>, parts: &mut Vec<Selector>) -> Result<(), Problem> {
    at.only(&["names", "selector"])?;
    let refused = |error: SelectorError| at.problem(error.problem);
    let names: Vec<&str> = at.list("names")?.iter().map(At::text).collect::<Result<_, _>>()?;
    if let Some(selector) = selector(at.member("selector").as_ref())? {
        parts.push(labels::of_service_accounts(&selector, false));
    }
    if !names.is_empty() {
        parts.push(Selector::is_in(labels::SERVICE_ACCOUNT, names).map_err(refused)?);
    }
    Ok(())
}

/// A selector in text; a missing or empty one is none.
pub(super) fn selector(at: Option<&At<'_>>) -> Result<Option<Selector>, Problem> {
    let Some(at) = at else { return Ok(None) };
    let text = at.text()?;
    if text.is_empty() {
        return Ok(None);
    }
    let selector = Selector::parse(text).map_err(|error| at.problem(error))?;
    match selector.mentions_global() {
        true => Err(at.problem("global() can only stand in a rule's namespaceSelector")),
        false => Ok(Some(selector)),
    }
}

/// The endpoints of a Service. Go leaves the namespace empty in a policy of a namespace, so that the
/// rule never matches there; here it is the policy's, as the API's documentation says.
fn service(at: &At<'_>, namespace: Option<&str>) -> Result<ServiceId, Problem> {
    at.only(&["name", "namespace"])?;
    let name = at.opt_text("name")?.ok_or_else(|| at.problem_of("name", "it is missing"))?;
    let namespace = at.opt_text("namespace")?.or(namespace);
    let namespace = namespace.ok_or_else(|| at.problem_of("namespace", "it is missing"))?;
    Ok(ServiceId { namespace: namespace.into(), name: name.into() })
}

fn ports(at: &At<'_>, name: &str, protocol: Option<Protocol>) -> Result<Vec<Port>, Problem> {
    let list = at.list(name)?;
    let ports: Vec<Port> = list.iter().map(port).collect::<Result<_, _>>()?;
    let counted = matches!(protocol, Some(Protocol::TCP | Protocol::UDP | Protocol::SCTP));
    match ports.iter().zip(&list).find(|(port, _)| matches!(port, Port::Range(..)) && !counted) {
        Some((_, at)) => Err(at.problem("a port's number needs the protocol TCP, UDP or SCTP")),
        None => Ok(ports::merged(ports)),
    }
}

/// A number, a range `80:90`, or a name.
fn port(at: &At<'_>) -> Result<Port, Problem> {
    let Ok(text) = at.text() else {
        return ports::number(at).map(|number| Port::Range(number, number));
    };
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(first @ 1..), Ok(last)) if first <= last => Ok(Port::Range(first, last)),
        _ => ports::name(at),
    }
}
