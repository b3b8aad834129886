//! Addresses that nodes have only so that other nodes can probe them: ordinary allocations, with one handle for
//! both families of a node.

use std::net::IpAddr;

use russet_addr::{Family, IpNet, NodeName};
use russet_model::{AddressUse, HandleId};

use super::Allocator;
use crate::{Held, IpamError, Request};

/// The type of these allocations, in both families. kube-controllers releases what a deleted node held only
/// if it knows the type of every allocation, and it takes this one for a tunnel's, which a node has
/// without a pod (kubernetes.md section 3.1).
const TYPE: &str = "vxlanTunnelAddress";

// === impl Allocator ===

impl Allocator {
    /// What a node holds for probes: at most one address of each family, unless something was interrupted or the
    /// pools have changed.
    pub async fn probe_addresses(&self, node: &NodeName) -> Result<Vec<Held>, IpamError> {
        self.ips_by_handle(&HandleId::probes(node)).await
    }

    /// Claims an address of these pools for probes of a node that holds none of the family. It is never one of
    /// another node's block, which packets would not find.
    pub async fn claim_probe_address(
        &self,
        node: &NodeName,
        family: Family,
        pools: &[IpNet],
    ) -> Result<IpAddr, IpamError> {
        let assigned = self.auto_assign(&request(node, family, pools)).await?;
        let address = assigned.addresses.iter().map(IpNet::addr).find(|found| Family::of(*found) == family);
        address.ok_or_else(|| IpamError::Invalid(format!("node {node} has no {family} address for probes")))
    }

    /// Releases addresses that a node holds for probes, as they were read. One that was given away meanwhile
    /// stays.
    pub async fn release_probe_addresses(
        &self,
        node: &NodeName,
        held: impl IntoIterator<Item = Held>,
    ) -> Result<(), IpamError> {
        self.release_held(&HandleId::probes(node), held).await
    }
}

fn request(node: &NodeName, family: Family, pools: &[IpNet]) -> Request {
    let base = Request::pod(node.clone(), HandleId::probes(node)).with("type", TYPE);
    let base = Request { use_: AddressUse::Tunnel, borrow: false, registered_node: true, ..base };
    match family {
        Family::V4 => Request { v4: 1, v6: 0, pools4: Some(pools.to_vec()), ..base },
        Family::V6 => Request { v4: 0, v6: 1, pools6: Some(pools.to_vec()), ..base },
    }
}
