//! What the evaluator needs to judge one flow at an end of this node: nothing of the rest, so that it
//! costs the same in every cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Engine, Store};
use crate::flow::Flow;
use crate::ir::PolicyId;
use crate::snapshot::Snapshot;
use crate::world::{Endpoint, EndpointKey, NetworkSet, SetId, Update};

impl Engine {
    /// A snapshot of the last flush that has what is at the two addresses of a flow, and the enforced
    /// policies of an end that is of this node. Judging that end by it is judging it by everything.
    /// Staged policies are not in it.
    pub fn around(&self, flow: &Flow) -> Snapshot {
        let store = &self.store;
        let addresses = [flow.source, flow.destination];
        let endpoints: BTreeMap<EndpointKey, Arc<Endpoint>> = addresses
            .iter()
            .flat_map(|address| store.endpoints_at(*address))
            .map(|(key, endpoint)| (key.clone(), Arc::new(endpoint.endpoint())))
            .collect();
        let selecting = endpoints.keys().filter_map(|key| self.locals.get(key)).flat_map(|it| &it.policies);
        let policy = |id: &PolicyId| Some((id.clone(), Arc::new(store.policies.get(id)?.policy(id)?)));
        let is_at = |set: &NetworkSet| {
            set.nets.iter().any(|net| addresses.iter().any(|address| net.contains(address)))
        };
        let sets: BTreeMap<SetId, Arc<NetworkSet>> = store
            .sets
            .iter()
            .filter(|(_, set)| is_at(set))
            .map(|(id, set)| (id.clone(), set.clone()))
            .collect();
        let profiles = endpoints.values().flat_map(|it| &it.profiles);
        let profiles = profiles.chain(sets.values().filter_map(|set| set.profile.as_ref()));
        let at = || addresses.iter().filter_map(|address| store.at(*address));
        Snapshot {
            policies: Arc::new(selecting.filter_map(policy).collect()),
            tiers: Arc::new(store.tiers.iter().map(|(name, tier)| (name.clone(), tier.clone())).collect()),
            profiles: Arc::new(found(profiles, |name| store.profiles.get(name))),
            services: Arc::new(found(at().flat_map(|at| &at.services), |id| store.services.get(id))),
            nodes: Arc::new(found(at().flat_map(|at| &at.nodes), |name| store.nodes.get(name))),
            egress_firewalls: Arc::new(firewalls(store, endpoints.values())),
            felix: Arc::new(store.felix.clone()),
            config: Arc::new(store.config().cloned().unwrap_or_default()),
            network_sets: Arc::new(sets),
            endpoints: Arc::new(endpoints),
        }
    }
}

impl Engine {
    /// Host endpoints with the enforced policies that select them and their profiles. With what is [around](Self::around) a
    /// flow, that judges it at an interface of the node as everything would.
    pub fn host_endpoints<'a>(&self, keys: impl IntoIterator<Item = &'a EndpointKey>) -> Vec<Update> {
        let store = &self.store;
        let mut updates = Vec::new();
        for (key, stored) in keys.into_iter().filter_map(|key| Some((key, store.endpoints.get(key)?))) {
            let (endpoint, labels) = (stored.endpoint(), store.endpoint_labels(stored));
            let selecting = store.policies.iter().filter(|(_, policy)| policy.selects(&labels));
            let enforced = selecting.filter_map(|(id, policy)| Some((id, policy.enforced(id)?)));
            updates.extend(enforced.map(|(id, it)| Update::Policy(id.clone(), Some(Arc::new(it)))));
            let profiles = endpoint.profiles.iter();
            let profiles = profiles.filter_map(|name| Some((name, store.profiles.get(name)?)));
            updates.extend(profiles.map(|(name, it)| Update::Profile(name.clone(), Some(it.clone()))));
            updates.push(Update::Endpoint(key.clone(), Some(Arc::new(endpoint))));
        }
        updates
    }
}

type Firewalls = BTreeMap<(Arc<str>, Arc<str>), Arc<crate::world::EgressFirewall>>;

/// The EgressNetworkPolicies of the endpoints' namespaces.
fn firewalls<'a>(store: &Store, endpoints: impl Iterator<Item = &'a Arc<Endpoint>>) -> Firewalls {
    let namespaces: Vec<&Arc<str>> = endpoints.filter_map(|endpoint| endpoint.namespace.as_ref()).collect();
    let of_them = store.firewalls.iter().filter(|((namespace, _), _)| namespaces.contains(&namespace));
    of_them.map(|(key, firewall)| (key.clone(), firewall.clone())).collect()
}

fn found<'a, K: Ord + Clone + 'a, V: Clone + 'a>(
    keys: impl Iterator<Item = &'a K>,
    get: impl Fn(&K) -> Option<&'a V>,
) -> BTreeMap<K, V> {
    keys.filter_map(|key| Some((key.clone(), get(key)?.clone()))).collect()
}
