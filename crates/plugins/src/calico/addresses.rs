//! Where a pod's addresses come from, and how they are given back (calico-cni.md sections 2.3 and 2.5.3).

use std::net::IpAddr;
use std::time::Duration;

use russet_addr::{Family, IpNet, host_net};
use russet_cni_spec::{CniError, CniResult, IpConfig, Verb};
use russet_model::WorkloadEndpointSpec;
use tokio::time::Instant;

use super::Scene;
use super::annotations::Wishes;
use super::own_ipam;
use crate::calico_ipam::{Allocation, BUDGET, requested_address};
use crate::delegate::Delegate;
use crate::stages::{self, Stage};

/// What a pod may name.
const ONE_OF_A_FAMILY: &str = "at most one address of each family is possible";

/// Where addresses come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// The IPAM plugin chooses them.
    Ipam,
    /// The IPAM plugin gives the one that `CNI_ARGS` request.
    Requested(IpAddr),
    /// The IPAM plugin gives exactly these.
    Exactly(Vec<IpAddr>),
    /// Nobody is asked.
    Unmanaged(Vec<IpAddr>),
    /// The container's endpoint has them already.
    Kept(Vec<IpNet>),
}

/// Addresses, and what this request did to get them.
#[derive(Debug)]
pub struct Addresses {
    /// What the IPAM plugin said; each address stands alone, without gateway.
    pub result: CniResult,
    taken: Vec<Taken>,
}

/// What is to be undone when the request fails.
#[derive(Debug)]
enum Taken {
    Delegated(Delegate),
    Own(Allocation),
}

/// Decides. `existing` is the endpoint that the pod has already.
pub fn source(
    scene: &Scene<'_>,
    wishes: &Wishes,
    existing: Option<&WorkloadEndpointSpec>,
) -> Result<Source, CniError> {
    let own = scene.conf.ipam.is_calico();
    let refused = |what: &str, why: &str| {
        Err(CniError::invalid_config(format!("the annotation {what} cannot be used"), why))
    };
    match (&wishes.ip_addrs, &wishes.ip_addrs_no_ipam) {
        (Some(_), Some(_)) => refused("ipAddrs", "ipAddrs and ipAddrsNoIpam exclude each other"),
        (Some(_), None) if !own => refused("ipAddrs", "it needs ipam.type calico-ipam"),
        (Some(list), None) if list.is_empty() => refused("ipAddrs", "it names no address"),
        (Some(list), None) if !one_of_a_family(list) => refused("ipAddrs", ONE_OF_A_FAMILY),
        (Some(list), None) => Ok(Source::Exactly(list.clone())),
        (None, Some(_)) if !own => refused("ipAddrsNoIpam", "it needs ipam.type calico-ipam"),
        (None, Some(_)) if !scene.conf.ip_addrs_no_ipam => {
            refused("ipAddrsNoIpam", "the feature is off: feature_control.ip_addrs_no_ipam is not true")
        }
        (None, Some(list)) if list.is_empty() => refused("ipAddrsNoIpam", "it names no address"),
        (None, Some(list)) if !one_of_a_family(list) => refused("ipAddrsNoIpam", ONE_OF_A_FAMILY),
        (None, Some(list)) => Ok(Source::Unmanaged(list.clone())),
        (None, None) => Ok(match existing {
            // Other plugins refuse to give a container addresses twice.
            Some(spec) if !own && is_of(spec, scene) => Source::Kept(spec.ip_networks.clone()),
            // Other plugins read `CNI_ARGS` themselves.
            _ if !own => Source::Ipam,
            _ => requested_address(scene.request)?.map_or(Source::Ipam, Source::Requested),
        }),
    }
}

fn is_of(spec: &WorkloadEndpointSpec, scene: &Scene<'_>) -> bool {
    spec.container_id == scene.workload.container.as_str()
        && spec.endpoint == scene.workload.ifname.as_str()
        && !spec.ip_networks.is_empty()
}

/// Whether no family has more than one of these.
pub fn one_of_a_family(list: &[IpAddr]) -> bool {
    Family::BOTH.iter().all(|family| list.iter().filter(|it| Family::of(**it) == *family).count() <= 1)
}

/// Gets them. What was taken is given back if not all could be had.
pub async fn obtain(scene: &Scene<'_>, source: &Source, wishes: &Wishes) -> Result<Addresses, CniError> {
    let _address = stages::enter(Stage::Address);
    let obtained = match source {
        Source::Ipam if scene.conf.ipam.is_calico() => own(scene, wishes, None, BUDGET).await?,
        Source::Ipam => delegated(scene).await?,
        Source::Requested(address) => own(scene, wishes, Some(*address), BUDGET).await?,
        Source::Exactly(list) => exactly(scene, wishes, list).await?,
        Source::Unmanaged(list) => untaken(scene, list.iter().copied().map(host_net)),
        Source::Kept(nets) => untaken(scene, nets.iter().copied()),
    };
    if obtained.result.ips.is_empty() {
        let details = format!("ipam.type is {:?}", scene.conf.ipam.kind);
        let error =
            CniError::new(crate::failure::NO_ADDRESS, "IPAM plugin did not return any IP addresses", details);
        return Err(obtained.give_back(scene, error).await);
    }
    Ok(obtained)
}

fn untaken(scene: &Scene<'_>, nets: impl Iterator<Item = IpNet>) -> Addresses {
    let mut result = CniResult::empty(scene.request.config.cni_version);
    result.ips = nets.map(IpConfig::new).collect();
    Addresses { result, taken: Vec::new() }
}

async fn delegated(scene: &Scene<'_>) -> Result<Addresses, CniError> {
    let kind = &scene.conf.ipam.kind;
    if kind.is_empty() {
        let details = "name an IPAM plugin: \"calico-ipam\", \"host-local\"";
        return Err(CniError::invalid_config("ipam.type is missing", details));
    }
    let delegate = Delegate::new(kind, scene.request, scene.stdin.clone())?;
    let mut result = delegate.add().await?;
    for ip in &mut result.ips {
        *ip = IpConfig::new(host_net(ip.address.addr()));
    }
    Ok(Addresses { result, taken: vec![Taken::Delegated(delegate)] })
}

async fn own(
    scene: &Scene<'_>,
    wishes: &Wishes,
    address: Option<IpAddr>,
    budget: Duration,
) -> Result<Addresses, CniError> {
    let (result, allocation) = own_ipam::assign(scene, wishes, address, budget).await?;
    Ok(Addresses { result, taken: vec![Taken::Own(allocation)] })
}

async fn exactly(scene: &Scene<'_>, wishes: &Wishes, list: &[IpAddr]) -> Result<Addresses, CniError> {
    let mut all = untaken(scene, std::iter::empty());
    // One budget for all of them: the runtime waits no longer for many than for one.
    let end = Instant::now() + BUDGET;
    for address in list {
        let left = end.saturating_duration_since(Instant::now());
        match own(scene, wishes, Some(*address), left).await {
            Ok(one) => {
                all.result.ips.extend(one.result.ips);
                all.result.routes.extend(one.result.routes);
                all.taken.extend(one.taken);
            }
            Err(error) => return Err(all.give_back(scene, error).await),
        }
    }
    Ok(all)
}

// === impl Addresses ===

impl Addresses {
    /// The addresses.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.result.ips.iter().map(|ip| ip.address.addr())
    }

    /// Whether there is anything to give back.
    pub fn took_any(&self) -> bool {
        self.taken.iter().any(|taken| match taken {
            Taken::Delegated(_) => true,
            Taken::Own(allocation) => !allocation.existing,
        })
    }

    /// Gives back what this very request took, because of `error`, which is told on.
    pub async fn give_back(self, scene: &Scene<'_>, mut error: CniError) -> CniError {
        let _release = stages::enter(Stage::Release);
        for taken in self.taken.into_iter().rev() {
            let given = match taken {
                Taken::Delegated(delegate) => delegate.tell(Verb::Del).await,
                Taken::Own(allocation) => own_ipam::give_back(scene, &allocation).await,
            };
            if let Err(also) = given {
                error = held(error, &also.to_string());
            }
        }
        error
    }

    /// Leaves them taken, because something may still answer for them, or somebody may still look for them there.
    pub fn keep(self, error: CniError, reason: &str) -> CniError {
        if self.took_any() { held(error, reason) } else { error }
    }
}

fn held(mut error: CniError, reason: &str) -> CniError {
    let separator = if error.details.is_empty() { "" } else { "; " };
    error.details = format!("{}{separator}its addresses are still held until DEL: {reason}", error.details);
    error
}
