//! Applies fixes: sysctls one by one, everything else in batches; continues after an error.

use russet_addr::Mac;
use russet_linux::NetNsError;
use russet_linux::sysctl::{self, SysctlError};
use russet_netlink::{Batch, LinkSet, NetlinkError, Socket};

use super::{Fix, Remedy};
use crate::executor::{AttachCause, prepare_bridge, push, wire_route};
use crate::plan::{Bridge, Op};

/// Why something could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The kernel refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A sysctl.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The node's own namespace.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// A bridge.
    #[error("restore bridge {name}: {cause}")]
    Bridge {
        /// Its name.
        name: String,
        /// Why not.
        cause: AttachCause,
    },
}

/// Applies `fixes` in order and returns each result. The thread must be in the namespace of `host`.
pub fn restore(host: &mut Socket, fixes: &[Fix]) -> Vec<Result<(), RestoreError>> {
    let mut results = Vec::with_capacity(fixes.len());
    let mut rest = fixes;
    while let Some(first) = rest.first() {
        match &first.remedy {
            Remedy::Sysctl(setting) => {
                let written = sysctl::write_if_different(&setting.path, setting.value);
                results.push(written.map(drop).map_err(RestoreError::from));
                rest = &rest[1..];
            }
            Remedy::Bridge(bridge) => {
                results.push(restore_bridge(host, first, bridge));
                rest = &rest[1..];
            }
            _ => {
                let alone = |fix: &Fix| matches!(fix.remedy, Remedy::Sysctl(_) | Remedy::Bridge(_));
                let (run, later) = rest.split_at(rest.iter().position(alone).unwrap_or(rest.len()));
                results.extend(send(host, run));
                rest = later;
            }
        }
    }
    results
}

fn restore_bridge(host: &mut Socket, fix: &Fix, bridge: &Bridge) -> Result<(), RestoreError> {
    let bridge = prepare_bridge(host, bridge)
        .map_err(|cause| RestoreError::Bridge { name: bridge.name.to_string(), cause })?;
    // A bridge that was deleted has lost its ports.
    let mut batch = Batch::new();
    batch.set_link(&LinkSet { master: Some(bridge.index), ..LinkSet::index(fix.ifindex) });
    host.execute(&batch).map_err(|error| NetlinkError::from(error).into())
}

fn send(host: &mut Socket, fixes: &[Fix]) -> Vec<Result<(), RestoreError>> {
    let mut batch = Batch::new();
    for fix in fixes {
        let link = LinkSet::index(fix.ifindex);
        match &fix.remedy {
            Remedy::Name(_) => batch.set_link(&LinkSet { name: Some(fix.host_name.clone()), ..link }),
            Remedy::Alias(alias) => batch.set_link(&LinkSet { alias: Some(alias.clone()), ..link }),
            Remedy::Mac => batch.set_link(&LinkSet { mac: Some(Mac::GATEWAY), ..link }),
            Remedy::Mtu(mtu) => batch.set_link(&LinkSet { mtu_bytes: Some(*mtu), ..link }),
            Remedy::Join(bridge) => batch.set_link(&LinkSet { master: Some(*bridge), ..link }),
            // A route that another program put in its place is replaced.
            Remedy::Op(Op::Route(route)) => {
                batch.replace_route(&wire_route(route, fix.ifindex, fix.protocol))
            }
            Remedy::Op(op) => {
                push(&mut batch, op, fix.ifindex, None, fix.protocol);
                &mut batch
            }
            Remedy::Sysctl(_) | Remedy::Bridge(_) => &mut batch,
        };
    }
    host.execute_all(&batch).into_iter().map(|result| result.map_err(RestoreError::from)).collect()
}
