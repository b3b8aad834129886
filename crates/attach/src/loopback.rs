//! The loopback of a pod's namespace: all of the `loopback` plugin's work (cni-runtime.md section
//! 5).

use std::path::PathBuf;

use russet_linux::{NetNs, NetNsError};
use russet_netlink::{Batch, LinkSet, NetlinkError, Socket};

use crate::inspect;

/// Why a loopback could not be changed or read.
#[derive(Debug, thiserror::Error)]
pub enum LoopbackError {
    /// The namespace cannot be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The namespace is the node's own: a runtime's path leads to another process by now.
    #[error("{} is the node's own network namespace: its loopback is not a pod's", .0.display())]
    OwnNamespace(PathBuf),
    /// The kernel refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// The loopback's index in every namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK_IFINDEX: u32 = 1;

/// Sets it up; the kernel adds 127.0.0.1/8 and ::1/128.
pub fn up(netns: &NetNs) -> Result<(), LoopbackError> {
    set(netns, true)
}

/// Sets it down, for DEL. A missing namespace is an error, which the caller treats as success.
pub fn down(netns: &NetNs) -> Result<(), LoopbackError> {
    set(netns, false)
}

/// Whether it is up.
pub fn is_up(netns: &NetNs) -> Result<bool, LoopbackError> {
    let mut socket = netns.with(Socket::route)??;
    Ok(socket.link_by_index(LOOPBACK_IFINDEX)?.is_up())
}

fn set(netns: &NetNs, up: bool) -> Result<(), LoopbackError> {
    if inspect::is_own(netns)? {
        return Err(LoopbackError::OwnNamespace(netns.path().to_owned()));
    }
    let mut socket = netns.with(Socket::route)??;
    let mut batch = Batch::new();
    batch.set_link(&LinkSet { up: Some(up), ..LinkSet::index(LOOPBACK_IFINDEX) });
    socket.execute(&batch).map_err(NetlinkError::from)?;
    Ok(())
}
