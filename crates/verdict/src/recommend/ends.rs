//! What the ends of flows are in the snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::{Family, NodeName};

use super::workloads::Workloads;
use super::{End, Seen};
use crate::flow::Flow;
use crate::snapshot::Snapshot;
use crate::world::{Endpoint, EndpointKey, EndpointKind};

/// The letters and digits of which API server and controllers make the last parts of pods' names.
const GENERATED: &str = "bcdfghjklmnpqrstvwxz2456789";
/// How many of them stand at the end of a pod's name.
const SUFFIX_LEN: usize = 5;
/// A hash of a pod template has at most so many.
const HASH_MAX: usize = 10;
/// The front of a node's name.
const NODE: &str = "node:";
/// The source port of questions, as in explanations.
const SOURCE_PORT: u16 = 49152;

/// What an end is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Found<'a> {
    /// A pod, or one that took the place of a pod that is gone; with the place of its workload.
    Pod(&'a Arc<Endpoint>, Option<usize>),
    /// A pod that is gone, and its workload is not known.
    Gone,
    /// An address, and the node that has it.
    Address(IpAddr, Option<&'a NodeName>),
}

pub(super) struct Ends<'a> {
    snapshot: &'a Snapshot,
    workloads: &'a Workloads,
    pods: BTreeMap<String, &'a EndpointKey>,
    /// The pods by their addresses, of several the youngest: age and key.
    holders: BTreeMap<IpAddr, (u64, &'a EndpointKey)>,
    nodes: BTreeMap<IpAddr, &'a NodeName>,
    /// The workloads of pods by their namespaces and the fronts of their names.
    fronts: BTreeMap<(String, String), BTreeSet<usize>>,
}

// === impl Ends ===

impl<'a> Ends<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, workloads: &'a Workloads) -> Self {
        let (mut pods, mut nodes, mut fronts) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut holders: BTreeMap<IpAddr, (u64, &EndpointKey)> = BTreeMap::new();
        let is_pod = |(_, it): &(&'a EndpointKey, &'a Arc<Endpoint>)| it.kind == EndpointKind::Workload;
        for (key, pod) in snapshot.endpoints.iter().filter(is_pod) {
            let namespace = pod.namespace.as_deref().unwrap_or_default();
            pods.insert(format!("{namespace}/{}", pod.name), key);
            for address in &pod.addresses {
                let holder = holders.entry(*address).or_insert((pod.age, key));
                *holder = (*holder).max((pod.age, key));
            }
            if let (Some(place), Some(front)) = (workloads.of_pod.get(key), front(&pod.name)) {
                let name = (namespace.to_owned(), front.to_owned());
                fronts.entry(name).or_insert_with(BTreeSet::new).insert(*place);
            }
        }
        for (name, node) in snapshot.nodes.iter() {
            nodes.extend(node.addresses.iter().map(|address| (*address, name)));
        }
        Self { snapshot, workloads, pods, holders, nodes, fronts }
    }

    /// A pod is known by its name: another one may have its address by now. One that was recorded before its
    /// name was known is known by its address.
    pub(super) fn find(&self, end: &End) -> Found<'a> {
        if let Some((namespace, name)) = end.name.split_once('/') {
            let key = self.pods.get(&end.name).copied().or_else(|| self.successor(namespace, name));
            return key.and_then(|key| self.pod(key)).unwrap_or(Found::Gone);
        }
        let holder = self.holders.get(&end.address).filter(|_| !end.name.starts_with(NODE));
        if let Some(found) = holder.and_then(|(_, key)| self.pod(key)) {
            return found;
        }
        let by_name = end.name.strip_prefix(NODE).and_then(|name| NodeName::new(name).ok());
        let named = by_name.and_then(|name| self.snapshot.nodes.get_key_value(&name)).map(|(name, _)| name);
        Found::Address(end.address, named.or_else(|| self.nodes.get(&end.address).copied()))
    }

    fn pod(&self, key: &EndpointKey) -> Option<Found<'a>> {
        Some(Found::Pod(self.snapshot.endpoints.get(key)?, self.workloads.of_pod.get(key).copied()))
    }

    /// A pod of the only workload whose pods have names with the same front.
    fn successor(&self, namespace: &str, name: &str) -> Option<&'a EndpointKey> {
        let places = self.fronts.get(&(namespace.to_owned(), front(name)?.to_owned()))?;
        let place = places.first().filter(|_| places.len() == 1)?;
        self.workloads.all.get(*place)?.pods.first()
    }

    /// The question whether a flow may begin now.
    pub(super) fn flow(&self, seen: &Seen) -> Option<Flow> {
        let [source, destination] = [&seen.source, &seen.destination].map(|end| match self.find(end) {
            Found::Gone => None,
            Found::Address(address, _) => Some(address),
            Found::Pod(pod, _) if pod.addresses.contains(&end.address) => Some(end.address),
            Found::Pod(pod, place) => {
                let is_same = |it: &&IpAddr| Family::of(**it) == Family::of(end.address);
                // One that has no address yet is as good as any other of its workload.
                let workload = place.and_then(|place| self.workloads.all.get(place));
                let others = workload.into_iter().flat_map(|it| &it.pods);
                let others = others.filter_map(|key| self.snapshot.endpoints.get(key));
                pod.addresses.iter().chain(others.flat_map(|it| &it.addresses)).find(is_same).copied()
            }
        });
        let source_port = if seen.protocol.has_ports() { SOURCE_PORT } else { 0 };
        let (source, destination) = (source?, destination?);
        let flow =
            Flow { source, destination, protocol: seen.protocol, source_port, destination_port: seen.port };
        (Family::of(source) == Family::of(destination)).then_some(flow)
    }
}

/// What the names of a workload's pods have in common: what is before the number of a StatefulSet's pod, or
/// before the generated end, and before the hash of a template or the time of a CronJob if there is one.
fn front(name: &str) -> Option<&str> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_generated = |text: &str| !text.is_empty() && text.chars().all(|c| GENERATED.contains(c));
    let (front, end) = name.rsplit_once('-')?;
    if is_generated(end) && end.len() == SUFFIX_LEN {
        return Some(match front.rsplit_once('-') {
            Some((shorter, hash)) if is_generated(hash) && hash.len() <= HASH_MAX || is_number(hash) => {
                shorter
            }
            _ => front,
        });
    }
    is_number(end).then_some(front)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_of_a_pods_name_is_that_of_its_owner() {
        for (name, wanted) in [
            ("web-6f7d9c5b4-x2x7k", Some("web")),
            ("node-agent-x2x7k", Some("node-agent")),
            ("db-0", Some("db")),
            ("db-12", Some("db")),
            ("backup-28391040-x2x7k", Some("backup")),
            ("my-web-6f7d9c5b4-x2x7k", Some("my-web")),
            ("web", None),
            ("web-blue", None),
            ("-", None),
            ("", None),
        ] {
            assert_eq!(front(name), wanted, "{name}");
        }
    }
}
