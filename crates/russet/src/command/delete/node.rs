//! Deleting a node (calico-ipam.md section 3.10): its addresses for tunnels and probes and its blocks are deleted with it,
//! and, if the operator states that the machine is gone, the addresses and endpoints of its pods.

use russet_addr::{Family, NodeName};
use russet_ipam::{Allocator, Held, ReleaseOptions};
use russet_model::{HandleId, KeyKind, Prefix, WorkloadEndpoint};
use russet_store::{Record, Step};

use super::Target;
use crate::cli::resources::DeleteArgs;
use crate::command::Failure;
use crate::command::place::Place;

/// How many pods a refusal names.
const NAMED_MAX: usize = 5;
/// The suffix of the attribute of a tunnel's address: `vxlanTunnelAddress`, `ipipTunnelAddress`,
/// `wireguardTunnelAddress`, ...
const TUNNEL: &str = "TunnelAddress";

/// A node that is Kubernetes' own.
#[derive(Debug, thiserror::Error)]
#[error(
    "node {0} is an object of Kubernetes', and nothing of it was released: remove it with `kubectl delete node {0}`; its pods' \
     addresses are then released by `russet ipam repair --gone-nodes`"
)]
struct Kubernetes(NodeName);

/// A node that still has pods.
#[derive(Debug, thiserror::Error)]
#[error(
    "node {node} has {addresses} addresses of pods and {endpoints} workload endpoints ({named}): delete its pods first, or, if the \
     machine is gone for good, use --release-addresses; a pod that lives would share its address with another one"
)]
struct Occupied {
    node: NodeName,
    addresses: usize,
    endpoints: usize,
    named: String,
}

pub(super) async fn delete(place: &Place, target: &Target, args: &DeleteArgs) -> Result<(), Failure> {
    target.read(place).await?;
    let node = NodeName::new(target.name.as_str())?;
    // The last step would be refused, after the addresses of a living node's tunnels were released.
    if place.is_kubernetes {
        return Err(Kubernetes(node).into());
    }
    let ipam = place.allocator();
    let held: Vec<Held> = ipam.held_by_node(&node).await?;
    // An address in its cooling period belongs to no pod any more.
    let is_pods = |held: &Held| !is_tunnel(held) && held.attribute.released_at.is_none();
    let pods: Vec<Held> = held.into_iter().filter(is_pods).collect();
    let endpoints = endpoints(place, &node).await?;
    let occupied = !pods.is_empty() || !endpoints.is_empty();
    if occupied && !args.release_addresses {
        let named: Vec<String> = pods.iter().take(NAMED_MAX).map(named).collect();
        let (addresses, endpoints) = (pods.len(), endpoints.len());
        return Err(Occupied { node, addresses, endpoints, named: named.join(", ") }.into());
    }
    if args.dry_run {
        return Ok(());
    }
    release(&ipam, &pods).await?;
    for record in &endpoints {
        let step = Step::delete(record.key.clone(), Some(record.revision));
        place.store.commit(vec![step]).await?;
    }
    for family in Family::BOTH {
        ipam.release_tunnel_address(&node, family).await?;
    }
    ipam.release_probe_addresses(&node, ipam.probe_addresses(&node).await?).await?;
    // The handles have released some of these already.
    let left: Vec<Held> = ipam.held_by_node(&node).await?.into_iter().filter(is_tunnel).collect();
    release(&ipam, &left).await?;
    ipam.remove_node(&node).await?;
    target.remove(place).await
}

fn is_tunnel(held: &Held) -> bool {
    held.attribute.get("type").is_some_and(|kind| kind.ends_with(TUNNEL))
}

fn named(held: &Held) -> String {
    match (held.attribute.get("namespace"), held.attribute.get("pod")) {
        (Some(namespace), Some(pod)) => format!("{} {namespace}/{pod}", held.address),
        _ => held.address.to_string(),
    }
}

/// Releases addresses, each only if its holder has not changed since it was read.
async fn release(ipam: &Allocator, held: &[Held]) -> Result<(), Failure> {
    let options = |held: &Held| ReleaseOptions {
        address: held.address,
        handle: held.attribute.handle_id.as_deref().and_then(|handle| HandleId::new(handle).ok()),
        sequence_number: Some(held.sequence_number),
    };
    ipam.release_ips(&held.iter().map(options).collect::<Vec<_>>()).await?;
    Ok(())
}

async fn endpoints(place: &Place, node: &NodeName) -> Result<Vec<Record>, Failure> {
    let records = place.store.list(&Prefix::workload_endpoints()).await?.records;
    let of_node = |record: &Record| {
        let endpoint = WorkloadEndpoint::decode(&record.value);
        matches!(record.key.kind(), KeyKind::WorkloadEndpoint { .. })
            && endpoint.is_ok_and(|endpoint| endpoint.spec.node == node.as_str())
    };
    Ok(records.into_iter().filter(of_node).collect())
}
