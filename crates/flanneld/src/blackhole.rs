//! `ip-blackhole-route`: a route that swallows packets to this node's own subnet that no pod takes, so that they do not travel back out
//! by the default route (flannel.md section 1.3). Looked after at every `iptables-resync`.

use russet_addr::IpNet;
use russet_model::flannel::SubnetKey;
use russet_netlink::{Batch, Route, Socket};

/// Worse than any other: the bridge's own route to the same subnet wins.
const METRIC: u32 = u32::MAX;

/// Adds the routes that are missing.
pub fn ensure(socket: &mut Socket, own: &SubnetKey) {
    let mut batch = Batch::new();
    let subnets: Vec<IpNet> = own.subnets().collect();
    for subnet in &subnets {
        batch.add_route(&Route { metric: Some(METRIC), ..Route::blackhole(*subnet) });
    }
    for (subnet, result) in subnets.iter().zip(socket.execute_all(&batch)) {
        match result {
            Ok(()) => tracing::info!(%subnet, "blackhole route is set"),
            Err(error) if error.is_exists() => {}
            Err(error) => tracing::warn!(%error, "set the blackhole route"),
        }
    }
}
