//! ADD: allocates addresses for one interface of one container (calico-ipam.md section 4.2).

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use russet_addr::{Family, IpNet};
use russet_cni_spec::CniError;
use russet_ipam::{Allocator, Assigned, IpamError, Request as AddressRequest, TIMESTAMP};
use russet_model::{HandleId, time};
use russet_wiring::stages::{Stage, during};
use russet_wiring::{RequestLog, failure};

use super::{IpamRequest, Subject, Wanted, pools, shown};
use crate::conf::CalicoConf;
use crate::datastore::{CalicoHost, Datastore};

/// The allocation of an ADD.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Allocation {
    /// Chosen addresses have their block's prefix length, requested ones /32 or /128.
    pub(crate) addresses: Vec<IpNet>,
    /// Whether an earlier ADD of the same interface had allocated them.
    pub(crate) existing: bool,
    handle: HandleId,
    mark: String,
}

/// How long the work on addresses may take once the lock is held, for ADD as for DEL
/// (calico-ipam.md section 2.2).
pub(crate) const BUDGET: Duration = Duration::from_secs(90);
/// How long releasing them may take after that; peers have the same limit.
const GRACE: Duration = Duration::from_secs(30);

/// Allocates the request's addresses, or returns those that the interface has already. All or
/// nothing.
pub(crate) async fn assign(
    host: &CalicoHost,
    datastore: &Datastore,
    conf: &CalicoConf,
    request: &IpamRequest,
    log: &RequestLog,
) -> Result<Allocation, CniError> {
    during(Stage::Address, assign_in_time(host, datastore, conf, request, log)).await
}

async fn assign_in_time(
    host: &CalicoHost,
    datastore: &Datastore,
    conf: &CalicoConf,
    request: &IpamRequest,
    log: &RequestLog,
) -> Result<Allocation, CniError> {
    let IpamRequest { node, subject, wanted, budget } = request;
    subject.refuse_bad_parts(node)?;
    let handle = subject.handle();
    let mark = time::go_timestamp(SystemTime::now());
    let asked = AddressRequest::pod(node.clone(), handle.clone()).with(TIMESTAMP, mark.clone());
    let mut asked = asked.with_owner(&subject.id.ifname, subject.pod_names());
    asked.registered_node = datastore.registers_nodes();
    let assigned = match wanted {
        Wanted::Address(address) => {
            log.info(format!("Calico CNI IPAM request IP: {address}"));
            log.info(format!("Calico CNI IPAM handle={handle}"));
            let _lock = host.locks().take(&conf.ipam_lock_file(&host.root), log).await;
            let allocator = within(&datastore.allocator, *budget);
            let work = allocator.assign_ip(&asked, *address);
            let assigned = in_time(datastore, &handle, &mark, *budget, work).await?;
            assigned.map_err(|error| refused(&format!("failed to assign IP {address}"), error))?
        }
        Wanted::Families { .. } => {
            describe(datastore, subject, wanted, &mut asked, log).await?;
            log.info(format!("Calico CNI IPAM handle={handle}"));
            let _lock = host.locks().take(&conf.ipam_lock_file(&host.root), log).await;
            let allocator = within(&datastore.allocator, *budget);
            let work = allocator.auto_assign(&asked);
            in_time(datastore, &handle, &mark, *budget, work).await?.map_err(short)?
        }
    };
    let Assigned { addresses, existing } = assigned;
    let (v4, v6) = (shown(&addresses, Family::V4), shown(&addresses, Family::V6));
    if existing {
        log.info(format!("Calico CNI IPAM: interface {} has its addresses already", subject.id.ifname));
    }
    log.info(format!("Calico CNI IPAM assigned addresses IPv4={v4} IPv6={v6}"));
    Ok(Allocation { addresses, existing, handle, mark })
}

/// Runs `work` within `budget`. After a timeout its progress is unknown: allocations that it
/// committed are looked for and released, and those that arrive even later are left to DEL.
async fn in_time<T>(
    datastore: &Datastore,
    handle: &HandleId,
    mark: &str,
    budget: Duration,
    work: impl Future<Output = T>,
) -> Result<T, CniError> {
    if let Ok(done) = tokio::time::timeout(budget, work).await {
        return Ok(done);
    }
    let undone = tokio::time::timeout(GRACE, release_of_request(datastore, handle, mark)).await;
    let also = match undone {
        Ok(Ok(())) => "what it had taken was given back".to_owned(),
        Ok(Err(error)) => format!("and may hold addresses until DEL: {error}"),
        Err(_elapsed) => "and may hold addresses until DEL: the datastore does not answer".to_owned(),
    };
    Err(CniError::try_again_later(format!("the datastore was too slow: no address within {budget:?}"), also))
}

/// The allocator with a time limit for one request.
pub(crate) fn within(allocator: &Allocator, budget: Duration) -> Allocator {
    allocator.until(SystemTime::now() + budget)
}

/// Sets families, pools and labels of the request.
async fn describe(
    datastore: &Datastore,
    subject: &Subject,
    wanted: &Wanted,
    asked: &mut AddressRequest,
    log: &RequestLog,
) -> Result<(), CniError> {
    let Wanted::Families { v4, v6, v4_pools, v6_pools } = wanted else { return Ok(()) };
    (asked.v4, asked.v6) = (u32::from(*v4), u32::from(*v6));
    log.info(format!("Calico CNI IPAM request count IPv4={} IPv6={}", asked.v4, asked.v6));
    asked.pools4 = pools::resolve(datastore, Family::V4, v4_pools).await?;
    asked.pools6 = pools::resolve(datastore, Family::V6, v6_pools).await?;
    log.debug(format!("pools IPv4={:?} IPv6={:?}", asked.pools4, asked.pools6));
    if let Some(pod) = &subject.pod {
        asked.namespace_labels = pools::namespace_labels(datastore, &pod.namespace, log).await?;
    }
    Ok(())
}

/// Releases what the ADD of `allocation` allocated itself, for a main plugin that failed later;
/// addresses of an earlier ADD stay.
pub(crate) async fn give_back(datastore: &Datastore, allocation: &Allocation) -> Result<(), CniError> {
    during(Stage::Release, release_of_request(datastore, &allocation.handle, &allocation.mark)).await
}

async fn release_of_request(datastore: &Datastore, handle: &HandleId, mark: &str) -> Result<(), CniError> {
    let failed = |error| failure::ipam("the addresses could not be given back; DEL will do it", error);
    within(&datastore.allocator, BUDGET).release_of_request(handle, mark).await.map_err(failed)
}

/// The error in the words of Go's plugins if a family has too few addresses (calico-ipam.md section
/// 4.2).
fn short(error: IpamError) -> CniError {
    let family = match &error {
        IpamError::PoolExhausted { family, .. }
        | IpamError::BlockLimit { family, .. }
        | IpamError::StrictAffinity { family, .. }
        | IpamError::AutoAllocateOff { family, .. } => Some(*family),
        _ => None,
    };
    match family {
        Some(family) => refused(&format!("failed to request {family} addresses"), error),
        None => refused("failed to request addresses", error),
    }
}

/// The allocator's reason becomes part of the message: Go's plugins have no details, and their
/// users look for these words in the message.
fn refused(what: &str, error: IpamError) -> CniError {
    if let IpamError::NodeUnknown { node, .. } = &error {
        return failure::unknown_node(node);
    }
    let msg = format!("{what}: {error}");
    CniError { details: String::new(), ..failure::ipam(&msg, error) }
}

impl Allocation {
    pub(crate) fn hosts(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(IpNet::addr)
    }
}
