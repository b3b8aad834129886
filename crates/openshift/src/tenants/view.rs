//! A node's copy of tenants and peers, updated by the events of the watch.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use russet_addr::{Ipv4Net, NodeName};
use russet_kube::ObjectEvent;
use russet_model::openshift::{
    ClusterNetwork, HostSubnet, IsolationMode, Namespace, NetId, NetNamespace, OpenshiftKey, parse_key,
};
use russet_model::{DecodeError, Key};
use russet_store::Event;
use russet_verdict::ir::Problem;
use serde_json::Value;

use super::egress::{self, EgressPolicies, EgressPolicy, Override};
use super::names::Names;
use crate::data_path::{Egress, Peer, Tenancy};

/// The tenants, subnets, network and EgressNetworkPolicies of a store.
#[derive(Debug, Default)]
pub struct View {
    /// All records were read once.
    is_listed: bool,
    tenants: BTreeMap<Namespace, NetId>,
    policies: EgressPolicies,
    /// EgressNetworkPolicies of the Kubernetes API, if they are followed.
    objects: Option<Objects>,
    /// The addresses of names in them.
    resolved: Names,
    /// All names were resolved once, or that was tried.
    names_are_tried: bool,
    subnets: BTreeMap<NodeName, HostSubnet>,
    network: Option<ClusterNetwork>,
    /// Whether NetworkPolicies are enforced on this node's pods; none while that is not known.
    enforces_policies: Option<bool>,
    /// That is new, and what it changes is not applied yet.
    changes_all: bool,
}

/// The EgressNetworkPolicies of the Kubernetes API.
#[derive(Debug, Default)]
struct Objects {
    is_listed: bool,
    policies: EgressPolicies,
}

/// What an event changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Namespaces whose network ID changed or was removed.
    pub namespaces: BTreeSet<Namespace>,
    /// The subnet or address of some node changed.
    pub subnets: bool,
    /// The cluster's network changed.
    pub network: bool,
    /// An EgressNetworkPolicy changed.
    pub egress: bool,
    /// Records that cannot be decoded, and why.
    pub malformed: Vec<(Key, DecodeError)>,
}

// === impl View ===

impl View {
    /// The network ID of a namespace's pods. In a cluster without isolation all are global.
    pub fn netid(&self, namespace: &Namespace) -> Option<NetId> {
        match self.mode() {
            IsolationMode::Subnet => Some(NetId::GLOBAL),
            IsolationMode::Multitenant | IsolationMode::NetworkPolicy => self.tenants.get(namespace).copied(),
        }
    }

    /// What a namespace gives its pods. Where the cluster isolates by NetworkPolicies, network IDs keep pods apart
    /// unless this node enforces these.
    pub fn tenancy(&self, namespace: &Namespace) -> Tenancy {
        let is_open = match self.mode() {
            IsolationMode::Subnet | IsolationMode::Multitenant => Some(false),
            IsolationMode::NetworkPolicy => self.enforces_policies,
        };
        Tenancy { netid: self.netid(namespace), is_open }
    }

    /// NetworkPolicies are enforced on this node's pods, or never will be.
    pub fn set_policies(&mut self, are_enforced: bool) {
        self.changes_all |= self.enforces_policies.replace(are_enforced) != Some(are_enforced);
    }

    /// Whether what every namespace gives its pods may have changed since the last call.
    pub fn takes_change_of_all(&mut self) -> bool {
        std::mem::take(&mut self.changes_all)
    }

    /// How the cluster isolates; by tenants, unless the network's record says otherwise.
    pub fn mode(&self) -> IsolationMode {
        self.network.as_ref().map_or(IsolationMode::Multitenant, |network| network.mode)
    }

    /// All nodes except one.
    pub fn peers(&self, own: &NodeName) -> Vec<Peer> {
        let others = self.subnets.values().filter(|subnet| subnet.host != *own);
        others.map(|subnet| Peer { host_ip: subnet.host_ip, subnet: subnet.subnet }).collect()
    }

    /// The cluster's networks of pods and services. EgressNetworkPolicies are about everything else.
    pub fn cluster_nets(&self) -> impl Iterator<Item = Ipv4Net> {
        let pods = |network: &ClusterNetwork| network.networks.iter().map(|it| it.cidr).collect::<Vec<_>>();
        let of_pods = self.network.iter().flat_map(pods);
        of_pods.chain(self.network.iter().filter_map(|network| network.service_network))
    }

    /// The address of a node, by its subnet.
    pub fn host_ip(&self, node: &NodeName) -> Option<Ipv4Addr> {
        self.subnets.get(node).map(|subnet| subnet.host_ip)
    }

    /// The addresses of a name, if it was resolved.
    pub fn addresses(&self, name: &str) -> Option<&BTreeSet<Ipv4Addr>> {
        self.resolved.get(name)
    }

    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.tenants.keys()
    }

    /// What pods of each network ID may not reach outside of the cluster; none before everything
    /// that this depends on was read.
    pub fn egress(&self) -> Option<(Egress, Vec<Override>)> {
        if self.waits_for_policies().is_some() {
            return None;
        }
        let netids = self.tenants.keys().filter_map(|namespace| Some((namespace, self.netid(namespace)?)));
        Some(egress::egress(netids, &self.all_policies(), &self.resolved))
    }

    /// What has to be known first about EgressNetworkPolicies.
    pub fn waits_for_policies(&self) -> Option<&'static str> {
        if !self.is_listed {
            return Some("the store is not read yet");
        }
        if self.waits_for_objects() {
            return Some("the EgressNetworkPolicies of the Kubernetes API are not listed yet");
        }
        let has_names = || self.names().is_some_and(|names| !names.is_empty());
        (!self.names_are_tried && has_names())
            .then_some("names in EgressNetworkPolicies are not resolved yet")
    }

    fn all_policies(&self) -> Cow<'_, EgressPolicies> {
        match self.objects.as_ref().filter(|objects| !objects.policies.is_empty()) {
            None => Cow::Borrowed(&self.policies),
            // An object that is also a record is one policy.
            Some(objects) => {
                let mut all = self.policies.clone();
                for (namespace, policies) in objects.policies.clone() {
                    all.entry(namespace).or_default().extend(policies);
                }
                Cow::Owned(all)
            }
        }
    }

    /// The names in all policies; none before these are known.
    pub fn names(&self) -> Option<BTreeSet<Arc<str>>> {
        if !self.is_listed || self.waits_for_objects() {
            return None;
        }
        let policies = self.all_policies();
        Some(policies.values().flat_map(BTreeMap::values).flat_map(EgressPolicy::names).cloned().collect())
    }

    /// Takes the addresses of a name; whether they are others than before.
    pub fn set_name(&mut self, name: Arc<str>, addresses: BTreeSet<Ipv4Addr>) -> bool {
        self.resolved.insert(name, addresses.clone()) != Some(addresses)
    }

    pub fn is_resolved(&self, name: &str) -> bool {
        self.resolved.contains_key(name)
    }

    /// Forgets the addresses of other names.
    pub fn keep_names(&mut self, wanted: &BTreeSet<Arc<str>>) {
        self.resolved.retain(|name, _| wanted.contains(name));
    }

    /// All names were resolved, or that was tried; whether that is new.
    pub fn set_names_tried(&mut self) -> bool {
        !std::mem::replace(&mut self.names_are_tried, true)
    }

    /// Whether all records were read once.
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// EgressNetworkPolicies of the Kubernetes API count, too.
    pub fn expect_objects(&mut self) {
        self.objects.get_or_insert_default();
    }

    /// Whether they are not listed yet.
    pub fn waits_for_objects(&self) -> bool {
        self.objects.as_ref().is_some_and(|objects| !objects.is_listed)
    }

    /// Applies an event of theirs.
    pub fn take_objects(&mut self, event: ObjectEvent<Value>) {
        let objects = self.objects.get_or_insert_default();
        match event {
            ObjectEvent::Snapshot(all) => {
                *objects = Objects { is_listed: true, ..Objects::default() };
                all.into_iter().for_each(|object| put_object(&mut objects.policies, object, true));
            }
            ObjectEvent::Changed(object) => put_object(&mut objects.policies, object, true),
            ObjectEvent::Deleted(object) => put_object(&mut objects.policies, object, false),
        }
    }

    /// Applies an event. A record that cannot be decoded counts as absent: a namespace without a
    /// known ID has no network.
    pub fn take(&mut self, event: Event) -> Changed {
        let mut changed = Changed::default();
        match event {
            Event::Snapshot(snapshot) => {
                let before = std::mem::take(self);
                (self.is_listed, self.objects) = (true, before.objects);
                (self.resolved, self.names_are_tried) = (before.resolved, before.names_are_tried);
                (self.enforces_policies, self.changes_all) = (before.enforces_policies, before.changes_all);
                for record in snapshot.records {
                    self.put(&record.key, Some(&record.value), &mut changed);
                }
                let others = before.tenants.into_keys();
                changed.namespaces.extend(others);
                (changed.subnets, changed.network, changed.egress) = (true, true, true);
            }
            Event::Put(record) => self.put(&record.key, Some(&record.value), &mut changed),
            Event::Deleted { key, .. } => self.put(&key, None, &mut changed),
        }
        changed
    }

    fn put(&mut self, key: &Key, value: Option<&[u8]>, changed: &mut Changed) {
        match parse_key(key) {
            Some(OpenshiftKey::NetNamespace(namespace)) => {
                let tenant = read(key, value, NetNamespace::decode, changed);
                let netid = tenant.filter(|tenant| tenant.netname == namespace).map(|tenant| tenant.netid);
                let before = match netid {
                    Some(netid) => self.tenants.insert(namespace.clone(), netid),
                    None => self.tenants.remove(&namespace),
                };
                if before != netid {
                    changed.namespaces.insert(namespace);
                }
            }
            Some(OpenshiftKey::HostSubnet(host)) => {
                let subnet = read(key, value, HostSubnet::decode, changed).filter(|found| found.host == host);
                changed.subnets |= subnet.as_ref() != self.subnets.get(&host);
                match subnet {
                    Some(subnet) => drop(self.subnets.insert(host, subnet)),
                    None => drop(self.subnets.remove(&host)),
                }
            }
            Some(OpenshiftKey::ClusterNetwork(name)) if name == ClusterNetwork::DEFAULT => {
                let network = read(key, value, ClusterNetwork::decode, changed);
                let mode = self.mode();
                changed.network |= network != self.network;
                self.network = network;
                if self.mode() != mode {
                    changed.namespaces.extend(self.tenants.keys().cloned());
                }
            }
            Some(OpenshiftKey::EgressNetworkPolicy(namespace, name)) => {
                changed.egress |= self.put_policy(namespace, name, value);
            }
            _ => {}
        }
    }

    /// Whether the policy is another one than before.
    fn put_policy(&mut self, namespace: Namespace, name: String, value: Option<&[u8]>) -> bool {
        let policy = value.map(|value| {
            let (policy, problems) = EgressPolicy::read(&namespace, &name, value);
            report(&namespace, &name, &problems);
            policy
        });
        set(&mut self.policies, namespace, name, policy)
    }
}

/// Adds, changes or removes a policy; whether that is another one than before.
fn set(
    policies: &mut EgressPolicies,
    namespace: Namespace,
    name: String,
    policy: Option<EgressPolicy>,
) -> bool {
    let of_namespace = policies.entry(namespace).or_default();
    match policy {
        Some(policy) => of_namespace.insert(name, policy.clone()) != Some(policy),
        None => of_namespace.remove(&name).is_some(),
    }
}

fn put_object(policies: &mut EgressPolicies, object: Value, is_there: bool) {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let namespace = text("/metadata/namespace").and_then(|namespace| Namespace::new(namespace).ok());
    // An API server has no others.
    let (Some(namespace), Some(name)) = (namespace, text("/metadata/name")) else { return };
    let policy = is_there.then(|| {
        let members = match object {
            Value::Object(members) => members,
            _ => serde_json::Map::new(),
        };
        let (policy, problems) = EgressPolicy::from_members(&namespace, &name, members);
        report(&namespace, &name, &problems);
        policy
    });
    set(policies, namespace, name, policy);
}

fn report(namespace: &Namespace, name: &str, problems: &[Problem]) {
    for problem in problems {
        russet_store::refused(
            "an EgressNetworkPolicy is not enforced as written",
            format!("{namespace}/{name} {}", problem.path),
            &problem.text,
        );
    }
}

fn read<T>(
    key: &Key,
    value: Option<&[u8]>,
    decode: fn(&[u8]) -> Result<T, DecodeError>,
    changed: &mut Changed,
) -> Option<T> {
    match decode(value?) {
        Ok(read) => Some(read),
        Err(error) => {
            changed.malformed.push((key.clone(), error));
            None
        }
    }
}
