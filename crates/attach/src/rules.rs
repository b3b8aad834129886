//! Source routing for a pod's further interfaces: packets with an interface's address leave through it.
//!
//! The main table's default route is that of `eth0`. Without a rule, an answer from another
//! interface's address would leave through `eth0`, where the node drops it as forged. The rules are
//! the only objects inside a pod that outlive its veth, so they are removed separately.

use russet_addr::{Family, IfName, host_net};
use russet_netlink::{Batch, NetlinkError, Rule, Socket};

use crate::plan::SourceRule;
use crate::{ROUTE_PROTOCOL, inspect, naming};

/// The priority of the rules: before the main table (32766), after the local one (0).
const PRIORITY: u32 = 7273;
/// The first table; the name's hash is added.
const FIRST_TABLE: u32 = 727_300_000;

/// The table of an interface's own routes, derived from its name: the same in every pod.
pub(crate) fn table(ifname: &IfName) -> u32 {
    let digits = naming::hex(format!("table:{ifname}").as_bytes(), 4);
    FIRST_TABLE + u32::from_str_radix(&digits, 16).unwrap_or_default()
}

/// The rule as a netlink object.
pub(crate) fn wire_rule(rule: &SourceRule) -> Rule {
    let SourceRule { from, table } = *rule;
    let any = Rule::new(Family::of(from), PRIORITY, table);
    Rule { from: Some(host_net(from)), protocol: ROUTE_PROTOCOL, ..any }
}

/// Deletes the rules of a pod's interface, for all addresses.
pub(crate) fn remove(pod: &mut Socket, ifname: &IfName) -> Result<(), NetlinkError> {
    let table = table(ifname);
    let mut batch = Batch::new();
    for family in Family::BOTH {
        let rules = pod.rules(family)?;
        for rule in rules.iter().filter(|rule| rule.table == table && rule.protocol == ROUTE_PROTOCOL) {
            batch.delete_rule(rule);
        }
    }
    pod.execute_all(&batch).into_iter().try_for_each(|result| inspect::present(result).map(drop))
}
