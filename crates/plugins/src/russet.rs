//! The `russet` plugin: an address from this node's blocks, and a routed veth.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use russet_addr::{ContainerId, Family, IfName, IpNet, Mac, host_net};
use russet_attach::{Attached, Attachment, Detachment, Dialect};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError, CniResult, Interface, IpConfig, code};
use russet_ipam::{
    Assigned, Clock, Held, IpamError, PoolFamilies, ReleaseOptions, Request as AddressRequest, SystemClock,
};
use russet_model::{Attribute, HandleId, time};
use tokio::time::Instant;

use crate::node::{Node, NotReady};
use crate::releases::{self, Release};
use crate::request_log::RequestLog;
use crate::requested;
use crate::settings::Settings;
use crate::stages::{Stage, during};
use crate::target::Target;
use crate::wiring::AttachFailure;
use crate::{RequestOutcome, failure};

/// The attribute with the time of a request, named as Calico names it.
const MARK: &str = "timestamp";

pub async fn run(node: &Node, request: &Request, log: &RequestLog) -> Result<RequestOutcome, CniError> {
    let nothing = |()| RequestOutcome::from(None);
    match &request.env.call {
        Call::Add(target) => {
            let added = add(node, request, &Target::from_request(request, target)?, log).await;
            added.map(|result| RequestOutcome::from(Some(result)))
        }
        Call::Del(target) => {
            let release = del(node, request, &Target::from_request(request, target)?).await?;
            Ok(RequestOutcome { release: Some(release), ..RequestOutcome::from(None) })
        }
        Call::Check(target) => {
            check(node, request, &Target::from_request(request, target)?).await.map(nothing)
        }
        Call::Gc => crate::gc::run(node, request).await.map(nothing),
        Call::Status => status(&*node.not_ready).map(nothing),
    }
}

async fn add(
    node: &Node,
    request: &Request,
    target: &Target,
    log: &RequestLog,
) -> Result<CniResult, CniError> {
    request.env.args.check_known(&requested::ARGS)?;
    let settings = Settings::read(request)?;
    let netns = target.open_netns()?;
    let handle = handle(target);
    let mark = time::go_timestamp(SystemClock.now());
    let mut attachment = attachment(node, &settings, target);
    let assigned = during(Stage::Address, allocate(node, &settings, target, (&handle, &mark), log));
    let (assigned, precreated) = tokio::join!(assigned, node.wiring.precreate_veth(&attachment, &netns));
    let assigned = match assigned {
        Ok(assigned) => assigned,
        Err(error) => {
            node.wiring.delete_precreated(precreated).await;
            return Err(error);
        }
    };
    attachment.addresses = assigned.addresses.iter().map(IpNet::addr).collect();
    match node.wiring.attach_precreated(attachment, netns, precreated).await {
        Ok(attached) => Ok(result(request, target, &attached, &assigned.addresses)),
        Err(failed) => Err(give_back(node, &handle, &mark, failed).await),
    }
}

/// The IPAM handle of the pod's addresses.
fn handle(target: &Target) -> HandleId {
    HandleId::pod(&target.network, &target.container)
}

async fn allocate(
    node: &Node,
    settings: &Settings,
    target: &Target,
    (handle, mark): (&HandleId, &str),
    log: &RequestLog,
) -> Result<Assigned, CniError> {
    if !settings.requested.is_empty() {
        return assign_requested(node, settings, target, handle, mark).await;
    }
    let families = families(node, settings, log).await?;
    let count = |family| u32::from(families.contains(&family));
    let request = AddressRequest {
        v4: count(Family::V4),
        v6: count(Family::V6),
        pools4: settings.ipv4_pools.clone(),
        pools6: settings.ipv6_pools.clone(),
        attributes: attributes(target, mark),
        // In a cluster with only our pods, agents route whole blocks: an address borrowed from
        // another node's block would be unreachable from other nodes.
        borrow: false,
        ..AddressRequest::pod(node.name.clone(), handle.clone())
    };
    let limit = Instant::now() + releases::WAIT_TIMEOUT;
    loop {
        let before = node.releases.count();
        match node.allocator.auto_assign(&request).await {
            // The address of an answered DEL may still be on its way back to the store.
            Err(error) if error.exhausted() && node.releases.wait_for_progress(before, limit).await => {}
            assigned => {
                return assigned.map_err(|error| failure::ipam("no address could be allocated", error));
            }
        }
    }
}

/// Allocates exactly the addresses that the runtime requested, or none.
async fn assign_requested(
    node: &Node,
    settings: &Settings,
    target: &Target,
    handle: &HandleId,
    mark: &str,
) -> Result<Assigned, CniError> {
    let held = node.allocator.ips_by_handle(handle).await;
    let held = held.map_err(|error| failure::ipam("the pod's addresses could not be read", error))?;
    let ours = held.into_iter().filter(|held| is_of(&held.attribute, &target.ifname));
    let mut held: Vec<IpAddr> = ours.map(|held| held.address).collect();
    let mut wanted = settings.requested.clone();
    held.sort();
    wanted.sort();
    if held == wanted {
        return Ok(Assigned { addresses: wanted.into_iter().map(host_net).collect(), existing: true });
    }
    if !held.is_empty() {
        let msg = format!(
            "{} {} holds {held:?} already, and {wanted:?} is requested",
            target.container, target.ifname
        );
        return Err(CniError::new(
            failure::NO_ADDRESS,
            msg,
            "DEL gives the addresses back; after that another can be requested",
        ));
    }
    if let Some(outside) = wanted.iter().find(|address| is_outside(settings, **address)) {
        let msg = format!("the requested address {outside} is in none of the network's pools");
        let details =
            "request an address of ipv4_pools or ipv6_pools, or leave these out of the configuration";
        return Err(CniError::new(failure::NO_ADDRESS, msg, details));
    }
    let request = AddressRequest {
        attributes: attributes(target, mark),
        borrow: false,
        ..AddressRequest::pod(node.name.clone(), handle.clone())
    };
    let mut assigned = Assigned::default();
    for address in wanted {
        match assign_one(node, &request, address).await {
            Ok(one) => assigned.addresses.extend(one.addresses),
            Err(mut error) => {
                if let Err(also) = release_marked(node, handle, mark).await {
                    error.details = format!("{}; its other address is held until DEL: {also}", error.details);
                }
                return Err(error);
            }
        }
    }
    Ok(assigned)
}

/// Allocates one requested address, waiting for answered DELs that have not released it yet.
async fn assign_one(node: &Node, request: &AddressRequest, address: IpAddr) -> Result<Assigned, CniError> {
    let limit = Instant::now() + releases::WAIT_TIMEOUT;
    loop {
        let before = node.releases.count();
        match node.allocator.assign_ip(request, address).await {
            Err(IpamError::AlreadyAssigned { .. })
                if node.releases.wait_for_progress(before, limit).await => {}
            assigned => {
                let msg = format!("the requested address {address} cannot be given");
                return assigned.map_err(|error| failure::ipam(&msg, error));
            }
        }
    }
}

/// Whether the network is restricted to pools that do not contain the address.
fn is_outside(settings: &Settings, address: IpAddr) -> bool {
    let pools = settings.pools(Family::of(address));
    pools.is_some_and(|pools| !pools.iter().any(|pool| pool.contains(&address)))
}

/// The address families of the network's pods: those that its settings name, otherwise those that
/// have a pool.
async fn families(node: &Node, settings: &Settings, log: &RequestLog) -> Result<Vec<Family>, CniError> {
    let asked = [(Family::V4, &settings.ipv4_pools), (Family::V6, &settings.ipv6_pools)];
    if asked.iter().any(|(_, pools)| pools.is_some()) {
        return Ok(asked.iter().filter(|(_, pools)| pools.is_some()).map(|(family, _)| *family).collect());
    }
    let families = node.allocator.pool_families().await;
    let PoolFamilies { enabled: families, switched_off } =
        families.map_err(|e| failure::ipam("the pools could not be read", e))?;
    if families.is_empty() {
        let details =
            "every pool is disabled, or there is none; an agent creates the default pools in a fresh store";
        return Err(CniError::new(failure::NO_ADDRESS, "there is no pool to take an address from", details));
    }
    for family in switched_off {
        log.warn(format_args!("the pod gets no {family} address: every {family} pool is disabled"));
    }
    Ok(families)
}

/// Attributes of the allocation besides those that the allocator adds (calico-ipam.md section 1.4).
/// The time distinguishes the addresses of this request from those of an earlier one.
fn attributes(target: &Target, mark: &str) -> BTreeMap<String, String> {
    let mut attributes = BTreeMap::from([
        ("interface".to_owned(), target.ifname.to_string()),
        (MARK.to_owned(), mark.to_owned()),
    ]);
    if let Some(pod) = &target.pod {
        attributes.insert("namespace".to_owned(), pod.namespace.clone());
        attributes.insert("pod".to_owned(), pod.name.clone());
    }
    attributes
}

/// The attachment without its addresses.
fn attachment(node: &Node, settings: &Settings, target: &Target) -> Attachment {
    let Target { network, container, ifname, pod, .. } = target.clone();
    let mut attachment = Attachment::new(Dialect::Native, network, container, ifname, pod);
    attachment.mtu = settings.mtu_bytes.unwrap_or_else(|| node.mtu_bytes.get());
    attachment.mac = settings.mac;
    attachment.sync_delete = node.teardown.is_synchronous();
    attachment
}

fn result(request: &Request, target: &Target, attached: &Attached, addresses: &[IpNet]) -> CniResult {
    let mut result = CniResult::empty(request.config.cni_version);
    let host = Interface {
        name: attached.host_name.to_string(),
        mac: attached.host_mac.to_string(),
        ..Interface::default()
    };
    let pod = Interface {
        name: target.ifname.to_string(),
        mac: attached.pod_mac.to_string(),
        sandbox: target.netns_path().to_owned(),
        mtu: Some(attached.mtu),
        ..Interface::default()
    };
    result.interfaces = vec![host, pod];
    let ip = |net: &IpNet| IpConfig { interface: Some(1), ..IpConfig::new(host_net(net.addr())) };
    result.ips = addresses.iter().map(ip).collect();
    result
}

/// After a failed ADD: releases the addresses that this request allocated; those of an earlier
/// request stay.
async fn give_back(node: &Node, handle: &HandleId, mark: &str, failed: AttachFailure) -> CniError {
    let mut error = failed.error;
    let held = if failed.undone {
        during(Stage::Release, release_marked(node, handle, mark)).await.err().map(|also| also.to_string())
    } else {
        Some("something may still answer for them".to_owned())
    };
    if let Some(reason) = held {
        error.details = format!("{}; its addresses are still held until DEL: {reason}", error.details);
    }
    error
}

async fn release_marked(node: &Node, handle: &HandleId, mark: &str) -> Result<(), IpamError> {
    let held = node.allocator.ips_by_handle(handle).await?;
    let ours = held.into_iter().filter(|held| held.attribute.get(MARK) == Some(mark));
    let options = |held: Held| ReleaseOptions {
        address: held.address,
        handle: Some(handle.clone()),
        sequence_number: Some(held.sequence_number),
    };
    node.allocator.release_ips(&ours.map(options).collect::<Vec<_>>()).await.map(drop)
}

/// Removes the interface. Returns the release of the addresses, which must not start before nothing
/// answers for them any more.
async fn del(node: &Node, request: &Request, target: &Target) -> Result<Release, CniError> {
    let netns = target.netns_if_any();
    let host_name = Attachment::new(
        Dialect::Native,
        target.network.clone(),
        target.container.clone(),
        target.ifname.clone(),
        target.pod.clone(),
    )
    .host_name;
    let what = detachment(node, &target.container, &target.ifname, Some(host_name));
    let detached = node.wiring.detach(what, netns).await;
    node.teardown.doomed();
    // An address is free only when nothing on this node answers for it any more.
    detached?;
    Ok(release(node, request, target))
}

/// The last part of a DEL, after the interface is gone.
pub(crate) fn release(node: &Node, request: &Request, target: &Target) -> Release {
    let (allocator, handle) = (Rc::clone(&node.allocator), handle(target));
    let (ifname, version) = (target.ifname.clone(), request.config.cni_version);
    Release::new(&node.releases, async move {
        let release = allocator.release_by_handle(&handle, Some(&ifname));
        let released = during(Stage::Release, release).await;
        let failed = |error| failure::ipam("the pod's addresses could not be released", error);
        released.map(drop).map_err(|error| failed(error).in_version(version))
    })
}

fn detachment(
    node: &Node,
    container: &ContainerId,
    ifname: &IfName,
    host_name: Option<IfName>,
) -> Detachment {
    Detachment {
        container: container.clone(),
        ifname: ifname.clone(),
        host_name,
        by_name_alone: false,
        dialect: Dialect::Native,
        removal: node.teardown.removal(),
    }
}

async fn check(node: &Node, request: &Request, target: &Target) -> Result<(), CniError> {
    let settings = Settings::read(request)?;
    let netns = target.open_netns()?;
    let held = during(Stage::Address, node.allocator.ips_by_handle(&handle(target))).await;
    let held = held.map_err(|error| failure::ipam("the pod's addresses could not be read", error))?;
    let held: Vec<IpAddr> =
        held.iter().filter(|held| is_of(&held.attribute, &target.ifname)).map(|held| held.address).collect();
    let addresses = expected(request, target)?.unwrap_or_else(|| held.clone());
    if let Some(lost) = addresses.iter().find(|address| !held.contains(address)) {
        let msg = format!("{lost} is no longer held by {}", target.container);
        return Err(CniError::new(
            failure::NO_ADDRESS,
            msg,
            "it was released while the pod was running; recreate the pod",
        ));
    }
    let mut attachment = attachment(node, &settings, target);
    attachment.addresses = addresses;
    attachment.mtu = recorded_mtu(request, target)?.unwrap_or(attachment.mtu);
    attachment.mac = attachment.mac.or(recorded_mac(request, target)?);
    let mismatches = node.wiring.check(attachment, netns).await?;
    if mismatches.is_empty() {
        return Ok(());
    }
    let details: Vec<String> = mismatches.iter().map(ToString::to_string).collect();
    Err(CniError::new(failure::WIRING, "the interface is not as ADD left it", details.join("; ")))
}

/// Whether an allocation belongs to this interface; allocations by Go peers name no interface.
fn is_of(attribute: &Attribute, ifname: &IfName) -> bool {
    attribute.get("interface").is_none_or(|name| name == ifname.as_str())
}

/// The addresses that ADD reported for this interface.
fn expected(request: &Request, target: &Target) -> Result<Option<Vec<IpAddr>>, CniError> {
    let Some(previous) = request.config.prev_result()? else { return Ok(None) };
    let ours = |ip: &&IpConfig| previous.interface_of(ip).is_none_or(|it| it.name == target.ifname.as_str());
    Ok(Some(previous.ips.iter().filter(ours).map(|ip| ip.address.addr()).collect()))
}

/// The MTU that ADD reported; the node's may have changed since.
fn recorded_mtu(request: &Request, target: &Target) -> Result<Option<u32>, CniError> {
    let Some(previous) = request.config.prev_result()? else { return Ok(None) };
    let ours =
        previous.interfaces.iter().find(|it| it.name == target.ifname.as_str() && !it.sandbox.is_empty());
    Ok(ours.and_then(|interface| interface.mtu))
}

/// The MAC that ADD reported: it may have been requested, and CHECK does not repeat the request.
fn recorded_mac(request: &Request, target: &Target) -> Result<Option<Mac>, CniError> {
    let Some(previous) = request.config.prev_result()? else { return Ok(None) };
    let ours =
        previous.interfaces.iter().find(|it| it.name == target.ifname.as_str() && !it.sandbox.is_empty());
    Ok(ours.and_then(|interface| interface.mac.parse().ok()))
}

pub(crate) fn status(not_ready: &dyn Fn() -> Option<NotReady>) -> Result<(), CniError> {
    match not_ready() {
        None => Ok(()),
        Some(NotReady { reason, pods_suffer: true }) => Err(CniError::new(
            code::LIMITED_CONNECTIVITY,
            "pods cannot be attached on this node, and its pods may not reach all others",
            reason,
        )),
        Some(NotReady { reason, .. }) => {
            Err(CniError::not_available("pods cannot be attached on this node yet", reason))
        }
    }
}

#[cfg(test)]
mod tests;
