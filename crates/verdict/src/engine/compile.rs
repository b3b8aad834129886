//! Rules as the engine needs them: questions about the peer have numbers, and what a rule asks of
//! the local address is answered for each of them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use russet_addr::{Family, IpNet};

use super::predicate::{Predicate, PredicateId, Predicates};
use super::program::{Line, PortTest, Ports};
use super::store::Store;
use crate::ir::{Direction, Entity, Port, Rule};

/// The rules of a policy, a profile or an EgressNetworkPolicy in both directions.
#[derive(Debug, Default)]
pub(super) struct Compiled {
    ingress: Vec<Template>,
    egress: Vec<Template>,
    acquired: Vec<PredicateId>,
    /// Whether a rule asks something of the local address that more than its endpoint decides.
    pub(super) asks_of_local: bool,
}

/// A rule for any local address.
#[derive(Debug)]
struct Template {
    rule: Rule,
    peer: Vec<(PredicateId, bool)>,
    /// The ports of the peer.
    ports: PortTest,
}

/// A local address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Local<'a> {
    pub(super) store: &'a Store,
    pub(super) address: IpAddr,
}

// === impl Compiled ===

impl Compiled {
    /// Takes numbers for what the rules ask.
    pub(super) fn new(ingress: &[Rule], egress: &[Rule], predicates: &mut Predicates) -> Self {
        let mut compiled = Self::default();
        compiled.ingress = compiled.templates(ingress, Direction::Ingress, predicates);
        compiled.egress = compiled.templates(egress, Direction::Egress, predicates);
        compiled
    }

    /// Gives them back.
    pub(super) fn release(&self, predicates: &mut Predicates) {
        self.acquired.iter().for_each(|id| predicates.release(*id));
    }

    /// The rules that may match packets of a local address.
    pub(super) fn lines(&self, direction: Direction, local: Local<'_>) -> impl Iterator<Item = Line> {
        let templates = match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        };
        templates.iter().filter_map(move |template| template.line(direction, local))
    }

    fn templates(
        &mut self,
        rules: &[Rule],
        direction: Direction,
        predicates: &mut Predicates,
    ) -> Vec<Template> {
        rules.iter().filter_map(|rule| self.template(rule, direction, predicates)).collect()
    }

    /// `None` if the rule matches nothing.
    fn template(
        &mut self,
        rule: &Rule,
        direction: Direction,
        predicates: &mut Predicates,
    ) -> Option<Template> {
        let (peer, local) = sides(rule, direction);
        if peer.nets.as_ref().is_some_and(Vec::is_empty) {
            return None;
        }
        let asks_ports = |entity: &Entity| entity.ports.is_some() || !entity.not_ports.is_empty();
        let of_address = Entity { ports: None, not_ports: Vec::new(), ..local.clone() };
        self.asks_of_local |= of_address != Entity::default() || asks_ports(local);
        let mut acquire = |predicate| {
            let id = predicates.acquire(predicate);
            self.acquired.push(id);
            id
        };
        let mut questions = Vec::new();
        for (predicate, expected) in of_entity(peer) {
            questions.push((acquire(predicate), expected));
        }
        let mut ports = PortTest::default();
        if let Some(service) = &peer.service {
            match direction {
                Direction::Ingress => questions.push((acquire(Predicate::Service(service.clone())), true)),
                Direction::Egress => {
                    let id = acquire(Predicate::ServicePorts(service.clone()));
                    ports.any_of.push(vec![Ports::OfPeer(id)]);
                }
            }
        }
        let mut port = |port: &Port| match port {
            Port::Range(first, last) => Ports::Range(*first, *last),
            Port::Named(name) => {
                Ports::OfPeer(acquire(Predicate::Named(name.clone(), peer.selector.clone())))
            }
        };
        ports.any_of.extend(peer.ports.as_ref().map(|ports| ports.iter().map(&mut port).collect()));
        ports.none_of.extend(peer.not_ports.iter().map(&mut port));
        Some(Template { rule: rule.clone(), peer: questions, ports })
    }
}

/// What an entity asks of addresses alone, services excepted, and what the answer must be.
pub(super) fn of_entity(entity: &Entity) -> Vec<(Predicate, bool)> {
    let mut questions = Vec::new();
    match (&entity.nets, &entity.not_nets) {
        (None, except) if except.is_empty() => {}
        (None, except) => questions.push((Predicate::Nets(ordered(except), Vec::new()), false)),
        (Some(within), except) => questions.push((Predicate::Nets(ordered(within), ordered(except)), true)),
    }
    match (&entity.selector, &entity.not_selector) {
        (None, None) => {}
        (None, Some(unwanted)) => questions.push((Predicate::Selected(unwanted.clone(), None), false)),
        (Some(wanted), unwanted) => {
            questions.push((Predicate::Selected(wanted.clone(), unwanted.clone()), true));
        }
    }
    if let Some(nodes) = &entity.nodes {
        questions.push((Predicate::Node(nodes.clone()), true));
    }
    questions
}

fn ordered(nets: &[IpNet]) -> Vec<IpNet> {
    nets.iter().map(IpNet::trunc).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The peer's side of a rule, and the local one.
fn sides(rule: &Rule, direction: Direction) -> (&Entity, &Entity) {
    match direction {
        Direction::Ingress => (&rule.source, &rule.destination),
        Direction::Egress => (&rule.destination, &rule.source),
    }
}

// === impl Template ===

impl Template {
    /// The rule for one local address; `None` if it cannot match there.
    fn line(&self, direction: Direction, local: Local<'_>) -> Option<Line> {
        let rule = &self.rule;
        let (_, own) = sides(rule, direction);
        if rule.family.is_some_and(|family| family != Family::of(local.address)) || !local.fits(own) {
            return None;
        }
        let mut own_ports = PortTest::default();
        if let Some(service) = &own.service {
            match direction {
                Direction::Ingress => own_ports.any_of.push(local.ports_of_service(service)),
                // Of a source only the address counts, and a Service may have no port.
                Direction::Egress if !local.is_of_service(service) => return None,
                Direction::Egress => {}
            }
        }
        let resolve =
            |ports: &[Port]| ports.iter().flat_map(|port| local.ports(port, own)).collect::<Vec<_>>();
        own_ports.any_of.extend(own.ports.as_deref().map(resolve));
        own_ports.none_of = resolve(&own.not_ports);
        let (source, destination) = match direction {
            Direction::Ingress => (self.ports.clone(), own_ports),
            Direction::Egress => (own_ports, self.ports.clone()),
        };
        let never = |test: &PortTest| test.any_of.iter().any(Vec::is_empty);
        if never(&source) || never(&destination) {
            return None;
        }
        Some(Line {
            action: rule.action,
            protocol: rule.protocol,
            not_protocol: rule.not_protocol,
            icmp: rule.icmp,
            not_icmp: rule.not_icmp,
            peer: self.peer.clone(),
            source,
            destination,
        })
    }
}

// === impl Local ===

impl Local<'_> {
    /// Whether the address is what an entity asks for, ports and service excepted.
    fn fits(&self, entity: &Entity) -> bool {
        of_entity(entity).iter().all(|(predicate, expected)| self.answer(predicate) == *expected)
    }

    fn answer(&self, predicate: &Predicate) -> bool {
        let contains = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&self.address));
        match predicate {
            Predicate::Nets(within, except) => contains(within) && !contains(except),
            Predicate::Selected(wanted, unwanted) => {
                let holds = |labels: &super::labels::Labels<'_>| {
                    labels.match_selector(wanted)
                        && !unwanted.as_ref().is_some_and(|it| labels.match_selector(it))
                };
                let sets = self.store.sets.iter().map(|(_, set)| set);
                let mut covering = sets.filter(|set| set.nets.iter().any(|net| net.contains(&self.address)));
                let mut endpoints = self.store.endpoints_at(self.address);
                endpoints.any(|(_, endpoint)| holds(&self.store.endpoint_labels(endpoint)))
                    || covering.any(|set| holds(&self.store.set_labels(set)))
            }
            Predicate::Node(selector) => {
                let nodes = self.store.at(self.address).into_iter().flat_map(|at| &at.nodes);
                nodes
                    .filter_map(|name| self.store.nodes.get(name))
                    .any(|node| super::labels::Labels::of_node(&node.labels).match_selector(selector))
            }
            Predicate::Service(_) | Predicate::ServicePorts(_) | Predicate::Named(..) => false,
        }
    }

    fn is_of_service(&self, service: &crate::ir::ServiceId) -> bool {
        self.store.services.get(service).is_some_and(|service| service.addresses.contains(&self.address))
    }

    fn ports_of_service(&self, service: &crate::ir::ServiceId) -> Vec<Ports> {
        let endpoints = self.store.services.get(service).into_iter().flat_map(|service| &service.endpoints);
        let mine = endpoints.filter(|(address, ..)| *address == self.address);
        mine.map(|(_, protocol, port)| Ports::One(*protocol, *port)).collect()
    }

    fn ports(&self, port: &Port, entity: &Entity) -> Vec<Ports> {
        let name = match port {
            Port::Range(first, last) => return vec![Ports::Range(*first, *last)],
            Port::Named(name) => name,
        };
        let mut found = BTreeSet::new();
        for (_, endpoint) in self.store.endpoints_at(self.address) {
            let labels = self.store.endpoint_labels(endpoint);
            if entity.selector.as_ref().is_none_or(|selector| labels.match_selector(selector)) {
                let named = endpoint.ports.iter().filter(|port| port.name == *name);
                found.extend(named.map(|port| Ports::One(port.protocol, port.port)));
            }
        }
        found.into_iter().collect()
    }
}
