//! The cluster's network and this node's part of it, as the store describes them, and what the node
//! writes if the store has no record yet.
//!
//! Two nodes never claim the same subnet: a claim is a record with the subnet in its key, created
//! in one commit with the node's HostSubnet.

use std::net::Ipv4Addr;

use russet_addr::{Ipv4Net, NodeName};
use russet_model::openshift::{
    ClusterNetwork, HostSubnet, IsolationMode, PodNetwork, VXLAN_PORT, clusternetwork_key, hostsubnet_key,
    hostsubnets, subnet_key,
};
use russet_model::{DecodeError, Extra, Key};
use russet_store::{Record, Step, Store, StoreError};

use crate::LOG;

/// The network to create in a store without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkDefault {
    pub pods: PodNetwork,
    pub service: Option<Ipv4Net>,
}

/// Why the node has no part of the network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("{operation}: {source}")]
    Store {
        /// The operation.
        operation: &'static str,
        source: StoreError,
    },
    /// An existing record cannot be decoded. It was left unchanged.
    #[error("read {key}: {source}")]
    Malformed { key: Key, source: DecodeError },
    /// The network is neither stored nor configured.
    #[error("the store has no ClusterNetwork; give --openshift-cluster-network, or store one")]
    None,
    /// Nodes do not claim subnets in a store that cannot guard that.
    #[error(
        "this node has no HostSubnet yet: `russet controller --openshift`, or OpenShift's master, makes one"
    )]
    NotAssigned,
    /// Every subnet is claimed.
    #[error("every subnet of the cluster's networks is claimed")]
    Full,
    /// Commits of other nodes were faster each time.
    #[error("other nodes claim subnets at the same time")]
    Busy,
}

/// Nodes that start at the same time claim different subnets in turn, so there are as many attempts
/// as a large cluster has nodes.
const TRIES_MAX: usize = 1024;

/// The cluster's network. Creates it from the node's settings if there is none.
pub async fn cluster(
    store: &dyn Store,
    own: Option<&NetworkDefault>,
) -> Result<ClusterNetwork, NetworkError> {
    let key = clusternetwork_key();
    for _ in 0..2 {
        if let Some(record) = store.get(&key).await.map_err(reading("read the cluster's network"))? {
            return ClusterNetwork::decode(&record.value)
                .map_err(|source| NetworkError::Malformed { key, source });
        }
        let own = own.ok_or(NetworkError::None)?;
        let network = ClusterNetwork {
            networks: vec![own.pods],
            service_network: own.service,
            vxlan_port: VXLAN_PORT,
            mtu: None,
            mode: IsolationMode::Multitenant,
            extra: Extra::new(),
        };
        let create = Step::create(key.clone(), network.encode());
        match store.commit(vec![create]).await.map_err(|failed| failed.error) {
            // Another node may have other settings; the stored record counts.
            Ok(_) | Err(StoreError::AlreadyExists { .. }) => {}
            Err(source) => return Err(reading("create the cluster's network")(source)),
        }
    }
    Err(NetworkError::Busy)
}

/// This node's subnet, with the address that other nodes know. Claims a subnet if the node has
/// none.
pub async fn subnet(
    store: &dyn Store,
    node: &NodeName,
    address: Ipv4Addr,
    network: &ClusterNetwork,
) -> Result<HostSubnet, NetworkError> {
    for _ in 0..TRIES_MAX {
        let listed = store.list(&hostsubnets()).await.map_err(reading("list HostSubnets"))?.records;
        let key = hostsubnet_key(node);
        let done = match listed.iter().find(|record| record.key == key) {
            Some(own) => keep(store, own, address).await?,
            None => claim(store, node, address, network, &listed).await?,
        };
        if let Some(subnet) = done {
            return Ok(subnet);
        }
    }
    Err(NetworkError::Busy)
}

/// Updates the address of this node's subnet. None if another writer changed the record meanwhile.
async fn keep(
    store: &dyn Store,
    record: &Record,
    address: Ipv4Addr,
) -> Result<Option<HostSubnet>, NetworkError> {
    let malformed = |source| NetworkError::Malformed { key: record.key.clone(), source };
    let mut subnet = HostSubnet::decode(&record.value).map_err(malformed)?;
    if subnet.host_ip == address {
        return Ok(Some(subnet));
    }
    subnet.host_ip = address;
    let step = Step::update(record.key.clone(), subnet.encode(), record.revision);
    match commit(store, vec![step], "write this node's address into its HostSubnet").await? {
        true => Ok(Some(subnet)),
        false => Ok(None),
    }
}

/// Claims the first free subnet. None if another node was faster.
async fn claim(
    store: &dyn Store,
    node: &NodeName,
    address: Ipv4Addr,
    network: &ClusterNetwork,
    listed: &[Record],
) -> Result<Option<HostSubnet>, NetworkError> {
    // A record that cannot be decoded may be of any subnet; the claim keeps its node's one.
    let mut taken: Vec<Ipv4Net> = listed
        .iter()
        .filter_map(|record| HostSubnet::decode(&record.value).ok())
        .map(|it| it.subnet)
        .collect();
    let (chosen, claimed) = loop {
        let chosen = free(network, &taken).ok_or(NetworkError::Full)?;
        let key = subnet_key(chosen);
        let found = match store.get(&key).await {
            Err(StoreError::Unsupported { .. }) => return Err(NetworkError::NotAssigned),
            found => found.map_err(reading("read the claim of a subnet"))?,
        };
        let Some(old) = found else { break (chosen, Step::create(key, node.as_str())) };
        match hold(store, &old, chosen).await? {
            Hold::Held => return Ok(None),
            Hold::Unreadable => taken.push(chosen),
            Hold::Void => break (chosen, Step::update(key, node.as_str(), old.revision)),
        }
    };
    let subnet = HostSubnet::new(node.clone(), address, chosen);
    let steps = vec![claimed, Step::create(hostsubnet_key(node), subnet.encode())];
    match commit(store, steps, "claim a subnet for this node").await? {
        true => {
            tracing::info!(target: LOG, %node, subnet = %chosen, "subnet claimed");
            Ok(Some(subnet))
        }
        false => Ok(None),
    }
}

/// Whether a claim is in use.
enum Hold {
    /// Its node has the subnet, perhaps since the list was read.
    Held,
    /// The record of its node cannot be decoded, so it may have this subnet.
    Unreadable,
    /// Its node has no HostSubnet, or another one, so the subnet is free.
    Void,
}

async fn hold(store: &dyn Store, claim: &Record, subnet: Ipv4Net) -> Result<Hold, NetworkError> {
    let holder = std::str::from_utf8(&claim.value).ok().and_then(|name| NodeName::new(name).ok());
    let Some(holder) = holder else { return Ok(Hold::Void) };
    let found = store.get(&hostsubnet_key(&holder)).await.map_err(reading("read a HostSubnet"))?;
    Ok(match found.map(|record| HostSubnet::decode(&record.value)) {
        Some(Ok(held)) if held.subnet == subnet => Hold::Held,
        Some(Err(_)) => Hold::Unreadable,
        Some(Ok(_)) | None => Hold::Void,
    })
}

/// Whether the commit was applied. False if another writer, or possibly this node in a commit whose
/// answer was lost, changed the same records.
async fn commit(store: &dyn Store, steps: Vec<Step>, operation: &'static str) -> Result<bool, NetworkError> {
    match store.commit(steps).await.map_err(|failed| failed.error) {
        Ok(_) => Ok(true),
        Err(StoreError::AlreadyExists { .. } | StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {
            Ok(false)
        }
        Err(error) if error.outcome_unknown() => Ok(false),
        Err(source) => Err(NetworkError::Store { operation, source }),
    }
}

/// The first subnet of the cluster's networks that overlaps neither these subnets nor the
/// services'. Pure.
fn free(network: &ClusterNetwork, taken: &[Ipv4Net]) -> Option<Ipv4Net> {
    let overlaps = |a: &Ipv4Net, b: &Ipv4Net| a.contains(b) || b.contains(a);
    let is_free = |net: &Ipv4Net| {
        !taken.iter().chain(network.service_network.as_ref()).any(|other| overlaps(net, other))
    };
    network.networks.iter().find_map(|pods| {
        let prefix_len = 32_u8.checked_sub(pods.host_subnet_length)?;
        pods.cidr.subnets(prefix_len).ok()?.find(is_free)
    })
}

fn reading(operation: &'static str) -> impl Fn(StoreError) -> NetworkError {
    move |source| NetworkError::Store { operation, source }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use russet_store::Sim;

    use super::*;

    fn settings() -> NetworkDefault {
        let pods = PodNetwork { cidr: "10.128.0.0/14".parse().unwrap(), host_subnet_length: 9 };
        NetworkDefault { pods, service: "172.30.0.0/16".parse().ok() }
    }

    fn node(index: usize) -> NodeName {
        NodeName::new(format!("n{index}")).unwrap()
    }

    fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, last)
    }

    #[tokio::test]
    async fn nodes_that_start_at_the_same_time_claim_different_subnets() {
        let store: Rc<Sim> = Rc::new(Sim::atomic(7));
        assert!(matches!(cluster(&*store, None).await, Err(NetworkError::None)));
        let network = cluster(&*store, Some(&settings())).await.unwrap();
        assert_eq!(cluster(&*store, None).await.unwrap(), network, "what is stored counts from now on");
        let local = tokio::task::LocalSet::new();
        let claims: Vec<HostSubnet> = local
            .run_until(async {
                let one = |index: usize| {
                    let (store, network) = (Rc::clone(&store), network.clone());
                    tokio::task::spawn_local(async move {
                        subnet(&*store, &node(index), address(index as u8), &network).await.unwrap()
                    })
                };
                let mut done = Vec::new();
                for task in (1..=20).map(one).collect::<Vec<_>>() {
                    done.push(task.await.unwrap());
                }
                done
            })
            .await;
        let nets: BTreeSet<String> = claims.iter().map(|it| it.subnet.to_string()).collect();
        assert_eq!(nets.len(), 20);
        assert!(nets.contains("10.128.0.0/23") && nets.contains("10.128.38.0/23"), "{nets:?}");
        let again = subnet(&*store, &node(1), address(77), &network).await.unwrap();
        assert_eq!(
            (again.subnet, again.host_ip),
            (claims[0].subnet, address(77)),
            "a new address, the same subnet"
        );
    }

    #[tokio::test]
    async fn subnets_of_other_nodes_are_kept_and_those_of_removed_nodes_are_reused() {
        let store = Sim::atomic(7);
        let network = cluster(&store, Some(&settings())).await.unwrap();
        // An operator's subnet, as OpenShift stored it: without a claim, and with another length.
        let theirs = HostSubnet::new(node(9), address(9), "10.128.0.0/22".parse().unwrap());
        store.commit(vec![Step::create(hostsubnet_key(&node(9)), theirs.encode())]).await.unwrap();
        let first = subnet(&store, &node(1), address(1), &network).await.unwrap();
        assert_eq!(first.subnet.to_string(), "10.128.4.0/23");
        store.commit(vec![Step::delete(hostsubnet_key(&node(1)), None)]).await.unwrap();
        let second = subnet(&store, &node(2), address(2), &network).await.unwrap();
        assert_eq!(second.subnet, first.subnet, "a claim without a HostSubnet reserves nothing");
        store.commit(vec![Step::put(hostsubnet_key(&node(3)), "{}")]).await.unwrap();
        let error = subnet(&store, &node(3), address(3), &network).await.unwrap_err();
        assert!(matches!(error, NetworkError::Malformed { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_subnet_whose_node_has_an_unreadable_record_is_not_reused() {
        let store = Sim::atomic(8);
        let network = cluster(&store, Some(&settings())).await.unwrap();
        let first = subnet(&store, &node(1), address(1), &network).await.unwrap();
        // An operator's mistake while the node's pods run.
        store.commit(vec![Step::put(hostsubnet_key(&node(1)), "{\"hostIP\": \"192.0.2\"}")]).await.unwrap();
        let second = subnet(&store, &node(2), address(2), &network).await.unwrap();
        assert_ne!(first.subnet, second.subnet);
    }

    #[test]
    fn a_full_network_has_no_free_subnet_and_services_are_excluded() {
        let small = |cidr: &str, service: Option<&str>| ClusterNetwork {
            networks: vec![PodNetwork { cidr: cidr.parse().unwrap(), host_subnet_length: 2 }],
            service_network: service.and_then(|net| net.parse().ok()),
            vxlan_port: VXLAN_PORT,
            mtu: None,
            mode: IsolationMode::Multitenant,
            extra: Extra::new(),
        };
        let all: Vec<Ipv4Net> = vec!["10.0.0.0/30".parse().unwrap(), "10.0.0.4/30".parse().unwrap()];
        assert_eq!(free(&small("10.0.0.0/29", None), &all[..1]), Some(all[1]));
        assert_eq!(free(&small("10.0.0.0/29", None), &all), None);
        assert_eq!(free(&small("10.0.0.0/29", Some("10.0.0.0/30")), &[]), Some(all[1]));
    }
}
