//! Calico's IPAM without a process of its own: what annotations change about a request to it, and what is undone of it.

use std::net::IpAddr;
use std::time::Duration;

use russet_addr::{Family, IpNet, host_net};
use russet_cni_spec::{CniError, CniResult, IpConfig, Route};
use russet_ipam::{Held, ReleaseOptions};
use russet_model::HandleId;

use super::Scene;
use super::annotations::Wishes;
use crate::calico_ipam::{self, Allocation, IpamRequest, Subject, Wanted};
use crate::failure;

/// Gives addresses: this one, or what configuration and annotations ask for. It may take as long as `budget`.
pub async fn assign(
    scene: &Scene<'_>,
    wishes: &Wishes,
    address: Option<IpAddr>,
    budget: Duration,
) -> Result<(CniResult, Allocation), CniError> {
    let wanted = match address {
        Some(address) => Wanted::Address(address),
        None => wanted(scene, wishes)?,
    };
    let request = IpamRequest { node: scene.workload.node.clone(), subject: subject(scene), wanted, budget };
    let Scene { node, datastore, conf, log, .. } = scene;
    let allocation = calico_ipam::assign(&node.host, datastore, conf, &request, log).await?;
    let mut result = CniResult::empty(scene.request.config.cni_version);
    result.ips = allocation.hosts().map(host_net).map(IpConfig::new).collect();
    // Calico's plugin prints the destinations as its IPAM gives them, with the block's prefix length (calico-ipam.md section 4.2 item 7).
    result.routes = allocation.addresses.iter().map(|net| Route::new(*net, None)).collect();
    Ok((result, allocation))
}

/// Pools and families of annotations come before the configuration's (calico-cni.md section 2.5.2).
fn wanted(scene: &Scene<'_>, wishes: &Wishes) -> Result<Wanted, CniError> {
    let mut conf = scene.conf.clone();
    if let Some(families) = &wishes.families {
        conf.ipam.assign_ipv4 = families.contains(&Family::V4);
        conf.ipam.assign_ipv6 = families.contains(&Family::V6);
    }
    conf.ipam.ipv4_pools = wishes.ipv4_pools.clone().unwrap_or(conf.ipam.ipv4_pools);
    conf.ipam.ipv6_pools = wishes.ipv6_pools.clone().unwrap_or(conf.ipam.ipv6_pools);
    Wanted::of(&conf, None)
}

fn subject(scene: &Scene<'_>) -> Subject {
    let network = scene.conf.network.clone();
    let super::Workload { container, ifname, pod, .. } = scene.workload.clone();
    Subject { network, container, ifname, pod }
}

/// Gives back what the container holds.
pub async fn release(scene: &Scene<'_>) -> Result<(), CniError> {
    let Scene { node, datastore, conf, log, .. } = scene;
    calico_ipam::release(&node.host, datastore, conf, &subject(scene), log).await
}

/// Gives back what a request took that failed later.
pub async fn give_back(scene: &Scene<'_>, allocation: &Allocation) -> Result<(), CniError> {
    calico_ipam::give_back(&scene.datastore, allocation).await
}

/// The addresses that the container holds.
pub async fn held(scene: &Scene<'_>) -> Result<Vec<IpAddr>, CniError> {
    let held = scene.datastore.allocator.ips_by_handle(&subject(scene).handle()).await;
    let held = held.map_err(|error| failure::ipam("the pod's addresses could not be read", error))?;
    Ok(held.into_iter().map(|held| held.address).collect())
}

/// Frees those of `nets` that `handle` holds.
pub async fn release_addresses(scene: &Scene<'_>, handle: &HandleId, nets: &[IpNet]) -> Result<(), CniError> {
    let failed = |error| failure::ipam("the previous container's addresses could not be released", error);
    let allocator = &scene.datastore.allocator;
    let held = allocator.ips_to_free(handle).await.map_err(failed)?;
    let ours = held.into_iter().filter(|held| nets.iter().any(|net| net.addr() == held.address));
    let options = |held: Held| ReleaseOptions {
        address: held.address,
        handle: Some(handle.clone()),
        sequence_number: Some(held.sequence_number),
    };
    allocator.release_ips(&ours.map(options).collect::<Vec<_>>()).await.map(drop).map_err(failed)
}
