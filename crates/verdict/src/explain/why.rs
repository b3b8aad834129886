//! Why a rule does not match, as a clause.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;

use russet_addr::Family;
use russet_model::Selector;

use super::{names, protocol_name};
use crate::evaluator::{Mismatch, Part, Side};
use crate::flow::Flow;
use crate::ir::{Entity, Icmp, Port, Rule};
use crate::snapshot::Snapshot;

/// A list of more entries is cut.
const ENTRIES_SHOWN: usize = 6;

/// A label that every pod of Kubernetes has, so that it explains nothing.
const ORCHESTRATOR: &str = "projectcalico.org/orchestrator";

/// What does not match, in a word.
pub(super) fn member(mismatch: Mismatch) -> &'static str {
    use Side::{Destination, Source};
    match mismatch {
        Mismatch::Family => "the address family",
        Mismatch::Protocol | Mismatch::NotProtocol => "the protocol",
        Mismatch::Icmp | Mismatch::NotIcmp => "the ICMP message",
        Mismatch::Entity(Source, Part::Nets | Part::NotNets | Part::Nodes) => "the address of the source",
        Mismatch::Entity(Source, Part::Selector | Part::NotSelector) => "the labels of the source",
        Mismatch::Entity(Source, Part::Service) => "the Service of the source",
        Mismatch::Entity(Source, Part::Ports | Part::NotPorts) => "the source port",
        Mismatch::Entity(Destination, Part::Nets | Part::NotNets | Part::Nodes) => {
            "the address of the destination"
        }
        Mismatch::Entity(Destination, Part::Selector | Part::NotSelector) => "the labels of the destination",
        Mismatch::Entity(Destination, Part::Service) => "the Service of the destination",
        Mismatch::Entity(Destination, Part::Ports | Part::NotPorts) => "the port",
    }
}

/// Why a rule does not match a flow.
pub(super) fn clause(snapshot: &Snapshot, rule: &Rule, flow: &Flow, mismatch: Mismatch) -> String {
    let protocol = protocol_name(flow.protocol);
    match mismatch {
        Mismatch::Family => format!("only for {}", rule.family.unwrap_or(Family::of(flow.source))),
        Mismatch::Protocol => {
            let wanted = rule.protocol.map(protocol_name).unwrap_or_default();
            format!("protocol {wanted}, not {protocol}")
        }
        Mismatch::NotProtocol => format!("not for protocol {protocol}"),
        Mismatch::Icmp => format!("only for ICMP messages of {}", rule.icmp.map(message).unwrap_or_default()),
        Mismatch::NotIcmp => {
            format!("only for ICMP messages other than {}", rule.not_icmp.map(message).unwrap_or_default())
        }
        Mismatch::Entity(side, part) => {
            let (name, entity) = match side {
                Side::Source => ("source", &rule.source),
                Side::Destination => ("destination", &rule.destination),
            };
            format!("{name} {}", End { snapshot, entity, side, flow }.clause(part))
        }
    }
}

struct End<'a> {
    snapshot: &'a Snapshot,
    entity: &'a Entity,
    side: Side,
    flow: &'a Flow,
}

impl End<'_> {
    fn clause(&self, part: Part) -> String {
        let Entity { nets, not_nets, selector, not_selector, nodes, service, ports, not_ports } = self.entity;
        let (address, port) = match self.side {
            Side::Source => (self.flow.source, self.flow.source_port),
            Side::Destination => (self.flow.destination, self.flow.destination_port),
        };
        let of_kubernetes = format!("{ORCHESTRATOR} == \"k8s\" && ");
        let text = |selector: &Option<Selector>| {
            selector.as_ref().map(|it| it.to_string().replace(&of_kubernetes, "")).unwrap_or_default()
        };
        match part {
            Part::Nets => format!("{address} is not in {}", list(nets.iter().flatten())),
            Part::NotNets => {
                let inside = not_nets.iter().filter(|net| net.contains(&address));
                format!("{address} is in the excepted {}", list(inside))
            }
            Part::Selector => {
                let but = not_selector.as_ref().map(|it| format!(" and not {it}")).unwrap_or_default();
                let asked = selector.iter().chain(not_selector).collect::<Vec<_>>();
                format!("must match {}{but}; {}", text(selector), self.labels(&asked))
            }
            Part::NotSelector => {
                let asked = not_selector.iter().collect::<Vec<_>>();
                format!("must not match {}; {}", text(not_selector), self.labels(&asked))
            }
            Part::Nodes => format!("{address} is of no node that matches {}", text(nodes)),
            Part::Service => {
                let name =
                    service.as_ref().map(|id| format!("{}/{}", id.namespace, id.name)).unwrap_or_default();
                format!("{address} with this port is no endpoint of Service {name}")
            }
            Part::Ports => {
                let wanted = list(ports.iter().flatten().map(port_text));
                format!("port {port} is not among {wanted}{}", self.named())
            }
            Part::NotPorts => {
                format!("port {port} is among the excepted {}", list(not_ports.iter().map(port_text)))
            }
        }
    }

    /// Which labels that the selectors ask for the address has.
    fn labels(&self, selectors: &[&Selector]) -> String {
        let address = match self.side {
            Side::Source => self.flow.source,
            Side::Destination => self.flow.destination,
        };
        let snapshot = self.snapshot;
        let mut known: Vec<String> = snapshot
            .endpoints_at(address)
            .map(|it| (names::endpoint(it), asked_labels(selectors, &|name| snapshot.label(it, name))))
            .map(|(who, labels)| format!("{who} has {labels}"))
            .collect();
        for (id, set) in snapshot.sets_at(address) {
            let labels = asked_labels(selectors, &|name| set.labels.get(name).map(|value| &**value));
            known.push(format!("network set {} has {labels}", id.name));
        }
        if known.is_empty() {
            return format!("{address} is of no endpoint or network set");
        }
        list(known.iter())
    }

    /// The named ports of the address, if the rule asks for one by its name.
    fn named(&self) -> String {
        let mut ports = self.entity.ports.iter().flatten();
        if self.side != Side::Destination || !ports.any(|port| matches!(port, Port::Named(_))) {
            return String::new();
        }
        let found = self.snapshot.endpoints_at(self.flow.destination).flat_map(|it| &it.ports);
        let found = found.map(|it| format!("{}={}/{}", it.name, protocol_name(it.protocol), it.port));
        format!("; {} names {}", names::at(self.snapshot, self.flow.destination), list(found))
    }
}

/// The labels for which selectors ask, with their values.
fn asked_labels<'a>(selectors: &[&Selector], label: &dyn Fn(&str) -> Option<&'a str>) -> String {
    let asked: RefCell<BTreeMap<String, Option<&str>>> = RefCell::default();
    for selector in selectors {
        selector.matches_with(&|name| {
            let value = label(name);
            asked.borrow_mut().insert(name.to_owned(), value);
            value
        });
    }
    let mut labels = asked.into_inner();
    labels.remove(ORCHESTRATOR);
    list(labels.iter().map(|(name, value)| match value {
        Some(value) => format!("{name}={value}"),
        None => format!("no {name}"),
    }))
}

fn port_text(port: &Port) -> String {
    match port {
        Port::Range(first, last) if first == last => first.to_string(),
        Port::Range(first, last) => format!("{first}-{last}"),
        Port::Named(name) => name.to_string(),
    }
}

fn message(icmp: Icmp) -> String {
    let code = icmp.code.map(|code| format!(" code {code}")).unwrap_or_default();
    format!("type {}{code}", icmp.kind)
}

/// A list that fits a line.
fn list(entries: impl Iterator<Item = impl Display>) -> String {
    let entries: Vec<String> = entries.map(|entry| entry.to_string()).collect();
    let shown = entries.iter().take(ENTRIES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match entries.len() {
        0 => "nothing".to_owned(),
        all if all > ENTRIES_SHOWN => format!("{shown} and {} more", all - ENTRIES_SHOWN),
        _ => shown,
    }
}
