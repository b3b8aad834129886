//! How packets reach the other nodes, for `/v1/status`: tunnels, and the routes that are there of those that should be.

use std::collections::BTreeSet;

use russet_addr::{Family, IpNet};
use russet_netlink::{NetlinkError, Route, RouteFilter, RouteKind, Socket};
use russet_overlay::{Desired, Hop, device_name};
use serde::{Deserialize, Serialize};

/// Routes and tunnels to the other nodes, and the blackholes of this node's blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutesStatus {
    pub expected: usize,
    /// Of those: in the main table with the right next hop.
    pub present: usize,
    /// Published facts of other nodes that are not programmed.
    pub refused: usize,
    pub paths: Vec<PathStatus>,
}

/// How packets of one family are carried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// `4` or `6`.
    pub ip_version: u8,
    /// `vxlan`, or `none` for plain routes only.
    pub encapsulation: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu_bytes: Option<u32>,
}

// === impl RoutesStatus ===

impl RoutesStatus {
    pub fn look(desired: &Desired) -> Result<Self, NetlinkError> {
        let mut socket = Socket::route()?;
        let filter = RouteFilter { table: Some(Route::MAIN), ..RouteFilter::default() };
        let mut present = BTreeSet::new();
        for family in Family::BOTH {
            let routes = socket.routes_where(family, filter)?;
            present.extend(routes.iter().filter(|route| is_right(desired, route)).map(|route| route.dst));
        }
        Ok(Self::new(desired, &present))
    }

    fn new(desired: &Desired, present: &BTreeSet<IpNet>) -> Self {
        let path = |family: &Family| {
            let device = desired.devices.get(family);
            PathStatus {
                ip_version: if *family == Family::V4 { 4 } else { 6 },
                encapsulation: if device.is_some() { "vxlan" } else { "none" }.to_owned(),
                device: device.map(|_| device_name(*family).to_owned()),
                mtu_bytes: device.map(|device| device.mtu),
            }
        };
        Self {
            expected: desired.routes.len(),
            present: present.len(),
            refused: desired.refusals.len(),
            paths: desired.forwarding.iter().map(path).collect(),
        }
    }
}

/// Whether this is the route that should be there for its destination.
fn is_right(desired: &Desired, route: &Route) -> bool {
    match desired.routes.get(&route.dst) {
        Some(Hop::Tunnel(gateway) | Hop::Underlay { gateway, .. }) => route.gateway == Some(*gateway),
        Some(Hop::Blackhole) => route.kind == RouteKind::Blackhole,
        Some(Hop::Connected | Hop::Link(_)) => route.gateway.is_none(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_the_device_of_each_family_with_pools() {
        let mut desired = Desired { forwarding: vec![Family::V4], ..Desired::default() };
        desired.routes.insert("10.1.0.0/26".parse().unwrap(), Hop::Blackhole);
        let status = RoutesStatus::new(&desired, &BTreeSet::new());
        assert_eq!((status.expected, status.present, status.paths.len()), (1, 0, 1));
        assert_eq!((status.paths[0].ip_version, status.paths[0].encapsulation.as_str()), (4, "none"));
    }
}
