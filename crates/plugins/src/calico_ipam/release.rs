//! DEL: what one interface holds goes back, and what older plugins took for its pod (calico-ipam.md section 4.3). Nothing that is not there is an error.

use russet_cni_spec::CniError;
use russet_ipam::{Allocator, Held, IpamError, ReleaseOptions};
use russet_model::HandleId;

use super::Subject;
use super::assign::{BUDGET, within};
use crate::calico_conf::CalicoConf;
use crate::datastore::{CalicoHost, Datastore};
use crate::failure;
use crate::request_log::RequestLog;

/// Both handles are tried whatever happens to the first; the first error is told.
pub(crate) async fn release(
    host: &CalicoHost,
    datastore: &Datastore,
    conf: &CalicoConf,
    subject: &Subject,
    log: &RequestLog,
) -> Result<(), CniError> {
    log.info(format!("Releasing address using handleID HandleID={}", subject.handle()));
    let _lock = host.locks().take(&conf.ipam_lock_file(&host.root), log).await;
    let released = tokio::time::timeout(BUDGET, release_both(&datastore.allocator, subject, log)).await;
    let late = |_| {
        let details = "what is not released yet is found by the next DEL";
        CniError::try_again_later(format!("the datastore was too slow: not done within {BUDGET:?}"), details)
    };
    released.map_err(late)?.map_err(|error| failure::ipam("the pod's addresses could not be released", error))
}

async fn release_both(allocator: &Allocator, subject: &Subject, log: &RequestLog) -> Result<(), IpamError> {
    let allocator = within(allocator);
    let handle = subject.handle();
    let first = allocator.release_by_handle(&handle, Some(&subject.ifname)).await.map(|released| {
        match released.addresses.as_slice() {
            [] => {
                log.warn(format!("Asked to release address but it doesn't exist. Ignoring HandleID={handle}"))
            }
            some => log.info(format!("Released address using handleID HandleID={handle} addresses={some:?}")),
        }
    });
    let second = match subject.legacy_handle() {
        Some(legacy) => release_legacy(&allocator, &legacy, subject, log).await,
        None => Ok(()),
    };
    first.and(second)
}

/// What the workload ID holds, except for what was evidently taken for something else.
async fn release_legacy(
    allocator: &Allocator,
    handle: &HandleId,
    subject: &Subject,
    log: &RequestLog,
) -> Result<(), IpamError> {
    log.info(format!("Releasing address using workloadID Workload={handle}"));
    let held = allocator.ips_by_handle(handle).await?;
    let (ours, others): (Vec<Held>, Vec<Held>) = held.into_iter().partition(|held| subject.may_hold(held));
    if !others.is_empty() {
        log.warn(format!("handle={handle} also holds addresses of others, which stay"));
    }
    if others.is_empty() {
        let released = allocator.release_by_handle(handle, None).await?;
        if !released.addresses.is_empty() {
            let addresses = released.addresses;
            log.info(format!("Released address using workloadID Workload={handle} addresses={addresses:?}"));
        }
        return Ok(());
    }
    let options = |held: Held| ReleaseOptions {
        address: held.address,
        handle: Some(handle.clone()),
        sequence_number: Some(held.sequence_number),
    };
    let options: Vec<ReleaseOptions> = ours.into_iter().map(options).collect();
    if options.is_empty() { Ok(()) } else { allocator.release_ips(&options).await.map(drop) }
}
