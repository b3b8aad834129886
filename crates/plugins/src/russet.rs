//! The `russet` plugin: an address from this node's blocks, and a routed veth.

mod gc;

use std::net::IpAddr;
use std::rc::Rc;

use russet_addr::{Family, IfName, IpNet, Mac, host_net};
use russet_attach::{Attached, Attachment, Detachment, Dialect, naming};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError, CniResult, Interface, IpConfig};
use russet_ipam::{
    Assigned, Clock, IpamError, PoolFamilies, Request as AddressRequest, SystemClock, TIMESTAMP,
};
use russet_model::{Attribute, HandleId, time};
use russet_wiring::stages::{Stage, during};
use russet_wiring::{AttachFailure, RequestLog, Target, failure, status};
use tokio::time::Instant;

use crate::RequestOutcome;
use crate::node::{Announce, Node, PodSandbox};
use crate::releases::{self, Release};
use crate::requested;
use crate::settings::Settings;

/// The plugin's name.
pub const NAME: &str = "russet";
/// The interface of a pod that Kubernetes and Calico know.
const POD_INTERFACE: &str = "eth0";

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
        Call::Gc => gc::run(node, request).await.map(nothing),
        Call::Status => status(&*node.host.not_ready).map(nothing),
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
    let (assigned, precreated) = tokio::join!(assigned, node.host.wiring.precreate_veth(&attachment, &netns));
    let assigned = match assigned {
        Ok(assigned) => assigned,
        Err(error) => {
            node.host.wiring.delete_precreated(precreated).await;
            return Err(error);
        }
    };
    attachment.addresses = assigned.addresses.iter().map(IpNet::addr).collect();
    let give_back = || node.allocator.release_of_request(&handle, &mark);
    let attached = match node.host.wiring.attach_precreated(attachment, netns, precreated).await {
        Ok(attached) => attached,
        // Addresses of an earlier request stay.
        Err(failed) => return Err(failed.give_back(give_back()).await),
    };
    match announce(node, request, target, &assigned.addresses).await {
        // An interface that existed before belongs to a running pod.
        Err(error) if !attached.reused => {
            let undone = node.host.wiring.detach(detachment(node, target), target.netns_if_any()).await;
            node.host.teardown.doomed();
            Err(AttachFailure { error, undone: undone.is_ok() }.give_back(give_back()).await)
        }
        Err(error) => Err(error),
        Ok(()) => Ok(result(request, target, &attached, &assigned.addresses)),
    }
}

/// Publishes the pod's addresses where programs of Calico read them.
async fn announce(
    node: &Node,
    request: &Request,
    target: &Target,
    addresses: &[IpNet],
) -> Result<(), CniError> {
    let Some((announce, sandbox)) = announced(node, request, target) else { return Ok(()) };
    let shown: Vec<String> = addresses.iter().map(|net| host_net(net.addr()).to_string()).collect();
    during(Stage::Endpoint, announce.announce(&sandbox, &shown)).await
}

/// The sandbox whose addresses are published. Calico knows one interface of a pod only (kubernetes.md
/// section 2.4, K54).
fn announced(node: &Node, request: &Request, target: &Target) -> Option<(Rc<dyn Announce>, PodSandbox)> {
    let (announce, pod) = (node.announce.as_ref()?, target.pod.as_ref()?);
    let uid = request.env.args.pod().and_then(|pod| pod.uid).map(str::to_owned);
    let container = target.id.container.to_string();
    let sandbox = PodSandbox { namespace: pod.namespace.clone(), name: pod.name.clone(), uid, container };
    (target.id.ifname.as_str() == POD_INTERFACE).then(|| (Rc::clone(announce), sandbox))
}

/// The IPAM handle of the pod's addresses.
fn handle(target: &Target) -> HandleId {
    HandleId::pod(&target.id.network, &target.id.container)
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
        ..address_request(node, target, (handle, mark))
    };
    let assigned =
        after_releases(node, IpamError::exhausted, async || node.allocator.auto_assign(&request).await).await;
    assigned.map_err(|error| failure::ipam("no address could be allocated", error))
}

/// A request for addresses of the target; `mark` distinguishes them from those of an earlier one.
fn address_request(node: &Node, target: &Target, (handle, mark): (&HandleId, &str)) -> AddressRequest {
    let pod = target.pod.as_ref().map(|pod| (pod.namespace.as_str(), pod.name.as_str()));
    let request = AddressRequest::pod(node.name.clone(), handle.clone());
    // In a cluster with only our pods, agents route whole blocks: an address borrowed from another
    // node's block would be unreachable from other nodes.
    AddressRequest { borrow: false, ..request.with_owner(&target.id.ifname, pod).with(TIMESTAMP, mark) }
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
    let ours = held.into_iter().filter(|held| is_of(&held.attribute, &target.id.ifname));
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
            target.id.container, target.id.ifname
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
    let request = address_request(node, target, (handle, mark));
    let mut assigned = Assigned::default();
    for address in wanted {
        match assign_one(node, &request, address).await {
            Ok(one) => assigned.addresses.extend(one.addresses),
            Err(error) => {
                return Err(match node.allocator.release_of_request(handle, mark).await {
                    Ok(()) => error,
                    Err(also) => {
                        error.with_detail(format_args!("its other address is held until DEL: {also}"))
                    }
                });
            }
        }
    }
    Ok(assigned)
}

/// Allocates one requested address.
async fn assign_one(node: &Node, request: &AddressRequest, address: IpAddr) -> Result<Assigned, CniError> {
    let is_taken = |error: &IpamError| matches!(error, IpamError::AlreadyAssigned { .. });
    let assign = async || node.allocator.assign_ip(request, address).await;
    let msg = format!("the requested address {address} cannot be given");
    after_releases(node, is_taken, assign).await.map_err(|error| failure::ipam(&msg, error))
}

/// Repeats `allocate` while it fails for want of addresses, as `is_short` says, and addresses of
/// answered DELs are on their way back to the store.
async fn after_releases(
    node: &Node,
    is_short: impl Fn(&IpamError) -> bool,
    allocate: impl AsyncFn() -> Result<Assigned, IpamError>,
) -> Result<Assigned, IpamError> {
    let limit = Instant::now() + releases::WAIT_TIMEOUT;
    loop {
        let before = node.releases.count();
        match allocate().await {
            Err(error) if is_short(&error) && node.releases.wait_for_progress(before, limit).await => {}
            done => return done,
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

/// The attachment without its addresses.
fn attachment(node: &Node, settings: &Settings, target: &Target) -> Attachment {
    let mut attachment = Attachment::new(Dialect::Native, target.id.clone(), target.pod.clone());
    attachment.mtu = settings.mtu_bytes.unwrap_or_else(|| node.mtu_bytes.get());
    attachment.mac = settings.mac;
    attachment.sizes = node.packet_sizes.get();
    attachment.pair = node.pair;
    attachment.sync_delete = node.host.teardown.is_synchronous();
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
        name: target.id.ifname.to_string(),
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

/// Removes the interface. Returns the release of the addresses, which must not start before nothing
/// answers for them any more.
async fn del(node: &Node, request: &Request, target: &Target) -> Result<Release, CniError> {
    let detached = node.host.wiring.detach(detachment(node, target), target.netns_if_any()).await;
    node.host.teardown.doomed();
    // An address is free only when nothing on this node answers for it any more.
    detached?;
    Ok(release(node, request, target))
}

fn detachment(node: &Node, target: &Target) -> Detachment {
    Detachment {
        id: target.id.clone(),
        host_name: Some(naming::host_end(Dialect::Native, &target.id, target.pod.as_ref())),
        by_name_alone: false,
        dialect: Dialect::Native,
        removal: node.host.teardown.removal(),
    }
}

/// The last part of a DEL, after the interface is gone. Policies of Calico's programs forget the pod's
/// addresses before another pod can get them.
pub(crate) fn release(node: &Node, request: &Request, target: &Target) -> Release {
    let (allocator, handle) = (Rc::clone(&node.allocator), handle(target));
    let (ifname, version) = (target.id.ifname.clone(), request.config.cni_version);
    let announced = announced(node, request, target);
    Release::new(&node.releases, async move {
        if let Some((announce, sandbox)) = announced {
            let withdrawn = during(Stage::Endpoint, announce.withdraw(&sandbox)).await;
            withdrawn.map_err(|error| error.in_version(version))?;
        }
        let release = allocator.release_by_handle(&handle, Some(&ifname));
        let released = during(Stage::Release, release).await;
        let failed = |error| failure::ipam("the pod's addresses could not be released", error);
        released.map(drop).map_err(|error| failed(error).in_version(version))
    })
}

async fn check(node: &Node, request: &Request, target: &Target) -> Result<(), CniError> {
    let settings = Settings::read(request)?;
    let netns = target.open_netns()?;
    let held = during(Stage::Address, node.allocator.ips_by_handle(&handle(target))).await;
    let held = held.map_err(|error| failure::ipam("the pod's addresses could not be read", error))?;
    let held: Vec<IpAddr> = held
        .iter()
        .filter(|held| is_of(&held.attribute, &target.id.ifname))
        .map(|held| held.address)
        .collect();
    let addresses = expected(request, target)?.unwrap_or_else(|| held.clone());
    if let Some(lost) = addresses.iter().find(|address| !held.contains(address)) {
        let msg = format!("{lost} is no longer held by {}", target.id.container);
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
    let mismatches = node.host.wiring.check(attachment, netns).await?;
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
    let ours =
        |ip: &&IpConfig| previous.interface_of(ip).is_none_or(|it| it.name == target.id.ifname.as_str());
    Ok(Some(previous.ips.iter().filter(ours).map(|ip| ip.address.addr()).collect()))
}

/// The MTU that ADD reported; the node's may have changed since.
fn recorded_mtu(request: &Request, target: &Target) -> Result<Option<u32>, CniError> {
    let Some(previous) = request.config.prev_result()? else { return Ok(None) };
    let ours =
        previous.interfaces.iter().find(|it| it.name == target.id.ifname.as_str() && !it.sandbox.is_empty());
    Ok(ours.and_then(|interface| interface.mtu))
}

/// The MAC that ADD reported: it may have been requested, and CHECK does not repeat the request.
fn recorded_mac(request: &Request, target: &Target) -> Result<Option<Mac>, CniError> {
    let Some(previous) = request.config.prev_result()? else { return Ok(None) };
    let ours =
        previous.interfaces.iter().find(|it| it.name == target.id.ifname.as_str() && !it.sandbox.is_empty());
    Ok(ours.and_then(|interface| interface.mac.parse().ok()))
}

#[cfg(test)]
mod tests;
