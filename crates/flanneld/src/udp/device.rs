//! Configuration of the TUN device besides its queues: MTU, address, the route of the whole network
//! (flannel.md sections 6.1 and 14).

use std::net::{IpAddr, Ipv4Addr};

use russet_addr::{Family, IfName, Ipv4Net, host_net};
use russet_netlink::{
    AddrGenMode, Address, Batch, LinkDel, LinkSet, NetlinkError, Route, RouteFilter, Scope, Socket,
};

/// The wanted configuration.
#[derive(Debug, Clone)]
pub(super) struct Device {
    pub(super) name: IfName,
    /// Its index, which the namespace does not reuse.
    pub(super) index: u32,
    pub(super) mtu_bytes: u32,
    pub(super) own: Ipv4Addr,
    pub(super) network: Ipv4Net,
}

/// The kernel's default for a TUN device, set explicitly so that it stays.
const QUEUE_PACKETS: u32 = 500;

// === impl Device ===

impl Device {
    /// Applies the configuration. Matching values are not written, so that monitors see no event.
    pub(super) fn configure(&self, socket: &mut Socket) -> Result<(), NetlinkError> {
        let found = socket.link_by_index(self.index)?;
        let mut link = LinkSet::index(self.index);
        link.mtu_bytes = Some(self.mtu_bytes).filter(|mtu| *mtu != found.mtu_bytes);
        link.tx_queue_len = Some(QUEUE_PACKETS).filter(|packets| *packets != found.tx_queue_len);
        link.up = (!found.is_up()).then_some(true);
        let mut batch = Batch::new();
        if link != LinkSet::index(self.index) {
            // IPv6 is not carried, and its solicitations must not enter the queue. A kernel without
            // IPv6 does not know this mode.
            let silent = LinkSet { addr_gen_mode: Some(AddrGenMode::None), ..LinkSet::index(self.index) };
            let _ = socket.execute(Batch::new().set_link(&silent));
            batch.set_link(&link);
        }
        let address = Address::new(self.index, host_net(IpAddr::V4(self.own)));
        let addresses = socket.addresses_of(self.index)?;
        if !addresses.iter().any(|found| found.net == address.net) {
            batch.replace_address(&address);
        }
        let route = Route { scope: Scope::Universe, ..Route::dev(self.network.trunc().into(), self.index) };
        let here = RouteFilter { table: Some(Route::MAIN), oif: Some(self.index), ..RouteFilter::default() };
        // A link that is down loses its routes when it is raised again.
        if !found.is_up() || !socket.routes_where(Family::V4, here)?.contains(&route) {
            batch.replace_route(&route);
        }
        socket.execute(&batch).map_err(|failed| failed.error)
    }

    /// Deletes the device, which wakes the threads that wait for its packets. Returns whether it is
    /// gone.
    pub(super) fn delete(&self, socket: &mut Socket) -> bool {
        match socket.execute(Batch::new().delete_link(&LinkDel::Index(self.index))) {
            Ok(()) => true,
            Err(failed) => failed.error.is_not_found(),
        }
    }
}
