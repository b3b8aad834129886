//! What the store says of the cluster's network and of this node's part of it, and what the node writes where it says nothing yet.
//!
//! Two nodes never claim one subnet: a claim is a record with the subnet in its key, which is created in one commit with the node's HostSubnet.

use std::net::Ipv4Addr;

use russet_addr::{Ipv4Net, NodeName};
use russet_model::openshift::{
    ClusterNetwork, HostSubnet, IsolationMode, PodNetwork, VXLAN_PORT, clusternetwork_key, hostsubnet_key,
    hostsubnets, subnet_key,
};
use russet_model::{DecodeError, Extra, Key};
use russet_store::{Record, Step, Store, StoreError};

/// The network of a store that has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkDefault {
    /// Where pods are.
    pub pods: PodNetwork,
    /// Where services are.
    pub service: Option<Ipv4Net>,
}

/// Why the node has no part of the network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The store.
    #[error("{operation}: {source}")]
    Store {
        /// What was being done.
        operation: &'static str,
        /// Why not.
        source: StoreError,
    },
    /// A record that is there says nothing; it was left alone.
    #[error("read {key}: {source}")]
    Malformed {
        /// Which.
        key: Key,
        /// Why.
        source: DecodeError,
    },
    /// Nobody has said what the network is.
    #[error("the store has no ClusterNetwork; give --openshift-cluster-network, or store one")]
    None,
    /// All are claimed.
    #[error("every subnet of the cluster's networks is claimed")]
    Full,
    /// Others were faster, again and again.
    #[error("other nodes claim subnets at the same time")]
    Busy,
}

/// Nodes that start at once claim different subnets in turn: as many tries as a large cluster has nodes.
const TRIES_MAX: usize = 1024;

/// The cluster's network, which is created from the node's settings where there is none.
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
            // Another node may have other settings: what is stored counts.
            Ok(_) | Err(StoreError::AlreadyExists { .. }) => {}
            Err(source) => return Err(reading("create the cluster's network")(source)),
        }
    }
    Err(NetworkError::Busy)
}

/// This node's subnet, which is claimed if it has none, with the address by which others know it.
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

/// Ours as it is, with the address brought up to date; none when somebody else changed it meanwhile.
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

/// The first one that nobody has; none when somebody else was faster.
async fn claim(
    store: &dyn Store,
    node: &NodeName,
    address: Ipv4Addr,
    network: &ClusterNetwork,
    listed: &[Record],
) -> Result<Option<HostSubnet>, NetworkError> {
    // One that cannot be read may be any; its node keeps it by its claim.
    let mut taken: Vec<Ipv4Net> = listed
        .iter()
        .filter_map(|record| HostSubnet::decode(&record.value).ok())
        .map(|it| it.subnet)
        .collect();
    let (chosen, claimed) = loop {
        let chosen = free(network, &taken).ok_or(NetworkError::Full)?;
        let key = subnet_key(chosen);
        let found = store.get(&key).await.map_err(reading("read the claim of a subnet"))?;
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
            tracing::info!(%node, subnet = %chosen, "subnet claimed");
            Ok(Some(subnet))
        }
        false => Ok(None),
    }
}

/// What a claim is worth.
enum Hold {
    /// Its node has the subnet now; it may have got it since the list was read.
    Held,
    /// Its node has something that cannot be read, so it may have this.
    Unreadable,
    /// Its node's HostSubnet is gone, or another: nobody has it.
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

/// Whether it was done; not if somebody else wrote the same records, or may have been us.
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

/// The first subnet of the cluster's networks that overlaps none of these, nor the services'. Pure.
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
    async fn nodes_that_start_at_once_claim_different_subnets() {
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
    async fn subnets_of_others_are_left_alone_and_those_of_the_gone_are_found_again() {
        let store = Sim::atomic(7);
        let network = cluster(&store, Some(&settings())).await.unwrap();
        // An operator's, as it came from OpenShift: it has no claim, and another length.
        let theirs = HostSubnet::new(node(9), address(9), "10.128.0.0/22".parse().unwrap());
        store.commit(vec![Step::create(hostsubnet_key(&node(9)), theirs.encode())]).await.unwrap();
        let first = subnet(&store, &node(1), address(1), &network).await.unwrap();
        assert_eq!(first.subnet.to_string(), "10.128.4.0/23");
        store.commit(vec![Step::delete(hostsubnet_key(&node(1)), None)]).await.unwrap();
        let second = subnet(&store, &node(2), address(2), &network).await.unwrap();
        assert_eq!(second.subnet, first.subnet, "its claim alone keeps nobody out");
        store.commit(vec![Step::put(hostsubnet_key(&node(3)), "{}")]).await.unwrap();
        let error = subnet(&store, &node(3), address(3), &network).await.unwrap_err();
        assert!(matches!(error, NetworkError::Malformed { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_subnet_whose_nodes_record_cannot_be_read_is_not_given_to_another() {
        let store = Sim::atomic(8);
        let network = cluster(&store, Some(&settings())).await.unwrap();
        let first = subnet(&store, &node(1), address(1), &network).await.unwrap();
        // An operator's slip, while the node's pods run.
        store.commit(vec![Step::put(hostsubnet_key(&node(1)), "{\"hostIP\": \"192.0.2\"}")]).await.unwrap();
        let second = subnet(&store, &node(2), address(2), &network).await.unwrap();
        assert_ne!(first.subnet, second.subnet);
    }

    #[test]
    fn a_full_network_has_none_and_services_are_kept_out() {
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
