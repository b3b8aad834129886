//! What the TUN device needs beside its queues: MTU, address, the route of the whole network (flannel.md 6.1 and 14).

use std::net::{IpAddr, Ipv4Addr};

use russet_addr::{IfName, Ipv4Net, host_net};
use russet_netlink::{AddrGenMode, Address, Batch, LinkDel, LinkSet, NetlinkError, Route, Scope, Socket};

/// The device as it should be.
#[derive(Debug, Clone)]
pub(super) struct Device {
    pub(super) name: IfName,
    /// Its index, which no other device of the namespace gets after it.
    pub(super) index: u32,
    pub(super) mtu_bytes: u32,
    pub(super) own: Ipv4Addr,
    pub(super) network: Ipv4Net,
}

/// As the kernel has it for every TUN, said so that it stays.
const QUEUE_PACKETS: u32 = 500;

// === impl Device ===

impl Device {
    /// Makes it so; what is so already stays.
    pub(super) fn configure(&self, socket: &mut Socket) -> Result<(), NetlinkError> {
        let index = self.index;
        // IPv6 has no business here, and its solicitations none in our queue.
        let silent = LinkSet { addr_gen_mode: Some(AddrGenMode::None), ..LinkSet::index(index) };
        let mut link = LinkSet::index(index);
        link.mtu_bytes = Some(self.mtu_bytes);
        link.tx_queue_len = Some(QUEUE_PACKETS);
        link.up = Some(true);
        let route = Route { scope: Scope::Universe, ..Route::dev(self.network.trunc().into(), index) };
        let mut batch = Batch::new();
        // A kernel without IPv6 knows no such mode.
        let _ = socket.execute(Batch::new().set_link(&silent));
        batch.set_link(&link);
        batch.replace_address(&Address::new(index, host_net(IpAddr::V4(self.own))));
        batch.replace_route(&route);
        socket.execute(&batch).map_err(|failed| failed.error)
    }

    /// Deletes it. It goes with its queues, but a child process that has not come to its `exec` yet may still hold these.
    pub(super) fn delete(&self, socket: &mut Socket) {
        // Mostly it is gone already.
        let _ = socket.execute(Batch::new().delete_link(&LinkDel::Index(self.index)));
    }
}
