//! GC: removes interfaces, endpoints and addresses of a network on this node that are not in the
//! request's list of valid attachments. Blocks and endpoints are shared with peers, so only handles
//! of this network and endpoints of this node are touched (calico-cni.md section 3.7).

use std::collections::BTreeSet;
use std::net::IpAddr;

use russet_addr::{ContainerId, IfName, NodeName};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, Verb};
use russet_model::{Prefix, WorkloadEndpoint, WorkloadEndpointSpec};
use russet_store::{Step, Store};
use russet_wiring::{Delegate, failure, gc};

use crate::conf::CalicoConf;
use crate::{CalicoNode, Datastore};

/// Runs a GC. Interfaces go first: one that could not be removed may still answer for its address.
pub async fn run(node: &CalicoNode, request: &Request, conf: &CalicoConf) -> Result<(), CniError> {
    let valid = request.config.required_attachments()?;
    conf.require_nodename_file(&node.host.root)?;
    let choice = conf.node_choice(&node.host.root)?;
    let Datastore { store, allocator, .. } = node.host.datastore(conf).await?;
    let name = choice.resolve(&*store).await?;
    let (links, errors) = gc::detach_stale(&node.wiring, &node.teardown, &conf.network, &valid).await?;
    if !errors.is_empty() {
        let msg = "attachments that are no longer valid could not be removed";
        return Err(CniError::new(failure::WIRING, msg, errors.join("; ")));
    }
    let addresses = gc::stale_addresses(&allocator, &name, &conf.network, &valid).await?;
    let addresses = gc::unused(&*store, addresses, &valid).await?;
    let held = addresses.iter().filter_map(|it| {
        let container = gc::container_of(it.handle.as_ref()?, &conf.network)?;
        Some((container, it.address))
    });
    let mut stale = Stale { links, addresses: held.collect() };
    stale.remove_if(|container| valid.iter().any(|it| it.container == *container));
    remove_endpoints(&*store, &name, &stale).await?;
    let released = allocator.release_ips(&addresses).await;
    released.map_err(|error| failure::ipam("addresses that are no longer valid are still held", error))?;
    match conf.ipam.kind.as_str() {
        "" | "calico-ipam" => Ok(()),
        kind => Delegate::new(kind, request, request.stdin.clone())?.call(Verb::Gc).await,
    }
}

/// Stale attachments: each container with the name of its host interface, and with an address that
/// it holds.
#[derive(Debug, Default)]
struct Stale {
    links: BTreeSet<(ContainerId, String)>,
    addresses: BTreeSet<(ContainerId, IpAddr)>,
}

// === impl Stale ===

impl Stale {
    /// Removes containers from the stale ones.
    fn remove_if(&mut self, is_valid: impl Fn(&ContainerId) -> bool) {
        self.links.retain(|(container, _)| !is_valid(container));
        self.addresses.retain(|(container, _)| !is_valid(container));
    }

    /// Whether an endpoint describes one of these. The container alone is not enough: it may be in
    /// other networks, which have their own lists of valid attachments.
    fn is_described_by(&self, spec: &WorkloadEndpointSpec) -> bool {
        let Ok(container) = spec.container_id.parse::<ContainerId>() else { return false };
        let link = |name: &IfName| self.links.contains(&(container.clone(), name.to_string()));
        spec.interface_name.as_ref().is_some_and(link)
            || spec.ip_networks.iter().any(|net| self.addresses.contains(&(container.clone(), net.addr())))
    }
}

/// Removes the endpoints of this node that describe stale attachments. An endpoint that another
/// writer changes meanwhile is left to the next GC.
async fn remove_endpoints(store: &dyn Store, node: &NodeName, stale: &Stale) -> Result<(), CniError> {
    if stale.links.is_empty() && stale.addresses.is_empty() {
        return Ok(());
    }
    let msg = "endpoints that are no longer valid could not be removed";
    let failed = |error| failure::store(msg, &error, &error);
    for record in store.list(&Prefix::workload_endpoints()).await.map_err(failed)?.records {
        let Ok(endpoint) = WorkloadEndpoint::decode(&record.value) else { continue };
        if endpoint.spec.node != node.as_str() || !stale.is_described_by(&endpoint.spec) {
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

#[cfg(test)]
mod tests {
    use russet_model::Key;
    use russet_store::Sim;

    use super::*;

    /// The endpoints of container `c1` that are left, of one for each of two networks.
    fn left(stale: &Stale) -> Vec<&'static str> {
        let endpoints =
            [("eth0", "calia4fc3c48bd8", "10.1.0.7/32"), ("net1", "calib0000000001", "10.2.0.7/32")];
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let store = Sim::atomic(1);
            let node: NodeName = "n1".parse().unwrap();
            let key = |name: &str| Key::workload_endpoint("shop", &format!("n1-k8s-web-{name}")).unwrap();
            for (name, host_name, net) in endpoints {
                let spec = WorkloadEndpointSpec {
                    node: node.to_string(),
                    container_id: "c1".into(),
                    endpoint: name.into(),
                    interface_name: Some(host_name.parse().unwrap()),
                    ip_networks: vec![net.parse().unwrap()],
                    ..WorkloadEndpointSpec::default()
                };
                let endpoint = WorkloadEndpoint::new(format!("n1-k8s-web-{name}"), spec);
                store.commit(vec![Step::create(key(name), endpoint.encode())]).await.unwrap();
            }
            remove_endpoints(&store, &node, stale).await.unwrap();
            let records = store.records();
            endpoints.iter().map(|it| it.0).filter(|name| records.contains_key(&key(name))).collect()
        })
    }

    #[test]
    fn a_stale_attachment_takes_only_the_endpoint_that_describes_it() {
        let container = || "c1".parse::<ContainerId>().unwrap();
        let link = BTreeSet::from([(container(), "calib0000000001".to_owned())]);
        assert_eq!(left(&Stale { links: link, ..Stale::default() }), ["eth0"]);
        let address = BTreeSet::from([(container(), "10.2.0.7".parse().unwrap())]);
        assert_eq!(left(&Stale { addresses: address, ..Stale::default() }), ["eth0"]);
        let other = BTreeSet::from([("c2".parse().unwrap(), "calib0000000001".to_owned())]);
        assert_eq!(left(&Stale { links: other, ..Stale::default() }), ["eth0", "net1"]);
    }
}
