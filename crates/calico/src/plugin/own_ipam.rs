//! Calico's IPAM called within this process: how annotations change its request, and how an
//! allocation is undone.

use std::net::IpAddr;
use std::time::Duration;

use russet_addr::{Family, IpNet, host_net};
use russet_cni_spec::{CniError, CniResult, IpConfig, Route};
use russet_model::HandleId;
use russet_wiring::failure;

use super::RequestContext;
use super::annotations::PodOptions;
use crate::ipam::{self, Allocation, IpamRequest, Subject, Wanted};

/// Allocates `address`, or what configuration and annotations ask for, within `budget`.
pub async fn assign(
    context: &RequestContext<'_>,
    pod_options: &PodOptions,
    address: Option<IpAddr>,
    budget: Duration,
) -> Result<(CniResult, Allocation), CniError> {
    let wanted = match address {
        Some(address) => Wanted::Address(address),
        None => wanted(context, pod_options)?,
    };
    let request =
        IpamRequest { node: context.workload.node.clone(), subject: subject(context), wanted, budget };
    let RequestContext { node, datastore, conf, log, .. } = context;
    let allocation = ipam::assign(&node.host, datastore, conf, &request, log).await?;
    let mut result = CniResult::empty(context.request.config.cni_version);
    result.ips = allocation.hosts().map(host_net).map(IpConfig::new).collect();
    // Calico's plugin prints the destinations as its IPAM returns them, with the block's prefix
    // length (calico-ipam.md section 4.2 item 7).
    result.routes = allocation.addresses.iter().map(|net| Route::new(*net, None)).collect();
    Ok((result, allocation))
}

/// Pools and families from annotations take precedence over the configuration's (calico-cni.md
/// section 2.5.2).
fn wanted(context: &RequestContext<'_>, pod_options: &PodOptions) -> Result<Wanted, CniError> {
    let mut conf = context.conf.clone();
    if let Some(families) = &pod_options.families {
        conf.ipam.assign_ipv4 = families.contains(&Family::V4);
        conf.ipam.assign_ipv6 = families.contains(&Family::V6);
    }
    conf.ipam.ipv4_pools = pod_options.ipv4_pools.clone().unwrap_or(conf.ipam.ipv4_pools);
    conf.ipam.ipv6_pools = pod_options.ipv6_pools.clone().unwrap_or(conf.ipam.ipv6_pools);
    Wanted::from_conf(&conf, None)
}

fn subject(context: &RequestContext<'_>) -> Subject {
    let super::Workload { id, pod, .. } = context.workload.clone();
    Subject { id, pod }
}

/// Releases all addresses of the container.
pub async fn release(context: &RequestContext<'_>) -> Result<(), CniError> {
    let RequestContext { node, datastore, conf, log, .. } = context;
    ipam::release(&node.host, datastore, conf, &subject(context), log).await
}

/// Releases the allocation of a request that failed later.
pub async fn give_back(context: &RequestContext<'_>, allocation: &Allocation) -> Result<(), CniError> {
    ipam::give_back(&context.datastore, allocation).await
}

pub async fn held(context: &RequestContext<'_>) -> Result<Vec<IpAddr>, CniError> {
    let held = context.datastore.allocator.ips_by_handle(&subject(context).handle()).await;
    let held = held.map_err(|error| failure::ipam("the pod's addresses could not be read", error))?;
    Ok(held.into_iter().map(|held| held.address).collect())
}

/// Releases those of `nets` that `handle` holds.
pub async fn release_addresses(
    context: &RequestContext<'_>,
    handle: &HandleId,
    nets: &[IpNet],
) -> Result<(), CniError> {
    let failed = |error| failure::ipam("the previous container's addresses could not be released", error);
    let allocator = &context.datastore.allocator;
    let held = allocator.ips_to_free(handle).await.map_err(failed)?;
    let ours = held.into_iter().filter(|held| nets.iter().any(|net| net.addr() == held.address));
    allocator.release_held(handle, ours).await.map_err(failed)
}
