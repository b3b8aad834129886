//! Addresses of the nodes' own VXLAN devices: ordinary allocations, with a handle of the node
//! (calico-ipam.md section 3.11).

use std::net::IpAddr;

use russet_addr::{Family, IpNet, NodeName};
use russet_model::{AddressUse, HandleId};

use super::Allocator;
use crate::{IpamError, Request};

// === impl Allocator ===

impl Allocator {
    /// The address of a node's VXLAN device. `pools` are the enabled pools with VXLAN; an address
    /// outside of them, from before they changed, is replaced.
    pub async fn ensure_tunnel_address(
        &self,
        node: &NodeName,
        family: Family,
        pools: &[IpNet],
    ) -> Result<IpAddr, IpamError> {
        let request = tunnel_request(node, family, pools);
        let held = self.existing(&request).await?;
        if let Some(net) = held.iter().find(|net| pools.iter().any(|pool| pool.contains(&net.addr()))) {
            return Ok(net.addr());
        }
        if !held.is_empty() {
            self.release_by_handle(&request.handle, None).await?;
        }
        let assigned = self.auto_assign(&request).await?;
        let address = assigned.addresses.first().map(IpNet::addr);
        address.ok_or_else(|| IpamError::Invalid(format!("node {node} has no {family} tunnel address")))
    }

    /// Releases the address of a node's VXLAN device, if there is one.
    pub async fn release_tunnel_address(&self, node: &NodeName, family: Family) -> Result<(), IpamError> {
        self.release_by_handle(&HandleId::vxlan_tunnel(node, family), None).await?;
        Ok(())
    }
}

fn tunnel_request(node: &NodeName, family: Family, pools: &[IpNet]) -> Request {
    let kind = match family {
        Family::V4 => "vxlanTunnelAddress",
        Family::V6 => "vxlanV6TunnelAddress",
    };
    let mut request = Request::pod(node.clone(), HandleId::vxlan_tunnel(node, family)).with("type", kind);
    request.use_ = AddressUse::Tunnel;
    (request.v4, request.v6) = match family {
        Family::V4 => (1, 0),
        Family::V6 => (0, 1),
    };
    match family {
        Family::V4 => request.pools4 = Some(pools.to_vec()),
        Family::V6 => request.pools6 = Some(pools.to_vec()),
    }
    request
}
