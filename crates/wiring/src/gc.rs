//! Finds and removes interfaces and addresses of a network on this node that are not in a GC's list
//! of valid attachments (cni-runtime.md section 1.5).

use std::collections::BTreeSet;
use std::net::IpAddr;

use russet_addr::{ContainerId, EndpointId, IfName, NetworkName, NodeName};
use russet_attach::OwnedLink;
use russet_cni_spec::CniError;
use russet_ipam::{Allocator, Held, ReleaseOptions};
use russet_model::{HandleId, Prefix, WorkloadEndpoint};
use russet_store::Store;

use crate::failure;
use crate::node::Teardown;
use crate::wiring::Wiring;

fn is_valid(valid: &[EndpointId], container: &ContainerId, ifname: Option<&IfName>) -> bool {
    valid.iter().any(|it| it.container == *container && ifname.is_none_or(|ifname| it.ifname == *ifname))
}

/// Removes the interfaces that are not in `valid`. Returns their containers and host names, and the
/// errors.
pub async fn detach_stale(
    wiring: &Wiring,
    teardown: &Teardown,
    network: &NetworkName,
    valid: &[EndpointId],
) -> Result<(BTreeSet<(ContainerId, String)>, Vec<String>), CniError> {
    let (mut removed, mut errors) = (BTreeSet::new(), Vec::new());
    let stale = |link: &OwnedLink| {
        // An alias that had no room for the container's name: the interface is left to its own DEL.
        !link.doomed
            && link
                .owner
                .id()
                .is_some_and(|id| id.network == *network && !is_valid(valid, &id.container, Some(&id.ifname)))
    };
    for link in wiring.list().await?.into_iter().filter(stale) {
        let removal = teardown.removal();
        removed.extend(link.owner.container().map(|container| (container.clone(), link.name.clone())));
        errors.extend(wiring.detach_owned(link, removal).await.err().map(|error| error.to_string()));
    }
    teardown.doomed();
    Ok((removed, errors))
}

/// Addresses that this node holds in `network` for containers not in `valid`. Each carries its
/// sequence number, so that it is released only if it is still the same allocation: time passes
/// between the look and the release.
pub async fn stale_addresses(
    allocator: &Allocator,
    node: &NodeName,
    network: &NetworkName,
    valid: &[EndpointId],
) -> Result<Vec<ReleaseOptions>, CniError> {
    let held = allocator.held_by_node(node).await;
    let held = held.map_err(|error| failure::ipam("the node's addresses could not be read", error))?;
    let stale = |held: Held| {
        let handle = HandleId::new(held.attribute.handle_id.as_deref()?).ok()?;
        // Blocks are shared with peers: only handles of this network belong to this GC
        // (calico-cni.md section 3.7).
        let container = container_of(&handle, network)?;
        let ifname = held.attribute.get("interface").and_then(|name| IfName::new(name).ok());
        let (address, sequence_number) = (held.address, Some(held.sequence_number));
        let options = ReleaseOptions { address, handle: Some(handle), sequence_number };
        (!is_valid(valid, &container, ifname.as_ref())).then_some(options)
    };
    Ok(held.into_iter().filter_map(stale).collect())
}

/// Keeps those of `stale` that no valid container's endpoint names. Addresses of Calico v1 may be
/// held under the pod's name, which looks like a container's handle if the namespace is called like
/// the network.
pub async fn unused(
    store: &dyn Store,
    mut stale: Vec<ReleaseOptions>,
    valid: &[EndpointId],
) -> Result<Vec<ReleaseOptions>, CniError> {
    if stale.is_empty() {
        return Ok(stale);
    }
    let listed = store.list(&Prefix::workload_endpoints()).await;
    let listed = listed.map_err(|error| failure::store("the endpoints could not be read", &error, &error))?;
    let specs =
        listed.records.iter().filter_map(|record| Some(WorkloadEndpoint::decode(&record.value).ok()?.spec));
    let of_valid = specs.filter(|spec| valid.iter().any(|it| it.container.as_str() == spec.container_id));
    let used: BTreeSet<IpAddr> = of_valid.flat_map(|spec| spec.ip_networks).map(|net| net.addr()).collect();
    stale.retain(|options| !used.contains(&options.address));
    Ok(stale)
}

/// The container in a handle of `network`. A rest with a dot in it is refused: `a.b.c` could also
/// mean container `c` of network `a.b`, which has its own list of valid attachments; such addresses
/// are left to their DEL.
pub fn container_of(handle: &HandleId, network: &NetworkName) -> Option<ContainerId> {
    let container = handle.as_str().strip_prefix(network.as_str())?.strip_prefix('.')?;
    ContainerId::new(container).ok().filter(|container| !container.as_str().contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_a_network_with_a_longer_name_are_not_ours() {
        let container = |handle: &str| {
            let found = container_of(&HandleId::new(handle).unwrap(), &"net".parse().unwrap());
            found.map(|container| container.to_string())
        };
        assert_eq!(container("net.abc"), Some("abc".to_owned()));
        for other in ["net.v2.abc", "net-v2.abc", "other.abc", "net."] {
            assert_eq!(container(other), None, "{other}");
        }
    }
}
