//! A node's copy of tenants and peers, updated by the events of the watch.

use std::collections::{BTreeMap, BTreeSet};

use russet_addr::NodeName;
use russet_model::openshift::{
    ClusterNetwork, HostSubnet, IsolationMode, Namespace, NetId, NetNamespace, OpenshiftKey, parse_key,
};
use russet_model::{DecodeError, Key};
use russet_store::Event;

use crate::data_path::Peer;

/// The tenants, subnets and network of a store.
#[derive(Debug, Default)]
pub struct View {
    tenants: BTreeMap<Namespace, NetId>,
    subnets: BTreeMap<NodeName, HostSubnet>,
    network: Option<ClusterNetwork>,
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

    /// How the cluster isolates; by tenants, unless the network's record says otherwise.
    pub fn mode(&self) -> IsolationMode {
        self.network.as_ref().map_or(IsolationMode::Multitenant, |network| network.mode)
    }

    /// All nodes except one.
    pub fn peers(&self, own: &NodeName) -> Vec<Peer> {
        let others = self.subnets.values().filter(|subnet| subnet.host != *own);
        others.map(|subnet| Peer { host_ip: subnet.host_ip, subnet: subnet.subnet }).collect()
    }

    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.tenants.keys()
    }

    /// Applies an event. A record that cannot be decoded counts as absent: a namespace without a
    /// known ID has no network.
    pub fn take(&mut self, event: Event) -> Changed {
        let mut changed = Changed::default();
        match event {
            Event::Snapshot(snapshot) => {
                let before = std::mem::take(self);
                for record in snapshot.records {
                    self.put(&record.key, Some(&record.value), &mut changed);
                }
                let others = before.tenants.into_keys();
                changed.namespaces.extend(others);
                (changed.subnets, changed.network) = (true, true);
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
            _ => {}
        }
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
