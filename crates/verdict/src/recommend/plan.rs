//! What each workload is to be allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::Family;

use super::ends::{Ends, Found};
use super::nets::Known;
use super::policy::{self, Recommended};
use super::workloads::{Workload, Workloads, namespace};
use super::{Recommendation, Seen, Wanted};
use crate::ir::{Direction, Protocol};
use crate::snapshot::Snapshot;
use crate::world::{Endpoint, EndpointKind};

/// More names are counted and not listed.
const LISTED_MAX: usize = 5;
/// From so many prefixes on, a rule looks as if it should be open to all.
const PREFIXES_MANY: usize = 64;

/// Protocol and port of a rule.
pub(super) type Service = (Protocol, u16);

/// What is at an address that a rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Nothing of the cluster.
    Outside,
    /// A node.
    Node,
    /// A pod that no selector can name.
    Pod,
}

/// The flows of a rule.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stat {
    pub flows: u64,
    pub connections: u64,
    pub times: Option<(std::time::SystemTime, std::time::SystemTime)>,
}

/// What is allowed in one direction.
#[derive(Debug, Default)]
pub(super) struct Allowed {
    /// By the place of the other workload.
    pub workloads: BTreeMap<usize, (BTreeSet<Service>, Stat)>,
    /// The addresses, with the names of what they are.
    pub addresses: BTreeMap<(Class, Service), (BTreeMap<IpAddr, String>, Stat)>,
}

/// What a rule names for an end of a flow.
enum Peer {
    Workload(usize),
    /// Not none: a rule without peers is for all.
    Addresses(Class, Vec<(IpAddr, String)>),
}

pub(super) struct Plan<'a> {
    workloads: &'a Workloads,
    wanted: &'a Wanted,
    known: Known,
    /// Ingress and egress, by the place of the workload.
    allowed: BTreeMap<usize, [Allowed; 2]>,
    /// Pods that have flows, and no label that selects them.
    unlabelled: BTreeSet<String>,
    /// Flows with an end that is gone.
    gone: usize,
    /// Flows that cannot be judged, by the place of the workload.
    unjudged: BTreeMap<usize, BTreeSet<String>>,
    /// Flows of which a NetworkPolicy cannot speak.
    unsaid: BTreeSet<String>,
}

// === impl Plan ===

impl<'a> Plan<'a> {
    pub(super) fn new(snapshot: &Snapshot, workloads: &'a Workloads, wanted: &'a Wanted) -> Self {
        let mut known = Known::default();
        for endpoint in snapshot.endpoints.values() {
            let is_pod = endpoint.kind == EndpointKind::Workload;
            if is_pod { &mut known.pods } else { &mut known.nodes }.extend(&endpoint.addresses);
        }
        known.nodes.extend(snapshot.nodes.values().flat_map(|node| &node.addresses));
        Self {
            workloads,
            wanted,
            known,
            allowed: BTreeMap::new(),
            unlabelled: BTreeSet::new(),
            gone: 0,
            unjudged: BTreeMap::new(),
            unsaid: BTreeSet::new(),
        }
    }

    pub(super) fn add(&mut self, flow: &Seen, ends: &Ends<'_>) {
        let (source, destination) = (ends.find(&flow.source), ends.find(&flow.destination));
        let is_judged = ends.flow(flow).is_some();
        let at_ingress =
            self.wanted.ingress && self.add_at(Direction::Ingress, [destination, source], flow, is_judged);
        let at_egress =
            self.wanted.egress && self.add_at(Direction::Egress, [source, destination], flow, is_judged);
        self.gone += usize::from(at_ingress || at_egress);
    }

    /// Adds a flow at one end of it, and returns whether it is left out because an end is gone.
    fn add_at(&mut self, direction: Direction, ends: [Found<'_>; 2], flow: &Seen, is_judged: bool) -> bool {
        let [subject, peer] = ends;
        let named = self.wanted.namespace.as_deref();
        let Found::Pod(pod, place) = subject else {
            let end = if direction == Direction::Ingress { &flow.destination } else { &flow.source };
            let is_in = |namespace| end.name.split_once('/').is_some_and(|it| it.0 == namespace);
            return matches!(subject, Found::Gone) && named.is_none_or(is_in);
        };
        // A node always reaches its own pods: its probes need no rule.
        let is_probe = matches!(peer, Found::Address(_, Some(node)) if node.as_str() == &*pod.node);
        let in_scope = named.is_none_or(|it| pod.namespace.as_deref() == Some(it));
        if !in_scope || direction == Direction::Ingress && is_probe {
            return false;
        }
        let Some(place) = place else {
            self.unlabelled.insert(name(pod));
            return false;
        };
        if !is_judged {
            self.unjudged.entry(place).or_default().insert(flow.to_string());
        }
        let Some(peer) = Peer::of(peer, Family::of(flow.source.address)) else { return true };
        // Not before: a workload that was seen with nothing but pods that are gone gets no policy, which would
        // deny everything.
        let [ingress, egress] = self.allowed.entry(place).or_default();
        let allowed = if direction == Direction::Ingress { ingress } else { egress };
        let service = (flow.protocol, flow.port);
        if policy::protocol(flow.protocol).is_none() || flow.port == 0 {
            self.unsaid.insert(flow.to_string());
            return false;
        }
        match peer {
            Peer::Workload(place) => {
                let (services, stat) = allowed.workloads.entry(place).or_default();
                services.insert(service);
                stat.add(flow);
            }
            Peer::Addresses(class, addresses) => {
                let (known, stat) = allowed.addresses.entry((class, service)).or_default();
                known.extend(addresses);
                stat.add(flow);
            }
        }
        false
    }

    pub(super) fn finish(self) -> Recommendation {
        let mut notes = self.notes();
        let mut taken: BTreeSet<(Arc<str>, String)> = BTreeSet::new();
        let mut policies: Vec<Recommended> = Vec::new();
        for (place, [ingress, egress]) in &self.allowed {
            let Some(workload) = self.workloads.all.get(*place) else { continue };
            let mut name = policy::name(&workload.labels);
            let mut number = 2;
            while !taken.insert((workload.namespace.clone(), name.clone())) {
                name = format!("{}-{number}", policy::name(&workload.labels));
                number += 1;
            }
            let rules = |direction, allowed, wanted: bool| {
                wanted.then(|| policy::rules(direction, allowed, workload, self.workloads, &self.known))
            };
            let found = Recommended {
                namespace: workload.namespace.clone(),
                name,
                selector: workload.selector(),
                comments: policy::comments(workload),
                ingress: rules(Direction::Ingress, ingress, self.wanted.ingress),
                egress: rules(Direction::Egress, egress, self.wanted.egress),
            };
            notes.extend(self.direction_notes(workload, &found, [ingress, egress]));
            policies.push(found);
        }
        policies.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let with_policy = self.unjudged.iter().filter(|(place, _)| self.allowed.contains_key(place));
        let unjudged: BTreeSet<String> = with_policy.flat_map(|(_, flows)| flows).cloned().collect();
        Recommendation { policies, notes, unjudged: unjudged.into_iter().collect() }
    }

    fn direction_notes(&self, workload: &Workload, found: &Recommended, both: [&Allowed; 2]) -> Vec<String> {
        let wanted = [("ingress", self.wanted.ingress), ("egress", self.wanted.egress)];
        let mut notes = Vec::new();
        for ((direction, wanted), allowed) in wanted.into_iter().zip(both) {
            if wanted && allowed.workloads.is_empty() && allowed.addresses.is_empty() {
                let has_dns = direction == "egress" || policy::has_dns(workload);
                let rest = if has_dns { "all but DNS" } else { "all" };
                notes.push(format!(
                    "no {direction} of {} was seen: its policy denies {rest} of it",
                    workload.text()
                ));
            }
        }
        if found.rules().any(|(_, _, rule)| rule.prefixes() >= PREFIXES_MANY) {
            notes.push(format!(
                "{} has a rule with {PREFIXES_MANY} prefixes or more: should it be open to all addresses?",
                workload.text()
            ));
        }
        notes
    }

    /// What is left out.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.unlabelled.is_empty() {
            notes.push(format!(
                "no policy is written for pods without a label that lasts, because a selector of them would select all pods; label them: {}",
                listed(self.unlabelled.iter().cloned())
            ));
        }
        if self.gone > 0 {
            notes.push(format!(
                "{} flows have an end whose pod is gone, and whose workload its name does not show: they are left out",
                self.gone
            ));
        }
        if !self.unsaid.is_empty() {
            notes.push(format!(
                "a NetworkPolicy can allow TCP, UDP and SCTP only, not {}",
                listed(self.unsaid.iter().cloned())
            ));
        }
        let in_scope = |namespace: &str| self.wanted.namespace.as_deref().is_none_or(|it| it == namespace);
        let all = self.workloads.all.iter().enumerate();
        let without = all.filter(|(place, it)| in_scope(&it.namespace) && !self.allowed.contains_key(place));
        let (gone, unseen): (Vec<_>, Vec<_>) =
            without.partition(|(place, _)| self.unjudged.contains_key(place));
        for (why, workloads) in
            [("no flow was seen", unseen), ("only flows with pods that are gone were seen", gone)]
        {
            if !workloads.is_empty() {
                let names = listed(workloads.into_iter().map(|(_, workload)| workload.text()));
                notes.push(format!("{why}, and so no policy is written, of {names}"));
            }
        }
        notes
    }
}

// === impl Peer ===

impl Peer {
    /// Nothing, if the end is gone, or has no address of this family any more.
    fn of(found: Found<'_>, family: Family) -> Option<Self> {
        Some(match found {
            Found::Gone => return None,
            Found::Pod(_, Some(place)) => Self::Workload(place),
            Found::Pod(pod, None) => {
                let same = pod.addresses.iter().filter(|address| Family::of(**address) == family);
                let same: Vec<_> = same.map(|address| (*address, name(pod))).collect();
                return (!same.is_empty()).then_some(Self::Addresses(Class::Pod, same));
            }
            Found::Address(address, Some(node)) => {
                Self::Addresses(Class::Node, vec![(address, node.to_string())])
            }
            Found::Address(address, None) => {
                Self::Addresses(Class::Outside, vec![(address, address.to_string())])
            }
        })
    }
}

// === impl Stat ===

impl Stat {
    fn add(&mut self, flow: &Seen) {
        let new = Self { flows: 1, connections: flow.count, times: Some((flow.first, flow.last)) };
        *self = self.with(new);
    }

    pub(super) fn with(self, other: Self) -> Self {
        let times = match (self.times, other.times) {
            (Some(one), Some(two)) => Some((one.0.min(two.0), one.1.max(two.1))),
            (one, two) => one.or(two),
        };
        let connections = self.connections.saturating_add(other.connections);
        Self { flows: self.flows + other.flows, connections, times }
    }
}

fn name(pod: &Endpoint) -> String {
    format!("{}/{}", namespace(pod).map_or("", |it| it), pod.name)
}

/// The first names, and the number of the others.
pub(super) fn listed(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<String> = names.into_iter().collect();
    let shown: Vec<&str> = names.iter().take(LISTED_MAX).map(String::as_str).collect();
    let more = names.len().saturating_sub(LISTED_MAX);
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    shown.join(", ") + &more
}
