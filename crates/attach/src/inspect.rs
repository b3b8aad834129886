//! Reads links: a missing link is a normal answer, and an alias is decoded as an owner.

use russet_addr::{IfName, Mac};
use russet_linux::{NetNs, NetNsError};
use russet_netlink::{Link, NetlinkError, Socket};

use crate::owner::Owner;
use crate::{DOOMED_GROUP, naming};

/// The group of precreated veths. Creation cannot set the alias, so a process that dies between
/// creation and writing the owner leaves a link of this group, which no request uses and which may
/// be removed.
pub(crate) const PRECREATED_GROUP: u32 = DOOMED_GROUP - 1;

/// The link called `name`, if there is one.
pub(crate) fn by_name(socket: &mut Socket, name: &IfName) -> Result<Option<Link>, NetlinkError> {
    present(socket.link_by_name(name))
}

/// The link with an index, if there is one.
pub(crate) fn by_index(socket: &mut Socket, index: u32) -> Result<Option<Link>, NetlinkError> {
    present(socket.link_by_index(index))
}

/// Turns "not found" into `None`.
pub(crate) fn present<T>(result: Result<T, NetlinkError>) -> Result<Option<T>, NetlinkError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The link's owner, if it is one of Russet's.
pub(crate) fn owner(link: &Link) -> Option<Owner> {
    link.alias.as_deref()?.parse().ok()
}

/// Whether the two are the ends of one pair, `host` in the node's namespace and `pod` in another.
pub(crate) fn is_pair(host: &Link, pod: &Link) -> bool {
    let is_end = |link: &Link| link.is_of_pair() && link.link_netnsid.is_some();
    is_end(host) && is_end(pod) && host.link == Some(pod.index) && pod.link == Some(host.index)
}

/// Whether `netns` is the calling thread's namespace, the node's. Runtimes name a pod's namespace
/// by paths such as `/proc/PID/ns/net`, and a PID may belong to another process by now
/// (cni-runtime.md, plugins#714).
pub(crate) fn is_own(netns: &NetNs) -> Result<bool, NetNsError> {
    Ok(NetNs::current()?.same_as(netns))
}

/// Whether the link only waits for its deletion.
pub(crate) fn is_doomed(link: &Link) -> bool {
    link.group == DOOMED_GROUP && naming::is_doomed(&link.name) && owner(link).is_some()
}

/// Whether the link was precreated and has no owner yet, for callers that recognise it by its name
/// or its peer. It may have been set up since.
pub(crate) fn is_precreated(link: &Link) -> bool {
    link.group == PRECREATED_GROUP
        && link.alias.is_none()
        && link.mac == Some(Mac::GATEWAY)
        && link.is_of_pair()
}

/// The same for callers that know nothing else of it: it must be exactly as it was created, because
/// another program may use the same group by coincidence.
pub(crate) fn is_untouched_precreated(link: &Link) -> bool {
    is_precreated(link) && !link.is_up() && link.master.is_none() && link.link_netnsid.is_some()
}
