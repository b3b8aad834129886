//! DEL (calico-cni.md section 3.6), in an order of our own: the interface first, which needs nobody else; then the endpoint, so that nobody looks for the
//! addresses any more; then the addresses. Whatever fails, the same request again goes on from there.

use russet_cni_spec::{CniError, Verb};

use super::pod_cidr::{self, PodCidrs};
use super::{Scene, Workload, endpoint, own_ipam, ready, wire};
use crate::CalicoNode;
use crate::delegate::Delegate;
use crate::stages::{Stage, during};
use crate::target::Target;

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
    during(Stage::Endpoint, remove_endpoint(scene)).await?;
    match scene.conf.ipam.kind.as_str() {
        "" => Ok(()),
        "calico-ipam" => own_ipam::release(scene).await,
        kind => {
            if kind == "host-local" && pod_cidr::wanted(&scene.ipam()?) {
                scene.fill(&PodCidrs::dummies())?;
            }
            let delegate = Delegate::new(kind, scene.request, scene.stdin.clone())?;
            during(Stage::Release, delegate.tell(Verb::Del)).await
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
