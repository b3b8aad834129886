//! The priority of packets. Tables use it as a variable, because nft cannot list rules that look up what
//! they loaded from a map, and then give packets the priority that forwarding gives them.

use russet_addr::Family;
use russet_nft::Rule;

/// Priorities by the bits 0x18 of the type of service, and their values (`rt_tos2priority`).
const BY_TOS: [(u8, u32); 3] = [(0x08, 2), (0x10, 6), (0x18, 4)];
/// These bits.
const TOS_MASK: u8 = 0x18;

/// Whether forwarding sets the priority by the type of service, in the calling thread's network namespace.
pub(crate) fn is_by_tos() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward_update_priority");
    setting.is_ok_and(|text| text.trim() != "0")
}

/// The rules, each made from `rule`, that set it.
pub(crate) fn restored(rule: impl Fn() -> Rule, family: Family, by_tos: bool) -> Vec<Rule> {
    let mut rules = vec![rule().set_priority(0)];
    if family == Family::V4 && by_tos {
        rules.extend(BY_TOS.map(|(bits, priority)| rule().tos(bits, TOS_MASK).set_priority(priority)));
    }
    rules
}
