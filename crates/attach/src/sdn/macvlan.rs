//! A pod's own interface on one of the node's networks, for egress routers (cni-runtime.md section
//! 4.3). The server creates it before the plugin continues.

use ipnet::IpNet;
use russet_addr::{Family, IfName};
use russet_linux::NetNs;
use russet_netlink::{Batch, Link, LinkAdd, LinkDel, LinkKind, NetlinkError, RouteFilter, Socket};
use std::os::fd::AsRawFd as _;

use super::{MACVLAN, SdnError, doing, macvlan, refuse_own};
use crate::inspect;

/// Why a macvlan0 could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MacvlanError {
    /// No link was named, and there is no default route.
    #[error("failed to find default route interface")]
    NoDefaultRoute,
    /// There is no such link.
    #[error("{0:?} is neither 'true' nor the name of a local network interface")]
    NoParent(String),
    /// The kernel refused.
    #[error("failed to create macvlan interface: {0}")]
    Sdn(#[from] SdnError),
}

/// `IFLA_MACVLAN_MODE` with `MACVLAN_MODE_PRIVATE`: no frames between two macvlans of a parent.
const PRIVATE_MODE: [u8; 8] = {
    let [a, b] = 8_u16.to_ne_bytes();
    let [c, d] = 1_u16.to_ne_bytes();
    let [e, f, g, h] = 1_u32.to_ne_bytes();
    [a, b, c, d, e, f, g, h]
};

/// Adds a macvlan0 to a pod, on `parent` or, without one, on the link of the node's default route.
/// It is down; the plugin sets it up.
pub fn add_macvlan(netns: &NetNs, parent: Option<&str>) -> Result<(), MacvlanError> {
    refuse_own(netns)?;
    let mut host = Socket::route().map_err(doing("open a netlink socket"))?;
    let parent = match parent {
        Some(name) => named(&mut host, name)?,
        None => default_route(&mut host)?,
    };
    let name = IfName::new(MACVLAN).map_err(|_| MacvlanError::NoParent(MACVLAN.to_owned()))?;
    let kind = LinkKind::Other { kind: "macvlan", data: PRIVATE_MODE.to_vec() };
    let mut batch = Batch::new();
    batch.add_link(&LinkAdd {
        parent: Some(parent.index),
        mtu_bytes: Some(parent.mtu_bytes),
        netns: Some(netns.as_raw_fd()),
        ..LinkAdd::new(name, kind)
    });
    let made = host.execute(&batch).map_err(NetlinkError::from);
    made.map_err(doing("create macvlan0")).map_err(MacvlanError::from)
}

/// Removes it, if it exists.
pub fn remove_macvlan(netns: &NetNs) -> Result<(), SdnError> {
    refuse_own(netns)?;
    let mut pod = netns.with(Socket::route)?.map_err(doing("open a netlink socket"))?;
    let Some(link) = macvlan(&mut pod)? else { return Ok(()) };
    let mut batch = Batch::new();
    batch.delete_link(&LinkDel::Index(link.index));
    let deleted = pod.execute(&batch).map_err(NetlinkError::from);
    inspect::present(deleted).map(drop).map_err(doing("delete macvlan0"))
}

fn named(host: &mut Socket, name: &str) -> Result<Link, MacvlanError> {
    let none = || MacvlanError::NoParent(name.to_owned());
    let ifname = IfName::new(name).map_err(|_| none())?;
    let found = inspect::by_name(host, &ifname).map_err(doing("look for macvlan0's parent"))?;
    found.ok_or_else(none)
}

fn default_route(host: &mut Socket) -> Result<Link, MacvlanError> {
    let routes =
        host.routes_where(Family::V4, RouteFilter::default()).map_err(doing("read the node's routes"))?;
    let defaults = routes.iter().filter(|route| route.dst == IpNet::V4(ipnet::Ipv4Net::default()));
    let best = defaults.filter(|route| route.kind.forwards()).min_by_key(|route| route.metric.unwrap_or(0));
    let oif = best.and_then(|route| route.oif.or_else(|| route.multipath.first().map(|hop| hop.oif)));
    let oif = oif.ok_or(MacvlanError::NoDefaultRoute)?;
    Ok(host.link_by_index(oif).map_err(doing("look at the link of the default route"))?)
}
