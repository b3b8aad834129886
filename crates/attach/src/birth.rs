//! The head start of an ADD: its veth is created while its addresses are still being looked for, which takes as long. An [`Executor`](crate::Executor) that
//! is given the newborn goes on from there.
//!
//! Until then it is what a killed ADD leaves, too: down, without an owner, and known as nobody's by its group, so that a DEL or the next start of an agent
//! removes it.

use russet_linux::NetNs;
use russet_netlink::{Link, NetlinkError, Socket};

use crate::executor::{AttachCause, create_veth};
use crate::inspect;
use crate::plan::Plan;

/// A veth that has no owner yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newborn {
    pub(crate) host: Link,
}

/// Creates the veth of `plan`, of which only names, MAC and MTU are looked at; none where something is in its way, which an attachment judges.
pub fn bear(host: &mut Socket, plan: &Plan, netns: &NetNs) -> Result<Option<Newborn>, AttachCause> {
    match create_veth(host, plan, netns) {
        Ok(()) => Ok(Some(Newborn { host: host.link_by_name(&plan.host_name)? })),
        Err(AttachCause::Netlink(error)) if error.is_exists() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes a newborn that nobody wants any more, where it still is one.
pub fn forsake(host: &mut Socket, newborn: &Newborn) -> Result<(), NetlinkError> {
    let same = |link: &Link| link.name == newborn.host.name && inspect::is_newborn(link);
    match inspect::by_index(host, newborn.host.index)?.filter(same) {
        Some(link) => crate::detach::delete(host, link.index),
        None => Ok(()),
    }
}
