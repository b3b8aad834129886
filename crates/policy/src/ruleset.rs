//! The desired content of the table, defined only here. Pure.
//!
//! ```text
//! chain prerouting   { type filter hook prerouting priority raw;     iifname "russ*" goto from-pod; goto calico-ends }
//! chain postrouting  { type filter hook postrouting priority filter; oifname "russ*" goto to-pod }
//! chain calico-ends  { iifname "cali*" goto guard }, or nothing where Felix guards these
//! chain from-pod {
//!     the rules of guard
//!     iifname vmap @from-pods
//!     counter drop
//! }
//! chain to-pod { oifname vmap @to-pods; counter drop }
//! chain guard {
//!     meta l4proto != tcp jump guard-protocol
//!     ip daddr 127.0.0.0/8 counter drop
//!     fib saddr . iif oif 0 jump guard-source
//! }
//! chain guard-protocol { meta l4proto ipv6-icmp goto guard-icmpv6; meta l4proto udp goto guard-udp }
//! chain guard-icmpv6   { icmpv6 type { 134, 137 } counter drop }, one rule each
//! chain guard-udp      { udp sport 67 udp dport 68 counter drop; udp sport 547 udp dport 546 counter drop }
//! chain guard-source   { ip6 saddr fe80::/10 return; iifname . ip saddr @sources4 return; (IPv6 likewise); counter drop }
//! ```
//!
//! A pod may send from the addresses that the node routes to its host end. The routes serve as the
//! map from interfaces to sources: they exist before the pod's first packet and vanish with its
//! interface, for every pod, whichever plugin attached it. `rp_filter` checks the same, but for
//! IPv4 only, and not where `net.ipv4.conf.all.rp_filter` is 2.
//!
//! Each packet of the node passes the two base chains, and those of other interfaces leave them after
//! one comparison. A pod's packets are checked before connection tracking, so what is dropped leaves
//! no state; nothing reaches the hooks `forward` and `input` but through this one. Packets to pods
//! are checked after routing and address translation, not at output: there, the node's own packet
//! to a Service still names the interface from before the translation of its destination. An
//! `accept` ends the chain of its own hook only, so foreign rules still apply. Connection tracking
//! is not used.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use russet_addr::{Family, IfName, IpNet, Ipv6Net};
use russet_nft::{
    self as nft, Chain, ChainKind, CmpOp, Element, Expr, Field, Hook, KeyPart, KeyType, L4, PayloadBase,
    Register, Rule, Set, Table, Transaction, Value, priority,
};

use crate::Verdict;
use crate::table_spec::TableSpec;

/// The table's name in commands and errors.
pub const TABLE: &str = "inet russet-policy";
/// The prefix of the names of the interfaces that the table checks: all host ends of Russet's own
/// wiring.
pub const PREFIX: &str = "russ";
/// The prefix of the names of the host ends of Calico's plugin.
pub const CALICO_PREFIX: &str = "cali";

/// A kind of packets that a guard drops; the rules that drop them have the guard's text as their
/// comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guard {
    /// Packets from an address that is not the pod's.
    Source,
    /// Frames from a MAC that is not the pod's, where it is behind a bridge.
    Mac,
    /// Router advertisements and redirects of IPv6.
    Router,
    /// Answers of a DHCP server.
    Dhcp,
    /// Packets to the node's own 127.0.0.0/8, which `route_localnet` lets in.
    Loopback,
}

/// The properties of the node on which rules depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Whether the kernel can look up sources in its routes (`CONFIG_NFT_FIB_INET`).
    pub fib: bool,
    /// Whether Calico's host ends are guarded; none leaves the rules as they are.
    pub calico: Option<bool>,
}

const PREROUTING: &str = "prerouting";
const POSTROUTING: &str = "postrouting";
/// Chains of earlier versions, which evaluated verdicts of pods' packets after routing.
const OBSOLETE: [&str; 3] = ["forward", "input", FORMER_CALICO];
/// The chain for Calico's host ends in earlier versions: empty if these were not guarded.
const FORMER_CALICO: &str = "guard-calico";
const GUARD: &str = "guard";
const CALICO_ENDS: &str = "calico-ends";
const GUARD_PROTOCOL: &str = "guard-protocol";
const GUARD_ICMPV6: &str = "guard-icmpv6";
const GUARD_UDP: &str = "guard-udp";
const GUARD_SOURCE: &str = "guard-source";

/// `ND_ROUTER_ADVERT` and `ND_REDIRECT`
const ROUTER_TYPES: [u8; 2] = [134, 137];
/// The ports of DHCP's servers and clients, for IPv4 and IPv6.
const DHCP_PORTS: [(u16, u16); 2] = [(67, 68), (547, 546)];

/// `fe80::/10`
pub(crate) const LINK_LOCAL: IpNet =
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10));

/// The direction of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    FromPod,
    ToPod,
}

// === impl Direction ===

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::FromPod, Direction::ToPod];

    /// The chain of all pods' packets in this direction.
    const fn chain_name(self) -> &'static str {
        match self {
            Self::FromPod => "from-pod",
            Self::ToPod => "to-pod",
        }
    }

    const fn field(self) -> Field {
        match self {
            Self::FromPod => Field::IifName,
            Self::ToPod => Field::OifName,
        }
    }

    /// The map from host ends to verdicts.
    pub fn map(self) -> Set {
        let name = match self {
            Self::FromPod => "from-pods",
            Self::ToPod => "to-pods",
        };
        Set::verdict_map(&table(), name, [KeyType::IfName])
    }

    fn chain(self) -> Chain {
        Chain::new(&table(), self.chain_name())
    }

    /// The entry of a host end. A policy's verdict will be a jump to a chain of its own.
    pub fn element(self, host_name: &IfName, verdict: Verdict) -> Element {
        let verdict = match verdict {
            Verdict::Allow => nft::Verdict::Accept,
        };
        Element::new(KeyPart::if_name(host_name)).verdict(verdict)
    }
}

pub(crate) fn table() -> Table {
    Table::inet("russet-policy")
}

/// All chains.
pub(crate) fn chains() -> Vec<Chain> {
    let guards = [GUARD_SOURCE, GUARD_UDP, GUARD_ICMPV6, GUARD_PROTOCOL, GUARD, CALICO_ENDS];
    let base = |name, hook, priority| Chain::base(&table(), name, ChainKind::Filter, hook, priority);
    let base = [
        base(PREROUTING, Hook::Prerouting, priority::RAW),
        base(POSTROUTING, Hook::Postrouting, priority::FILTER),
    ];
    let guards = guards.map(|name| Chain::new(&table(), name));
    Direction::BOTH.map(Direction::chain).into_iter().chain(base).chain(guards).collect()
}

/// The table as it should be.
pub(crate) fn spec(shape: Shape) -> TableSpec {
    TableSpec {
        table: table(),
        sets: sets(),
        chains: chains(),
        rules: rules(shape),
        unknown_rules: shape.calico.is_none().then_some(CALICO_ENDS),
        obsolete_chains: &OBSOLETE,
        disarms: true,
    }
}

/// Whether an earlier version's table guards Calico's host ends; none if there is no such table, or
/// it does not.
pub(crate) fn guarded_calico(nft: &mut nft::Nft) -> Result<Option<bool>, nft::NetlinkError> {
    Ok((!nft.rules_of(&table(), FORMER_CALICO)?.is_empty()).then_some(true))
}

/// All maps and sets.
pub(crate) fn sets() -> Vec<Set> {
    Direction::BOTH.map(Direction::map).into_iter().chain(Family::BOTH.map(sources)).collect()
}

/// The prefixes from which pods may send besides the addresses that are routed to them.
pub(crate) fn sources(family: Family) -> Set {
    let name = match family {
        Family::V4 => "sources4",
        Family::V6 => "sources6",
    };
    Set::new(&table(), name, [KeyType::IfName, KeyType::address(family)]).interval()
}

/// The elements of a host end that may send from these prefixes, which may overlap.
pub(crate) fn source_elements(family: Family, host_name: &IfName, nets: &[IpNet]) -> Vec<Element> {
    let of_family = nets.iter().map(IpNet::trunc).filter(|net| Family::of_net(net) == family);
    let disjoint: BTreeSet<IpNet> = IpNet::aggregate(&of_family.collect()).into_iter().collect();
    let element = |net| Element::concatenation([KeyPart::if_name(host_name), KeyPart::from(net)]);
    disjoint.into_iter().map(element).collect()
}

/// All rules, grouped by chain, in order.
pub(crate) fn rules(shape: Shape) -> Vec<Rule> {
    let [from_pod, to_pod] = Direction::BOTH.map(Direction::chain_name);
    let mut rules = vec![
        rule(PREROUTING).iif_prefix(PREFIX).goto(from_pod),
        rule(PREROUTING).goto(CALICO_ENDS),
        rule(POSTROUTING).oif_prefix(PREFIX).goto(to_pod),
    ];
    if shape.calico == Some(true) {
        rules.push(rule(CALICO_ENDS).iif_prefix(CALICO_PREFIX).goto(GUARD));
    }
    rules.extend(guard(from_pod, shape.fib));
    for direction in Direction::BOTH {
        let chain = direction.chain_name();
        rules.push(rule(chain).vmap(&[direction.field()], direction.map().name));
        rules.push(rule(chain).counter().drop());
    }
    rules.extend(guard(GUARD, shape.fib));
    rules.push(rule(GUARD_PROTOCOL).protocol(L4::IcmpV6).goto(GUARD_ICMPV6));
    rules.push(rule(GUARD_PROTOCOL).protocol(L4::Udp).goto(GUARD_UDP));
    rules.extend(router_rules(|| rule(GUARD_ICMPV6)));
    rules.extend(dhcp_rules(|| rule(GUARD_UDP)));
    // Neighbour discovery, which routers do not forward.
    rules.push(rule(GUARD_SOURCE).saddr(LINK_LOCAL).return_());
    for family in Family::BOTH {
        let known = rule(GUARD_SOURCE).is_in(&[Field::IifName, Field::Saddr(family)], sources(family).name);
        rules.push(known.return_());
    }
    rules.push(Guard::Source.drops(rule(GUARD_SOURCE)));
    rules
}

/// What drops the forged packets of a pod.
fn guard(chain: &str, fib: bool) -> impl Iterator<Item = Rule> {
    let protocol = rule(chain).protocol_not(L4::Tcp).jump(GUARD_PROTOCOL);
    let loopback = Guard::Loopback.drops(to_loopback(rule(chain).family(Family::V4)));
    let source = fib.then(|| rule(chain).source_elsewhere().jump(GUARD_SOURCE));
    [protocol, loopback].into_iter().chain(source)
}

fn rule(chain: &str) -> Rule {
    Rule::in_chain(&table(), chain)
}

/// The rules that drop packets only routers may send, each made from `rule`.
pub(crate) fn router_rules(rule: impl Fn() -> Rule) -> [Rule; 2] {
    ROUTER_TYPES.map(|number| Guard::Router.drops(rule().icmpv6_type(number)))
}

/// The rules that drop packets only DHCP servers may send, each made from `rule`.
pub(crate) fn dhcp_rules(rule: impl Fn() -> Rule) -> [Rule; 2] {
    DHCP_PORTS.map(|(server, client)| Guard::Dhcp.drops(with_ports(rule().protocol(L4::Udp), server, client)))
}

/// `ip daddr 127.0.0.0/8` as nft encodes it: the first byte of the destination.
fn to_loopback(rule: Rule) -> Rule {
    let register = Register::FIRST;
    let first_byte = Expr::Payload { base: PayloadBase::Network, offset: 16, len: 1, to: register };
    rule.expr(first_byte).expr(Expr::Cmp { op: CmpOp::Eq, register, value: vec![127] })
}

/// `udp sport A udp dport B` as nft encodes it: both in one comparison.
fn with_ports(rule: Rule, source: u16, destination: u16) -> Rule {
    let register = Register::FIRST;
    let both = Expr::Payload { base: PayloadBase::Transport, offset: 0, len: 4, to: register };
    let value = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    rule.expr(both).expr(Expr::Cmp { op: CmpOp::Eq, register, value })
}

// === impl Guard ===

impl Guard {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Source, Self::Mac, Self::Router, Self::Dhcp, Self::Loopback];

    /// The comment of the rules that drop these packets.
    pub const fn comment(self) -> &'static str {
        match self {
            Self::Source => "not the pod's address",
            Self::Mac => "not the pod's MAC",
            Self::Router => "a pod is no router",
            Self::Dhcp => "a pod is no DHCP server",
            Self::Loopback => "the node's loopback addresses",
        }
    }

    /// The label of metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Mac => "mac",
            Self::Router => "router",
            Self::Dhcp => "dhcp",
            Self::Loopback => "loopback",
        }
    }

    pub(crate) fn drops(self, rule: Rule) -> Rule {
        rule.counter().drop().comment(self.comment())
    }
}

/// Whether the kernel refuses a rule that looks up sources in its routes: tried with a table that
/// the same transaction deletes.
pub(crate) fn lacks_fib(nft: &mut nft::Nft) -> bool {
    let table = Table::inet("russet-policy-probe");
    let chain = Chain::new(&table, GUARD);
    let mut transaction = Transaction::new();
    transaction.add_table(&table).add_chain(&chain);
    transaction.add_rule(&Rule::new(&chain).source_elsewhere().accept()).delete_table(&table);
    nft.commit(&transaction).is_err_and(|error| error.is_not_found())
}

/// The host end of an element; none where it is not an interface's name.
pub(crate) fn host_name(element: &Element) -> Option<IfName> {
    let (bytes, _) = element.key.first()?.bytes();
    let name = bytes.split(|byte| *byte == 0).next()?;
    IfName::new(std::str::from_utf8(name).ok()?).ok()
}

/// The verdict of an element, if it is one of ours.
pub(crate) fn verdict(element: &Element) -> Option<Verdict> {
    match &element.value {
        Some(Value::Verdict(nft::Verdict::Accept)) => Some(Verdict::Allow),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_read_back_as_its_entry() {
        for name in ["russ0123456789a", "russ1"] {
            let name: IfName = name.parse().unwrap();
            for direction in Direction::BOTH {
                let element = direction.element(&name, Verdict::Allow);
                assert_eq!(host_name(&element), Some(name.clone()));
                assert_eq!(verdict(&element), Some(Verdict::Allow));
            }
        }
        let dropped = Element::new(KeyPart::port(1)).verdict(nft::Verdict::Drop);
        assert_eq!((host_name(&dropped), verdict(&dropped)), (None, None));
    }

    #[test]
    fn every_base_chain_accepts_what_is_not_a_pods() {
        // A hook takes effect before the rules of the same transaction do: a policy of drop would
        // lose packets in between.
        for base in chains().into_iter().filter_map(|chain| chain.base) {
            assert_eq!(base.policy, nft::Policy::Accept);
        }
    }

    #[test]
    #[ignore = "kernel: nf_tables, root"]
    fn the_lookup_of_sources_in_routes_is_detected() {
        russet_testkit::in_new_netns(|| {
            let mut nft = nft::Nft::open().unwrap();
            assert!(!lacks_fib(&mut nft));
            assert!(nft.tables().unwrap().is_empty());
        });
    }

    #[test]
    fn prefixes_inside_each_other_are_one_element() {
        // The kernel refuses elements that overlap.
        let name: IfName = "cali1".parse().unwrap();
        let nets: Vec<IpNet> = ["10.1.2.3/8", "10.1.0.0/16", "192.0.2.1/32", "fd00::/8"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(source_elements(Family::V4, &name, &nets).len(), 2);
        assert_eq!(source_elements(Family::V6, &name, &nets).len(), 1);
    }
}
