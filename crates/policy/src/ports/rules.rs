//! Chains, sets and rules of `bridge russet-policy`: pure. Used by `ports`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use russet_addr::{Family, host_net};
use russet_nft::{
    Chain, ChainKind, CmpOp, Expr, Field, Hook, KeyType, L4, PayloadBase, Register, Rule, Set, priority,
};

use super::table;
use crate::ruleset::{self, Guard, PREFIX};

/// Chain of the ports that send from their own MAC and addresses.
pub(super) const OWN_SOURCE: &str = "own-source";
/// Chain of the ports that send from their own MAC.
pub(super) const OWN_MAC: &str = "own-mac";
const OWN_ARP: &str = "own-arp";
const OWN_IP4: &str = "own-ip4";
const OWN_IP6: &str = "own-ip6";
const OWN_TARGET: &str = "own-target";
const PREROUTING: &str = "prerouting";
const GUARD: &str = "guard";
const GUARD_ICMPV6: &str = "guard-icmpv6";
const GUARD_UDP: &str = "guard-udp";

const ETHERTYPE_ARP: u16 = 0x0806;
/// Behind the first tag: 802.1Q and 802.1ad.
const ETHERTYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
/// `ND_NEIGHBOR_SOLICIT`
const NEIGHBOUR_SOLICITATION: u8 = 135;
/// `ND_NEIGHBOR_ADVERT`
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

const OWN_PAIR: [Field; 2] = [Field::IifName, Field::EtherSaddr];

/// Ports to the chain that says what they may send.
pub(super) fn ports() -> Set {
    Set::verdict_map(&table(), "ports", [KeyType::IfName])
}

/// The MACs of ports.
pub(super) fn macs() -> Set {
    Set::new(&table(), "macs", [KeyType::IfName, KeyType::EtherAddr])
}

/// The MACs and addresses of ports.
pub(super) fn sources(family: Family) -> Set {
    let name = match family {
        Family::V4 => "sources4",
        Family::V6 => "sources6",
    };
    Set::new(&table(), name, [KeyType::IfName, KeyType::EtherAddr, KeyType::address(family)])
}

/// What ports may send from besides their addresses.
pub(super) fn prefixes(family: Family) -> Set {
    let name = match family {
        Family::V4 => "prefixes4",
        Family::V6 => "prefixes6",
    };
    Set::new(&table(), name, [KeyType::IfName, KeyType::address(family)]).interval()
}

pub(super) fn sets() -> [Set; 6] {
    let [sources4, sources6] = Family::BOTH.map(sources);
    let [prefixes4, prefixes6] = Family::BOTH.map(prefixes);
    [ports(), macs(), sources4, sources6, prefixes4, prefixes6]
}

/// All chains, each behind those that it leads to.
pub(super) fn chains() -> Vec<Chain> {
    let prerouting = Chain::base(&table(), PREROUTING, ChainKind::Filter, Hook::Prerouting, priority::RAW);
    let own = [OWN_TARGET, OWN_IP6, OWN_IP4, OWN_ARP, OWN_MAC, OWN_SOURCE, GUARD_ICMPV6, GUARD_UDP, GUARD];
    own.map(|name| Chain::new(&table(), name)).into_iter().chain([prerouting]).collect()
}

/// All rules, chain after chain, each in order.
pub(super) fn rules() -> Vec<Rule> {
    // Most frames leave at once: only ports that are bound to their addresses have such elements.
    let tcp = Family::BOTH.map(|family| own(rule(PREROUTING).protocol(L4::Tcp), family).accept());
    let mut rules = Vec::from(tcp);
    rules.push(rule(PREROUTING).iif_prefix(PREFIX).goto(GUARD));
    rules.push(rule(GUARD).protocol(L4::IcmpV6).jump(GUARD_ICMPV6));
    rules.push(rule(GUARD).protocol(L4::Udp).jump(GUARD_UDP));
    rules.extend(ruleset::router_rules(|| rule(GUARD_ICMPV6)));
    rules.extend(ruleset::dhcp_rules(|| rule(GUARD_UDP)));
    rules.push(rule(GUARD).vmap(&[Field::IifName], ports().name));
    rules.push(other_mac(OWN_MAC));
    rules.extend(own_source());
    rules.extend(own_arp());
    rules.push(rule(OWN_IP4).saddr(host_net(UNSPECIFIED_V4)).accept());
    rules.extend(allowed_or_not(OWN_IP4, Field::Saddr(Family::V4)));
    rules.extend(own_ip6());
    rules
}

const UNSPECIFIED_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const UNSPECIFIED_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

fn rule(chain: &str) -> Rule {
    Rule::in_chain(&table(), chain)
}

fn other_mac(chain: &str) -> Rule {
    Guard::Mac.drops(rule(chain).is_not_in(&OWN_PAIR, macs().name))
}

/// What has the port's own MAC and address.
fn own(rule: Rule, family: Family) -> Rule {
    rule.is_in(&[Field::IifName, Field::EtherSaddr, Field::Saddr(family)], sources(family).name)
}

fn own_source() -> Vec<Rule> {
    let mut rules = vec![
        own(rule(OWN_SOURCE), Family::V4).accept(),
        // What neighbour discovery says is looked at in a chain of its own.
        own(rule(OWN_SOURCE).family(Family::V6).protocol_not(L4::IcmpV6), Family::V6).accept(),
        other_mac(OWN_SOURCE),
        rule(OWN_SOURCE).ether_type(ETHERTYPE_ARP).goto(OWN_ARP),
        rule(OWN_SOURCE).family(Family::V4).goto(OWN_IP4),
        rule(OWN_SOURCE).family(Family::V6).goto(OWN_IP6),
    ];
    rules.extend(ETHERTYPES_VLAN.map(|number| Guard::Source.drops(rule(OWN_SOURCE).ether_type(number))));
    rules
}

fn own_arp() -> Vec<Rule> {
    let own = [Field::IifName, Field::ArpSenderMac, Field::ArpSender];
    let other_mac = rule(OWN_ARP).is_not_in(&[Field::IifName, Field::ArpSenderMac], macs().name);
    let mut rules = vec![
        rule(OWN_ARP).is_in(&own, sources(Family::V4).name).accept(),
        Guard::Mac.drops(other_mac),
        // A probe for duplicates (RFC 5227 section 1.1).
        from_no_address(rule(OWN_ARP)).accept(),
    ];
    rules.extend(allowed_or_not(OWN_ARP, Field::ArpSender));
    rules
}

fn own_ip6() -> Vec<Rule> {
    let own = |chain: &str, field| {
        rule(chain).is_in(&[Field::IifName, Field::EtherSaddr, field], sources(Family::V6).name)
    };
    let unspecified = |rule: Rule| rule.saddr(host_net(UNSPECIFIED_V6));
    let mut rules = vec![
        rule(OWN_IP6).icmpv6_type(NEIGHBOUR_ADVERTISEMENT).jump(OWN_TARGET),
        // A probe for duplicates of another's address would make the other give it up (RFC 4862 section 5.4).
        unspecified(rule(OWN_IP6)).icmpv6_type(NEIGHBOUR_SOLICITATION).jump(OWN_TARGET),
        own(OWN_IP6, Field::Saddr(Family::V6)).accept(),
        // Also reports of groups, before there is an address.
        unspecified(rule(OWN_IP6)).accept(),
    ];
    rules.extend(allowed_or_not(OWN_IP6, Field::Saddr(Family::V6)));
    rules.push(own(OWN_TARGET, Field::NeighbourTarget).return_());
    let allowed =
        rule(OWN_TARGET).is_in(&[Field::IifName, Field::NeighbourTarget], prefixes(Family::V6).name);
    rules.extend([allowed.return_(), Guard::Source.drops(rule(OWN_TARGET))]);
    rules
}

/// Accepts what the port was allowed besides its addresses, and drops the rest.
fn allowed_or_not(chain: &str, source: Field) -> [Rule; 2] {
    let family = if source.key_type() == KeyType::Ipv6Addr { Family::V6 } else { Family::V4 };
    let allowed = rule(chain).is_in(&[Field::IifName, source], prefixes(family).name);
    [allowed.accept(), Guard::Source.drops(rule(chain))]
}

/// `arp saddr ip 0.0.0.0`
fn from_no_address(rule: Rule) -> Rule {
    let register = Register::FIRST;
    let sender = Expr::Payload { base: PayloadBase::Network, offset: 14, len: 4, to: register };
    rule.expr(sender).expr(Expr::Cmp { op: CmpOp::Eq, register, value: vec![0; 4] })
}
