//! Reads what the kernel's path is made of.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::Family;
use russet_linux::bpf::{Way, without_own_clsact};
use russet_netlink::{FdbEntry, Link, NetlinkError, Result, Route, RouteFilter, RouteLookup, Socket};

use super::content::{KernelPath, remotes, tunnels};

// === impl KernelPath ===

impl KernelPath {
    /// Reads everything. `underlay` has what is known of the routes to other nodes' own addresses, and gets what is
    /// looked up; the caller clears it when a route changes that is not Russet's.
    pub fn read(way: Way, socket: &mut Socket, underlay: &mut BTreeMap<IpAddr, RouteLookup>) -> Result<Self> {
        let links = socket.links()?;
        let fdb = fdb(socket, &links)?;
        let wanted = remotes(&fdb);
        underlay.retain(|address, _| wanted.contains(address));
        for address in wanted {
            if underlay.contains_key(&address) {
                continue;
            }
            // Without a route the kernel's path does not lead there, either.
            match socket.route_to(address) {
                Ok(route) => _ = underlay.insert(address, route),
                Err(NetlinkError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let (mut neighbours, mut routes, mut rules) = (Vec::new(), Vec::new(), Vec::new());
        for family in Family::BOTH {
            neighbours.extend(listed(socket.neighbours(family))?);
            rules.extend(listed(socket.rules(family))?);
            let main = RouteFilter { table: Some(Route::MAIN), ..RouteFilter::default() };
            routes.extend(listed(socket.routes_where(family, main))?);
        }
        let mut qdiscs = socket.qdiscs()?;
        without_own_clsact(way, socket, &mut qdiscs)?;
        Ok(Self { links, neighbours, fdb, routes, qdiscs, rules, underlay: underlay.clone() })
    }
}

fn fdb(socket: &mut Socket, links: &[Link]) -> Result<Vec<FdbEntry>> {
    let mut all = Vec::new();
    for (device, _, _) in tunnels(links) {
        match socket.fdb(device.index) {
            // It is gone since the links were listed.
            Err(error) if error.is_not_found() => {}
            entries => all.extend(entries?),
        }
    }
    Ok(all)
}

/// A kernel without IPv6 has no IPv6 objects.
fn listed<T>(result: Result<Vec<T>>) -> Result<Vec<T>> {
    match result {
        Err(error) if error.is_unsupported() => Ok(Vec::new()),
        result => result,
    }
}
