//! Creates the veth of an ADD ahead of time, while its addresses are still being allocated, which
//! takes equally long. An [`Executor`](crate::Executor) that gets the precreated veth continues
//! from there.
//!
//! Until then it is in the same state as one that a killed ADD leaves: down, without an owner, and
//! recognised by its group, so that a DEL or the next start of an agent removes it.

use russet_linux::NetNs;
use russet_netlink::{Link, NetlinkError, Socket};

use crate::executor::{AttachCause, create_veth};
use crate::inspect;
use crate::plan::Plan;

/// A veth without an owner yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrecreatedVeth {
    pub(crate) host: Link,
}

/// Creates the veth of `plan`, using only names, MAC and MTU. None if a link is in the way, which
/// the attachment then deals with.
pub fn precreate_veth(
    host: &mut Socket,
    plan: &Plan,
    netns: &NetNs,
) -> Result<Option<PrecreatedVeth>, AttachCause> {
    match create_veth(host, plan, netns) {
        Ok(()) => Ok(Some(PrecreatedVeth { host: host.link_by_name(&plan.host_name)? })),
        Err(AttachCause::Netlink(error)) if error.is_exists() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes a precreated veth that is not needed any more, if it still has no owner.
pub fn delete_precreated(host: &mut Socket, precreated: &PrecreatedVeth) -> Result<(), NetlinkError> {
    let same = |link: &Link| link.name == precreated.host.name && inspect::is_precreated(link);
    match inspect::by_index(host, precreated.host.index)?.filter(same) {
        Some(link) => crate::detach::delete(host, link.index),
        None => Ok(()),
    }
}
