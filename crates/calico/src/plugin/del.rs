//! DEL (calico-cni.md section 3.6). The interface goes first, because that needs no datastore; then
//! the endpoint, so that no peer uses the addresses any more; then the addresses. After a failure,
//! the same request continues from there.

use russet_addr::IpNet;
use russet_cni_spec::{CniError, Verb};
use russet_wiring::stages::{Stage, during};
use russet_wiring::{Delegate, Target, failure};

use super::{RequestContext, Workload, endpoint, ipam_config, own_ipam, ready, wire};
use crate::CalicoNode;

/// Removes the interface.
pub async fn detach(node: &CalicoNode, target: &Target) -> Result<(), CniError> {
    let what = wire::detachment_of(node, target);
    let detached = node.wiring.detach(what, target.netns_if_any()).await;
    node.teardown.doomed();
    detached
}

/// Removes the endpoint and releases the addresses.
pub async fn remove_records(context: &mut RequestContext<'_>) -> Result<(), CniError> {
    ready::datastore(&context.datastore).await?;
    if context.conf.ipam.kind.is_empty() {
        refuse_others_addresses(context).await?;
    }
    during(Stage::Endpoint, remove_endpoint(context)).await?;
    match context.conf.ipam.kind.as_str() {
        // Allocations of Calico's IPAM are found by their handle, whatever the configuration says.
        "" | "calico-ipam" => own_ipam::release(context).await,
        kind => {
            if kind == "host-local"
                && let Some(filled) = ipam_config::with_catch_all_cidrs(&context.stdin)?
            {
                context.stdin = filled;
            }
            let delegate = Delegate::new(kind, context.request, context.stdin.clone())?;
            during(Stage::Release, delegate.call(Verb::Del)).await
        }
    }
}

/// Without `ipam` in the configuration, it is unknown which plugin must release the addresses.
/// Addresses of Calico are in its pools; for others the DEL fails while the endpoint still names
/// them, and succeeds once the configuration is complete.
async fn refuse_others_addresses(context: &RequestContext<'_>) -> Result<(), CniError> {
    let found = match endpoint::find(&*context.datastore.store, &context.workload).await {
        Ok(Some(stored)) if stored.endpoint.spec.container_id == context.workload.id.container.as_str() => {
            stored
        }
        Ok(_) => return Ok(()),
        Err(error) if error.code == failure::CORRUPT_RECORD => return Ok(()),
        Err(error) => return Err(error),
    };
    let held = own_ipam::held(context).await?;
    let pools = context.datastore.pools().await?;
    let is_calicos = |net: &IpNet| {
        held.contains(&net.addr()) || pools.iter().any(|pool| pool.spec.cidr.contains(&net.addr()))
    };
    match found.endpoint.spec.ip_networks.iter().find(|net| !is_calicos(net)) {
        None => Ok(()),
        Some(net) => {
            let msg = format!("ipam.type is missing, and {} is in no pool of Calico's", net.addr());
            let details = format!(
                "name the IPAM plugin that gave the address, and repeat the DEL; {} stays until then",
                found.key
            );
            Err(CniError::invalid_config(msg, details))
        }
    }
}

async fn remove_endpoint(context: &RequestContext<'_>) -> Result<(), CniError> {
    let store = &*context.datastore.store;
    if endpoint::remove(store, &context.workload, &context.workload.id.container).await? {
        context.log.info(format!("Removed the endpoint of {}", context.workload.id.container));
    } else {
        let Workload { id, pod, .. } = &context.workload;
        let prefix = context.conf.interface_prefix.as_deref();
        // With a prefix that yields no valid name, nothing was ever wired.
        if let Ok(host_name) = wire::host_name(prefix, id, pod.as_ref()) {
            endpoint::remove_described(store, &context.workload, &host_name).await?;
        }
    }
    Ok(())
}
