//! `russet policy ls` and `russet policy show`: the cluster's policies in their order of evaluation,
//! whom they select, and whether this node enforces them.

mod egress;

use std::process::ExitCode;

use russet_policy::{Policies, PolicySettings};
use russet_verdict::explain::protocol_name;
use russet_verdict::ir::{Direction, Entity, Policy, Port, Rule};
use russet_verdict::snapshot::Snapshot;
use russet_verdict::world::{Endpoint, EndpointKind};
use serde::Serialize;
use serde_json::json;

use super::datastore::{Datastore, pod_name};
use super::enforcement;
use crate::cli::policy::{LsArgs, ShowArgs};
use crate::command::place::Place;
use crate::command::{Failure, PROBLEMS};
use crate::output;
use crate::settings::recorded;

/// One policy.
#[derive(Debug, Serialize)]
struct Row {
    kind: &'static str,
    namespace: Option<String>,
    name: String,
    /// Empty for an EgressNetworkPolicy, which is asked after all tiers.
    tier: String,
    /// None is after all numbers.
    order: Option<f64>,
    /// Whom it selects, in Calico's text form.
    selector: String,
    directions: Vec<&'static str>,
    /// The selected pods, and those of them that are on this node.
    pods: usize,
    pods_here: usize,
    /// Whether this node enforces it.
    enforced: Enforced,
    /// Why not, or what of it is not enforced as it is written.
    reasons: Vec<String>,
}

/// One policy with its pods and rules.
#[derive(Debug, Serialize)]
struct Shown {
    policy: Row,
    selected: Vec<String>,
    ingress: Vec<String>,
    egress: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Enforced {
    Yes,
    /// Some of it is denied instead, or, with `http`, more is allowed.
    Partly,
    No,
    /// It only proposes.
    Staged,
}

/// The requested policy does not exist.
#[derive(Debug, thiserror::Error)]
#[error("no policy is called {0}; see `russet policy ls`")]
struct Unknown(String);

/// More selected pods are counted, and not printed as text.
const PODS_SHOWN: usize = 10;

/// Lists all policies. Exits with 3 if one is not enforced as it is written.
pub async fn list(args: LsArgs) -> Result<ExitCode, Failure> {
    let place = Place::open_cluster(args.place).await?;
    let data = Datastore::read(&place).await?;
    let unenforced = unenforced(&place);
    let snapshot = &data.cluster.snapshot;
    let rows = sorted(snapshot).into_iter().map(|it| Row::new(&data, it, unenforced.as_deref()));
    let rows: Vec<Row> = rows.chain(egress::rows(&data)).collect();
    data.notes.iter().chain(&data.cluster.problems).for_each(|note| output::progress(&output::visible(note)));
    output::print_as(args.output.format, &json!({"schema": 1, "policies": rows}), || {
        let heading = ["TIER", "ORDER", "NAME", "KIND", "DIRECTIONS", "PODS", "HERE", "ENFORCED"];
        output::table(&heading, &rows.iter().map(Row::cells).collect::<Vec<_>>())
    });
    let is_bad = |row: &Row| matches!(row.enforced, Enforced::Partly | Enforced::No);
    Ok(if rows.iter().any(is_bad) { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
}

/// Shows all policies of a name.
pub async fn show(args: ShowArgs) -> Result<ExitCode, Failure> {
    let place = Place::open_cluster(args.place).await?;
    let mut data = Datastore::read(&place).await?;
    data.resolve_names(&place).await;
    let unenforced = unenforced(&place);
    let (namespace, name) = match args.name.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, args.name.as_str()),
    };
    let is_it = |policy: &&Policy| {
        (*policy.name == *name || *policy.id.name == *name)
            && namespace.is_none_or(|namespace| policy.id.namespace.as_deref() == Some(namespace))
    };
    let found = sorted(&data.cluster.snapshot).into_iter().filter(is_it);
    let found = found.map(|it| shown(&data, it, Row::new(&data, it, unenforced.as_deref())));
    let is_it =
        |row: &Row| row.name == name && namespace.is_none_or(|it| row.namespace.as_deref() == Some(it));
    let egress = egress::rows(&data).filter(is_it).map(|row| egress::shown(&data, row));
    let all: Vec<Shown> = found.chain(egress).collect();
    if all.is_empty() {
        return Err(Unknown(args.name).into());
    }
    let json = json!({"schema": 1, "policies": all});
    output::print_as(args.output.format, &json, || all.iter().map(text).collect::<Vec<_>>().join("\n"));
    let is_bad = |it: &Shown| matches!(it.policy.enforced, Enforced::Partly | Enforced::No);
    Ok(if all.iter().any(is_bad) { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
}

/// Why this node enforces no policy at all; none if it does.
fn unenforced(place: &Place) -> Option<String> {
    let Some(known) = recorded::look(&place.paths).known else {
        return Some("no agent has run on this machine".to_owned());
    };
    let config = match known.config(place.paths.clone()) {
        Ok(config) => config,
        Err(error) => return Some(error.to_string()),
    };
    // Without the rights to read it, the table is taken to be there.
    let by_node = || {
        let table = Policies::open(PolicySettings::default()).ok()?;
        enforcement::by_node(table.epoch().is_some(), russet_agent::has_felix)
    };
    enforcement::by_settings(&config).or_else(by_node).map(|reason| reason.to_string())
}

/// All policies, in the order of evaluation.
fn sorted(snapshot: &Snapshot) -> Vec<&Policy> {
    let mut all: Vec<&Policy> = snapshot.policies.values().map(|policy| &**policy).collect();
    all.sort_by_cached_key(|policy| {
        let tier = snapshot.tiers.get(&policy.tier).map(|tier| tier.order);
        (tier.is_none(), tier, policy.tier.clone(), policy.order, policy.id.sort_key())
    });
    all
}

/// The pods that a policy selects.
fn selected<'a>(data: &'a Datastore, policy: &Policy) -> Vec<&'a Endpoint> {
    let snapshot = &data.cluster.snapshot;
    let pods = snapshot.endpoints.values().map(|endpoint| &**endpoint);
    pods.filter(|it| it.kind == EndpointKind::Workload && snapshot.selects(&policy.subject, it)).collect()
}

fn shown(data: &Datastore, policy: &Policy, row: Row) -> Shown {
    let selected = selected(data, policy).iter().map(|it| pod_name(it)).collect();
    let rules = |direction| lines(policy, direction);
    Shown { policy: row, selected, ingress: rules(Direction::Ingress), egress: rules(Direction::Egress) }
}

fn text(shown: &Shown) -> String {
    let Shown { policy: row, selected, ingress, egress } = shown;
    let name = row.full_name();
    let order = row.order.map_or_else(|| "last".to_owned(), |order| order.to_string());
    let place =
        if row.tier.is_empty() { String::new() } else { format!(", tier {}, order {order}", row.tier) };
    let mut all = vec![format!("{} {name}{place}", row.kind), format!("selects   {}", row.selector)];
    let more = selected.len().saturating_sub(PODS_SHOWN);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let names = selected.iter().take(PODS_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    all.push(format!("pods      {} ({} on this node): {names}{more}", row.pods, row.pods_here));
    all.push(format!("enforced  {}", row.enforcement()));
    for (word, rules) in [("ingress", ingress), ("egress", egress)] {
        if row.directions.contains(&word) {
            all.push(format!("{word}: {} rules", rules.len()));
            all.extend(rules.iter().map(|rule| format!("  {rule}")));
        }
    }
    all.iter().map(|line| output::visible(line) + "\n").collect()
}

/// The rules of a direction, one line each.
fn lines(policy: &Policy, direction: Direction) -> Vec<String> {
    policy.rules(direction).iter().map(line).collect()
}

fn line(rule: &Rule) -> String {
    let mut parts = vec![format!("{} {:?}", rule.path, rule.action)];
    parts.extend(rule.family.map(|family| family.to_string()));
    parts.extend(rule.protocol.map(protocol_name));
    parts.extend(rule.not_protocol.map(|protocol| format!("not {}", protocol_name(protocol))));
    for (icmp, not) in [(rule.icmp, ""), (rule.not_icmp, "not ")] {
        let code = |code: Option<u8>| code.map(|code| format!("/{code}")).unwrap_or_default();
        parts.extend(icmp.map(|icmp| format!("{not}type {}{}", icmp.kind, code(icmp.code))));
    }
    parts.extend(entity(&rule.source).map(|text| format!("from {text}")));
    parts.extend(entity(&rule.destination).map(|text| format!("to {text}")));
    parts.extend(rule.http.then(|| "(http not enforced)".to_owned()));
    parts.join(" ")
}

fn entity(entity: &Entity) -> Option<String> {
    fn list<T>(items: &[T], shown: impl Fn(&T) -> String) -> String {
        let items: Vec<String> = items.iter().map(shown).collect();
        if items.is_empty() { "nothing".to_owned() } else { items.join(",") }
    }
    let ports = |ports: &[Port]| {
        list(ports, |port| match port {
            Port::Range(first, last) if first == last => first.to_string(),
            Port::Range(first, last) => format!("{first}-{last}"),
            Port::Named(name) => name.to_string(),
        })
    };
    let Entity { nets, not_nets, selector, not_selector, nodes, service, ports: wanted, not_ports } = entity;
    let mut parts = Vec::new();
    parts.extend(nets.as_ref().map(|nets| list(nets, ToString::to_string)));
    parts.extend((!not_nets.is_empty()).then(|| format!("not {}", list(not_nets, ToString::to_string))));
    parts.extend(selector.as_ref().map(ToString::to_string));
    parts.extend(not_selector.as_ref().map(|selector| format!("not ({selector})")));
    parts.extend(nodes.as_ref().map(|selector| format!("nodes {selector}")));
    parts.extend(service.as_ref().map(|it| format!("service {}/{}", it.namespace, it.name)));
    parts.extend(wanted.as_ref().map(|wanted| format!("ports {}", ports(wanted))));
    parts.extend((!not_ports.is_empty()).then(|| format!("not ports {}", ports(not_ports))));
    (!parts.is_empty()).then(|| parts.join(" "))
}

// === impl Row ===

impl Row {
    fn new(data: &Datastore, policy: &Policy, unenforced: Option<&str>) -> Self {
        let pods = selected(data, policy);
        let own = data.node.as_ref().map(|name| name.as_str());
        let mut reasons: Vec<String> = unenforced.map(str::to_owned).into_iter().collect();
        let enforced = match policy.staged {
            Some(_) => Enforced::Staged,
            None if !reasons.is_empty() => Enforced::No,
            None if policy.problems.is_empty() => Enforced::Yes,
            None => Enforced::Partly,
        };
        reasons.extend(policy.problems.iter().map(|it| format!("{}: {}", it.path, it.text)));
        let words = [(policy.directions.ingress, "ingress"), (policy.directions.egress, "egress")];
        Self {
            kind: policy.id.kind.name(),
            namespace: policy.id.namespace.as_deref().map(str::to_owned),
            name: policy.name.to_string(),
            tier: policy.tier.to_string(),
            order: policy.order.number(),
            selector: policy.subject.to_string(),
            directions: words.into_iter().filter(|(counts, _)| *counts).map(|(_, word)| word).collect(),
            pods: pods.len(),
            pods_here: pods.iter().filter(|it| Some(&*it.node) == own).count(),
            enforced,
            reasons,
        }
    }

    fn full_name(&self) -> String {
        let namespace = self.namespace.as_ref().map(|namespace| format!("{namespace}/"));
        format!("{}{}", namespace.unwrap_or_default(), self.name)
    }

    fn cells(&self) -> Vec<String> {
        let order = self.order.map_or_else(|| "-".to_owned(), |order| order.to_string());
        vec![
            if self.tier.is_empty() { "-".to_owned() } else { self.tier.clone() },
            order,
            self.full_name(),
            self.kind.to_owned(),
            self.directions.join(","),
            self.pods.to_string(),
            self.pods_here.to_string(),
            self.enforcement(),
        ]
    }

    fn enforcement(&self) -> String {
        let word = match self.enforced {
            Enforced::Yes => "yes",
            Enforced::Partly => "partly",
            Enforced::No => "no",
            Enforced::Staged => "staged",
        };
        match self.reasons.first() {
            None => word.to_owned(),
            Some(first) if self.reasons.len() == 1 => format!("{word}: {first}"),
            Some(first) => format!("{word}: {first} (and {} more)", self.reasons.len() - 1),
        }
    }
}
