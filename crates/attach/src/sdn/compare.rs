//! The differences of a pod's interface from what [`Interface`](super::Interface) made, for CHECK.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use russet_addr::{Family, IfName};
use russet_linux::NetNs;
use russet_netlink::{RouteFilter, Socket};

use super::{SdnError, Settings, block, doing, mac_of, route};
use crate::inspect;

/// Every difference as text; none if it is unchanged. `mtu` is that of both ends, if it is known.
pub fn compare(
    netns: &NetNs,
    ifname: &IfName,
    settings: &Settings,
    mtu: Option<u32>,
) -> Result<Vec<String>, SdnError> {
    let mut pod = netns.with(Socket::route)?.map_err(doing("open a netlink socket"))?;
    let found = inspect::by_name(&mut pod, ifname).map_err(doing("look for the pod's interface"))?;
    let Some(link) = found else { return Ok(vec![format!("{ifname} is gone")]) };
    let mut differences = Vec::new();
    let mac = mac_of(settings.address.addr());
    if link.mac != Some(mac) {
        let has = link.mac.map_or_else(|| "none".to_owned(), |mac| mac.to_string());
        differences.push(format!("{ifname} has MAC {has}, not {mac}"));
    }
    if !link.is_up() {
        differences.push(format!("{ifname} is down"));
    }
    if let Some(mtu) = mtu.filter(|mtu| *mtu != link.mtu_bytes) {
        differences.push(format!("{ifname} has MTU {}, not {mtu}", link.mtu_bytes));
    }
    let addresses = pod.addresses_of(link.index).map_err(doing("read the pod's addresses"))?;
    if !addresses.iter().any(|address| address.net == IpNet::V4(settings.address)) {
        differences.push(format!("{ifname} has not the address {}", settings.address));
    }
    differences.extend(lost_routes(&mut pod, link.index, settings)?);
    differences.extend(netns.with(|| block::missing(settings.metadata))??);
    Ok(differences)
}

fn lost_routes(pod: &mut Socket, oif: u32, settings: &Settings) -> Result<Vec<String>, SdnError> {
    let all = pod.routes_where(Family::V4, RouteFilter::default()).map_err(doing("read the pod's routes"))?;
    let lost = |(dst, via): &&(Ipv4Net, Option<Ipv4Addr>)| {
        let wanted = route(oif, *dst, *via, None);
        // Routes that existed before the interface were kept, so only the destination counts, and
        // the gateway if there is one.
        !all.iter().any(|route| route.dst == wanted.dst && (via.is_none() || route.gateway == wanted.gateway))
    };
    let shown = |(dst, via): &(Ipv4Net, Option<Ipv4Addr>)| match via {
        Some(via) => format!("the route to {dst} via {via} is gone"),
        None => format!("the route to {dst} is gone"),
    };
    Ok(settings.routes.iter().filter(lost).map(shown).collect())
}
