//! Reads from the kernel what is wired on the node, for an agent without a record of it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::{Family, IfName, IpNet, Mac};
use russet_netlink::{Link, NeighbourState, NetlinkError, Route, RouteFilter, Socket};

use crate::attachment::{Attachment, Dialect};
use crate::owner::Owner;
use crate::plan::PROTOCOL_BOOT;
use crate::{ROUTE_PROTOCOL, inspect, naming};

/// An interface that was wired completely: its host end, which comes up last, is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// The interface's owner.
    pub owner: Owner,
    /// The wiring, as far as the host end shows it: the pod's own routes are assumed to be the
    /// defaults. None for a port of a bridge, or if the owner's names are too long for an alias.
    pub attachment: Option<Attachment>,
}

/// Lists everything that is wired completely.
pub fn adopt(host: &mut Socket) -> Result<Vec<Adopted>, NetlinkError> {
    let mut links: Vec<(Owner, Link)> =
        host.links()?.into_iter().filter_map(|link| Some((inspect::owner(&link)?, link))).collect();
    links.retain(|(_, link)| !inspect::is_doomed(link) && link.flags & libc::IFF_UP as u32 != 0);
    let mut protocols = Vec::new();
    if links.iter().any(|(_, link)| dialect(link) == Dialect::Native) {
        protocols.push(ROUTE_PROTOCOL);
    }
    if links.iter().any(|(_, link)| dialect(link) == Dialect::Calico) {
        protocols.push(PROTOCOL_BOOT);
    }
    let mut addresses: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
    for (family, protocol) in
        [Family::V4, Family::V6].into_iter().flat_map(|family| protocols.iter().map(move |it| (family, *it)))
    {
        let filter =
            RouteFilter { table: Some(Route::MAIN), protocol: Some(protocol), ..RouteFilter::default() };
        for route in host.routes_where(family, filter)? {
            if let (Some(oif), None, true) = (route.oif, route.gateway, is_host(&route.dst)) {
                addresses.entry(oif).or_default().push(route.dst.addr());
            }
        }
    }
    let macs = macs(host)?;
    Ok(links
        .into_iter()
        .map(|(owner, link)| {
            let addresses = addresses.remove(&link.index).unwrap_or_default();
            let attachment = attachment(&owner, &link, addresses, macs.get(&link.index).copied());
            Adopted { attachment, owner }
        })
        .collect())
}

/// The pods' MACs, which a configuration may have chosen: from the node's permanent neighbours, by
/// link.
fn macs(host: &mut Socket) -> Result<BTreeMap<u32, Mac>, NetlinkError> {
    let mut macs = BTreeMap::new();
    for family in Family::BOTH {
        let found = match host.neighbours(family) {
            Err(error) if error.is_unsupported() => Vec::new(),
            found => found?,
        };
        let permanent = found.into_iter().filter(|it| it.state == NeighbourState::Permanent && !it.proxy);
        macs.extend(permanent.filter_map(|it| Some((it.ifindex, it.mac?))));
    }
    Ok(macs)
}

fn attachment(owner: &Owner, link: &Link, addresses: Vec<IpAddr>, mac: Option<Mac>) -> Option<Attachment> {
    if link.master.is_some() {
        return None;
    }
    let id = owner.id()?;
    let mac = mac.filter(|mac| *mac != naming::pod_mac(id));
    let attachment = Attachment::new(dialect(link), id.clone(), None);
    let host_name = IfName::new(link.name.clone()).ok()?;
    Some(Attachment { host_name, addresses, mtu: link.mtu_bytes, mac, ..attachment })
}

/// Operators choose the prefix of Calico's names; Russet's is fixed.
fn dialect(link: &Link) -> Dialect {
    if link.name.starts_with(naming::prefix(Dialect::Native)) { Dialect::Native } else { Dialect::Calico }
}

fn is_host(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}
