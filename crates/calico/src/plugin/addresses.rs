//! Allocates a pod's addresses from the configured source, and releases them (calico-cni.md
//! sections 2.3 and 2.5.3).

use std::net::IpAddr;
use std::time::Duration;

use russet_addr::{Family, IpNet, host_net};
use russet_cni_spec::{CniError, CniResult, IpConfig, Verb};
use russet_model::WorkloadEndpointSpec;
use russet_wiring::stages::{self, Stage};
use russet_wiring::{Delegate, failure};
use tokio::time::Instant;

use super::RequestContext;
use super::annotations::PodOptions;
use super::own_ipam;
use crate::ipam::{Allocation, BUDGET, requested_address};

const ONE_OF_A_FAMILY: &str = "at most one address of each family is possible";

#[derive(Debug, Clone, PartialEq)]
pub enum AddressSource {
    /// The IPAM plugin chooses them.
    Ipam,
    /// The IPAM plugin allocates the address that `CNI_ARGS` request.
    Requested(IpAddr),
    /// The IPAM plugin allocates exactly these.
    Exactly(Vec<IpAddr>),
    /// These, without any IPAM plugin.
    Unmanaged(Vec<IpAddr>),
    /// Those of the container's existing endpoint.
    Existing(Vec<IpNet>),
}

/// A request's addresses, and the allocations that it made for them.
#[derive(Debug)]
pub struct Addresses {
    /// The result of the IPAM plugin; addresses are host prefixes without gateway.
    pub result: CniResult,
    taken: Vec<UndoableAllocation>,
}

/// An allocation to undo if the request fails.
#[derive(Debug)]
enum UndoableAllocation {
    Delegated(Delegate),
    Own(Allocation),
}

/// Decides where the addresses come from. `existing` is the pod's existing endpoint.
pub fn source(
    context: &RequestContext<'_>,
    pod_options: &PodOptions,
    existing: Option<&WorkloadEndpointSpec>,
) -> Result<AddressSource, CniError> {
    let own = context.conf.ipam.is_calico();
    let refused = |what: &str, why: &str| {
        Err(CniError::invalid_config(format!("the annotation {what} cannot be used"), why))
    };
    match (&pod_options.ip_addrs, &pod_options.ip_addrs_no_ipam) {
        (Some(_), Some(_)) => refused("ipAddrs", "ipAddrs and ipAddrsNoIpam exclude each other"),
        (Some(_), None) if !own => refused("ipAddrs", "it needs ipam.type calico-ipam"),
        (Some(list), None) if list.is_empty() => refused("ipAddrs", "it names no address"),
        (Some(list), None) if !one_of_a_family(list) => refused("ipAddrs", ONE_OF_A_FAMILY),
        (Some(list), None) => Ok(AddressSource::Exactly(list.clone())),
        (None, Some(_)) if !own => refused("ipAddrsNoIpam", "it needs ipam.type calico-ipam"),
        (None, Some(_)) if !context.conf.ip_addrs_no_ipam => {
            refused("ipAddrsNoIpam", "the feature is off: feature_control.ip_addrs_no_ipam is not true")
        }
        (None, Some(list)) if list.is_empty() => refused("ipAddrsNoIpam", "it names no address"),
        (None, Some(list)) if !one_of_a_family(list) => refused("ipAddrsNoIpam", ONE_OF_A_FAMILY),
        (None, Some(list)) => Ok(AddressSource::Unmanaged(list.clone())),
        (None, None) => Ok(match existing {
            // Other IPAM plugins refuse a second allocation for a container.
            Some(spec) if !own && is_of(spec, context) => AddressSource::Existing(spec.ip_networks.clone()),
            // Other IPAM plugins read `CNI_ARGS` themselves.
            _ if !own => AddressSource::Ipam,
            _ => requested_address(context.request)?.map_or(AddressSource::Ipam, AddressSource::Requested),
        }),
    }
}

fn is_of(spec: &WorkloadEndpointSpec, context: &RequestContext<'_>) -> bool {
    spec.container_id == context.workload.id.container.as_str()
        && spec.endpoint == context.workload.id.ifname.as_str()
        && !spec.ip_networks.is_empty()
}

/// Whether there is at most one address of each family.
pub fn one_of_a_family(list: &[IpAddr]) -> bool {
    Family::BOTH.iter().all(|family| list.iter().filter(|it| Family::of(**it) == *family).count() <= 1)
}

/// Allocates the addresses. If not all could be allocated, those that were are released.
pub async fn obtain(
    context: &RequestContext<'_>,
    source: &AddressSource,
    pod_options: &PodOptions,
) -> Result<Addresses, CniError> {
    let _address = stages::enter(Stage::Address);
    let obtained = match source {
        AddressSource::Ipam if context.conf.ipam.is_calico() => {
            own(context, pod_options, None, BUDGET).await?
        }
        AddressSource::Ipam => delegated(context).await?,
        AddressSource::Requested(address) => own(context, pod_options, Some(*address), BUDGET).await?,
        AddressSource::Exactly(list) => exactly(context, pod_options, list).await?,
        AddressSource::Unmanaged(list) => untaken(context, list.iter().copied().map(host_net)),
        AddressSource::Existing(nets) => untaken(context, nets.iter().copied()),
    };
    if obtained.result.ips.is_empty() {
        return Err(obtained.give_back(context, context.conf.ipam.no_addresses()).await);
    }
    Ok(obtained)
}

fn untaken(context: &RequestContext<'_>, nets: impl Iterator<Item = IpNet>) -> Addresses {
    let mut result = CniResult::empty(context.request.config.cni_version);
    result.ips = nets.map(IpConfig::new).collect();
    Addresses { result, taken: Vec::new() }
}

async fn delegated(context: &RequestContext<'_>) -> Result<Addresses, CniError> {
    let kind = context.conf.ipam.named_kind()?;
    let delegate = Delegate::new(kind, context.request, context.stdin.clone())?;
    let mut result = delegate.add().await?;
    for ip in &mut result.ips {
        *ip = IpConfig::new(host_net(ip.address.addr()));
    }
    Ok(Addresses { result, taken: vec![UndoableAllocation::Delegated(delegate)] })
}

async fn own(
    context: &RequestContext<'_>,
    pod_options: &PodOptions,
    address: Option<IpAddr>,
    budget: Duration,
) -> Result<Addresses, CniError> {
    let (result, allocation) = own_ipam::assign(context, pod_options, address, budget).await?;
    Ok(Addresses { result, taken: vec![UndoableAllocation::Own(allocation)] })
}

async fn exactly(
    context: &RequestContext<'_>,
    pod_options: &PodOptions,
    list: &[IpAddr],
) -> Result<Addresses, CniError> {
    let mut all = untaken(context, std::iter::empty());
    // One budget for all addresses: the runtime waits no longer for several than for one.
    let end = Instant::now() + BUDGET;
    for address in list {
        let left = end.saturating_duration_since(Instant::now());
        match own(context, pod_options, Some(*address), left).await {
            Ok(one) => {
                all.result.ips.extend(one.result.ips);
                all.result.routes.extend(one.result.routes);
                all.taken.extend(one.taken);
            }
            Err(error) => return Err(all.give_back(context, error).await),
        }
    }
    Ok(all)
}

// === impl Addresses ===

impl Addresses {
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.result.ips.iter().map(|ip| ip.address.addr())
    }

    /// Whether this request allocated anything.
    pub fn took_any(&self) -> bool {
        self.taken.iter().any(|taken| match taken {
            UndoableAllocation::Delegated(_) => true,
            UndoableAllocation::Own(allocation) => !allocation.existing,
        })
    }

    /// Releases what this request allocated, because of `error`. Returns `error`, extended by what
    /// could not be released.
    pub async fn give_back(self, context: &RequestContext<'_>, mut error: CniError) -> CniError {
        let _release = stages::enter(Stage::Release);
        for taken in self.taken.into_iter().rev() {
            let given = match taken {
                UndoableAllocation::Delegated(delegate) => delegate.call(Verb::Del).await,
                UndoableAllocation::Own(allocation) => own_ipam::give_back(context, &allocation).await,
            };
            if let Err(also) = given {
                error = failure::addresses_held(error, also);
            }
        }
        error
    }

    /// Keeps the allocations, because an interface may still answer for the addresses or another
    /// writer may still refer to them.
    pub fn keep(self, error: CniError, reason: &str) -> CniError {
        if self.took_any() { failure::addresses_held(error, reason) } else { error }
    }
}
