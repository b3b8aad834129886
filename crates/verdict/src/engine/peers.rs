//! Which predicates hold for which addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::{Family, IpNet, NodeName, host_net};
use russet_model::Selector;

use super::identity::{Identities, Move, Placed, Target};
use super::labels::{Labels, SelectorIndex};
use super::nets::{self, Nets};
use super::predicate::{Answer, Predicate, PredicateId, Predicates, Services, Vector};
use super::relabelled::Relabelled;
use super::store::Store;
use super::stored::StoredEndpoint;
use crate::ir::ServiceId;
use crate::table::Identity;
use crate::world::{EndpointKey, NetworkSet, Service, SetId};

/// The addresses of the cluster and what is true of them.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) identities: Identities,
    nets: Nets,
    /// What is true of addresses outside of all known prefixes.
    world: BTreeMap<Family, Vector>,
    /// What every prefix got that has an identity of its own.
    places: BTreeMap<IpNet, Identity>,
    regions: BTreeMap<IpNet, Vec<IpNet>>,
    selectors: SelectorIndex<PredicateId>,
    node_predicates: BTreeSet<PredicateId>,
    named: BTreeMap<Arc<str>, BTreeSet<PredicateId>>,
    services: BTreeMap<ServiceId, BTreeSet<PredicateId>>,
    /// The predicates that labels satisfy.
    satisfied: BTreeMap<Owner, BTreeSet<PredicateId>>,
    members: BTreeMap<PredicateId, BTreeSet<Owner>>,
    dirty: Dirty,
    overflowed: BTreeSet<IpNet>,
}

/// Something with labels that has addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    Endpoint(EndpointKey),
    Set(SetId),
    Node(NodeName),
}

/// What changed since the last flush, and is asked all predicates anyway.
pub(super) struct Changed<'a> {
    pub(super) endpoint: &'a dyn Fn(&EndpointKey) -> bool,
    pub(super) sets: &'a BTreeMap<SetId, Option<Arc<NetworkSet>>>,
}

#[derive(Debug, Default)]
struct Dirty {
    addresses: BTreeSet<IpAddr>,
    /// Prefixes of which something else is known, for all that is in them.
    nets: BTreeSet<IpNet>,
    /// Prefixes in which other prefixes came or went.
    regions: BTreeSet<IpNet>,
}

/// What addresses became.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    /// What the kernel must know: disjoint prefixes, and single addresses, which win over them.
    pub(super) addresses: BTreeMap<IpNet, Option<Identity>>,
    /// Identities that are new or mean something else.
    pub(super) changed: BTreeSet<Identity>,
    /// Those of them that did not exist before.
    pub(super) fresh: BTreeSet<Identity>,
    /// Identities that are gone.
    pub(super) removed: BTreeSet<Identity>,
    /// Families in which [`Identity::WORLD`] means something else.
    pub(super) worlds: BTreeSet<Family>,
    /// How many prefixes there are no numbers for.
    pub(super) overflowed: usize,
}

// === impl Peers ===

impl Peers {
    pub(super) fn new(identities: Identities) -> Self {
        Self {
            identities,
            nets: Nets::default(),
            world: Family::BOTH.into_iter().map(|family| (family, Vector::new())).collect(),
            places: BTreeMap::new(),
            regions: BTreeMap::new(),
            selectors: SelectorIndex::default(),
            node_predicates: BTreeSet::new(),
            named: BTreeMap::new(),
            services: BTreeMap::new(),
            satisfied: BTreeMap::new(),
            members: BTreeMap::new(),
            dirty: Dirty::default(),
            overflowed: BTreeSet::new(),
        }
    }

    /// What is true of addresses of a family that nothing else is known of.
    pub(super) fn world(&self, family: Family) -> &Vector {
        static EMPTY: Vector = Vector::new();
        self.world.get(&family).unwrap_or(&EMPTY)
    }

    /// Begins to answer a predicate for owners that did not change.
    pub(super) fn add_predicate(
        &mut self,
        id: PredicateId,
        predicate: &Predicate,
        store: &Store,
        changed: &Changed<'_>,
    ) {
        match predicate {
            Predicate::Selected(wanted, unwanted) => {
                self.selectors.insert(id, &both(wanted, unwanted));
                self.scan(id, (wanted, unwanted.as_ref()), store, changed);
            }
            Predicate::Nets(within, except) => {
                within.iter().for_each(|net| self.change_net(*net, |net| _ = net.within.insert(id)));
                except.iter().for_each(|net| self.change_net(*net, |net| _ = net.except.insert(id)));
            }
            Predicate::Node(selector) => {
                self.node_predicates.insert(id);
                let matching = |node: &&NodeName| {
                    let node = store.nodes.get(*node);
                    node.is_some_and(|node| Labels::of_node(&node.labels).match_selector(selector))
                };
                let nodes: Vec<NodeName> =
                    store.nodes.iter().map(|(name, _)| name).filter(matching).cloned().collect();
                nodes.into_iter().for_each(|node| self.satisfy(id, Owner::Node(node), store));
            }
            Predicate::Service(service) | Predicate::ServicePorts(service) => {
                self.services.entry(service.clone()).or_default().insert(id);
                self.touch_service(store.services.get(service));
            }
            Predicate::Named(name, _) => {
                self.named.entry(name.clone()).or_default().insert(id);
                self.touch_named(name, store);
            }
        }
    }

    /// Ends it.
    pub(super) fn remove_predicate(&mut self, id: PredicateId, predicate: &Predicate, store: &Store) {
        for owner in self.members.remove(&id).unwrap_or_default() {
            if let Some(satisfied) = self.satisfied.get_mut(&owner) {
                satisfied.remove(&id);
                if satisfied.is_empty() {
                    self.satisfied.remove(&owner);
                }
            }
            self.touch_owner(&owner, store);
        }
        match predicate {
            Predicate::Selected(wanted, unwanted) => self.selectors.remove(&id, &both(wanted, unwanted)),
            Predicate::Nets(within, except) => {
                within.iter().for_each(|net| self.change_net(*net, |net| _ = net.within.remove(&id)));
                except.iter().for_each(|net| self.change_net(*net, |net| _ = net.except.remove(&id)));
            }
            Predicate::Node(_) => _ = self.node_predicates.remove(&id),
            Predicate::Service(service) | Predicate::ServicePorts(service) => {
                remove_from(&mut self.services, service, id);
                self.touch_service(store.services.get(service));
            }
            Predicate::Named(name, _) => {
                remove_from(&mut self.named, name, id);
                self.touch_named(name, store);
            }
        }
    }

    /// Finds the owners that a new predicate holds for.
    fn scan(
        &mut self,
        id: PredicateId,
        (wanted, unwanted): (&Selector, Option<&Selector>),
        store: &Store,
        changed: &Changed<'_>,
    ) {
        let holds = |labels: Labels<'_>| {
            labels.match_selector(wanted) && !unwanted.is_some_and(|it| labels.match_selector(it))
        };
        for key in store.candidates(wanted).into_iter().filter(|key| !(changed.endpoint)(key)) {
            if store.endpoints.get(key).is_some_and(|endpoint| holds(store.endpoint_labels(endpoint))) {
                self.satisfy(id, Owner::Endpoint(key.clone()), store);
            }
        }
        for (set_id, set) in store.sets.iter().filter(|(set_id, _)| !changed.sets.contains_key(*set_id)) {
            if holds(store.set_labels(set)) {
                self.satisfy(id, Owner::Set(set_id.clone()), store);
            }
        }
    }

    fn satisfy(&mut self, id: PredicateId, owner: Owner, store: &Store) {
        let satisfied = self.satisfied.entry(owner.clone()).or_default();
        let was_empty = satisfied.is_empty();
        satisfied.insert(id);
        self.members.entry(id).or_default().insert(owner.clone());
        match &owner {
            Owner::Set(id) if was_empty => self.enter_set(id, store.sets.get(id)),
            _ => self.touch_owner(&owner, store),
        }
    }

    /// The labels, the ports or the addresses of an endpoint changed. Only predicates are asked that mention a label
    /// which may be another one.
    pub(super) fn change_endpoint(
        &mut self,
        key: &EndpointKey,
        old: Option<&StoredEndpoint>,
        relabelled: &Relabelled<'_>,
        store: &Store,
        predicates: &Predicates,
    ) {
        let new = store.endpoints.get(key);
        let owner = Owner::Endpoint(key.clone());
        let labels = new.map(|it| store.endpoint_labels(it));
        let mentioning = relabelled.names().and_then(|names| self.selectors.mentioning(names));
        let found = match (labels, mentioning) {
            (None, _) => BTreeSet::new(),
            (Some(labels), None) => self.matching(&labels, predicates),
            (Some(labels), Some(mentioning)) => {
                let mut found = self.satisfied.get(&owner).cloned().unwrap_or_default();
                for id in mentioning {
                    match holds(*id, &labels, predicates) {
                        true => _ = found.insert(*id),
                        false => _ = found.remove(id),
                    }
                }
                found
            }
        };
        let is_other = self.replace_satisfied(owner, found);
        let same_place = |old: &StoredEndpoint, new: &StoredEndpoint| {
            (&old.addresses, &old.ports, &old.kind, old.age)
                == (&new.addresses, &new.ports, &new.kind, new.age)
        };
        // Names of ports count only for endpoints that match a selector, which labels decide.
        let names_ports =
            |it: &StoredEndpoint| it.ports.iter().any(|port| self.named.contains_key(&port.name));
        let is_same =
            !is_other && old.zip(new).is_some_and(|(old, new)| same_place(old, new) && !names_ports(new));
        if !is_same {
            let all = old.into_iter().chain(new.map(|it| &**it));
            self.dirty.addresses.extend(all.flat_map(|it| &it.addresses));
        }
    }

    /// The same of a set.
    pub(super) fn change_set(
        &mut self,
        id: &SetId,
        old: Option<&NetworkSet>,
        store: &Store,
        predicates: &Predicates,
    ) {
        let new = store.sets.get(id);
        let found = new.map(|it| self.matching(&store.set_labels(it), predicates)).unwrap_or_default();
        let owner = Owner::Set(id.clone());
        let was_in = self.satisfied.contains_key(&owner);
        let is_other = self.replace_satisfied(owner.clone(), found);
        let is_in = self.satisfied.contains_key(&owner);
        let nets = |set: Option<&NetworkSet>, counts: bool| -> BTreeSet<IpNet> {
            set.filter(|_| counts).into_iter().flat_map(|set| &set.nets).map(IpNet::trunc).collect()
        };
        let (before, after) = (nets(old, was_in), nets(new.map(|it| &**it), is_in));
        before.difference(&after).for_each(|net| self.change_net(*net, |net| _ = net.sets.remove(id)));
        after
            .difference(&before)
            .for_each(|net| self.change_net(*net, |net| _ = net.sets.insert(id.clone())));
        if is_other {
            self.dirty.nets.extend(before.intersection(&after));
        }
    }

    /// The same of a node.
    pub(super) fn change_node(
        &mut self,
        name: &NodeName,
        old: Option<&crate::world::Node>,
        store: &Store,
        predicates: &Predicates,
    ) {
        let new = store.nodes.get(name);
        let holds = |id: &PredicateId, labels: &Labels<'_>| match predicates.get(*id).map(|it| &**it) {
            Some(Predicate::Node(selector)) => labels.match_selector(selector),
            _ => false,
        };
        let found = new.map(|node| {
            let labels = Labels::of_node(&node.labels);
            self.node_predicates.iter().copied().filter(|id| holds(id, &labels)).collect()
        });
        self.replace_satisfied(Owner::Node(name.clone()), found.unwrap_or_default());
        let all = old.into_iter().chain(new.map(|it| &**it));
        self.dirty.addresses.extend(all.flat_map(|it| &it.addresses));
    }

    /// The endpoints of a service changed.
    pub(super) fn change_service(&mut self, id: &ServiceId, old: Option<&Arc<Service>>, store: &Store) {
        if self.services.contains_key(id) {
            self.touch_service(old);
            self.touch_service(store.services.get(id));
        }
    }

    fn matching(&self, labels: &Labels<'_>, predicates: &Predicates) -> BTreeSet<PredicateId> {
        self.selectors.candidates(labels).copied().filter(|id| holds(*id, labels, predicates)).collect()
    }

    /// Whether that is something else than before.
    fn replace_satisfied(&mut self, owner: Owner, new: BTreeSet<PredicateId>) -> bool {
        let empty = BTreeSet::new();
        let old = self.satisfied.get(&owner).unwrap_or(&empty);
        if *old == new {
            return false;
        }
        for id in old.difference(&new) {
            if let Some(members) = self.members.get_mut(id) {
                members.remove(&owner);
                if members.is_empty() {
                    self.members.remove(id);
                }
            }
        }
        for id in new.difference(old) {
            self.members.entry(*id).or_default().insert(owner.clone());
        }
        match new.is_empty() {
            true => _ = self.satisfied.remove(&owner),
            false => _ = self.satisfied.insert(owner, new),
        }
        true
    }

    fn touch_owner(&mut self, owner: &Owner, store: &Store) {
        match owner {
            Owner::Endpoint(key) => {
                let addresses = store.endpoints.get(key).into_iter().flat_map(|it| &it.addresses);
                self.dirty.addresses.extend(addresses);
            }
            Owner::Node(name) => {
                let addresses = store.nodes.get(name).into_iter().flat_map(|it| &it.addresses);
                self.dirty.addresses.extend(addresses);
            }
            Owner::Set(id) => {
                let Some(set) = store.sets.get(id) else { return };
                let is_in = self.satisfied.contains_key(owner);
                for net in set.nets.iter().map(IpNet::trunc) {
                    if is_in {
                        self.dirty.nets.insert(net);
                    } else {
                        self.change_net(net, |net| _ = net.sets.remove(id));
                    }
                }
            }
        }
    }

    fn enter_set(&mut self, id: &SetId, set: Option<&Arc<NetworkSet>>) {
        for net in set.into_iter().flat_map(|set| &set.nets).map(IpNet::trunc) {
            self.change_net(net, |net| _ = net.sets.insert(id.clone()));
        }
    }

    fn touch_service(&mut self, service: Option<&Arc<Service>>) {
        self.dirty.addresses.extend(service.into_iter().flat_map(|service| &service.addresses));
    }

    fn touch_named(&mut self, name: &Arc<str>, store: &Store) {
        let names = |endpoint: &StoredEndpoint| endpoint.ports.iter().any(|port| port.name == *name);
        let endpoints = store.endpoints.iter().filter(|(_, endpoint)| names(endpoint));
        self.dirty.addresses.extend(endpoints.flat_map(|(_, endpoint)| &endpoint.addresses));
    }

    fn change_net(&mut self, net: IpNet, change: impl FnOnce(&mut nets::Net)) {
        let net = net.trunc();
        let was_known = self.nets.contains(&net);
        self.nets.change(net, change);
        if was_known != self.nets.contains(&net) && !nets::is_host(net) {
            let outer = self.nets.covering(net).map(|(outer, _)| outer).find(|outer| *outer != net);
            self.dirty.regions.extend(outer);
        }
        self.dirty.nets.insert(net);
    }

    /// Gives every address whose answers may have changed its identity.
    pub(super) fn resolve(&mut self, store: &Store, predicates: &Predicates) -> Resolved {
        if self.identities.has_room() {
            for net in std::mem::take(&mut self.overflowed) {
                self.dirty.nets.insert(net);
            }
        }
        let dirty = std::mem::take(&mut self.dirty);
        let mut resolved = Resolved::default();
        let mut places: BTreeSet<IpNet> = dirty.addresses.iter().copied().map(host_net).collect();
        for net in &dirty.nets {
            if net.prefix_len() == 0 {
                let family = Family::of_net(net);
                let vector = self.outer_vector(*net);
                if self.world.insert(family, vector.clone()) != Some(vector) {
                    resolved.worlds.insert(family);
                }
            }
            self.expand(*net, store, &mut places);
        }
        places.retain(|place| place.prefix_len() > 0);
        let wanted = |place: IpNet| Move {
            place,
            old: self.places.get(&place).copied(),
            new: self.target(place, store, predicates),
        };
        let moves = places.iter().copied().map(wanted).collect();
        let placed = self.identities.place(moves);
        self.publish(placed, &dirty.regions, &mut resolved);
        resolved.overflowed = self.overflowed.len();
        resolved
    }

    /// Adds what is in a prefix to what is looked at again.
    fn expand(&self, net: IpNet, store: &Store, places: &mut BTreeSet<IpNet>) {
        places.insert(net);
        if !nets::is_host(net) {
            places.extend(self.nets.inside(net));
            places.extend(store.addresses_in(nets::addresses(net)).copied().map(host_net));
            places.extend(self.places.range(nets::all_inside(net)).map(|(place, _)| *place));
        }
    }

    /// Takes over what places became, and finds what the kernel must know of it.
    fn publish(&mut self, placed: Placed, regions: &BTreeSet<IpNet>, resolved: &mut Resolved) {
        let mut again: BTreeSet<IpNet> = regions.clone();
        for (place, identity) in placed.places {
            let old = match identity {
                Some(identity) => self.places.insert(place, identity),
                None => self.places.remove(&place),
            };
            if nets::is_host(place) {
                if old != identity {
                    resolved.addresses.insert(place, identity);
                }
            } else {
                again.insert(place);
            }
        }
        self.overflowed.extend(placed.overflowed);
        self.overflowed.retain(|place| self.places.contains_key(place));
        // First all that goes, then all that comes: a region may pass from one prefix to another.
        for net in again.iter().flat_map(|net| self.regions.remove(net)).flatten() {
            resolved.addresses.insert(net, None);
        }
        for net in again {
            let Some(&identity) = self.places.get(&net) else { continue };
            let region = self.nets.region(net);
            for part in &region {
                resolved.addresses.insert(*part, Some(identity).filter(|it| *it != Identity::WORLD));
            }
            self.regions.insert(net, region);
        }
        resolved.changed = placed.changed;
        resolved.fresh = placed.fresh;
        resolved.removed = placed.removed;
    }

    fn target(&self, place: IpNet, store: &Store, predicates: &Predicates) -> Target {
        let vector = if nets::is_host(place) {
            let outer = self.outer_vector(place);
            let vector = self.address_vector(place, store, predicates);
            if vector == outer {
                return Target::Nothing;
            }
            vector
        } else if self.nets.contains(&place) {
            self.outer_vector(place)
        } else {
            return Target::Nothing;
        };
        if vector == *self.world(Family::of_net(&place)) { Target::World } else { Target::Vector(vector) }
    }

    /// What is true of all addresses of a prefix. For a single address: of the prefixes around it.
    fn outer_vector(&self, net: IpNet) -> Vector {
        let covering = self.nets.covering(net).filter(|(net, _)| !nets::is_host(*net));
        self.true_of(covering.map(|(_, net)| net)).into_iter().collect()
    }

    fn true_of<'a>(&'a self, covering: impl Iterator<Item = &'a nets::Net>) -> BTreeMap<PredicateId, Answer> {
        let (mut found, mut excluded) = (BTreeMap::new(), BTreeSet::new());
        for net in covering {
            for set in &net.sets {
                let satisfied = self.satisfied.get(&Owner::Set(set.clone())).into_iter().flatten();
                found.extend(satisfied.map(|id| (*id, Answer::Yes)));
            }
            found.extend(net.within.iter().map(|id| (*id, Answer::Yes)));
            excluded.extend(&net.except);
        }
        for id in excluded {
            found.remove(&id);
        }
        found
    }

    fn address_vector(&self, place: IpNet, store: &Store, predicates: &Predicates) -> Vector {
        let address = place.addr();
        let mut found = self.true_of(self.nets.covering(place).map(|(_, net)| net));
        for (key, endpoint) in store.endpoints_at(address) {
            let satisfied = self.satisfied.get(&Owner::Endpoint(key.clone())).into_iter().flatten();
            found.extend(satisfied.map(|id| (*id, Answer::Yes)));
            self.add_named(endpoint, store, predicates, &mut found);
        }
        let Some(at) = store.at(address) else { return found.into_iter().collect() };
        for node in &at.nodes {
            let satisfied = self.satisfied.get(&Owner::Node(node.clone())).into_iter().flatten();
            found.extend(satisfied.map(|id| (*id, Answer::Yes)));
        }
        for service in &at.services {
            for id in self.services.get(service).into_iter().flatten() {
                let answer = match predicates.get(*id).map(|it| &**it) {
                    Some(Predicate::ServicePorts(_)) => {
                        Answer::Ports(Arc::new(service_ports(store.services.get(service), address)))
                    }
                    _ => Answer::Yes,
                };
                found.insert(*id, answer);
            }
        }
        found.into_iter().collect()
    }

    fn add_named(
        &self,
        endpoint: &StoredEndpoint,
        store: &Store,
        predicates: &Predicates,
        found: &mut BTreeMap<PredicateId, Answer>,
    ) {
        for port in &*endpoint.ports {
            for id in self.named.get(&port.name).into_iter().flatten() {
                let Some(Predicate::Named(_, wanted)) = predicates.get(*id).map(|it| &**it) else { continue };
                let labels = store.endpoint_labels(endpoint);
                if wanted.as_ref().is_some_and(|wanted| !labels.match_selector(wanted)) {
                    continue;
                }
                let mut ports = match found.remove(id) {
                    Some(Answer::Ports(ports)) => ports.to_vec(),
                    _ => Services::new(),
                };
                if let Err(at) = ports.binary_search(&(port.protocol, port.port)) {
                    ports.insert(at, (port.protocol, port.port));
                }
                found.insert(*id, Answer::Ports(Arc::new(ports)));
            }
        }
    }

    /// How many selectors, prefixes and owners of labels it remembers.
    pub(super) fn len(&self) -> (usize, usize, usize) {
        let selectors =
            self.selectors.len() + self.node_predicates.len() + self.named.len() + self.services.len();
        let nets = self.nets.len() + self.places.len() + self.regions.len() + self.overflowed.len();
        (selectors, nets, self.satisfied.len() + self.members.len())
    }
}

/// A selector that matches what both parts of a predicate let through.
fn both(wanted: &Selector, unwanted: &Option<Selector>) -> Selector {
    let unwanted = unwanted.iter().cloned().map(Selector::negated);
    Selector::and([wanted.clone()].into_iter().chain(unwanted))
}

/// Whether a predicate about labels holds for some.
fn holds(id: PredicateId, labels: &Labels<'_>, predicates: &Predicates) -> bool {
    match predicates.get(id).map(|it| &**it) {
        Some(Predicate::Selected(wanted, unwanted)) => {
            labels.match_selector(wanted) && !unwanted.as_ref().is_some_and(|it| labels.match_selector(it))
        }
        _ => false,
    }
}

fn service_ports(service: Option<&Arc<Service>>, address: IpAddr) -> Services {
    let endpoints = service.into_iter().flat_map(|service| &service.endpoints);
    endpoints.filter(|(at, ..)| *at == address).map(|(_, protocol, port)| (*protocol, *port)).collect()
}

fn remove_from<K: Ord>(index: &mut BTreeMap<K, BTreeSet<PredicateId>>, key: &K, id: PredicateId) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}
