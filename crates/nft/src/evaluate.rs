//! Evaluates whether the node's own rules drop a packet of which only a few properties are known: a
//! tunnel packet from any peer. It answers whether the tunnel's port is open; firewalls of other
//! programs are only read. Those of legacy iptables are not in nf_tables and are read beside it.
//!
//! Every match is true, false or unknown. A chain then has a set of possible outcomes, and a packet
//! counts as dropped only if that is the only one. A rule for some peers or with a limit is
//! therefore not reported, and neither is a chain with unsupported expressions.

mod legacy;

use std::collections::BTreeMap;
use std::fmt;

use russet_addr::{Family, IfName};
use russet_netlink::wire::Attributes;

use crate::chain::{ChainInfo, ChainKind, Hook, Policy};
use crate::kernel::*;
use crate::nft::Nft;
use crate::set::{Element, SetInfo, Value};
use crate::table::{Table, TableFamily};
use crate::verdict::Verdict;
use crate::{NetlinkError, expr};
use legacy::LegacyTable;

/// A UDP packet to a port, without connection tracking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpPacket {
    /// The address family.
    pub family: Family,
    /// The destination port.
    pub port: u16,
    /// The interface through which it arrives or leaves.
    pub interface: (u32, IfName),
    /// Whether it arrives from outside; otherwise this machine sends it.
    pub incoming: bool,
}

/// A base chain that drops every such packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppingChain {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub name: String,
    /// Whether it belongs to legacy iptables. `nft list` does not show it.
    pub is_legacy: bool,
}

/// One part of a rule, as far as it is evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Loads a property of the packet into a register; `None` for an unknown property.
    Load { register: u32, bytes: Option<Vec<u8>> },
    /// Compares a register with a range, possibly inverted.
    Compare { register: u32, from: Option<Vec<u8>>, to: Option<Vec<u8>>, inverted: bool },
    /// Masks a register.
    Mask { from: u32, to: u32, mask: Vec<u8>, xor: Vec<u8> },
    /// Looks up a register in a set or a verdict map.
    Lookup { set: String, register: u32, inverted: bool, is_map: bool },
    /// A match of iptables whose result is known: of the port, the protocol, an interface or the
    /// connection's state.
    Known { matches: bool },
    /// A verdict.
    Decide(Verdict),
    /// An unknown match.
    Unknown,
    /// Matches all packets and has no verdict.
    Nothing,
}

/// Whether a rule matches the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Match {
    Yes,
    Perhaps,
    No,
}

/// The possible outcomes of a chain, as bits.
type Outcomes = u8;
const ACCEPTED: Outcomes = 1;
const DROPPED: Outcomes = 2;
const UNDECIDED: Outcomes = 4;
const ANY: Outcomes = ACCEPTED | DROPPED | UNDECIDED;

/// The rules and sets of one table, read when needed; those of legacy iptables are there from the
/// beginning.
struct TableRules<'a> {
    nft: &'a mut Nft,
    table: Table,
    packet: &'a UdpPacket,
    chains: BTreeMap<String, Vec<Vec<Step>>>,
    sets: Option<Vec<SetInfo>>,
    elements: BTreeMap<String, Option<Vec<Element>>>,
    /// How many more chains may be entered: rules of other programs may jump between chains
    /// arbitrarily often.
    left: u32,
}

/// Limits for the depth and the number of jumps; what is beyond counts as unknown. ufw and
/// firewalld nest three levels.
const DEPTH_MAX: u32 = 8;
const CHAINS_MAX: u32 = 256;
/// Larger sets are not searched: a set of ports has few elements, and one of addresses does not
/// decide about a port.
const ELEMENTS_MAX: u32 = 10_000;

// linux/netfilter/nf_tables.h
const NFT_META_PROTOCOL: u32 = 1;
const NFT_META_IIF: u32 = 4;
const NFT_META_OIF: u32 = 5;
const NFT_META_IIFNAME: u32 = 6;
const NFT_META_OIFNAME: u32 = 7;
const NFT_META_NFPROTO: u32 = 15;
const NFT_META_L4PROTO: u32 = 16;
const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
const NFT_CT_STATE: u32 = 0;
const NFT_CMP_EQ: u32 = 0;
const NFT_CMP_NEQ: u32 = 1;
const NFT_LOOKUP_F_INV: u32 = 1;
/// `NF_CT_STATE_UNTRACKED_BIT`
const CT_UNTRACKED: u32 = 1 << 6;
const ETHERTYPE: [u16; 2] = [0x0800, 0x86dd];
const NFPROTO: [u8; 2] = [2, 10];
/// The offsets of the transport protocol in the headers of the two families.
const PROTOCOL_OFFSET: [u32; 2] = [9, 6];
const IPPROTO_UDP: u8 = 17;
const UDP_DPORT: (u32, u32) = (2, 2);
const IFNAMSIZ: usize = 16;

// === impl Nft ===

impl Nft {
    /// The base chains that drop every such packet, without tables for which `is_ours` is true. Those
    /// of legacy iptables are all foreign.
    pub fn dropping(
        &mut self,
        packet: &UdpPacket,
        is_ours: impl Fn(&Table) -> bool,
    ) -> Result<Vec<DroppingChain>, NetlinkError> {
        let dormant = self.tables()?.into_iter().filter(|info| info.dormant).map(|info| info.table);
        let dormant: Vec<Table> = dormant.collect();
        let mut found = Vec::new();
        for info in self.all_chains()? {
            let table = &info.chain.table;
            if !packet.passes(&info) || is_ours(table) || dormant.contains(table) {
                continue;
            }
            let mut rules = TableRules::new(self, table.clone(), packet, BTreeMap::new());
            let policy = info.chain.base.as_ref().map_or(Policy::Accept, |base| base.policy);
            if rules.drops_all(&info.chain.name, policy)? {
                found.push(DroppingChain { table: table.clone(), name: info.chain.name, is_legacy: false });
            }
        }
        for LegacyTable { table, bases, chains } in legacy::tables(packet)? {
            let mut rules = TableRules::new(self, table.clone(), packet, chains);
            for base in bases.iter().filter(|base| packet.hooks().contains(&base.hook)) {
                if rules.drops_all(base.name, base.policy)? {
                    let (table, name) = (table.clone(), base.name.to_owned());
                    found.push(DroppingChain { table, name, is_legacy: true });
                }
            }
        }
        Ok(found)
    }
}

/// The outcomes of a base chain, given those of its rules.
fn with_policy(outcomes: Outcomes, policy: Policy) -> Outcomes {
    let end = if policy == Policy::Drop { DROPPED } else { ACCEPTED };
    if outcomes & UNDECIDED == 0 { outcomes } else { outcomes & !UNDECIDED | end }
}

// === impl DroppingChain ===

impl fmt::Display for DroppingChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flavour = if self.is_legacy { " of legacy iptables" } else { "" };
        write!(f, "chain {} {}{flavour}", self.table, self.name.escape_debug())
    }
}

// === impl UdpPacket ===

impl UdpPacket {
    /// The one of two values that belongs to the packet's family.
    fn choose<T>(&self, [v4, v6]: [T; 2]) -> T {
        match self.family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// Whether the packet enters a chain.
    fn passes(&self, info: &ChainInfo) -> bool {
        let Some(base) = &info.chain.base else { return false };
        let here = match info.chain.table.family {
            TableFamily::Inet => true,
            TableFamily::Ip => self.family == Family::V4,
            TableFamily::Ip6 => self.family == Family::V6,
            _ => base.devices.contains(&self.interface.1),
        };
        here && base.kind != ChainKind::Nat && self.hooks().contains(&base.hook)
    }

    /// The hooks that it passes through.
    fn hooks(&self) -> &'static [Hook] {
        match self.incoming {
            true => &[Hook::Ingress, Hook::Prerouting, Hook::Input],
            false => &[Hook::Output, Hook::Postrouting, Hook::Egress],
        }
    }

    fn meta(&self, key: u32) -> Option<Vec<u8>> {
        let (ifindex, name) = &self.interface;
        let interface = match key {
            NFT_META_IIF | NFT_META_IIFNAME => self.incoming,
            _ => !self.incoming,
        };
        match key {
            NFT_META_PROTOCOL => Some(self.choose(ETHERTYPE).to_be_bytes().to_vec()),
            NFT_META_NFPROTO => Some(vec![self.choose(NFPROTO)]),
            NFT_META_L4PROTO => Some(vec![IPPROTO_UDP]),
            NFT_META_IIF | NFT_META_OIF if interface => Some(ifindex.to_ne_bytes().to_vec()),
            NFT_META_IIFNAME | NFT_META_OIFNAME if interface => {
                let mut padded = name.as_str().as_bytes().to_vec();
                padded.resize(IFNAMSIZ, 0);
                Some(padded)
            }
            _ => None,
        }
    }

    fn payload(&self, base: u32, place: (u32, u32)) -> Option<Vec<u8>> {
        match (base, place) {
            (NFT_PAYLOAD_NETWORK_HEADER, (offset, 1)) if offset == self.choose(PROTOCOL_OFFSET) => {
                Some(vec![IPPROTO_UDP])
            }
            (NFT_PAYLOAD_TRANSPORT_HEADER, UDP_DPORT) => Some(self.port.to_be_bytes().to_vec()),
            _ => None,
        }
    }
}

// === impl TableRules ===

impl<'a> TableRules<'a> {
    fn new(
        nft: &'a mut Nft,
        table: Table,
        packet: &'a UdpPacket,
        chains: BTreeMap<String, Vec<Vec<Step>>>,
    ) -> Self {
        Self { nft, table, packet, chains, sets: None, elements: BTreeMap::new(), left: CHAINS_MAX }
    }

    /// Whether a base chain can only drop the packet.
    fn drops_all(&mut self, chain: &str, policy: Policy) -> Result<bool, NetlinkError> {
        self.left = CHAINS_MAX;
        Ok(with_policy(self.chain(chain, DEPTH_MAX)?, policy) == DROPPED)
    }

    fn chain(&mut self, name: &str, depth: u32) -> Result<Outcomes, NetlinkError> {
        if depth == 0 || self.left == 0 {
            return Ok(ANY);
        }
        self.left -= 1;
        let mut outcomes = 0;
        for rule in self.rules(name)? {
            let (matches, verdict) = self.rule(&rule)?;
            let (here, ends) = match (matches, verdict) {
                (Match::No, _) | (_, None | Some(Verdict::Continue)) => continue,
                (_, Some(Verdict::Accept)) => (ACCEPTED, true),
                (_, Some(Verdict::Drop)) => (DROPPED, true),
                (_, Some(Verdict::Return)) => (UNDECIDED, true),
                (_, Some(Verdict::Goto(chain))) => (self.chain(&chain, depth - 1)?, true),
                (_, Some(Verdict::Jump(chain))) => {
                    let inside = self.chain(&chain, depth - 1)?;
                    (inside & !UNDECIDED, inside & UNDECIDED == 0)
                }
            };
            outcomes |= here;
            if ends && matches == Match::Yes {
                return Ok(outcomes);
            }
        }
        Ok(outcomes | UNDECIDED)
    }

    fn rules(&mut self, chain: &str) -> Result<Vec<Vec<Step>>, NetlinkError> {
        if let Some(known) = self.chains.get(chain) {
            return Ok(known.clone());
        }
        let packet = self.packet;
        let rules = self.nft.decoded_rules(&self.table, chain, |message| {
            let attributes = message.attributes(NFGENMSG_BYTES);
            let list = attributes.find(NFTA_RULE_EXPRESSIONS)?.nested();
            Some(steps(&list, packet))
        })?;
        self.chains.insert(chain.to_owned(), rules.clone());
        Ok(rules)
    }

    /// Whether a rule matches the packet, and its verdict.
    fn rule(&mut self, rule: &[Step]) -> Result<(Match, Option<Verdict>), NetlinkError> {
        let mut registers: BTreeMap<u32, Option<Vec<u8>>> = BTreeMap::new();
        let mut matches = Match::Yes;
        let mut verdict = None;
        for step in rule {
            let known = |register: &u32| registers.get(register).cloned().flatten();
            let here = match step {
                Step::Load { register, bytes } => {
                    registers.insert(*register, bytes.clone());
                    Match::Yes
                }
                Step::Mask { from, to, mask, xor } => {
                    let masked = known(from).map(|bytes| masked(&bytes, mask, xor));
                    registers.insert(*to, masked);
                    Match::Yes
                }
                Step::Compare { register, from, to, inverted } => match known(register) {
                    Some(bytes) => Match::of(within(&bytes, from.as_deref(), to.as_deref()) != *inverted),
                    None => Match::Perhaps,
                },
                Step::Lookup { set, register, inverted, is_map } => {
                    match known(register) {
                        Some(bytes) => match self.look_up(set, &bytes)? {
                            None => Match::Perhaps,
                            Some(found) if *is_map => {
                                verdict = found.clone().flatten();
                                Match::of(found.is_some())
                            }
                            Some(found) => Match::of(found.is_some() != *inverted),
                        },
                        // The verdict from the map is unknown, too.
                        None if *is_map => return Ok((Match::Perhaps, Some(Verdict::Return))),
                        None => Match::Perhaps,
                    }
                }
                Step::Known { matches } => Match::of(*matches),
                Step::Decide(decided) => {
                    verdict = Some(decided.clone());
                    Match::Yes
                }
                Step::Unknown => Match::Perhaps,
                Step::Nothing => Match::Yes,
            };
            match here {
                Match::No => return Ok((Match::No, None)),
                Match::Perhaps => matches = Match::Perhaps,
                Match::Yes => {}
            }
        }
        Ok((matches, verdict))
    }

    /// Whether a set contains a key, and the verdict for it; `None` if that cannot be determined.
    #[allow(clippy::option_option, reason = "known, found, with a verdict")]
    fn look_up(&mut self, name: &str, key: &[u8]) -> Result<Option<Option<Option<Verdict>>>, NetlinkError> {
        if !self.elements.contains_key(name) {
            if self.sets.is_none() {
                self.sets = Some(self.nft.sets(&self.table)?);
            }
            let info = self.sets.iter().flatten().find(|info| info.set.name == name);
            let simple = info
                .map(|info| info.set.clone())
                .filter(|set| set.key.len() == 1 && set.size.is_none_or(|size| size <= ELEMENTS_MAX));
            let elements = simple.map(|set| self.nft.elements(&set)).transpose()?;
            self.elements.insert(name.to_owned(), elements);
        }
        let Some(Some(elements)) = self.elements.get(name) else { return Ok(None) };
        let has = |element: &&Element| match &element.key[..] {
            // The element for all keys without their own.
            [] => true,
            [part] => &*part.first <= key && key <= &*part.last,
            _ => false,
        };
        let exact = elements.iter().filter(|element| !element.key.is_empty()).find(has);
        let found = exact.or_else(|| elements.iter().find(has));
        Ok(Some(found.map(|element| match &element.value {
            Some(Value::Verdict(verdict)) => Some(verdict.clone()),
            _ => None,
        })))
    }
}

// === impl Match ===

impl Match {
    fn of(matches: bool) -> Self {
        if matches { Self::Yes } else { Self::No }
    }
}

fn masked(bytes: &[u8], mask: &[u8], xor: &[u8]) -> Vec<u8> {
    let pairs = mask.iter().zip(xor);
    bytes.iter().zip(pairs).map(|(byte, (mask, xor))| byte & mask ^ xor).collect()
}

/// Whether a value is within a range, whose bounds may be shorter: interface names with an
/// asterisk.
fn within(bytes: &[u8], from: Option<&[u8]>, to: Option<&[u8]>) -> bool {
    let shortest = [from, to].into_iter().flatten().map(<[u8]>::len).min().unwrap_or(0).min(bytes.len());
    let part = |bytes: &[u8]| bytes.get(..shortest).unwrap_or(bytes).to_vec();
    let value = part(bytes);
    from.is_none_or(|from| part(from) <= value) && to.is_none_or(|to| value <= part(to))
}

/// The parts of a rule (the contents of `NFTA_RULE_EXPRESSIONS`).
fn steps(list: &Attributes<'_>, packet: &UdpPacket) -> Vec<Step> {
    let step = |element: russet_netlink::wire::Attribute<'_>| {
        let parts = element.nested();
        let name = parts.find(NFTA_EXPR_NAME).map(|name| name.text()).unwrap_or_default();
        match expr::extension(element) {
            Some((extension, info)) => extension_step(&name, &extension, &info, packet),
            None => {
                let empty = Attributes::new(&[]);
                let data = parts.find(NFTA_EXPR_DATA).map_or(empty, |data| data.nested());
                plain_step(&name, &data, packet).unwrap_or(Step::Unknown)
            }
        }
    };
    list.clone().map(step).collect()
}

/// An expression of nf_tables; `None` if an attribute is missing.
fn plain_step(name: &str, data: &Attributes<'_>, packet: &UdpPacket) -> Option<Step> {
    let number = |kind: u16| data.find(kind).and_then(|attribute| attribute.be32());
    let register = |kind: u16| number(kind).map(normal);
    let value = |kind: u16| Some(data.find(kind)?.nested().find(NFTA_DATA_VALUE)?.payload.to_vec());
    Some(match name {
        "meta" => match register(NFTA_META_DREG) {
            Some(register) => Step::Load { register, bytes: packet.meta(number(NFTA_META_KEY)?) },
            None => Step::Nothing,
        },
        "payload" => match register(NFTA_PAYLOAD_DREG) {
            Some(register) => {
                let place = (number(NFTA_PAYLOAD_OFFSET)?, number(NFTA_PAYLOAD_LEN)?);
                Step::Load { register, bytes: packet.payload(number(NFTA_PAYLOAD_BASE)?, place) }
            }
            None => Step::Nothing,
        },
        "ct" => match register(NFTA_CT_DREG) {
            Some(register) => {
                let is_state = number(NFTA_CT_KEY) == Some(NFT_CT_STATE);
                Step::Load { register, bytes: is_state.then(|| CT_UNTRACKED.to_ne_bytes().to_vec()) }
            }
            None => Step::Nothing,
        },
        "cmp" => {
            let (register, end) = (register(NFTA_CMP_SREG)?, Some(value(NFTA_CMP_DATA)?));
            match number(NFTA_CMP_OP)? {
                NFT_CMP_EQ => Step::Compare { register, from: end.clone(), to: end, inverted: false },
                NFT_CMP_NEQ => Step::Compare { register, from: end.clone(), to: end, inverted: true },
                2 => Step::Compare { register, from: end, to: None, inverted: true },
                3 => Step::Compare { register, from: None, to: end, inverted: false },
                4 => Step::Compare { register, from: None, to: end, inverted: true },
                5 => Step::Compare { register, from: end, to: None, inverted: false },
                _ => Step::Unknown,
            }
        }
        "range" => Step::Compare {
            register: register(NFTA_RANGE_SREG)?,
            from: Some(value(NFTA_RANGE_FROM_DATA)?),
            to: Some(value(NFTA_RANGE_TO_DATA)?),
            inverted: number(NFTA_RANGE_OP)? != NFT_CMP_EQ,
        },
        "bitwise" if number(NFTA_BITWISE_OP).unwrap_or(0) == 0 => Step::Mask {
            from: register(NFTA_BITWISE_SREG)?,
            to: register(NFTA_BITWISE_DREG)?,
            mask: value(NFTA_BITWISE_MASK)?,
            xor: value(NFTA_BITWISE_XOR)?,
        },
        "lookup" => {
            let (set, register) = (data.find(NFTA_LOOKUP_SET)?.text(), register(NFTA_LOOKUP_SREG)?);
            match number(NFTA_LOOKUP_DREG) {
                // Loads into a data register, which the rest of the rule uses.
                Some(to) if to != 0 => Step::Load { register: normal(to), bytes: None },
                to => {
                    let inverted = number(NFTA_LOOKUP_FLAGS).unwrap_or(0) & NFT_LOOKUP_F_INV != 0;
                    Step::Lookup { set, register, inverted, is_map: to.is_some() }
                }
            }
        }
        "immediate" => match Verdict::decode(&data.find(NFTA_IMMEDIATE_DATA)?.nested()) {
            Some(verdict) => Step::Decide(verdict),
            None => {
                Step::Load { register: register(NFTA_IMMEDIATE_DREG)?, bytes: value(NFTA_IMMEDIATE_DATA) }
            }
        },
        "reject" => Step::Decide(Verdict::Drop),
        "counter" | "log" | "notrack" | "nop" | "objref" | "dup" => Step::Nothing,
        _ => Step::Unknown,
    })
}

/// An extension of iptables, in the tables of iptables-nft.
fn extension_step(name: &str, extension: &str, info: &[u8], packet: &UdpPacket) -> Step {
    match (name, extension) {
        ("match", "comment") => Step::Nothing,
        ("match", "udp") => udp_ports(info, packet.port).unwrap_or(Step::Unknown),
        ("match", "conntrack") => untracked(info).unwrap_or(Step::Unknown),
        ("match", "tcp" | "icmp" | "icmp6") => Step::Known { matches: false },
        ("target", "REJECT" | "DROP") => Step::Decide(Verdict::Drop),
        ("target", "LOG" | "NFLOG" | "CT" | "MARK" | "CONNMARK" | "CHECKSUM" | "NOTRACK") => Step::Nothing,
        _ => Step::Unknown,
    }
}

/// `struct xt_udp`: two source ports, two destination ports, and which of them are inverted (1: source, 2: destination).
fn udp_ports(info: &[u8], port: u16) -> Option<Step> {
    let number = |at: usize| Some(u16::from_ne_bytes([*info.get(at)?, *info.get(at + 1)?]));
    let (sources, inverted) = ((number(0)?, number(2)?), *info.get(8)?);
    let is_ours = (number(4)?..=number(6)?).contains(&port) != (inverted & 2 != 0);
    let any_source = sources == (0, u16::MAX) && inverted & 1 == 0;
    Some(if is_ours && !any_source { Step::Unknown } else { Step::Known { matches: is_ours } })
}

/// `struct xt_conntrack_mtinfo3`, if it matches states only: the packet is untracked, whatever they
/// are.
fn untracked(info: &[u8]) -> Option<Step> {
    const MATCH_FLAGS: usize = 146;
    const INVERT_FLAGS: usize = 148;
    const STATE_MASK: usize = 150;
    const XT_CONNTRACK_STATE: u16 = 1;
    const XT_CONNTRACK_STATE_UNTRACKED: u16 = 1 << 6;
    let number = |at: usize| Some(u16::from_ne_bytes([*info.get(at)?, *info.get(at + 1)?]));
    let (flags, inverted, states) = (number(MATCH_FLAGS)?, number(INVERT_FLAGS)?, number(STATE_MASK)?);
    let has = states & XT_CONNTRACK_STATE_UNTRACKED != 0;
    let matches = has != (inverted & XT_CONNTRACK_STATE != 0);
    (flags == XT_CONNTRACK_STATE).then_some(Step::Known { matches })
}

/// The number of a 4-byte register, also for 16-byte registers, which are the same memory.
const fn normal(register: u32) -> u32 {
    match register {
        1..=4 => 8 + (register - 1) * 4,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> UdpPacket {
        UdpPacket { family: Family::V4, port: 4789, interface: (7, "eth0".parse().unwrap()), incoming: true }
    }

    #[test]
    fn properties_of_the_packet_are_known_and_others_are_not() {
        let packet = packet();
        assert_eq!(packet.meta(NFT_META_L4PROTO), Some(vec![17]));
        assert_eq!(packet.meta(NFT_META_IIFNAME).unwrap()[..5], *b"eth0\0");
        assert_eq!(packet.meta(NFT_META_OIFNAME), None);
        assert_eq!(packet.payload(NFT_PAYLOAD_TRANSPORT_HEADER, UDP_DPORT), Some(vec![0x12, 0xb5]));
        assert_eq!(packet.payload(NFT_PAYLOAD_NETWORK_HEADER, (12, 4)), None);
    }

    #[test]
    fn ranges_and_prefixes_of_names_are_compared() {
        let port = [0x12, 0xb5];
        assert!(within(&port, Some(&[0x12, 0]), Some(&[0x13, 0])));
        assert!(!within(&port, Some(&[0x12, 0xb6]), None));
        assert!(within(b"eth0\0\0", Some(b"eth"), Some(b"eth")));
        assert!(!within(b"eth0\0\0", Some(b"ens"), Some(b"ens")));
        assert_eq!(masked(&[0x40], &[0x06], &[0]), [0]);
    }

    #[test]
    fn the_ports_of_iptables_extension_are_read() {
        let info = |ports: [u16; 4], inverted: u8| {
            let mut bytes: Vec<u8> = ports.iter().flat_map(|port| port.to_ne_bytes()).collect();
            bytes.extend([inverted, 0]);
            udp_ports(&bytes, 4789).unwrap()
        };
        let all = u16::MAX;
        assert_eq!(info([0, all, 4789, 4789], 0), Step::Known { matches: true });
        assert_eq!(info([0, all, 53, 53], 0), Step::Known { matches: false });
        assert_eq!(info([0, all, 53, 53], 2), Step::Known { matches: true });
        assert_eq!(info([500, 500, 4000, 5000], 0), Step::Unknown);
        assert_eq!(udp_ports(&[0; 4], 4789), None);
    }

    #[test]
    fn a_dropping_policy_applies_only_to_packets_that_no_rule_decides() {
        assert_eq!(with_policy(DROPPED, Policy::Accept), DROPPED);
        assert_eq!(with_policy(UNDECIDED, Policy::Drop), DROPPED);
        assert_eq!(with_policy(DROPPED | UNDECIDED, Policy::Drop), DROPPED);
        assert_eq!(with_policy(ACCEPTED | UNDECIDED, Policy::Drop), ACCEPTED | DROPPED);
    }
}
