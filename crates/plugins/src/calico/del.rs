//! DEL (calico-cni.md section 3.6), in an order of our own: the interface first, which needs nobody else; then the endpoint, so that nobody looks for the
//! addresses any more; then the addresses. Whatever fails, the same request again goes on from there.

use russet_addr::IpNet;
use russet_cni_spec::{CniError, Verb};

use super::{Scene, Workload, endpoint, ipam_config, own_ipam, ready, wire};
use crate::delegate::Delegate;
use crate::stages::{Stage, during};
use crate::target::Target;
use crate::{CalicoNode, failure};

/// Takes the interface down.
pub async fn detach(node: &CalicoNode, target: &Target) -> Result<(), CniError> {
    let what = wire::detachment_of(node, target);
    let detached = node.wiring.detach(what, target.netns_if_any()).await;
    node.teardown.doomed();
    detached
}

/// Endpoint and addresses.
pub async fn forget(scene: &mut Scene<'_>) -> Result<(), CniError> {
    ready::datastore(&scene.datastore).await?;
    if scene.conf.ipam.kind.is_empty() {
        refuse_others_addresses(scene).await?;
    }
    during(Stage::Endpoint, remove_endpoint(scene)).await?;
    match scene.conf.ipam.kind.as_str() {
        // What Calico's IPAM gave is known by its handle.
        "" | "calico-ipam" => own_ipam::release(scene).await,
        kind => {
            if kind == "host-local"
                && let Some(filled) = ipam_config::with_dummies(&scene.stdin)?
            {
                scene.stdin = filled;
            }
            let delegate = Delegate::new(kind, scene.request, scene.stdin.clone())?;
            during(Stage::Release, delegate.tell(Verb::Del)).await
        }
    }
}

/// Without `ipam` nothing says which plugin has to take the addresses back. Calico's are in its pools; for any other the DEL fails while the endpoint still
/// names it, and succeeds once the configuration is whole.
async fn refuse_others_addresses(scene: &Scene<'_>) -> Result<(), CniError> {
    let found = match endpoint::find(&*scene.datastore.store, &scene.workload).await {
        Ok(Some(stored)) if stored.endpoint.spec.container_id == scene.workload.container.as_str() => stored,
        Ok(_) => return Ok(()),
        Err(error) if error.code == failure::CORRUPT_RECORD => return Ok(()),
        Err(error) => return Err(error),
    };
    let held = own_ipam::held(scene).await?;
    let pools = scene.datastore.pools().await?;
    let is_calicos = |net: &IpNet| {
        held.contains(&net.addr()) || pools.iter().any(|pool| pool.spec.cidr.contains(&net.addr()))
    };
    match found.endpoint.spec.ip_networks.iter().find(|net| !is_calicos(net)) {
        None => Ok(()),
        Some(net) => {
            let msg = format!("ipam.type is missing, and {} is in no pool of Calico's", net.addr());
            let details = format!(
                "name the IPAM plugin that gave the address, and repeat the DEL; {} is kept until then",
                found.key
            );
            Err(CniError::invalid_config(msg, details))
        }
    }
}

async fn remove_endpoint(scene: &Scene<'_>) -> Result<(), CniError> {
    let store = &*scene.datastore.store;
    if endpoint::remove(store, &scene.workload, &scene.workload.container).await? {
        scene.log.info(format!("Removed the endpoint of {}", scene.workload.container));
    } else {
        let Workload { container, ifname, pod, .. } = &scene.workload;
        let prefix = scene.conf.interface_prefix.as_deref();
        // With a prefix that makes no name nothing was ever wired.
        if let Ok(host_name) = wire::host_name(prefix, container, ifname, pod.as_ref()) {
            endpoint::remove_described(store, &scene.workload, &host_name).await?;
        }
    }
    Ok(())
}
