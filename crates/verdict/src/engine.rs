//! Turns updates into changes of the table of decisions; an update recomputes what it touches.
//!
//! `store` has the objects; `labels` finds selectors for labels; `sources` has the policies that
//! select a local endpoint, which are the only ones whose rules cost anything; `compile` turns their
//! rules into `predicate`s, questions about a peer's address; `peers` answers them for every address, and
//! `identity` numbers the classes of addresses with equal answers; `program` walks the rules for
//! one of them, which gives a `row`; `classes` keeps the rows of local addresses; `publish` compares
//! what they say with what earlier deltas said. `hosts` computes what host endpoints decide, as a whole.

mod around;
mod classes;
mod compile;
mod hosts;
mod identity;
mod labels;
mod nets;
mod packed;
mod peers;
mod predicate;
mod program;
mod publish;
mod relabelled;
mod row;
mod sources;
mod store;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::{IpNet, NodeName};

use crate::ir::{Direction, PolicyId, Problem, Profile, ServiceId, Tier, TierDefault};
use crate::table::{Delta, Identity};
use crate::world::{Config, EndpointKey, EndpointKind, NetworkSet, Node, Service, SetId, Update};
use classes::{ClassId, Classes};
use compile::Local;
use identity::Identities;
use labels::{OwnLabels, SelectorIndex};
use packed::PackedPolicy;
use peers::{Changed, Peers};
use predicate::Predicates;
use publish::{Place, Published};
use relabelled::{Inherited, Relabelled};
use sources::{Context, Source, Sources};
use store::{FirewallKey, Store};
use stored::StoredEndpoint;

pub use hosts::Interfaces;

/// What the table of one node must be.
#[derive(Debug)]
pub struct Engine {
    store: Store,
    limits: Limits,
    /// The subjects of all policies that count for workloads.
    subjects: SelectorIndex<PolicyId>,
    locals: BTreeMap<EndpointKey, LocalEndpoint>,
    sources: Sources,
    predicates: Predicates,
    peers: Peers,
    classes: Classes,
    /// The class of each address of a local endpoint.
    bindings: BTreeMap<Place, ClassId>,
    published: Published,
    version: u64,
}

/// What the table may become (policy.md section 2.4). What is beyond a limit is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Decisions of a node.
    pub decisions: usize,
    /// Identities of a node.
    pub identities: usize,
    /// Segments of ports in the decisions for one peer.
    pub segments: usize,
    /// Rules of a policy.
    pub rules: usize,
}

/// How large the engine is; for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Addresses and profiles that something is known of.
    pub known: usize,
    /// Policies that count for workloads.
    pub policies: usize,
    /// Policies, profiles and EgressNetworkPolicies that a workload of this node uses.
    pub sources: usize,
    /// Different questions that their rules ask about addresses.
    pub predicates: usize,
    /// Selectors, prefixes, and owners of labels in the indexes.
    pub indexed: (usize, usize, usize),
    /// Classes of addresses.
    pub identities: usize,
    /// Different lists of rules that decide for local addresses.
    pub classes: usize,
    /// Local addresses, counted for each direction.
    pub addresses: usize,
    /// Decisions in the table.
    pub decisions: usize,
}

/// A workload of this node.
#[derive(Debug, Default)]
struct LocalEndpoint {
    endpoint: Option<Arc<StoredEndpoint>>,
    /// The policies that select it.
    policies: BTreeSet<PolicyId>,
    sources: BTreeSet<Source>,
    /// Whether a rule of them asks something of the local address that more than its endpoint decides.
    asks_of_local: bool,
    /// Its addresses.
    addresses: BTreeSet<IpAddr>,
}

/// What objects were before they changed.
struct Changes {
    policies: BTreeMap<PolicyId, Option<PackedPolicy>>,
    tiers: BTreeMap<Arc<str>, Option<Tier>>,
    profiles: BTreeMap<Arc<str>, Option<Arc<Profile>>>,
    endpoints: BTreeMap<EndpointKey, Option<Arc<StoredEndpoint>>>,
    sets: BTreeMap<SetId, Option<Arc<NetworkSet>>>,
    services: BTreeMap<ServiceId, Option<Arc<Service>>>,
    nodes: BTreeMap<NodeName, Option<Arc<Node>>>,
    firewalls: BTreeMap<FirewallKey, Option<Arc<crate::world::EgressFirewall>>>,
    config: BTreeMap<(), Option<Config>>,
}

const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self { decisions: 1_000_000, identities: 65_000, segments: 512, rules: 10_000 }
    }
}

// === impl Engine ===

impl Default for Engine {
    fn default() -> Self {
        Self::with_limits(Limits::default())
    }
}

impl Engine {
    /// The engine of a node whose table stays within these limits.
    pub fn with_limits(limits: Limits) -> Self {
        Self {
            peers: Peers::new(Identities::new(BTreeMap::new(), limits.identities)),
            limits,
            store: Store::default(),
            subjects: SelectorIndex::default(),
            locals: BTreeMap::new(),
            sources: Sources::default(),
            predicates: Predicates::default(),
            classes: Classes::default(),
            bindings: BTreeMap::new(),
            published: Published::default(),
            version: 0,
        }
    }

    /// The engine of a node with a table; classes of addresses keep the numbers that they have in it,
    /// so that a restart changes nothing. The first flush returns everything all the same.
    pub fn with_identities(known: BTreeMap<IpNet, Identity>) -> Self {
        let engine = Self::default();
        Self { peers: Peers::new(Identities::new(known, engine.limits.identities)), ..engine }
    }

    /// Takes over a change. An object that is what it was before costs a comparison.
    pub fn apply(&mut self, update: Update) {
        self.store.apply(update);
    }

    /// What changed since the last flush.
    pub fn flush(&mut self) -> Delta {
        let mut changes = self.take_changes();
        if changes.is_empty() {
            return Delta::default();
        }
        self.version += 1;
        let mut problems = Vec::new();
        let inherited = self.add_heirs(&mut changes);
        self.index(&changes);
        let mut dirty = self.select(&changes, &inherited);
        self.add_dirty_locals(&changes, &inherited, &mut dirty);
        self.update_sources(&changes, &dirty, &mut problems);
        self.update_peers(&changes, &inherited);
        let resolved = self.peers.resolve(&self.store, &self.predicates);
        let is_bound_anew = self.bind(&changes, &inherited, &dirty);
        let is_class_changed = self.classes.update(&resolved, &self.peers, self.limits.segments);
        let delta = self.published.publish(
            &resolved,
            &self.classes,
            &self.bindings,
            self.limits.decisions,
            is_bound_anew || is_class_changed,
        );
        self.classes.settle();
        Delta { problems, ..delta }
    }

    /// Another number after each flush that had anything to change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How large it is.
    pub fn usage(&self) -> Usage {
        Usage {
            known: self.store.len(),
            policies: self.subjects.len(),
            sources: self.sources.len(),
            predicates: self.predicates.len(),
            indexed: self.peers.len(),
            identities: self.peers.identities.len(),
            classes: self.classes.len(),
            addresses: self.bindings.len(),
            decisions: self.published.decisions(),
        }
    }

    fn take_changes(&mut self) -> Changes {
        let store = &mut self.store;
        Changes {
            policies: store.policies.take_changed(),
            tiers: store.tiers.take_changed(),
            profiles: store.profiles.take_changed(),
            endpoints: store.endpoints.take_changed(),
            sets: store.sets.take_changed(),
            services: store.services.take_changed(),
            nodes: store.nodes.take_changed(),
            firewalls: store.firewalls.take_changed(),
            config: store.config.take_changed(),
        }
    }

    /// Adds the endpoints and sets whose inherited labels changed. Returns which labels that are.
    fn add_heirs(&self, changes: &mut Changes) -> Inherited {
        let mut inherited = Inherited::new();
        let none = BTreeMap::new();
        for (name, old) in &changes.profiles {
            let new = self.store.profiles.get(name);
            let [old, new] =
                [old.as_ref(), new].map(|it| OwnLabels::Map(it.map_or(&none, |profile| &profile.labels)));
            let labels: BTreeSet<Arc<str>> = relabelled::different(old, new).map(Into::into).collect();
            if labels.is_empty() {
                continue;
            }
            inherited.insert(name.clone(), labels);
            for key in self.store.inheriting(name) {
                let now = || self.store.endpoints.get(key).cloned();
                changes.endpoints.entry(key.clone()).or_insert_with(now);
            }
            for id in self.store.inheriting_sets(name) {
                changes.sets.entry(id.clone()).or_insert_with(|| self.store.sets.get(id).cloned());
            }
        }
        inherited
    }

    fn index(&mut self, changes: &Changes) {
        changes.endpoints.iter().for_each(|(key, old)| self.store.index_endpoint(key, old.as_ref()));
        changes.sets.iter().for_each(|(id, old)| self.store.index_set(id, old.as_ref()));
        changes.nodes.iter().for_each(|(name, old)| self.store.index_node(name, old.as_ref()));
        changes.services.iter().for_each(|(id, old)| self.store.index_service(id, old.as_ref()));
        for (id, old) in &changes.policies {
            let subject = |policy: &PackedPolicy| policy.subject().filter(|_| policy.counts());
            let [old, new] = [old.as_ref(), self.store.policies.get(id)].map(|it| it.and_then(subject));
            if old != new {
                old.iter().for_each(|subject| self.subjects.remove(id, subject));
                new.iter().for_each(|subject| self.subjects.insert(id.clone(), subject));
            }
        }
    }

    /// Finds the policies of local endpoints. Returns those for which something about them changed.
    fn select(&mut self, changes: &Changes, inherited: &Inherited) -> BTreeSet<EndpointKey> {
        let mut dirty = BTreeSet::new();
        let mut compared = BTreeSet::new();
        for (key, old) in &changes.endpoints {
            let endpoint = self.store.endpoints.get(key).filter(|it| is_local(it));
            let Some(endpoint) = endpoint else {
                dirty.extend(self.locals.contains_key(key).then(|| key.clone()));
                continue;
            };
            let relabelled = relabelled(&self.store, key, old, inherited);
            let labels = self.store.endpoint_labels(endpoint);
            let matches =
                |id: &&PolicyId| self.store.policies.get(*id).is_some_and(|policy| policy.selects(&labels));
            // All policies are asked about one that was not of this node before.
            let names = relabelled.names().filter(|_| self.locals.contains_key(key));
            let mentioning = names.and_then(|names| self.subjects.mentioning(names));
            let local = self.locals.entry(key.clone()).or_default();
            let is_other = match mentioning {
                Some(mentioning) => mentioning.filter(|id| local.select(id, matches(id))).count() > 0,
                None => {
                    compared.insert(key);
                    let policies = self.subjects.candidates(&labels).filter(matches).cloned().collect();
                    std::mem::replace(&mut local.policies, policies) != local.policies
                }
            };
            local.endpoint = Some(endpoint.clone());
            if is_other || !relabelled.is_same_otherwise() || local.asks_of_local {
                dirty.insert(key.clone());
            }
        }
        let others = self.locals.iter_mut().filter(|(key, _)| !compared.contains(key));
        for (key, local) in others.take_while(|_| !changes.policies.is_empty()) {
            let Some(endpoint) = local.endpoint.clone() else { continue };
            let labels = self.store.endpoint_labels(&endpoint);
            for id in changes.policies.keys() {
                let policy = self.store.policies.get(id).filter(|policy| policy.counts());
                let is_selected = policy.is_some_and(|policy| policy.selects(&labels));
                if local.select(id, is_selected) || is_selected {
                    dirty.insert(key.clone());
                }
            }
        }
        dirty
    }

    /// The tiers whose default action or place among the others changed.
    fn moved_tiers(&self, changes: &Changes) -> BTreeSet<Arc<str>> {
        let now: BTreeMap<Arc<str>, Tier> =
            self.store.tiers.iter().map(|(name, tier)| (name.clone(), tier.clone())).collect();
        let mut before = now.clone();
        for (name, old) in &changes.tiers {
            match old {
                Some(old) => _ = before.insert(name.clone(), old.clone()),
                None => _ = before.remove(name),
            }
        }
        let (before, now) = (places(before), places(now));
        let names: BTreeSet<&Arc<str>> = before.keys().chain(now.keys()).collect();
        names.into_iter().filter(|name| before.get(*name) != now.get(*name)).cloned().collect()
    }

    /// Adds the local endpoints whose programs may change for other reasons.
    fn add_dirty_locals(&self, changes: &Changes, inherited: &Inherited, dirty: &mut BTreeSet<EndpointKey>) {
        let touches_addresses =
            !changes.sets.is_empty() || !changes.services.is_empty() || !changes.nodes.is_empty();
        let firewalls: BTreeSet<&Arc<str>> =
            changes.firewalls.keys().map(|(namespace, _)| namespace).collect();
        let tiers = if changes.tiers.is_empty() { BTreeSet::new() } else { self.moved_tiers(changes) };
        for (key, local) in self.locals.iter().take_while(|_| !changes.are_of_endpoints_and_policies()) {
            let inherits = |name: &Arc<str>| local.sources.contains(&Source::Profile(name.clone()));
            let is_dirty = !changes.config.is_empty()
                || tiers.iter().any(|tier| self.sources.is_of_tier(&local.sources, tier))
                || changes.profiles.keys().any(inherits)
                || local.sources.iter().any(|source| match source {
                    Source::Firewall(namespace, node) => {
                        firewalls.contains(namespace)
                            || changes.nodes.keys().any(|name| *name.as_str() == **node)
                    }
                    Source::Policy(_) | Source::Profile(_) => false,
                })
                || (touches_addresses && local.asks_of_local);
            if is_dirty {
                dirty.insert(key.clone());
            }
        }
        // Endpoints that share an address with one that changed.
        for (key, old) in &changes.endpoints {
            let new = self.store.endpoints.get(key);
            let relabelled = relabelled(&self.store, key, old, inherited);
            for address in old.iter().chain(new).flat_map(|endpoint| &*endpoint.addresses) {
                let owner = self.store.workload_at(*address);
                let Some((owner, local)) = owner.and_then(|it| self.locals.get_key_value(it)) else {
                    continue;
                };
                // Labels of an address matter to its own rules only if one asks for them.
                if !relabelled.is_same_otherwise() || local.asks_of_local {
                    dirty.insert(owner.clone());
                }
            }
        }
    }

    fn update_sources(
        &mut self,
        changes: &Changes,
        dirty: &BTreeSet<EndpointKey>,
        problems: &mut Vec<(PolicyId, Problem)>,
    ) {
        let context = &mut Context {
            store: &self.store,
            predicates: &mut self.predicates,
            max_rules: self.limits.rules,
            problems,
        };
        let policies = changes.policies.keys().cloned().map(Source::Policy);
        for source in policies.chain(changes.profiles.keys().cloned().map(Source::Profile)) {
            self.sources.refresh(&source, context);
        }
        if !(changes.firewalls.is_empty() && changes.config.is_empty() && changes.nodes.is_empty()) {
            for source in self.sources.firewalls() {
                self.sources.refresh(&source, context);
            }
        }
        for key in dirty {
            let endpoint = self.store.endpoints.get(key).filter(|it| is_local(it));
            let Some(local) = self.locals.get_mut(key) else { continue };
            let new = endpoint.map(|it| sources::of_endpoint(it, &local.policies)).unwrap_or_default();
            self.sources.acquire(&new, context);
            local.asks_of_local = self.sources.asks_of_local(&new);
            let old = std::mem::replace(&mut local.sources, new);
            self.sources.release(&old, context.predicates);
        }
    }

    fn update_peers(&mut self, changes: &Changes, inherited: &Inherited) {
        let (added, removed) = self.predicates.take_changes();
        let (peers, store, predicates) = (&mut self.peers, &self.store, &self.predicates);
        // What changed is looked at below, with all predicates, unless only some of its labels did.
        let is_changed = |key: &EndpointKey| {
            let old = changes.endpoints.get(key);
            old.is_some_and(|old| relabelled(store, key, old, inherited).names().is_none())
        };
        let changed = Changed { endpoint: &is_changed, sets: &changes.sets };
        for id in added {
            if let Some(predicate) = predicates.get(id) {
                peers.add_predicate(id, predicate, store, &changed);
            }
        }
        for (key, old) in &changes.endpoints {
            let relabelled = relabelled(store, key, old, inherited);
            peers.change_endpoint(key, old.as_deref(), &relabelled, store, predicates);
        }
        changes.sets.iter().for_each(|(id, old)| peers.change_set(id, old.as_deref(), store, predicates));
        changes
            .nodes
            .iter()
            .for_each(|(name, old)| peers.change_node(name, old.as_deref(), store, predicates));
        changes.services.iter().for_each(|(id, old)| peers.change_service(id, old.as_ref(), store));
        // Last, so that the owners still have what they are removed from.
        for (id, predicate) in removed {
            peers.remove_predicate(id, &predicate, store);
        }
    }

    /// Gives the addresses of local endpoints that changed their classes. Returns whether one has
    /// another class than before.
    fn bind(&mut self, changes: &Changes, inherited: &Inherited, dirty: &BTreeSet<EndpointKey>) -> bool {
        let mut addresses = BTreeSet::new();
        for key in dirty {
            let endpoint = self.store.endpoints.get(key).filter(|it| is_local(it));
            let Some(local) = self.locals.get_mut(key) else { continue };
            addresses.extend(std::mem::take(&mut local.addresses));
            match endpoint {
                Some(endpoint) => {
                    local.addresses = endpoint.addresses.iter().copied().collect();
                    addresses.extend(&local.addresses);
                }
                None => _ = self.locals.remove(key),
            }
        }
        // An address may pass to a younger endpoint of another node.
        for (key, old) in &changes.endpoints {
            let new = self.store.endpoints.get(key);
            if !relabelled(&self.store, key, old, inherited).is_same_otherwise() {
                addresses.extend(old.iter().chain(new).flat_map(|endpoint| &*endpoint.addresses));
            }
        }
        let mut is_changed = false;
        for address in addresses {
            is_changed |= self.bind_address(address);
        }
        is_changed
    }

    fn bind_address(&mut self, address: IpAddr) -> bool {
        let mut is_changed = false;
        let owner = self.store.workload_at(address);
        let local = owner.and_then(|key| Some((self.locals.get(key)?, self.store.endpoints.get(key)?)));
        for direction in DIRECTIONS {
            let program = local.map(|(local, endpoint)| {
                let place = Local { store: &self.store, address };
                self.sources.program(&local.sources, endpoint, direction, place)
            });
            let class = program.map(|program| self.classes.acquire(program));
            let old = match class {
                Some(class) => self.bindings.insert((direction, address), class),
                None => self.bindings.remove(&(direction, address)),
            };
            if let Some(old) = old {
                self.classes.release(old);
            }
            is_changed |= old != class;
        }
        is_changed
    }
}

/// How an endpoint differs from what it was.
fn relabelled<'a>(
    store: &'a Store,
    key: &EndpointKey,
    old: &'a Option<Arc<StoredEndpoint>>,
    inherited: &'a Inherited,
) -> Relabelled<'a> {
    Relabelled::new(old.as_deref(), store.endpoints.get(key).map(|it| &**it), inherited)
}

/// The place of each tier among all, and what happens at its end.
fn places(tiers: BTreeMap<Arc<str>, Tier>) -> BTreeMap<Arc<str>, (usize, TierDefault)> {
    let mut tiers: Vec<_> = tiers.into_iter().collect();
    tiers.sort_by(|(a, tier), (b, other)| (tier.order, a).cmp(&(other.order, b)));
    let places = tiers.into_iter().enumerate();
    places.map(|(place, (name, tier))| (name, (place, tier.default_action))).collect()
}

fn is_local(endpoint: &StoredEndpoint) -> bool {
    endpoint.local.is_some() && endpoint.kind == EndpointKind::Workload
}

// === impl LocalEndpoint ===

impl LocalEndpoint {
    /// Takes over whether a policy selects it. Returns whether that is new.
    fn select(&mut self, policy: &PolicyId, is_selected: bool) -> bool {
        match is_selected {
            true => !self.policies.contains(policy) && self.policies.insert(policy.clone()),
            false => self.policies.remove(policy),
        }
    }
}

// === impl Changes ===

impl Changes {
    fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.endpoints.is_empty() && self.are_of_endpoints_and_policies()
    }

    /// Whether nothing else changed.
    fn are_of_endpoints_and_policies(&self) -> bool {
        self.tiers.is_empty()
            && self.profiles.is_empty()
            && self.sets.is_empty()
            && self.services.is_empty()
            && self.nodes.is_empty()
            && self.firewalls.is_empty()
            && self.config.is_empty()
    }
}
