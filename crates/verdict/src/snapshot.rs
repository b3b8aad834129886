//! Everything that decisions depend on, at one moment.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::NodeName;
use russet_model::Selector;

use crate::felix::{self, Failsafe, FelixConfigurations};
use crate::ir::{Policy, PolicyId, Profile, ServiceId, StagedAction, Tier};
use crate::world::{
    Config, EgressFirewall, Endpoint, EndpointKey, EndpointKind, EndpointToHost, NetworkSet, Node, Service,
    SetId, Update,
};

/// By namespace and name.
pub type EgressFirewalls = Arc<BTreeMap<(Arc<str>, Arc<str>), Arc<EgressFirewall>>>;

/// What the last update of each object said. A clone shares what it does not change.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// All policies, staged ones too.
    pub policies: Arc<BTreeMap<PolicyId, Arc<Policy>>>,
    /// The tiers, by name.
    pub tiers: Arc<BTreeMap<Arc<str>, Tier>>,
    /// The profiles, by name.
    pub profiles: Arc<BTreeMap<Arc<str>, Arc<Profile>>>,
    /// The endpoints of the cluster.
    pub endpoints: Arc<BTreeMap<EndpointKey, Arc<Endpoint>>>,
    /// The network sets.
    pub network_sets: Arc<BTreeMap<SetId, Arc<NetworkSet>>>,
    /// The endpoints of Services.
    pub services: Arc<BTreeMap<ServiceId, Arc<Service>>>,
    /// The nodes.
    pub nodes: Arc<BTreeMap<NodeName, Arc<Node>>>,
    /// The EgressNetworkPolicies.
    pub egress_firewalls: EgressFirewalls,
    /// The FelixConfigurations.
    pub felix: Arc<FelixConfigurations>,
    /// What the node is configured with.
    pub config: Arc<Config>,
}

// === impl Snapshot ===

impl Snapshot {
    /// Takes over a change of one object. Clones that were made before do not see it.
    pub fn apply(&mut self, update: Update) {
        match update {
            Update::Policy(key, value) => put(&mut self.policies, key, value),
            Update::Tier(key, value) => put(&mut self.tiers, key, value),
            Update::Profile(key, value) => put(&mut self.profiles, key, value),
            Update::Endpoint(key, value) => put(&mut self.endpoints, key, value),
            Update::NetworkSet(key, value) => put(&mut self.network_sets, key, value),
            Update::Service(key, value) => put(&mut self.services, key, value),
            Update::Node(key, value) => put(&mut self.nodes, key, value),
            Update::EgressFirewall(namespace, name, value) => {
                put(&mut self.egress_firewalls, (namespace, name), value);
            }
            Update::Felix(name, value) => put(&mut self.felix, name, value),
            Update::Config(config) => self.config = Arc::new(config),
        }
    }

    /// The workload that has an address: of several, the youngest; of equally old ones, the one
    /// with the greatest key.
    pub fn workload_at(&self, address: IpAddr) -> Option<(&EndpointKey, &Arc<Endpoint>)> {
        self.endpoints
            .iter()
            .filter(|(_, endpoint)| {
                endpoint.kind == EndpointKind::Workload && endpoint.addresses.contains(&address)
            })
            .max_by_key(|(key, endpoint)| (endpoint.age, *key))
    }

    /// The endpoints that an address means in a rule: the workload that has it, and host endpoints
    /// that are expected to have it.
    pub fn endpoints_at(&self, address: IpAddr) -> impl Iterator<Item = &Arc<Endpoint>> {
        let hosts = self.endpoints.values().filter(move |endpoint| {
            endpoint.kind != EndpointKind::Workload && endpoint.addresses.contains(&address)
        });
        self.workload_at(address).map(|(_, endpoint)| endpoint).into_iter().chain(hosts)
    }

    /// What becomes of packets of a node's pods to the node itself, and the FelixConfiguration that says it.
    pub fn endpoint_to_host(&self, node: &str) -> Option<(&Arc<str>, EndpointToHost)> {
        felix::endpoint_to_host(&self.felix, node)
    }

    /// The failsafe ports of a node.
    pub fn failsafe(&self, node: &str) -> Failsafe {
        felix::failsafe(&self.felix, node)
    }

    /// The network sets that contain an address.
    pub fn sets_at(&self, address: IpAddr) -> impl Iterator<Item = (&SetId, &Arc<NetworkSet>)> {
        self.network_sets.iter().filter(move |(_, set)| set.nets.iter().any(|net| net.contains(&address)))
    }

    /// A label of an endpoint: its own, else that of the first of its profiles that has it. Its
    /// own labels cannot pretend to be a namespace's or a service account's.
    pub fn label<'a>(&'a self, endpoint: &'a Endpoint, name: &str) -> Option<&'a str> {
        let own = endpoint.labels.get(name).filter(|_| !is_inherited(name));
        let inherited = || endpoint.profiles.iter().find_map(|profile| self.profile_label(profile, name));
        own.map(|value| &**value).or_else(inherited)
    }

    /// Whether a selector matches the effective labels of an endpoint.
    pub fn selects(&self, selector: &Selector, endpoint: &Endpoint) -> bool {
        selector.matches_with(&|name| self.label(endpoint, name))
    }

    /// Whether a selector matches the effective labels of a network set.
    pub fn selects_set(&self, selector: &Selector, set: &NetworkSet) -> bool {
        selector.matches_with(&|name| {
            let inherited = || set.profile.as_ref().and_then(|profile| self.profile_label(profile, name));
            set.labels.get(name).map(|value| &**value).or_else(inherited)
        })
    }

    fn profile_label(&self, profile: &str, name: &str) -> Option<&str> {
        self.profiles.get(profile)?.labels.get(name).map(|value| &**value)
    }

    /// The snapshot as if every staged policy was in force (policy.md section 1.7).
    pub fn with_staged(&self) -> Self {
        let mut policies = (*self.policies).clone();
        for (id, staged) in self.policies.iter() {
            let Some(action) = staged.staged else { continue };
            if matches!(action, StagedAction::Set | StagedAction::Delete) {
                policies.retain(|_, policy| !concerns(staged, policy));
            }
            if action == StagedAction::Set {
                policies.insert(id.clone(), Arc::new(Policy { staged: None, ..(**staged).clone() }));
            }
        }
        Self { policies: Arc::new(policies), ..self.clone() }
    }
}

fn put<K: Ord + Clone, V: Clone>(map: &mut Arc<BTreeMap<K, V>>, key: K, value: Option<V>) {
    let map = Arc::make_mut(map);
    match value {
        Some(value) => _ = map.insert(key, value),
        None => _ = map.remove(&key),
    }
}

fn is_inherited(label: &str) -> bool {
    label.starts_with("pcns.") || label.starts_with("pcsa.")
}

/// Whether a staged policy proposes to replace or remove an enforced one.
fn concerns(staged: &Policy, enforced: &Policy) -> bool {
    let key = |policy: &Policy| (policy.id.namespace.clone(), policy.tier.clone(), policy.name.clone());
    enforced.staged.is_none() && enforced.id.kind == staged.id.kind.enforced() && key(enforced) == key(staged)
}
