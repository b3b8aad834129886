//! The record of a port, kept where it dies with the port: the alias of the host's end, `russet-sdn:NAMESPACE:ADDRESS:SANDBOX`. It never changes, so
//! that nothing of it can be older than what nf_tables says.

use std::collections::BTreeMap;

use russet_addr::{ContainerId, IfName};
use russet_model::openshift::{Namespace, NetId};
use russet_netlink::Link;

use super::Port;

/// What all records begin with.
const PREFIX: &str = "russet-sdn:";
/// The kernel's limit (`IFALIASZ` less its NUL).
pub(super) const MAX_BYTES: usize = 255;

/// The record of a port.
pub(super) fn of(port: &Port) -> String {
    format!("{PREFIX}{}:{}:{}", port.namespace, port.address, port.sandbox)
}

/// The port that a link has a record of. Anybody with the right to set an alias may have written it: what is not a record of ours names nothing.
pub(super) fn standing(link: &Link, netids: &BTreeMap<IfName, NetId>) -> Option<Port> {
    let record = link.alias.as_deref()?.strip_prefix(PREFIX)?;
    let host_veth = IfName::new(link.name.clone()).ok().filter(|_| link.kind.as_deref() == Some("veth"))?;
    let mut parts = record.splitn(3, ':');
    let namespace = Namespace::new(parts.next()?).ok()?;
    let address = parts.next()?.parse().ok()?;
    let sandbox = ContainerId::new(parts.next()?).ok()?;
    Some(Port { netid: netids.get(&host_veth).copied(), host_veth, address, sandbox, namespace })
}
