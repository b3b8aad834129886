//! GC: takes down what is in a network on this node and in nobody's list, and removes its endpoints and addresses. Blocks and endpoints are shared with
//! peers, so that only handles of this network and endpoints of this node are touched (calico-cni.md section 3.7).

use std::collections::BTreeSet;

use russet_addr::{ContainerId, NodeName};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, Verb};
use russet_model::{Prefix, WorkloadEndpoint};
use russet_store::{Step, Store};

use crate::calico_conf::CalicoConf;
use crate::delegate::Delegate;
use crate::gc;
use crate::{CalicoNode, Datastore, failure};

/// Carries out a GC. Interfaces go first: what could not be taken down may still answer for its address.
pub async fn run(node: &CalicoNode, request: &Request, conf: &CalicoConf) -> Result<(), CniError> {
    let Some(valid) = request.config.valid_attachments()? else { return Ok(()) };
    conf.require_nodename_file(&node.host.root)?;
    let choice = conf.node_choice(&node.host.root)?;
    let Datastore { store, allocator, .. } = node.host.datastore(conf).await?;
    let name = choice.resolve(&*store).await?;
    let (mut containers, errors) =
        gc::detach_stale(&node.wiring, &node.teardown, &conf.network, &valid).await?;
    if !errors.is_empty() {
        let msg = "some of what is no longer valid is still there";
        return Err(CniError::new(failure::WIRING, msg, errors.join("; ")));
    }
    let addresses = gc::stale_addresses(&allocator, &name, &conf.network, &valid).await?;
    let addresses = gc::unused(&*store, addresses, &valid).await?;
    let handles = addresses.iter().filter_map(|address| address.handle.as_ref());
    containers.extend(handles.filter_map(|handle| gc::container_of(handle, &conf.network)));
    containers.retain(|container| valid.iter().all(|kept| kept.container_id != *container));
    remove_endpoints(&*store, &name, &containers).await?;
    let released = allocator.release_ips(&addresses).await;
    released.map_err(|error| failure::ipam("addresses that are no longer valid are still held", error))?;
    match conf.ipam.kind.as_str() {
        "" | "calico-ipam" => Ok(()),
        kind => Delegate::new(kind, request, request.stdin.clone()).tell(Verb::Gc).await,
    }
}

/// Removes the endpoints of these containers on this node; one that somebody changes meanwhile is looked at by the next GC.
async fn remove_endpoints(
    store: &dyn Store,
    node: &NodeName,
    containers: &BTreeSet<ContainerId>,
) -> Result<(), CniError> {
    if containers.is_empty() {
        return Ok(());
    }
    let msg = "endpoints that are no longer valid could not be removed";
    let failed = |error| failure::store(msg, &error, &error);
    for record in store.list(&Prefix::workload_endpoints()).await.map_err(failed)?.records {
        let Ok(endpoint) = WorkloadEndpoint::decode(&record.value) else { continue };
        let stale = |id: &str| id.parse().is_ok_and(|id: ContainerId| containers.contains(&id));
        if endpoint.spec.node != node.as_str() || !stale(&endpoint.spec.container_id) {
            continue;
        }
        let delete = Step::delete(record.key, Some(record.revision));
        if let Err(error) = store.commit(vec![delete]).await.map_err(|failed| failed.error)
            && !error.lost_race()
        {
            return Err(failed(error));
        }
    }
    Ok(())
}
