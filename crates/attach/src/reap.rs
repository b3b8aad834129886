//! Deletes the links that deferred removals left, as one group, and lists the links of Russet.
//!
//! The agent calls `reap` a moment after a DEL and at its start, `reap_precreated` at its start, and
//! `list` for GC and `russet owned`. Plugins without an agent call `reap_unless_gone` in a DEL or GC.

use russet_netlink::{Batch, Link, LinkDel, NetlinkError, Socket};

use crate::owner::Owner;
use crate::{DOOMED_GROUP, detach, inspect};

/// A link of Russet on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedLink {
    /// Its index.
    pub ifindex: u32,
    /// The index of its other end, in the pod's namespace.
    pub peer: Option<u32>,
    /// Its name.
    pub name: String,
    /// The network, container and interface that it is for.
    pub owner: Owner,
    /// Whether it only waits for its deletion.
    pub doomed: bool,
    /// Whether it is a port of a bridge: its packets are the bridge's.
    pub bridged: bool,
}

/// What [`reap`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reaped {
    /// How many links were deleted.
    pub count: usize,
    /// How many are left to be deleted.
    pub left: usize,
    /// Links that another program put into our group: they stay, and make every deletion slow.
    pub foreign: Vec<String>,
}

/// All links of Russet on the node, doomed ones included.
pub fn list(host: &mut Socket) -> Result<Vec<OwnedLink>, NetlinkError> {
    Ok(host.links()?.iter().filter_map(owned).collect())
}

/// The link as one of Russet, if it is one.
pub(crate) fn owned(link: &Link) -> Option<OwnedLink> {
    let owner = inspect::owner(link)?;
    let (doomed, bridged) = (inspect::is_doomed(link), link.master.is_some());
    Some(OwnedLink { ifindex: link.index, peer: link.link, name: link.name.clone(), owner, doomed, bridged })
}

/// Deletes the doomed links. The kernel deletes a group in the time of one link, so the group is
/// deleted if Russet made every member; otherwise the doomed links are deleted one by one.
pub fn reap(host: &mut Socket) -> Result<Reaped, NetlinkError> {
    let mut members = host.links()?;
    members.retain(|link| link.group == DOOMED_GROUP);
    let (ours, foreign): (Vec<Link>, Vec<Link>) = members.into_iter().partition(inspect::is_doomed);
    if foreign.is_empty() && !ours.is_empty() {
        let mut batch = Batch::new();
        batch.delete_link(&LinkDel::Group(DOOMED_GROUP));
        inspect::present(host.execute(&batch).map_err(NetlinkError::from))?;
    } else {
        ours.iter().try_for_each(|link| detach::delete(host, link.index))?;
    }
    let foreign = foreign.into_iter().map(|link| link.name).collect();
    Ok(Reaped { count: ours.len(), left: 0, foreign })
}

/// Deletes one of the doomed links. With programs at a link, its deletion takes the kernel a grace period for each, and that
/// of a group takes the time of all its links, in which no other interface can be made.
pub fn reap_one(host: &mut Socket) -> Result<Reaped, NetlinkError> {
    let doomed: Vec<Link> = host.links()?.into_iter().filter(inspect::is_doomed).collect();
    let Some(first) = doomed.first() else { return Ok(Reaped::default()) };
    detach::delete(host, first.index)?;
    Ok(Reaped { count: 1, left: doomed.len() - 1, foreign: Vec::new() })
}

/// [`reap`] for a process that doomed the links `own`, unless all of these are gone because another
/// process deleted the group.
///
/// Such processes need no lock between them. The kernel answers a question about a link only after a
/// deletion in progress has removed its links from the list, so of many processes that ask at once
/// the first deletes the links of all. A process that is killed before this leaves links in the
/// group, which the next deletion removes: that of a later DEL, or of an agent's start.
pub fn reap_unless_gone(host: &mut Socket, own: &[u32]) -> Result<Reaped, NetlinkError> {
    for index in own {
        if inspect::by_index(host, *index)?.is_some_and(|link| inspect::is_doomed(&link)) {
            return reap(host);
        }
    }
    Ok(Reaped::default())
}

/// Deletes links of ADDs that were killed before they wrote an owner on their link, and returns
/// their number. The caller guarantees that no ADD is in progress on the node.
pub fn reap_precreated(host: &mut Socket) -> Result<usize, NetlinkError> {
    let mut precreated = host.links()?;
    precreated.retain(inspect::is_untouched_precreated);
    precreated.iter().try_for_each(|link| detach::delete(host, link.index))?;
    Ok(precreated.len())
}
