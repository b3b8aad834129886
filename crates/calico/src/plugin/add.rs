//! ADD (calico-cni.md sections 2.1, 2.3 and 2.5). Everything that can be refused is refused before
//! any allocation. The endpoint is written last, so that a failure before it is undone by removing
//! the interface and releasing the addresses.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use russet_addr::{ContainerId, EndpointId, IfName, IpNet, host_net};
use russet_attach::{Attached, Detachment, PodRoutes};
use russet_cni_spec::{CniError, CniResult, Interface, IpConfig};
use russet_ipam::SystemClock;
use russet_kube::absent_is_none;
use russet_model::{HandleId, IpNat, WorkloadEndpointSpec};
use russet_wiring::stages::{Stage, during};

use super::addresses::{self, AddressSource, Addresses};
use super::draft::EndpointDraft;
use super::endpoint::{self, Stored};
use super::own_ipam;
use super::status_file::PolicyWait;
use super::wire::{self, Wire};
use super::workload::Workload;
use super::{Outcome, RequestContext, pod_cidr, profile, ready};

pub async fn run(context: &mut RequestContext<'_>, wire: &dyn Wire) -> Result<Outcome, CniError> {
    ready::refuse_impossible(context.conf, &context.workload, context.log)?;
    let mtu = ready::mtu_bytes(context.conf, context.root())?;
    ready::datastore(&context.datastore).await?;
    if let Some(not_ready) = (context.node.not_ready)() {
        // The pod is attached all the same, as Calico's plugin does without Felix.
        context.log.warn(format!("the russet agent of this node is not ready: {}", not_ready.reason));
    }
    ready::gates(&context.conf.readiness_gates).await?;
    let find = endpoint::find(&*context.datastore.store, &context.workload);
    let existing = during(Stage::Endpoint, find).await?;
    if let Some(stored) = &existing {
        let WorkloadEndpointSpec { ip_networks, interface_name, .. } = &stored.endpoint.spec;
        let host = interface_name.as_ref().map(IfName::as_str).unwrap_or_default();
        let found = format!(
            "Calico CNI found existing endpoint: {} IPs={} Interface={host:?}",
            stored.key,
            endpoint::shown(ip_networks)
        );
        context.log.fact(found, context.target);
    }
    if context.workload.pod.is_some() {
        let draft = during(Stage::Endpoint, pod_draft(context)).await?;
        return establish(context, wire, &draft, existing.as_ref(), mtu).await;
    }
    match existing {
        Some(stored) => repeat(context, stored, mtu).await.map(|result| Some(result).into()),
        None => {
            let draft = EndpointDraft::for_network(context.conf, &context.workload);
            establish(context, wire, &draft, None, mtu).await
        }
    }
}

/// Joins a container that already has an endpoint to another network: neither its interface nor its
/// addresses change (calico-cni.md section 2.3, step 2).
async fn repeat(context: &RequestContext<'_>, stored: Stored, mtu: u32) -> Result<CniResult, CniError> {
    let mut endpoint = stored.endpoint.clone();
    let network = context.conf.network.to_string();
    let nets = endpoint.spec.ip_networks.clone();
    if nets.is_empty() {
        let details = format!("delete {} if the container is gone", stored.key);
        return Err(CniError::new(
            russet_wiring::failure::CORRUPT_RECORD,
            "the endpoint has no address",
            details,
        ));
    }
    ensure_profile(context).await?;
    if endpoint.spec.profiles.contains(&network) {
        context.log.fact(format!("Calico CNI endpoint already has profile: {network}"), context.target);
    } else {
        context.log.fact(format!("Calico CNI appending profile: {network}"), context.target);
        endpoint.spec.profiles.push(network);
        let written =
            endpoint::write(&*context.datastore.store, &context.workload, Some(&stored), &endpoint).await;
        written.map_err(|failure| failure.error)?;
    }
    let host = endpoint.spec.interface_name.map(|name| name.to_string()).unwrap_or_default();
    let mac = endpoint.spec.mac.map(|mac| mac.to_string()).unwrap_or_default();
    let mut result = CniResult::empty(context.conf.result_version);
    result.ips = nets.into_iter().map(IpConfig::new).collect();
    Ok(with_interfaces(context, result, host, mac, mtu))
}

/// The draft of a pod's endpoint, with the facts of Kubernetes that it needs (calico-cni.md section 2.5, steps 1
/// to 4).
async fn pod_draft(context: &mut RequestContext<'_>) -> Result<EndpointDraft, CniError> {
    let routes = routes(context).await?;
    let mut draft = if context.conf.policy.is_k8s() {
        let kubernetes = context.kubernetes()?;
        let (namespace, name) = context.pod_names();
        let failed = |error| super::kubernetes_failed("the pod could not be looked up", error);
        let known = absent_is_none(kubernetes.namespace(&namespace).await).map_err(failed)?;
        let known = known.ok_or_else(|| super::absent(format!("namespace {namespace}")))?;
        let pod = absent_is_none(kubernetes.pod(&namespace, &name).await).map_err(failed)?;
        let pod = pod.ok_or_else(|| super::absent(format!("pod {namespace}/{name}")))?;
        EndpointDraft::from_pod(&context.workload, &known, &pod)?
    } else {
        EndpointDraft::for_network(context.conf, &context.workload)
    };
    draft.routes = routes;
    if draft.pod_options.floating_ips.is_some() && !context.conf.floating_ips {
        let details = "the feature is off: feature_control.floating_ips is not true";
        return Err(CniError::invalid_config("the annotation floatingIPs cannot be used", details));
    }
    Ok(draft)
}

/// The routes of the pod. With `host-local`, the routes of its configuration replace the default
/// routes; the configuration may name the node's pod prefixes (calico-cni.md section 2.5.1).
pub(super) async fn routes(context: &mut RequestContext<'_>) -> Result<PodRoutes, CniError> {
    if context.workload.pod.is_none() || context.conf.ipam.kind != "host-local" {
        return Ok(PodRoutes::Default);
    }
    context.fill_pod_cidrs().await?;
    let listed = pod_cidr::routes(&context.ipam()?, context.conf.include_default_routes)?;
    Ok(listed.map_or(PodRoutes::Default, PodRoutes::Only))
}

/// Allocates the addresses, wires the interface and writes the endpoint.
async fn establish(
    context: &RequestContext<'_>,
    wire: &dyn Wire,
    draft: &EndpointDraft,
    existing: Option<&Stored>,
    mtu: u32,
) -> Result<Outcome, CniError> {
    let source =
        addresses::source(context, &draft.pod_options, existing.map(|stored| &stored.endpoint.spec))?;
    if let (AddressSource::Exactly(_), Some(stored)) = (&source, existing) {
        release_previous(context, wire, stored).await?;
    }
    let addresses = addresses::obtain(context, &source, &draft.pod_options).await?;
    let ips: Vec<IpAddr> = addresses.ips().collect();
    let nets: Vec<IpNet> = ips.iter().copied().map(host_net).collect();
    context.log.fact(format!("Calico CNI using IPs: {}", endpoint::shown(&nets)), context.target);
    let ready = async {
        let nats = draft.nats(&ips)?;
        ensure_profile(context).await?;
        Ok(nats)
    };
    let nats = match during(Stage::Endpoint, ready).await {
        Ok(nats) => nats,
        Err(error) => return Err(addresses.give_back(context, error).await),
    };
    let attached = match attach(context, wire, draft, &ips, mtu).await {
        Ok(attached) => attached,
        Err(failed) if failed.undone => return Err(addresses.give_back(context, failed.error).await),
        Err(failed) => return Err(addresses.keep(failed.error, "something may still answer for them")),
    };
    let publish = publish(context, draft, existing, &ips, nats, &attached);
    if let Err(failure) = during(Stage::Endpoint, publish).await {
        return Err(undo(context, wire, addresses, &attached, failure).await);
    }
    context.log.info(format!(
        "Wrote the endpoint of {}: {} on {}",
        context.workload.id.container,
        endpoint::shown(&nets),
        attached.host_name
    ));
    let mut result = addresses.result;
    result.cni_version = context.conf.result_version;
    let (host, mac) = (attached.host_name.to_string(), attached.pod_mac.to_string());
    let result = with_interfaces(context, result, host, mac, attached.mtu);
    let timeout = Duration::from_secs(context.conf.policy_setup_timeout_s.into());
    let policy =
        PolicyWait::new(&context.conf.endpoint_status_dir(context.root()), &context.workload, timeout);
    Ok(Outcome { result: Some(result), policy, release: None })
}

async fn ensure_profile(context: &RequestContext<'_>) -> Result<(), CniError> {
    if !context.conf.policy.kind.is_empty() {
        return Ok(());
    }
    let (datastore, network) = (&context.datastore, &context.conf.network);
    if !datastore.recent.has_profile(network) {
        let (only_from_network, asked) = (context.workload.pod.is_none(), Instant::now());
        if profile::ensure(&*datastore.store, network, only_from_network, &SystemClock).await? {
            context.log.fact(format!("Calico CNI creating profile: {network}"), context.target);
        }
        datastore.recent.record_profile(network, asked);
    }
    Ok(())
}

async fn attach(
    context: &RequestContext<'_>,
    wire: &dyn Wire,
    draft: &EndpointDraft,
    ips: &[IpAddr],
    mtu: u32,
) -> Result<Attached, russet_wiring::AttachFailure> {
    let mut attachment = wire::attachment(context.node, context.conf, context.target)?;
    attachment.addresses = ips.to_vec();
    attachment.mtu = mtu;
    attachment.mac = draft.pod_options.mac;
    attachment.routes = draft.routes.clone();
    let host_name = &attachment.host_name;
    context.log.fact(format!("Setting the host side veth name to {host_name}"), context.target);
    let attached = wire.attach(attachment).await?;
    // A failure is not fatal: the agent installs the prefixes when it next compares the table;
    // until then the pod can send from its own addresses only.
    let allowed = wire.allow_sources(attached.host_name.clone(), draft.pod_options.allowed_sources.clone());
    if let Err(error) = allowed.await {
        tracing::warn!(link = %attached.host_name, %error, "the pod sends from its own addresses only");
    }
    Ok(attached)
}

async fn publish(
    context: &RequestContext<'_>,
    draft: &EndpointDraft,
    existing: Option<&Stored>,
    ips: &[IpAddr],
    nats: Vec<IpNat>,
    attached: &Attached,
) -> Result<(), endpoint::WriteFailure> {
    let nets: Vec<IpNet> = ips.iter().copied().map(host_net).collect();
    let spec = draft.spec(&context.workload, nets, nats, attached);
    let endpoint = endpoint::prepare(&context.workload, existing, spec, &SystemClock);
    let mut endpoint = endpoint.map_err(|error| endpoint::WriteFailure { error, certainly_absent: true })?;
    endpoint.metadata.labels = draft.labels.clone();
    endpoint.metadata.generate_name = draft.generate_name.clone();
    endpoint::write(&*context.datastore.store, &context.workload, existing, &endpoint).await
}

/// Undoes an ADD whose endpoint could not be written: removes a new interface and releases this
/// request's addresses. An interface that existed before belongs to a running pod and stays.
async fn undo(
    context: &RequestContext<'_>,
    wire: &dyn Wire,
    addresses: Addresses,
    attached: &Attached,
    failure: endpoint::WriteFailure,
) -> CniError {
    let endpoint::WriteFailure { error, certainly_absent } = failure;
    if attached.reused {
        return addresses.keep(error, "the interface was there before");
    }
    let RequestContext { node, workload, .. } = context;
    let what = wire::detachment(node, workload.id.clone(), Some(attached.host_name.clone()));
    let detached = wire.detach(what).await;
    node.teardown.doomed();
    match detached {
        Ok(()) if certainly_absent => addresses.give_back(context, error).await,
        Ok(()) => addresses.keep(error, "the endpoint may have been written"),
        Err(also) => addresses.keep(error, &also.to_string()),
    }
}

/// Releases the addresses of the pod's previous container, which the new one must get again, but
/// only after nothing answers for them any more (calico-cni.md section 2.5.3). Only addresses that the previous
/// container really holds are released.
async fn release_previous(
    context: &RequestContext<'_>,
    wire: &dyn Wire,
    stored: &Stored,
) -> Result<(), CniError> {
    let spec = &stored.endpoint.spec;
    let Ok(container) = spec.container_id.parse::<ContainerId>() else { return Ok(()) };
    if container == context.workload.id.container {
        return Ok(());
    }
    wire.detach(previous(context, spec, container.clone())).await?;
    context.node.teardown.doomed();
    let handle = HandleId::pod(&context.conf.network, &container);
    own_ipam::release_addresses(context, &handle, &spec.ip_networks).await
}

/// The detachment of the interface of the pod's previous container. If Calico's own plugin wired
/// it, only its name identifies it as this pod's.
fn previous(context: &RequestContext<'_>, spec: &WorkloadEndpointSpec, container: ContainerId) -> Detachment {
    let Workload { id, pod, .. } = &context.workload;
    let ifname = spec.endpoint.parse().unwrap_or_else(|_| id.ifname.clone());
    let id = EndpointId { container, ifname, ..id.clone() };
    let of_pod = |name: &IfName| pod.as_ref().is_some_and(|pod| wire::is_of_pod(name, &id, pod));
    let by_name_alone = spec.interface_name.as_ref().is_some_and(of_pod);
    Detachment { by_name_alone, ..wire::detachment(context.node, id, spec.interface_name.clone()) }
}

/// Sets the result's interfaces: the host interface with its name only, then the pod's
/// (calico-cni.md section 1.10).
fn with_interfaces(
    context: &RequestContext<'_>,
    mut result: CniResult,
    host: String,
    mac: String,
    mtu: u32,
) -> CniResult {
    let pod = Interface {
        name: context.target.id.ifname.to_string(),
        mac,
        sandbox: context.target.netns_path().to_owned(),
        mtu: Some(mtu),
        ..Interface::default()
    };
    result.interfaces = vec![Interface { name: host, ..Interface::default() }, pod];
    for ip in &mut result.ips {
        (ip.interface, ip.gateway) = (Some(1), None);
    }
    result
}
