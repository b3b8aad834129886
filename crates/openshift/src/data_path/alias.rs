//! The record of a port is stored where it vanishes with the port: in the alias of the host end,
//! `russet-sdn:NAMESPACE:ADDRESS:SANDBOX`. It never changes, so it cannot be older than the entries
//! in nf_tables.

use russet_addr::{ContainerId, IfName};
use russet_model::openshift::Namespace;
use russet_netlink::Link;

use super::Port;
use super::verdicts::TenantsHeld;

/// The prefix of all records.
const PREFIX: &str = "russet-sdn:";
/// The kernel's limit (`IFALIASZ` less its NUL).
pub(super) const MAX_BYTES: usize = 255;

pub(super) fn for_port(port: &Port) -> String {
    format!("{PREFIX}{}:{}:{}", port.namespace, port.address, port.sandbox)
}

/// The port that a link's record names. Any program that may set an alias could have written it, so
/// an alias that does not parse names no port.
pub(super) fn port_of(link: &Link, tenants: &TenantsHeld) -> Option<Port> {
    let record = link.alias.as_deref()?.strip_prefix(PREFIX)?;
    let host_veth = IfName::new(link.name.clone()).ok().filter(|_| link.kind.as_deref() == Some("veth"))?;
    let mut parts = record.splitn(3, ':');
    let namespace = Namespace::new(parts.next()?).ok()?;
    let address = parts.next()?.parse().ok()?;
    let sandbox = ContainerId::new(parts.next()?).ok()?;
    let (netid, is_open) = (tenants.netids.get(&host_veth).copied(), tenants.reached.contains(&address));
    Some(Port { netid, is_open, host_veth, address, sandbox, namespace })
}
