//! The objects as the last update of each said, and which of them changed since the last flush.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::NodeName;
use russet_model::{Restriction, Selector};

use super::labels::{Labels, Map};
use super::packed::PackedPolicy;
use super::stored::{StoredEndpoint, Texts};
use crate::felix::{self, Failsafe, FelixConfigurations};
use crate::ir::{PolicyId, Profile, ServiceId, Tier};
use crate::world::{
    Config, EgressFirewall, EndpointKey, EndpointKind, EndpointToHost, NetworkSet, Node, Service, SetId,
    Update,
};

/// The namespace and the name of an EgressNetworkPolicy.
pub(super) type FirewallKey = (Arc<str>, Arc<str>);

/// Objects of one kind. `changed` has what they were at the last flush.
#[derive(Debug)]
pub(super) struct Objects<K, V> {
    now: BTreeMap<K, V>,
    changed: BTreeMap<K, Option<V>>,
}

/// All objects.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) policies: Objects<PolicyId, PackedPolicy>,
    pub(super) tiers: Objects<Arc<str>, Tier>,
    pub(super) profiles: Objects<Arc<str>, Arc<Profile>>,
    pub(super) endpoints: Objects<EndpointKey, Arc<StoredEndpoint>>,
    pub(super) sets: Objects<SetId, Arc<NetworkSet>>,
    pub(super) services: Objects<ServiceId, Arc<Service>>,
    pub(super) nodes: Objects<NodeName, Arc<Node>>,
    pub(super) firewalls: Objects<FirewallKey, Arc<EgressFirewall>>,
    pub(super) config: Objects<(), Config>,
    /// Only the table of host endpoints depends on them.
    pub(super) felix: FelixConfigurations,
    /// The texts of endpoints and of the names of policies.
    texts: Texts,
    /// The endpoints that inherit from a profile.
    inheriting: BTreeMap<Arc<str>, BTreeSet<EndpointKey>>,
    /// The sets that do.
    inheriting_sets: BTreeMap<Arc<str>, BTreeSet<SetId>>,
    /// Endpoints by their own labels.
    labelled: BTreeMap<Arc<str>, BTreeMap<Arc<str>, BTreeSet<EndpointKey>>>,
    /// Who has an address.
    at: BTreeMap<IpAddr, At>,
}

/// Who has an address.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct At {
    /// In the order of their ages: mostly one.
    workloads: Vec<(u64, EndpointKey)>,
    hosts: BTreeSet<EndpointKey>,
    pub(super) nodes: BTreeSet<NodeName>,
    pub(super) services: BTreeSet<ServiceId>,
}

// === impl Objects ===

impl<K: Ord + Clone, V: PartialEq + Clone> Objects<K, V> {
    /// Takes over a change.
    fn put(&mut self, key: K, value: Option<V>) {
        let old = self.now.get(&key);
        if old == value.as_ref() {
            return;
        }
        if let Entry::Vacant(entry) = self.changed.entry(key.clone()) {
            entry.insert(old.cloned());
        }
        match value {
            Some(value) => _ = self.now.insert(key, value),
            None => _ = self.now.remove(&key),
        }
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.now.get(key)
    }

    /// Those that differ from what they were at the last flush, and what they were. Forgets them.
    pub(super) fn take_changed(&mut self) -> BTreeMap<K, Option<V>> {
        let mut changed = std::mem::take(&mut self.changed);
        changed.retain(|key, old| old.as_ref() != self.now.get(key));
        changed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.now.iter()
    }
}

impl<K, V> Default for Objects<K, V> {
    fn default() -> Self {
        Self { now: BTreeMap::new(), changed: BTreeMap::new() }
    }
}

// === impl Store ===

impl Store {
    pub(super) fn apply(&mut self, update: Update) {
        match update {
            Update::Policy(key, value) => {
                let texts = &mut self.texts;
                let namespace = key.namespace.map(|namespace| texts.shared(&namespace));
                let key = PolicyId { namespace, name: texts.shared(&key.name), ..key };
                self.policies.put(key, value.map(|policy| PackedPolicy::new(&policy)));
            }
            Update::Tier(key, value) => self.tiers.put(key, value),
            Update::Profile(key, value) => self.profiles.put(key, value),
            Update::Endpoint(key, value) => {
                let stored = value.map(|endpoint| Arc::new(StoredEndpoint::new(&endpoint, &mut self.texts)));
                self.endpoints.put(EndpointKey(self.texts.shared(&key.0)), stored);
            }
            Update::NetworkSet(key, value) => self.sets.put(key, value),
            Update::Service(key, value) => self.services.put(key, value),
            Update::Node(key, value) => self.nodes.put(key, value),
            Update::EgressFirewall(namespace, name, value) => self.firewalls.put((namespace, name), value),
            Update::Felix(name, Some(value)) => _ = self.felix.insert(name, value),
            Update::Felix(name, None) => _ = self.felix.remove(&name),
            Update::Config(config) => self.config.put((), Some(config)),
        }
    }

    /// What the node is configured with, if anything.
    pub(super) fn config(&self) -> Option<&Config> {
        self.config.get(&())
    }

    /// What becomes of packets of this node's workloads to the node itself.
    pub(super) fn endpoint_to_host(&self) -> EndpointToHost {
        felix::endpoint_to_host(&self.felix, &self.node()).map(|(_, action)| action).unwrap_or_default()
    }

    /// This node's failsafe ports.
    pub(super) fn failsafe(&self) -> Failsafe {
        felix::failsafe(&self.felix, &self.node())
    }

    fn node(&self) -> Arc<str> {
        self.config().map(|config| Arc::clone(&config.node)).unwrap_or_default()
    }

    /// Brings the indexes up to date with an endpoint that was `old`.
    pub(super) fn index_endpoint(&mut self, key: &EndpointKey, old: Option<&Arc<StoredEndpoint>>) {
        let new = self.endpoints.get(key).cloned();
        let (before, after) = (old.map(|it| &**it), new.as_deref());
        if before.zip(after).is_none_or(|(old, new)| old.profiles != new.profiles) {
            let profiles = before.into_iter().flat_map(|it| &*it.profiles);
            profiles.for_each(|profile| leave(&mut self.inheriting, profile, key));
            for profile in after.into_iter().flat_map(|it| &*it.profiles) {
                self.inheriting.entry(profile.clone()).or_default().insert(key.clone());
            }
        }
        if before.map(place) != after.map(place) {
            for (address, old) in before.iter().flat_map(|it| it.addresses.iter().map(move |at| (at, it))) {
                self.change_at(*address, |at| at.leave(key, old));
            }
            for (address, new) in after.iter().flat_map(|it| it.addresses.iter().map(move |at| (at, it))) {
                self.change_at(*address, |at| at.enter(key, new));
            }
        }
        self.index_labels(key, before, after);
    }

    fn index_labels(
        &mut self,
        key: &EndpointKey,
        old: Option<&StoredEndpoint>,
        new: Option<&StoredEndpoint>,
    ) {
        let is_in = |of: Option<&StoredEndpoint>, name: &Arc<str>, value: &Arc<str>| {
            of.is_some_and(|it| it.labels().get(name) == Some(value))
        };
        let before = old.into_iter().flat_map(|it| it.labels().iter());
        for (name, value) in before.filter(|(name, value)| !is_in(new, name, value)) {
            self.unlabel(name, value, key);
        }
        let after = new.into_iter().flat_map(|it| it.labels().iter());
        for (name, value) in after.filter(|(name, value)| !is_in(old, name, value)) {
            let values = self.labelled.entry(name.clone()).or_default();
            values.entry(value.clone()).or_default().insert(key.clone());
        }
    }

    fn unlabel(&mut self, name: &Arc<str>, value: &Arc<str>, key: &EndpointKey) {
        let Some(values) = self.labelled.get_mut(name) else { return };
        leave(values, value, key);
        if values.is_empty() {
            self.labelled.remove(name);
        }
    }

    /// The endpoints that a selector may match; some of them it does not.
    pub(super) fn candidates<'a>(&'a self, selector: &Selector) -> BTreeSet<&'a EndpointKey> {
        let restrictions = selector.restrictions();
        let owners = restrictions.iter().map(|restriction| self.owners(restriction));
        match owners.min_by_key(|owners| owners.iter().map(|keys| keys.len()).sum::<usize>()) {
            Some(owners) => owners.into_iter().flatten().collect(),
            None => self.endpoints.iter().map(|(key, _)| key).collect(),
        }
    }

    /// The endpoints that have a label themselves, and those of each profile that has it.
    fn owners<'a>(&'a self, restriction: &Restriction<'_>) -> Vec<&'a BTreeSet<EndpointKey>> {
        let (Restriction::Has(name) | Restriction::OneOf(name, _)) = restriction;
        let fits = |value: &str| match restriction {
            Restriction::Has(_) => true,
            Restriction::OneOf(_, values) => values.contains(&value),
        };
        let own = self.labelled.get(*name).into_iter().flatten();
        let own = own.filter(|(value, _)| fits(value)).map(|(_, keys)| keys);
        let has_label = |profile: &str| {
            let labels = self.profile_labels(profile);
            labels.and_then(|labels| labels.get(*name)).is_some_and(|value| fits(value))
        };
        let inherited = self.inheriting.iter().filter(|(profile, _)| has_label(profile));
        own.chain(inherited.map(|(_, keys)| keys)).collect()
    }

    /// The same for a set.
    pub(super) fn index_set(&mut self, id: &SetId, old: Option<&Arc<NetworkSet>>) {
        if let Some(profile) = old.and_then(|set| set.profile.as_ref()) {
            leave(&mut self.inheriting_sets, profile, id);
        }
        if let Some(profile) = self.sets.get(id).and_then(|set| set.profile.clone()) {
            self.inheriting_sets.entry(profile).or_default().insert(id.clone());
        }
    }

    /// The same for a node.
    pub(super) fn index_node(&mut self, name: &NodeName, old: Option<&Arc<Node>>) {
        let new = self.nodes.get(name).cloned();
        for address in old.iter().flat_map(|node| &node.addresses) {
            self.change_at(*address, |at| _ = at.nodes.remove(name));
        }
        for address in new.iter().flat_map(|node| &node.addresses) {
            self.change_at(*address, |at| _ = at.nodes.insert(name.clone()));
        }
    }

    /// The same for a service.
    pub(super) fn index_service(&mut self, id: &ServiceId, old: Option<&Arc<Service>>) {
        let new = self.services.get(id).cloned();
        for address in old.iter().flat_map(|service| &service.addresses) {
            self.change_at(*address, |at| _ = at.services.remove(id));
        }
        for address in new.iter().flat_map(|service| &service.addresses) {
            self.change_at(*address, |at| _ = at.services.insert(id.clone()));
        }
    }

    fn change_at(&mut self, address: IpAddr, change: impl FnOnce(&mut At)) {
        let at = self.at.entry(address).or_default();
        change(at);
        if *at == At::default() {
            self.at.remove(&address);
        }
    }

    pub(super) fn inheriting(&self, profile: &str) -> impl Iterator<Item = &EndpointKey> {
        self.inheriting.get(profile).into_iter().flatten()
    }

    pub(super) fn inheriting_sets(&self, profile: &str) -> impl Iterator<Item = &SetId> {
        self.inheriting_sets.get(profile).into_iter().flatten()
    }

    pub(super) fn at(&self, address: IpAddr) -> Option<&At> {
        self.at.get(&address)
    }

    /// The addresses of a range that something has.
    pub(super) fn addresses_in(
        &self,
        range: std::ops::RangeInclusive<IpAddr>,
    ) -> impl Iterator<Item = &IpAddr> {
        self.at.range(range).map(|(address, _)| address)
    }

    /// The workload that has an address: of several, the youngest.
    pub(super) fn workload_at(&self, address: IpAddr) -> Option<&EndpointKey> {
        self.at(address)?.workloads.last().map(|(_, key)| key)
    }

    /// The endpoints that an address means in a rule: its workload, and the host endpoints that
    /// are expected to have it.
    pub(super) fn endpoints_at(
        &self,
        address: IpAddr,
    ) -> impl Iterator<Item = (&EndpointKey, &Arc<StoredEndpoint>)> {
        let hosts = self.at(address).into_iter().flat_map(|at| &at.hosts);
        let keys = self.workload_at(address).into_iter().chain(hosts);
        keys.filter_map(|key| Some((key, self.endpoints.get(key)?)))
    }

    pub(super) fn endpoint_labels<'a>(&'a self, endpoint: &'a StoredEndpoint) -> Labels<'a> {
        let profiles = endpoint.profiles.iter().filter_map(|profile| self.profile_labels(profile));
        Labels::of_endpoint(endpoint.labels(), profiles.collect())
    }

    pub(super) fn set_labels<'a>(&'a self, set: &'a NetworkSet) -> Labels<'a> {
        Labels::of_set(&set.labels, set.profile.as_ref().and_then(|profile| self.profile_labels(profile)))
    }

    fn profile_labels(&self, name: &str) -> Option<&Map> {
        self.profiles.get(name).map(|profile| &profile.labels)
    }

    /// How many addresses, profiles and labels something is known of.
    pub(super) fn len(&self) -> usize {
        self.at.len() + self.inheriting.len() + self.inheriting_sets.len() + self.labelled.len()
    }
}

/// Where an endpoint is.
fn place(endpoint: &StoredEndpoint) -> (&[IpAddr], &EndpointKind, u64) {
    (&endpoint.addresses, &endpoint.kind, endpoint.age)
}

fn leave<K: Ord>(index: &mut BTreeMap<Arc<str>, BTreeSet<K>>, name: &Arc<str>, key: &K) {
    if let Some(keys) = index.get_mut(name) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(name);
        }
    }
}

// === impl At ===

impl At {
    fn enter(&mut self, key: &EndpointKey, endpoint: &StoredEndpoint) {
        match endpoint.kind {
            EndpointKind::Workload => {
                let workload = (endpoint.age, key.clone());
                if let Err(place) = self.workloads.binary_search(&workload) {
                    self.workloads.reserve_exact(1);
                    self.workloads.insert(place, workload);
                }
            }
            EndpointKind::Host { .. } => _ = self.hosts.insert(key.clone()),
        }
    }

    fn leave(&mut self, key: &EndpointKey, endpoint: &StoredEndpoint) {
        match endpoint.kind {
            EndpointKind::Workload => {
                self.workloads.retain(|(age, other)| (*age, other) != (endpoint.age, key));
            }
            EndpointKind::Host { .. } => _ = self.hosts.remove(key),
        }
    }
}
