//! Everything in the node's kernel with a mark of Russet, whichever part made it, and its removal:
//! for `russet owned` and `russet uninstall`. Removing an object that is gone already succeeds.

use std::collections::BTreeMap;
use std::fmt;

use russet_addr::Family;
use russet_netlink::{
    Address, Batch, FdbEntry, Link, Neighbour, NeighbourState, NetlinkError, Route, Socket,
};
use russet_nft::{Nft, Table, Transaction};

use crate::nat::NatError;
use crate::owner::Owner;
use crate::{ROUTE_PROTOCOL, detach, inspect};

/// Objects with a mark of Russet.
#[derive(Debug, Clone, Default)]
pub struct MarkedObjects {
    /// Links with an alias of Russet, and precreated ones without an owner.
    pub links: Vec<MarkedLink>,
    /// Routes with Russet's protocols, in all tables.
    pub routes: Vec<Route>,
    /// The names of all links of the namespace by index, for routes over links without a mark.
    pub link_names: BTreeMap<u32, String>,
    /// nf_tables tables with Russet's names.
    pub tables: Vec<Table>,
    /// Addresses with Russet's protocol: those at which other nodes probe this one.
    pub addresses: Vec<Address>,
}

/// A link of Russet.
#[derive(Debug, Clone)]
pub struct MarkedLink {
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// The mark.
    pub mark: Mark,
    /// The pod's interface that it belongs to; none for tunnels and limits, and for precreated
    /// links.
    pub owner: Option<Owner>,
    /// Whether it only waits for its deletion.
    pub doomed: bool,
    /// Its permanent forwarding entries.
    pub fdb: Vec<FdbEntry>,
    /// Its permanent neighbours.
    pub neighbours: Vec<Neighbour>,
}

/// How a link is recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// By its alias.
    Alias(String),
    /// By the properties of a precreated veth: an ADD is in progress, or was killed before it could
    /// write the owner.
    Precreated,
}

/// Prefix of the aliases of all links of Russet: `russet:` for pods, `russet overlay`,
/// `russet-sdn`, `russet-shaper`.
const ALIAS_PREFIX: &str = "russet";
/// The protocol of OpenShift's routes (`openshift::data_path`). Routes without a link stay when the
/// links are deleted.
const SDN_ROUTE_PROTOCOL: u8 = 116;
/// The protocol of the routes of Russet's flannel daemon (`overlay::flannel`).
pub const FLANNEL_ROUTE_PROTOCOL: u8 = 115;
/// The overlay's table; the names of other tables continue with `-`.
const TABLE: &str = "russet";

/// Reads the objects with a mark. A kernel without nf_tables has no tables.
pub fn read(host: &mut Socket) -> Result<MarkedObjects, NetlinkError> {
    let (mut links, mut link_names) = (Vec::new(), BTreeMap::new());
    for link in host.links()? {
        link_names.insert(link.index, link.name.clone());
        if let Some(mark) = Mark::of(&link) {
            links.push(marked(host, link, mark)?);
        }
    }
    let mut routes = Vec::new();
    for family in Family::BOTH {
        let all = match host.routes(family) {
            Err(error) if error.is_unsupported() => Vec::new(),
            all => all?,
        };
        let ours = |route: &Route| {
            [ROUTE_PROTOCOL, SDN_ROUTE_PROTOCOL, FLANNEL_ROUTE_PROTOCOL].contains(&route.protocol)
        };
        routes.extend(all.into_iter().filter(ours));
    }
    let tables = match Nft::open().and_then(|mut nft| nft.tables()) {
        Err(error) if error.is_unsupported() => Vec::new(),
        tables => tables?,
    };
    let tables = tables.into_iter().map(|info| info.table).filter(|table| is_our_table(&table.name));
    let addresses = host.addresses()?.into_iter().filter(|found| found.protocol == ROUTE_PROTOCOL).collect();
    Ok(MarkedObjects { links, routes, link_names, tables: tables.collect(), addresses })
}

fn marked(host: &mut Socket, link: Link, mark: Mark) -> Result<MarkedLink, NetlinkError> {
    let mut neighbours = Vec::new();
    for family in Family::BOTH {
        let all = match host.neighbours_of(family, link.index) {
            Err(error) if error.is_unsupported() => Vec::new(),
            all => all?,
        };
        neighbours
            .extend(all.into_iter().filter(|found| found.state == NeighbourState::Permanent && !found.proxy));
    }
    let fdb = if link.kind.as_deref() == Some("vxlan") { host.fdb(link.index)? } else { Vec::new() };
    let fdb = fdb.into_iter().filter(|entry| entry.permanent).collect();
    let (owner, doomed) = (inspect::owner(&link), inspect::is_doomed(&link));
    Ok(MarkedLink { ifindex: link.index, name: link.name, mark, owner, doomed, fdb, neighbours })
}

fn is_ours(alias: &str) -> bool {
    let rest = alias.strip_prefix(ALIAS_PREFIX);
    rest.is_some_and(|rest| rest.starts_with([':', ' ', '-']))
}

fn is_our_table(name: &str) -> bool {
    name.strip_prefix(TABLE).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Deletes a link that still has this mark.
pub fn remove_link(host: &mut Socket, ifindex: u32, mark: &Mark) -> Result<(), NetlinkError> {
    match inspect::by_index(host, ifindex)? {
        Some(link) if Mark::of(&link).as_ref() == Some(mark) => detach::delete(host, ifindex),
        _ => Ok(()),
    }
}

/// Deletes a link without a mark, if it still has this name.
pub fn remove_named(host: &mut Socket, ifindex: u32, name: &str) -> Result<(), NetlinkError> {
    match inspect::by_index(host, ifindex)? {
        Some(link) if link.name == name => detach::delete(host, ifindex),
        _ => Ok(()),
    }
}

/// Deletes a route.
pub fn remove_route(host: &mut Socket, route: &Route) -> Result<(), NetlinkError> {
    let mut batch = Batch::new();
    batch.delete_route(route);
    inspect::present(host.execute(&batch).map_err(NetlinkError::from)).map(drop)
}

/// Deletes an address.
pub fn remove_address(host: &mut Socket, address: &Address) -> Result<(), NetlinkError> {
    let mut batch = Batch::new();
    batch.delete_address(address);
    inspect::present(host.execute(&batch).map_err(NetlinkError::from)).map(drop)
}

/// Deletes a table with everything in it.
pub fn remove_table(table: &Table) -> Result<(), NatError> {
    let mut nft = Nft::open()?;
    if !nft.tables()?.iter().any(|info| info.table == *table) {
        return Ok(());
    }
    let mut transaction = Transaction::new();
    transaction.delete_table(table);
    match nft.commit(&transaction) {
        Err(error) if error.is_not_found() => Ok(()),
        Err(source) => Err(NatError::Commit { operation: "delete a table of ours", source }),
        Ok(()) => Ok(()),
    }
}

// === impl Mark ===

impl Mark {
    fn of(link: &Link) -> Option<Self> {
        match &link.alias {
            Some(alias) => is_ours(alias).then(|| Self::Alias(alias.clone())),
            None => inspect::is_untouched_precreated(link).then_some(Self::Precreated),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alias(alias) => f.write_str(alias),
            Self::Precreated => f.write_str("precreated: an ADD is in progress, or was killed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_with_a_mark_are_recognised() {
        for alias in
            ["russet:net/c1/eth0", "russet overlay", "russet-sdn tunnel", "russet-shaper:net/c1/eth0"]
        {
            assert!(is_ours(alias), "{alias}");
        }
        for alias in ["russets", "my russet", "", "cilium"] {
            assert!(!is_ours(alias), "{alias}");
        }
        assert!(["russet", "russet-cni", "russet-policy"].into_iter().all(is_our_table));
        assert!(!["russets", "filter", "kube-proxy", "flannel-ipv4"].into_iter().any(is_our_table));
    }
}
