//! Source routing for a pod's further interfaces: packets with an interface's address leave through it.
//!
//! The main table's default route is that of `eth0`. Without a rule, an answer from another interface's address
//! would leave through `eth0`, where the node takes it for forged. The rules are the only thing inside a pod that
//! outlives its veth, so they have a way out of their own.

use russet_addr::{Family, IfName, host_net};
use russet_netlink::{Batch, NetlinkError, Rule, Socket};

use crate::plan::SourceRule;
use crate::{ROUTE_PROTOCOL, inspect, naming};

/// Where our rules stand: before those of the main table (32766), behind that of the local one (0).
const PRIORITY: u32 = 7273;
/// The first of our tables; the name's hash is added.
const FIRST_TABLE: u32 = 727_300_000;

/// The table of an interface's own routes, by its name: the same in every pod, and known without looking.
pub(crate) fn table(ifname: &IfName) -> u32 {
    let digits = naming::hex(format!("table:{ifname}").as_bytes(), 4);
    FIRST_TABLE + u32::from_str_radix(&digits, 16).unwrap_or_default()
}

/// The rule as the kernel is to have it.
pub(crate) fn wire_rule(rule: &SourceRule) -> Rule {
    let SourceRule { from, table } = *rule;
    let any = Rule::new(Family::of(from), PRIORITY, table);
    Rule { from: Some(host_net(from)), protocol: ROUTE_PROTOCOL, ..any }
}

/// Deletes the rules of a pod's interface, whatever addresses they are for.
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
