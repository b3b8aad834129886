//! Deletes, all at once, what deferred removals left; and lists what is ours.
//!
//! The agent calls all: `reap` a moment after a DEL and at its start, `reap_precreated` at its start, `list` for GC and `russet owned`. Plugins without an
//! agent call `reap_unless_gone` at the end of a DEL or GC.

use russet_netlink::{Batch, Link, LinkDel, NetlinkError, Socket};

use crate::owner::Owner;
use crate::{DOOMED_GROUP, detach, inspect};

/// A link on the node that is ours.
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
    /// Links that somebody else put into our group: they stay, and make every deletion slow.
    pub foreign: Vec<String>,
}

/// All links of the node that are ours, doomed ones included.
pub fn list(host: &mut Socket) -> Result<Vec<OwnedLink>, NetlinkError> {
    Ok(host.links()?.iter().filter_map(owned).collect())
}

/// A link as one of ours, if it is.
pub(crate) fn owned(link: &Link) -> Option<OwnedLink> {
    let owner = inspect::owner(link)?;
    let (doomed, bridged) = (inspect::is_doomed(link), link.master.is_some());
    Some(OwnedLink { ifindex: link.index, peer: link.link, name: link.name.clone(), owner, doomed, bridged })
}

/// Deletes the doomed links. The kernel deletes a group for the price of one link, so that is what happens when
/// every member is ours; otherwise ours go one by one.
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
    Ok(Reaped { count: ours.len(), foreign })
}

/// [`reap`] for a process that doomed the links `own`, unless all of these are gone: then another process's deletion of the group took them along.
///
/// No lock is needed between such processes. The kernel answers a question about a link only when a deletion under way has taken its links off the
/// list, so of many that ask at once the first deletes what all have doomed. A process that is killed before this leaves links of the group, which go
/// with the next deletion: by any later DEL, or by an agent's start.
pub fn reap_unless_gone(host: &mut Socket, own: &[u32]) -> Result<Reaped, NetlinkError> {
    for index in own {
        if inspect::by_index(host, *index)?.is_some_and(|link| inspect::is_doomed(&link)) {
            return reap(host);
        }
    }
    Ok(Reaped::default())
}

/// Deletes what ADDs left that were killed before they could write an owner on their link, and tells how many. Only for whoever knows that no ADD is
/// under way on the node.
pub fn reap_precreated(host: &mut Socket) -> Result<usize, NetlinkError> {
    let mut precreated = host.links()?;
    precreated.retain(inspect::is_untouched_precreated);
    precreated.iter().try_for_each(|link| detach::delete(host, link.index))?;
    Ok(precreated.len())
}
