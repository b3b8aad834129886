//! ADD (calico-cni.md sections 2.1, 2.3 and 2.5). What can be refused is refused before anything is taken; the endpoint is written last, so that whatever
//! fails before it is undone by taking the interface down and giving the addresses back.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use russet_addr::{ContainerId, IfName, IpNet, host_net};
use russet_attach::{Attached, Detachment, PodRoutes};
use russet_cni_spec::{CniError, CniResult, Interface, IpConfig};
use russet_kube::absent_is_none;
use russet_model::{HandleId, IpNat, WorkloadEndpointSpec};

use super::addresses::{self, Addresses, Source};
use super::draft::Draft;
use super::endpoint::{self, Stored};
use super::own_ipam;
use super::status_file::PolicyWait;
use super::wire::{self, Wire};
use super::{Scene, pod_cidr, profile, ready};
use crate::stages::{Stage, during};
use crate::{Done, SystemClock};

/// Carries out an ADD.
pub async fn run(scene: &mut Scene<'_>, wire: &dyn Wire) -> Result<Done, CniError> {
    ready::refuse_impossible(scene.conf, &scene.workload, scene.log)?;
    let mtu = ready::mtu_bytes(scene.conf, scene.root())?;
    ready::datastore(&scene.datastore).await?;
    if let Some(not_ready) = (scene.node.not_ready)() {
        // The pod is attached all the same, as Calico's plugin does without Felix.
        scene.log.warn(format!("the russet agent of this node is not ready: {}", not_ready.reason));
    }
    ready::gates(&scene.conf.readiness_gates).await?;
    let find = endpoint::find(&*scene.datastore.store, &scene.workload);
    let existing = during(Stage::Endpoint, find).await?;
    if let Some(stored) = &existing {
        let WorkloadEndpointSpec { ip_networks, interface_name, .. } = &stored.endpoint.spec;
        let host = interface_name.as_ref().map(IfName::as_str).unwrap_or_default();
        let found = format!(
            "Calico CNI found existing endpoint: {} IPs={} Interface={host:?}",
            stored.key,
            endpoint::shown(ip_networks)
        );
        scene.log.fact(found, scene.target);
    }
    if scene.workload.pod.is_some() {
        let draft = during(Stage::Endpoint, pod_draft(scene)).await?;
        return establish(scene, wire, &draft, existing.as_ref(), mtu).await;
    }
    match existing {
        Some(stored) => repeat(scene, stored, mtu).await.map(|result| Some(result).into()),
        None => {
            let draft = Draft::of_network(scene.conf, &scene.workload);
            establish(scene, wire, &draft, None, mtu).await
        }
    }
}

/// A container that has its endpoint already joins another network: neither its interface nor its addresses change (calico-cni.md section 2.3, step 2).
async fn repeat(scene: &Scene<'_>, stored: Stored, mtu: u32) -> Result<CniResult, CniError> {
    let mut endpoint = stored.endpoint.clone();
    let network = scene.conf.network.to_string();
    let nets = endpoint.spec.ip_networks.clone();
    if nets.is_empty() {
        let details = format!("delete {} if the container is gone", stored.key);
        return Err(CniError::new(crate::failure::CORRUPT_RECORD, "the endpoint has no address", details));
    }
    ensure_profile(scene).await?;
    if endpoint.spec.profiles.contains(&network) {
        scene.log.fact(format!("Calico CNI endpoint already has profile: {network}"), scene.target);
    } else {
        scene.log.fact(format!("Calico CNI appending profile: {network}"), scene.target);
        endpoint.spec.profiles.push(network);
        let written =
            endpoint::write(&*scene.datastore.store, &scene.workload, Some(&stored), &endpoint).await;
        written.map_err(|unwritten| unwritten.error)?;
    }
    let host = endpoint.spec.interface_name.map(|name| name.to_string()).unwrap_or_default();
    let mac = endpoint.spec.mac.map(|mac| mac.to_string()).unwrap_or_default();
    let mut result = CniResult::empty(scene.conf.result_version);
    result.ips = nets.into_iter().map(IpConfig::new).collect();
    Ok(with_interfaces(scene, result, host, mac, mtu))
}

/// What Kubernetes says about the pod, as far as anybody wants to know (calico-cni.md section 2.5, steps 1 to 4).
async fn pod_draft(scene: &mut Scene<'_>) -> Result<Draft, CniError> {
    let routes = routes(scene).await?;
    let mut draft = if scene.conf.policy.is_k8s() {
        let kubernetes = scene.kubernetes()?;
        let (namespace, name) = scene.pod_names();
        let failed = |error| super::kubernetes_failed("the pod could not be looked up", error);
        let known = absent_is_none(kubernetes.namespace(&namespace).await).map_err(failed)?;
        let known = known.ok_or_else(|| super::absent(format!("namespace {namespace}")))?;
        let pod = absent_is_none(kubernetes.pod(&namespace, &name).await).map_err(failed)?;
        let pod = pod.ok_or_else(|| super::absent(format!("pod {namespace}/{name}")))?;
        Draft::of_pod(&scene.workload, &known, &pod)?
    } else {
        Draft::of_network(scene.conf, &scene.workload)
    };
    draft.routes = routes;
    if draft.wishes.floating_ips.is_some() && !scene.conf.floating_ips {
        let details = "the feature is off: feature_control.floating_ips is not true";
        return Err(CniError::invalid_config("the annotation floatingIPs cannot be used", details));
    }
    Ok(draft)
}

/// Where a pod sends packets to: with `host-local`, whose configuration may name the node's pod prefixes, its routes instead of the defaults (calico-cni.md section 2.5.1).
pub(super) async fn routes(scene: &mut Scene<'_>) -> Result<PodRoutes, CniError> {
    if scene.workload.pod.is_none() || scene.conf.ipam.kind != "host-local" {
        return Ok(PodRoutes::Default);
    }
    scene.fill_pod_cidrs().await?;
    let listed = pod_cidr::routes(&scene.ipam()?, scene.conf.include_default_routes)?;
    Ok(listed.map_or(PodRoutes::Default, PodRoutes::Only))
}

/// Addresses, interface, endpoint.
async fn establish(
    scene: &Scene<'_>,
    wire: &dyn Wire,
    draft: &Draft,
    existing: Option<&Stored>,
    mtu: u32,
) -> Result<Done, CniError> {
    let source = addresses::source(scene, &draft.wishes, existing.map(|stored| &stored.endpoint.spec))?;
    if let (Source::Exactly(_), Some(stored)) = (&source, existing) {
        release_previous(scene, wire, stored).await?;
    }
    let addresses = addresses::obtain(scene, &source, &draft.wishes).await?;
    let ips: Vec<IpAddr> = addresses.ips().collect();
    let nets: Vec<IpNet> = ips.iter().copied().map(host_net).collect();
    scene.log.fact(format!("Calico CNI using IPs: {}", endpoint::shown(&nets)), scene.target);
    let ready = async {
        let nats = draft.nats(&ips)?;
        ensure_profile(scene).await?;
        Ok(nats)
    };
    let nats = match during(Stage::Endpoint, ready).await {
        Ok(nats) => nats,
        Err(error) => return Err(addresses.give_back(scene, error).await),
    };
    let attached = match attach(scene, wire, draft, &ips, mtu).await {
        Ok(attached) => attached,
        Err(failed) if failed.undone => return Err(addresses.give_back(scene, failed.error).await),
        Err(failed) => return Err(addresses.keep(failed.error, "something may still answer for them")),
    };
    let publish = publish(scene, draft, existing, &ips, nats, &attached);
    if let Err(unwritten) = during(Stage::Endpoint, publish).await {
        return Err(undo(scene, wire, addresses, &attached, unwritten).await);
    }
    scene.log.info(format!(
        "Wrote the endpoint of {}: {} on {}",
        scene.workload.container,
        endpoint::shown(&nets),
        attached.host_name
    ));
    let mut result = addresses.result;
    result.cni_version = scene.conf.result_version;
    let (host, mac) = (attached.host_name.to_string(), attached.pod_mac.to_string());
    let result = with_interfaces(scene, result, host, mac, attached.mtu);
    let patience = Duration::from_secs(scene.conf.policy_setup_timeout_s.into());
    let policy = PolicyWait::of(&scene.conf.endpoint_status_dir(scene.root()), &scene.workload, patience);
    Ok(Done { policy, ..Done::from(Some(result)) })
}

async fn ensure_profile(scene: &Scene<'_>) -> Result<(), CniError> {
    if !scene.conf.policy.kind.is_empty() {
        return Ok(());
    }
    let (datastore, network) = (&scene.datastore, &scene.conf.network);
    if !datastore.recent.has_profile(network) {
        let (only_from_network, asked) = (scene.workload.pod.is_none(), Instant::now());
        if profile::ensure(&*datastore.store, network, only_from_network, &SystemClock).await? {
            scene.log.fact(format!("Calico CNI creating profile: {network}"), scene.target);
        }
        datastore.recent.saw_profile(network, asked);
    }
    Ok(())
}

async fn attach(
    scene: &Scene<'_>,
    wire: &dyn Wire,
    draft: &Draft,
    ips: &[IpAddr],
    mtu: u32,
) -> Result<Attached, crate::wiring::Unattached> {
    let mut attachment = wire::attachment(scene.node, scene.conf, scene.target)?;
    attachment.addresses = ips.to_vec();
    attachment.mtu = mtu;
    attachment.mac = draft.wishes.mac;
    attachment.routes = draft.routes.clone();
    let host_name = &attachment.host_name;
    scene.log.fact(format!("Setting the host side veth name to {host_name}"), scene.target);
    let attached = wire.attach(attachment).await?;
    // What is not in force now is when the agent compares the table next; until then the pod has its own addresses.
    let allowed = wire.allow_sources(attached.host_name.clone(), draft.wishes.allowed_sources.clone());
    if let Err(error) = allowed.await {
        tracing::warn!(link = %attached.host_name, %error, "the pod sends from its own addresses only");
    }
    Ok(attached)
}

async fn publish(
    scene: &Scene<'_>,
    draft: &Draft,
    existing: Option<&Stored>,
    ips: &[IpAddr],
    nats: Vec<IpNat>,
    attached: &Attached,
) -> Result<(), endpoint::Unwritten> {
    let nets: Vec<IpNet> = ips.iter().copied().map(host_net).collect();
    let spec = draft.spec(&scene.workload, nets, nats, attached);
    let endpoint = endpoint::prepare(&scene.workload, existing, spec, &SystemClock);
    let mut endpoint = endpoint.map_err(|error| endpoint::Unwritten { error, surely: true })?;
    endpoint.metadata.labels = draft.labels.clone();
    endpoint.metadata.generate_name = draft.generate_name.clone();
    endpoint::write(&*scene.datastore.store, &scene.workload, existing, &endpoint).await
}

/// After an endpoint that could not be written: a new interface goes, and with it this request's addresses. One that was there before is a
/// running pod's.
async fn undo(
    scene: &Scene<'_>,
    wire: &dyn Wire,
    addresses: Addresses,
    attached: &Attached,
    unwritten: endpoint::Unwritten,
) -> CniError {
    let endpoint::Unwritten { error, surely } = unwritten;
    if attached.reused {
        return addresses.keep(error, "the interface was there before");
    }
    let Scene { node, workload, .. } = scene;
    let what = wire::detachment(node, workload, &workload.container, Some(attached.host_name.clone()));
    let detached = wire.detach(what).await;
    node.teardown.doomed();
    match detached {
        Ok(()) if surely => addresses.give_back(scene, error).await,
        Ok(()) => addresses.keep(error, "the endpoint may have been written"),
        Err(also) => addresses.keep(error, &also.to_string()),
    }
}

/// The addresses of the pod's previous container are those that it is to have again: they are freed, but not before nothing answers for them any more
/// (calico-cni.md section 2.5.3). Only what that container really holds is freed.
async fn release_previous(scene: &Scene<'_>, wire: &dyn Wire, stored: &Stored) -> Result<(), CniError> {
    let spec = &stored.endpoint.spec;
    let Ok(container) = spec.container_id.parse() else { return Ok(()) };
    if container == scene.workload.container {
        return Ok(());
    }
    wire.detach(previous(scene, spec, &container)).await?;
    scene.node.teardown.doomed();
    let handle = HandleId::pod(&scene.conf.network, &container);
    own_ipam::release_addresses(scene, &handle, &spec.ip_networks).await
}

/// What takes down the interface of the pod's previous container, which Calico's own plugin may have wired: then only its name says whose it is.
fn previous(scene: &Scene<'_>, spec: &WorkloadEndpointSpec, container: &ContainerId) -> Detachment {
    let ifname = spec.endpoint.parse().unwrap_or_else(|_| scene.workload.ifname.clone());
    let of_pod = |name: &IfName| {
        scene.workload.pod.as_ref().is_some_and(|pod| wire::is_of_pod(name, container, &ifname, pod))
    };
    let by_name_alone = spec.interface_name.as_ref().is_some_and(of_pod);
    let what = wire::detachment(scene.node, &scene.workload, container, spec.interface_name.clone());
    Detachment { ifname, by_name_alone, ..what }
}

/// The result's interfaces: the node's end by its name only, then the pod's (calico-cni.md section 1.10).
fn with_interfaces(
    scene: &Scene<'_>,
    mut result: CniResult,
    host: String,
    mac: String,
    mtu: u32,
) -> CniResult {
    let pod = Interface {
        name: scene.target.ifname.to_string(),
        mac,
        sandbox: scene.target.netns_path().to_owned(),
        mtu: Some(mtu),
        ..Interface::default()
    };
    result.interfaces = vec![Interface { name: host, ..Interface::default() }, pod];
    for ip in &mut result.ips {
        (ip.interface, ip.gateway) = (Some(1), None);
    }
    result
}
