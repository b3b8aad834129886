//! What the host endpoints of this node decide. It is computed as a whole: few nodes have host
//! endpoints, and their policies are few.

mod spans;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use russet_addr::{Family, IfName};

use super::Engine;
use super::compile::of_entity;
use super::labels::Labels;
use super::predicate::{Answer, Predicate, PredicateId, Vector};
use super::program::{Block, End, Line, PortTest, Ports, Program};
use super::row::Row;
use super::sources::ALLOW_ALL_PROFILE;
use super::store::Store;
use super::stored::StoredEndpoint;
use crate::felix::Failsafe;
use crate::hosts::{Entrance, HostTable, Next, Side, Span, State, TooLarge, Way};
use crate::ir::{Direction, Entity, HostUse, Order, Policy, Port, Protocol, Rule, TierDefault};
use crate::table::Part;
use crate::world::{EndpointKey, EndpointKind, EndpointToHost};
use spans::{Answers, Found, Spans, address_of, ranges};

/// The interfaces of a node that are not workloads', with their addresses.
pub type Interfaces = BTreeMap<IfName, BTreeSet<IpAddr>>;

/// The table as far as it is made.
struct Builder<'a> {
    store: &'a Store,
    max_rules: usize,
    max_segments: usize,
    ids: BTreeMap<(Side, Predicate), PredicateId>,
    questions: BTreeMap<PredicateId, (Side, Predicate)>,
    answers: BTreeMap<(PredicateId, Family), Answers>,
    /// What each number stands for.
    numbers: BTreeMap<State, String>,
    table: HostTable,
}

/// Decisions by the address of the destination.
type Decisions = Spans<Rc<Row>>;

/// Elements of the table: writing so many takes the kernel a second, and while it writes ranges, other
/// users of nf_tables wait.
const ELEMENTS_MAX: usize = 20_000;
/// Different pairs of sources and destinations for one way.
const PAIRS_MAX: usize = 65_536;

// === impl Engine ===

impl Engine {
    /// What the host endpoints of this node decide, as of the last flush. A host endpoint for an interface
    /// that is not among these counts if it names it.
    pub fn host_table(&self, interfaces: &Interfaces) -> Result<HostTable, TooLarge> {
        let mut builder = Builder {
            store: &self.store,
            max_rules: self.limits.rules,
            max_segments: self.limits.segments,
            ids: BTreeMap::new(),
            questions: BTreeMap::new(),
            answers: BTreeMap::new(),
            numbers: BTreeMap::new(),
            table: HostTable {
                endpoint_to_host: self.endpoint_to_host(),
                failsafe: self.failsafe(),
                ..HostTable::default()
            },
        };
        for (interface, endpoint) in guarded(&self.store, interfaces) {
            builder.add(interface.as_ref(), endpoint)?;
        }
        Ok(builder.table)
    }

    /// What becomes of packets of this node's workloads to the node, once their policies allow them.
    pub fn endpoint_to_host(&self) -> EndpointToHost {
        self.store.endpoint_to_host()
    }

    /// The ports of this node that no policy of a host endpoint closes.
    pub fn failsafe(&self) -> Failsafe {
        self.store.failsafe()
    }
}

/// The guarded interfaces and their host endpoints; no interface is every other one.
fn guarded<'a>(store: &'a Store, interfaces: &Interfaces) -> Vec<(Option<IfName>, &'a StoredEndpoint)> {
    let node = store.config().map(|config| Arc::clone(&config.node)).unwrap_or_default();
    let hosts: Vec<(&str, &StoredEndpoint)> = store
        .endpoints
        .iter()
        .filter_map(|(_, endpoint)| match &endpoint.kind {
            EndpointKind::Host { interface } if endpoint.node == node => Some((&**interface, &**endpoint)),
            _ => None,
        })
        .collect();
    let of = |name: &str| hosts.iter().find(|(interface, _)| *interface == name).map(|(_, it)| *it);
    let at = |addresses: &BTreeSet<IpAddr>| {
        let mut unnamed = hosts.iter().filter(|(interface, _)| interface.is_empty());
        unnamed
            .find(|(_, it)| it.addresses.iter().any(|address| addresses.contains(address)))
            .map(|(_, it)| *it)
    };
    let named = hosts.iter().map(|(interface, _)| *interface).filter(|name| *name != EVERY_INTERFACE);
    let names: BTreeSet<IfName> =
        named.filter_map(|name| IfName::new(name).ok()).chain(interfaces.keys().cloned()).collect();
    let mut found: Vec<(Option<IfName>, &StoredEndpoint)> = names
        .into_iter()
        .filter_map(|name| {
            let endpoint = of(name.as_str()).or_else(|| at(interfaces.get(&name)?))?;
            Some((Some(name), endpoint))
        })
        .collect();
    found.extend(of(EVERY_INTERFACE).map(|endpoint| (None, endpoint)));
    found
}

const EVERY_INTERFACE: &str = "*";

// === impl Builder ===

impl Builder<'_> {
    fn add(&mut self, interface: Option<&IfName>, endpoint: &StoredEndpoint) -> Result<(), TooLarge> {
        let policies = self.policies(endpoint);
        for entrance in Entrance::EACH {
            for family in Family::BOTH {
                let state = match self.program(endpoint, &policies, entrance, family) {
                    Some(program) => self.first(&program)?,
                    None if interface.is_none() => continue,
                    None => State::OPEN,
                };
                self.table.ways.insert(Way { entrance, family, interface: interface.cloned() }, state);
            }
        }
        Ok(())
    }

    /// The policies that select a host endpoint, in the order in which they count.
    fn policies(&self, endpoint: &StoredEndpoint) -> Vec<Policy> {
        let labels = self.store.endpoint_labels(endpoint);
        let policies = self.store.policies.iter().filter(|(_, it)| it.selects(&labels));
        let mut policies: Vec<Policy> = policies.filter_map(|(id, it)| it.enforced(id)).collect();
        policies.sort_by_cached_key(|policy| {
            let known = self.store.tiers.get(&*policy.tier);
            // Tiers that do not exist are after all others, also after those without an order.
            let tier = (known.is_none(), known.map_or(Order::LAST, |tier| tier.order), policy.tier.clone());
            (tier, policy.order, policy.id.sort_key())
        });
        policies
    }

    /// What decides; none where nothing does.
    fn program(
        &mut self,
        endpoint: &StoredEndpoint,
        policies: &[Policy],
        entrance: Entrance,
        family: Family,
    ) -> Option<Program> {
        let direction = entrance.direction();
        let counts = |policy: &&Policy| {
            let is_of_stage = match entrance {
                Entrance::Input | Entrance::Output => {
                    matches!(policy.host_use, HostUse::Normal | HostUse::Forward)
                }
                Entrance::ForwardIn | Entrance::ForwardOut => policy.host_use == HostUse::Forward,
                Entrance::PreDnat => policy.host_use == HostUse::PreDnat,
                Entrance::RawIn | Entrance::RawOut | Entrance::UntrackedIn | Entrance::UntrackedOut => {
                    policy.host_use == HostUse::Untracked
                }
            };
            is_of_stage && policy.directions.has(direction)
        };
        // What no rule names is judged behind connection tracking, and behind the translation.
        let rest_passes_on = matches!(entrance, Entrance::PreDnat | Entrance::RawIn | Entrance::RawOut);
        let mut blocks: Vec<Block> = Vec::new();
        let mut tier: Option<&Arc<str>> = None;
        for policy in policies.iter().filter(counts) {
            // As for workloads, of a policy with too many rules none counts.
            let is_readable = policy.ingress.len() + policy.egress.len() <= self.max_rules;
            let rules = if is_readable { policy.rules(direction) } else { &[] };
            let lines = self.lines(rules, family);
            match blocks.last_mut().filter(|_| tier == Some(&policy.tier)) {
                Some(block) => block.lines.extend(lines),
                None => {
                    let known = self.store.tiers.get(&*policy.tier);
                    let passes = known.is_some_and(|tier| tier.default_action == TierDefault::Pass);
                    let end = if rest_passes_on { End::Allow } else { End::Deny };
                    blocks.push(Block { lines, end: if passes { End::Next } else { end } });
                    tier = Some(&policy.tier);
                }
            }
        }
        if !entrance.is_local() {
            if blocks.is_empty() {
                return None;
            }
            let is_by_rule = matches!(entrance, Entrance::UntrackedIn | Entrance::UntrackedOut);
            let end = if is_by_rule { End::Deny } else { End::Allow };
            blocks.push(Block { lines: Vec::new(), end });
        } else {
            self.add_profiles(endpoint, direction, family, &mut blocks);
            blocks.push(Block { lines: Vec::new(), end: End::Deny });
        }
        Some(Program { direction, family, blocks, firewall: Vec::new() })
    }

    /// Profiles decide where no tier did; one that is unknown denies.
    fn add_profiles(
        &mut self,
        endpoint: &StoredEndpoint,
        direction: Direction,
        family: Family,
        blocks: &mut Vec<Block>,
    ) {
        for name in &endpoint.profiles {
            let block = match self.store.profiles.get(name) {
                Some(profile) => {
                    let rules = match direction {
                        Direction::Ingress => &profile.ingress,
                        Direction::Egress => &profile.egress,
                    };
                    Block { lines: self.lines(rules, family), end: End::Next }
                }
                None if **name == *ALLOW_ALL_PROFILE => Block { lines: Vec::new(), end: End::Allow },
                None => Block { lines: Vec::new(), end: End::Deny },
            };
            blocks.push(block);
        }
    }

    fn lines(&mut self, rules: &[Rule], family: Family) -> Vec<Line> {
        let rules = rules.iter().filter(|rule| rule.family.is_none_or(|it| it == family));
        rules.map(|rule| self.line(rule)).collect()
    }

    fn line(&mut self, rule: &Rule) -> Line {
        let mut asked = Vec::new();
        let source = self.side(Side::Source, &rule.source, &mut asked);
        let destination = self.side(Side::Destination, &rule.destination, &mut asked);
        Line {
            action: rule.action,
            protocol: rule.protocol,
            not_protocol: rule.not_protocol,
            icmp: rule.icmp,
            not_icmp: rule.not_icmp,
            peer: asked,
            source,
            destination,
        }
    }

    /// What a side of a rule asks of its port; adds what it asks of its address.
    fn side(&mut self, side: Side, entity: &Entity, asked: &mut Vec<(PredicateId, bool)>) -> PortTest {
        for (predicate, expected) in of_entity(entity) {
            asked.push((self.ask(side, predicate), expected));
        }
        let mut ports = PortTest::default();
        match (&entity.service, side) {
            (Some(service), Side::Source) => {
                asked.push((self.ask(side, Predicate::Service(service.clone())), true));
            }
            (Some(service), Side::Destination) => {
                let id = self.ask(side, Predicate::ServicePorts(service.clone()));
                ports.any_of.push(vec![Ports::OfPeer(id)]);
            }
            (None, _) => {}
        }
        let mut port = |port: &Port| match port {
            Port::Range(first, last) => Ports::Range(*first, *last),
            Port::Named(name) => {
                Ports::OfPeer(self.ask(side, Predicate::Named(name.clone(), entity.selector.clone())))
            }
        };
        ports.any_of.extend(entity.ports.as_ref().map(|ports| ports.iter().map(&mut port).collect()));
        ports.none_of.extend(entity.not_ports.iter().map(&mut port));
        ports
    }

    fn ask(&mut self, side: Side, predicate: Predicate) -> PredicateId {
        let next = PredicateId::nth(self.ids.len());
        match self.ids.entry((side, predicate)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(entry) => {
                self.questions.insert(next, entry.key().clone());
                *entry.insert(next)
            }
        }
    }

    /// The state before the source of packets of which a program decides.
    fn first(&mut self, program: &Program) -> Result<State, TooLarge> {
        let sources = self.vectors(program, Side::Source);
        let destinations = self.vectors(program, Side::Destination);
        if sources.count().saturating_mul(destinations.count()) > PAIRS_MAX {
            return Err(TooLarge);
        }
        let mut rows: BTreeMap<Vector, Rc<Row>> = BTreeMap::new();
        let mut known: BTreeMap<Vector, Rc<Decisions>> = BTreeMap::new();
        let mut is_cut_too_often = false;
        let mut row = |source: &Vector, destination: &Vector| {
            let mut vector = [source.as_slice(), destination.as_slice()].concat();
            vector.sort_unstable();
            let row = rows.entry(vector).or_insert_with_key(|vector| {
                let (row, segments) = program.row(vector);
                is_cut_too_often |= segments > self.max_segments;
                Rc::new(row)
            });
            Rc::clone(row)
        };
        let all = sources.map(|source| {
            let decisions = known.entry(source.clone()).or_insert_with(|| {
                Rc::new(destinations.map(|destination| row(source, destination)).reduced())
            });
            Rc::clone(decisions)
        });
        if is_cut_too_often {
            return Err(TooLarge);
        }
        self.put_sources(&all.reduced(), program.family)
    }

    /// The answers to what a program asks of one side, for every address.
    fn vectors(&mut self, program: &Program, side: Side) -> Spans<Vector> {
        let family = program.family;
        let mut ids = program.predicates();
        ids.retain(|id| self.questions.get(id).is_some_and(|(of, _)| *of == side));
        for id in &ids {
            if let Some((_, predicate)) = self.questions.get(id)
                && !self.answers.contains_key(&(*id, family))
            {
                let answers = answers(self.store, predicate, family);
                self.answers.insert((*id, family), answers);
            }
        }
        let answers = ids.iter().filter_map(|id| Some((*id, self.answers.get(&(*id, family))?)));
        Spans::new(&answers.collect::<Vec<_>>(), family)
    }

    /// Adds what a state before the source leads to.
    fn put_sources(&mut self, all: &Spans<Rc<Decisions>>, family: Family) -> Result<State, TooLarge> {
        let (state, is_new) = self.number("sources", &(family, all));
        if is_new {
            for ((first, last), decisions) in each(all) {
                let next = self.put_destinations(decisions, family);
                self.put_span(Side::Source, state, (first, last), family, next);
                if self.table.len() > ELEMENTS_MAX {
                    return Err(TooLarge);
                }
            }
            self.put_decisions(state, &all.default, family);
        }
        if self.table.len() > ELEMENTS_MAX { Err(TooLarge) } else { Ok(state) }
    }

    fn put_destinations(&mut self, decisions: &Decisions, family: Family) -> State {
        let (state, is_new) = self.number("destinations", &(family, decisions));
        if is_new {
            self.put_decisions(state, decisions, family);
        }
        state
    }

    /// Adds what a state before the destination leads to.
    fn put_decisions(&mut self, state: State, decisions: &Decisions, family: Family) {
        for (addresses, row) in each(decisions) {
            let (next, is_new) = self.number("ports", row);
            if is_new {
                self.put_row(next, row);
            }
            self.put_span(Side::Destination, state, addresses, family, next);
        }
        self.put_row(state, &decisions.default);
    }

    fn put_span(&mut self, side: Side, state: State, at: (u128, u128), family: Family, next: State) {
        let [first, last] = [at.0, at.1].map(|number| address_of(number, family));
        self.table.spans.insert(Span { side, state, first, last }, next);
    }

    fn put_row(&mut self, state: State, row: &Row) {
        let wide: BTreeMap<Part, _> = row.wide().collect();
        for (part, word) in row.entries() {
            let next = match wide.get(&part) {
                None => Next::Decided(word),
                Some(ranges) => {
                    let (list, _) = self.number("ports of sources", ranges);
                    let elements = ranges.iter().map(|it| ((list, it.first, it.last), it.word));
                    self.table.sources.extend(elements);
                    Next::BySource(list)
                }
            };
            self.table.parts.insert((state, part), next);
        }
    }

    /// The number of a state, and whether it is new. What is decided behind it gives the number, so that it
    /// is the same after a restart.
    fn number(&mut self, kind: &str, content: &dyn Debug) -> (State, bool) {
        let content = format!("{kind} {content:?}");
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let count = u64::from(State::LAST - State::FIRST) + 1;
        let mut place = hasher.finish() % count;
        loop {
            let number = u32::try_from(place).ok().and_then(|place| State::new(State::FIRST + place));
            let state = number.unwrap_or(State::OPEN);
            match self.numbers.entry(state) {
                Entry::Vacant(entry) => {
                    entry.insert(content);
                    return (state, true);
                }
                Entry::Occupied(known) if *known.get() == content => return (state, false),
                // Another one with the same hash.
                Entry::Occupied(_) => place = (place + 1) % count,
            }
        }
    }
}

/// Ranges and single addresses, which come last.
fn each<T>(spans: &Spans<T>) -> impl Iterator<Item = ((u128, u128), &T)> {
    let ranges = spans.ranges.iter().map(|(first, last, value)| ((*first, *last), value));
    ranges.chain(spans.singles.iter().map(|(at, value)| ((*at, *at), value)))
}

/// The addresses of a family for which a question is not answered with "no".
fn answers(store: &Store, predicate: &Predicate, family: Family) -> Answers {
    let mut found = Found::default();
    let is_of_family = |address: &&IpAddr| Family::of(**address) == family;
    let add_all = |addresses: &BTreeSet<IpAddr>, found: &mut Found| {
        addresses.iter().filter(is_of_family).for_each(|address| found.add(*address, Answer::Yes));
    };
    match predicate {
        Predicate::Nets(within, except) => {
            found.add_ranges(ranges(within, family));
            return found.answers(ranges(except, family).collect());
        }
        Predicate::Selected(wanted, unwanted) => {
            let holds = |labels: &Labels<'_>| {
                let is_unwanted = unwanted.as_ref().is_some_and(|it| labels.match_selector(it));
                labels.match_selector(wanted) && !is_unwanted
            };
            for key in store.candidates(wanted) {
                let Some(endpoint) = store.endpoints.get(key) else { continue };
                if holds(&store.endpoint_labels(endpoint)) {
                    let own = endpoint.addresses.iter().filter(is_of_family);
                    own.filter(|it| is_at(store, key, **it))
                        .for_each(|address| found.add(*address, Answer::Yes));
                }
            }
            for (_, set) in store.sets.iter().filter(|(_, set)| holds(&store.set_labels(set))) {
                found.add_ranges(ranges(&set.nets, family));
            }
        }
        Predicate::Node(selector) => {
            let nodes = store.nodes.iter().map(|(_, node)| node);
            nodes
                .filter(|node| Labels::of_node(&node.labels).match_selector(selector))
                .for_each(|node| add_all(&node.addresses, &mut found));
        }
        Predicate::Service(id) => {
            store.services.get(id).into_iter().for_each(|service| add_all(&service.addresses, &mut found));
        }
        Predicate::ServicePorts(_) | Predicate::Named(..) => {
            for (address, ports) in ports_of(store, predicate) {
                if is_of_family(&&address) {
                    found.add(address, Answer::Ports(Arc::new(ports.into_iter().collect())));
                }
            }
        }
    }
    found.answers(Vec::new())
}

/// The ports of addresses that a question is about.
fn ports_of(store: &Store, predicate: &Predicate) -> BTreeMap<IpAddr, BTreeSet<(Protocol, u16)>> {
    let mut found: BTreeMap<IpAddr, BTreeSet<(Protocol, u16)>> = BTreeMap::new();
    match predicate {
        Predicate::ServicePorts(id) => {
            let services = store.services.get(id);
            for (address, protocol, port) in services.into_iter().flat_map(|it| &it.endpoints) {
                found.entry(*address).or_default().insert((*protocol, *port));
            }
        }
        Predicate::Named(name, selector) => {
            for (key, endpoint) in store.endpoints.iter() {
                let ports = endpoint.ports.iter().filter(|port| port.name == *name);
                let ports: BTreeSet<_> = ports.map(|port| (port.protocol, port.port)).collect();
                let labels = store.endpoint_labels(endpoint);
                if ports.is_empty() || !selector.as_ref().is_none_or(|wanted| labels.match_selector(wanted)) {
                    continue;
                }
                for address in endpoint.addresses.iter().filter(|it| is_at(store, key, **it)) {
                    found.entry(*address).or_default().extend(&ports);
                }
            }
        }
        _ => {}
    }
    found
}

/// Whether an address means an endpoint, and not a younger one.
fn is_at(store: &Store, key: &EndpointKey, address: IpAddr) -> bool {
    store.endpoints_at(address).any(|(owner, _)| owner == key)
}
