//! DEL: releases what the interface holds, and what older plugins allocated for its pod
//! (calico-ipam.md section 4.3). That something does not exist is no error.

use std::collections::BTreeSet;
use std::net::IpAddr;

use russet_cni_spec::CniError;
use russet_ipam::{Allocator, Held, IpamError, Released};
use russet_model::{HandleId, Prefix, WorkloadEndpoint};
use russet_store::Store;
use russet_wiring::stages::{self, Stage};
use russet_wiring::{RequestLog, failure};

use super::Subject;
use super::assign::{BUDGET, within};
use crate::conf::CalicoConf;
use crate::datastore::{CalicoHost, Datastore};

/// Tries both handles even if the first fails; the first error is returned.
pub(crate) async fn release(
    host: &CalicoHost,
    datastore: &Datastore,
    conf: &CalicoConf,
    subject: &Subject,
    log: &RequestLog,
) -> Result<(), CniError> {
    let _release = stages::enter(Stage::Release);
    log.info(format!("Releasing address using handleID HandleID={}", subject.handle()));
    let _lock = host.locks().take(&conf.ipam_lock_file(&host.root), log).await;
    let released = tokio::time::timeout(BUDGET, release_both(datastore, subject, log)).await;
    let late = |_| {
        let details = "what is not released yet is found by the next DEL";
        CniError::try_again_later(format!("the datastore was too slow: not done within {BUDGET:?}"), details)
    };
    released.map_err(late)?.map_err(|error| failure::ipam("the pod's addresses could not be released", error))
}

async fn release_both(datastore: &Datastore, subject: &Subject, log: &RequestLog) -> Result<(), IpamError> {
    let allocator = within(&datastore.allocator, BUDGET);
    let handle = subject.handle();
    let first = allocator.release_by_handle(&handle, Some(&subject.id.ifname)).await.map(|released| {
        log_unreadable(&released, log);
        match released.addresses.as_slice() {
            [] => {
                log.warn(format!("Asked to release address but it doesn't exist. Ignoring HandleID={handle}"))
            }
            some => log.info(format!("Released address using handleID HandleID={handle} addresses={some:?}")),
        }
    });
    let second = match subject.legacy_handle() {
        Some(legacy) => release_legacy(&*datastore.store, &allocator, &legacy, subject, log).await,
        None => Ok(()),
    };
    first.and(second)
}

/// Releases what the workload ID holds, except addresses that were evidently allocated for
/// something else, and addresses that a newer container of the pod uses: v1 gave a pod the same
/// address again in every sandbox.
async fn release_legacy(
    store: &dyn Store,
    allocator: &Allocator,
    handle: &HandleId,
    subject: &Subject,
    log: &RequestLog,
) -> Result<(), IpamError> {
    log.info(format!("Releasing address using workloadID Workload={handle}"));
    let held = allocator.ips_to_free(handle).await?;
    let used = if held.is_empty() { BTreeSet::new() } else { used_by_others(store, subject).await? };
    let (ours, others): (Vec<Held>, Vec<Held>) =
        held.into_iter().partition(|held| subject.may_hold(handle, held) && !used.contains(&held.address));
    if !others.is_empty() {
        log.warn(format!("handle={handle} also holds addresses of others, which stay"));
    } else if !subject.is_ambiguous(handle) {
        let released = allocator.release_by_handle(handle, None).await?;
        log_unreadable(&released, log);
        if !released.addresses.is_empty() {
            let addresses = released.addresses;
            log.info(format!("Released address using workloadID Workload={handle} addresses={addresses:?}"));
        }
        return Ok(());
    }
    allocator.release_held(handle, ours).await
}

/// Addresses that endpoints of the pod name for other containers.
async fn used_by_others(store: &dyn Store, subject: &Subject) -> Result<BTreeSet<IpAddr>, IpamError> {
    let Some(pod) = &subject.pod else { return Ok(BTreeSet::new()) };
    let all = Prefix::workload_endpoints();
    let listed = store.list(&Prefix::from_stored(format!("{}{}/", all.as_str(), pod.namespace))).await;
    let listed = listed
        .map_err(|source| IpamError::Store { operation: "read the pod's endpoints".to_owned(), source })?;
    let specs =
        listed.records.iter().filter_map(|record| Some(WorkloadEndpoint::decode(&record.value).ok()?.spec));
    let others =
        specs.filter(|spec| spec.pod == pod.name && spec.container_id != subject.id.container.as_str());
    Ok(others.flat_map(|spec| spec.ip_networks).map(|net| net.addr()).collect())
}

/// Logs unreadable records instead of failing: otherwise the pod could not be deleted until an
/// operator repairs the datastore.
fn log_unreadable(released: &Released, log: &RequestLog) {
    for record in &released.unreadable {
        log.error(format!("{record}. What only this record knows of is not released"));
    }
}
