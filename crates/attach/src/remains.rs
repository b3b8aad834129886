//! Everything in the node's kernel that carries one of our marks, whichever part of Russet made it, and its removal: for `russet owned` and
//! `russet uninstall`. Removing what is gone already is success.

use std::collections::BTreeMap;
use std::fmt;

use russet_addr::Family;
use russet_netlink::{Batch, FdbEntry, Link, Neighbour, NeighbourState, NetlinkError, Route, Socket};
use russet_nft::{Nft, Table, Transaction};

use crate::nat::NatError;
use crate::owner::Owner;
use crate::{ROUTE_PROTOCOL, detach, inspect};

/// What carries our marks.
#[derive(Debug, Clone, Default)]
pub struct Remains {
    /// Links with an alias of ours, or born for an ADD and not named yet.
    pub links: Vec<MarkedLink>,
    /// Routes of our protocols, in all tables.
    pub routes: Vec<Route>,
    /// The names of all links of the namespace by index, for routes that lead over links without a mark.
    pub link_names: BTreeMap<u32, String>,
    /// Tables of nf_tables with our names.
    pub tables: Vec<Table>,
}

/// A link of ours.
#[derive(Debug, Clone)]
pub struct MarkedLink {
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// What says so.
    pub mark: Mark,
    /// The interface of a pod that it is for; none for tunnels and limits, and for newborns.
    pub owner: Option<Owner>,
    /// Whether it only waits for its deletion.
    pub doomed: bool,
    /// Its permanent forwarding entries.
    pub fdb: Vec<FdbEntry>,
    /// Its permanent neighbours.
    pub neighbours: Vec<Neighbour>,
}

/// How a link is known as ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// By what stands on it.
    Alias(String),
    /// It is as veths are born: an ADD is under way, or was killed before it could write an owner on it.
    Newborn,
}

/// What the aliases of all our links begin with: `russet:` for pods, `russet overlay`, `russet-sdn`, `russet-shaper`.
const ALIAS_PREFIX: &str = "russet";
/// The protocol of OpenShift's routes (`overlay::openshift`); those that lead through no link stay when the links go.
const SDN_ROUTE_PROTOCOL: u8 = 116;
/// The table of the overlay; those of other parts have a `-` and their name behind it.
const TABLE: &str = "russet";

/// Reads what carries our marks. A kernel without nf_tables has no tables.
pub fn remains(host: &mut Socket) -> Result<Remains, NetlinkError> {
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
        let ours = |route: &Route| [ROUTE_PROTOCOL, SDN_ROUTE_PROTOCOL].contains(&route.protocol);
        routes.extend(all.into_iter().filter(ours));
    }
    let tables = match Nft::open().and_then(|mut nft| nft.tables()) {
        Err(error) if error.is_unsupported() => Vec::new(),
        tables => tables?,
    };
    let tables = tables.into_iter().map(|info| info.table).filter(|table| is_our_table(&table.name));
    Ok(Remains { links, routes, link_names, tables: tables.collect() })
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

/// Deletes a link that still is what it was.
pub fn remove_link(host: &mut Socket, ifindex: u32, mark: &Mark) -> Result<(), NetlinkError> {
    match inspect::by_index(host, ifindex)? {
        Some(link) if Mark::of(&link).as_ref() == Some(mark) => detach::delete(host, ifindex),
        _ => Ok(()),
    }
}

/// Deletes a route.
pub fn remove_route(host: &mut Socket, route: &Route) -> Result<(), NetlinkError> {
    let mut batch = Batch::new();
    batch.delete_route(route);
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
            None => inspect::is_untouched_newborn(link).then_some(Self::Newborn),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alias(alias) => f.write_str(alias),
            Self::Newborn => f.write_str("nobody's yet: an ADD is under way, or was killed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_carries_our_marks_is_ours() {
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
