//! The matches of a rule.

use std::ops::RangeInclusive;

use ipnet::IpNet;
use russet_addr::{Family, IfName};

use super::Rule;
use crate::expr::{CmpOp, CtKey, Expr, FibResult, MetaKey, PayloadBase, Register, fib};
use crate::set::{KeyType, Set};
use crate::table::TableFamily;

/// A field of a set's key, alone or concatenated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// `ip saddr` or `ip6 saddr`
    Saddr(Family),
    /// `ip daddr` or `ip6 daddr`
    Daddr(Family),
    /// `meta l4proto`
    L4Proto,
    /// `th sport`; requires a match of the protocol before.
    Sport,
    /// `th dport`; requires a match of the protocol before.
    Dport,
    /// `iif`
    IifIndex,
    /// `oif`
    OifIndex,
    /// `iifname`
    IifName,
    /// `oifname`
    OifName,
    /// `meta mark`
    Mark,
    /// `meta priority`
    Priority,
    /// `ct original ip saddr`: the initiator of the connection.
    CtOriginalSaddr,
    /// `ether saddr`
    EtherSaddr,
    /// `arp saddr ether`; requires a match of the protocol before.
    ArpSenderMac,
    /// `arp saddr ip`; requires a match of the protocol before.
    ArpSender,
    /// `icmpv6 taddr`: the target of a neighbour solicitation or advertisement; requires a match of
    /// the type before.
    NeighbourTarget,
}

/// Transport protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum L4 {
    /// ICMP for IPv4.
    Icmp = 1,
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// ICMP for IPv6.
    IcmpV6 = 58,
    /// SCTP.
    Sctp = 132,
}

/// `IPS_SRC_NAT`
const CT_STATUS_SRC_NAT: u32 = 1 << 4;
/// `IPS_DST_NAT`
const CT_STATUS_DST_NAT: u32 = 1 << 5;
/// `IP_CT_DIR_REPLY`
const CT_REPLY: u8 = 1;
/// `RTN_LOCAL`: an address of this machine.
const RTN_LOCAL: u32 = 2;

// === impl Rule ===

impl Rule {
    /// `meta protocol arp`: the ether type after the first VLAN tag. For bridge tables, where it
    /// determines the following header.
    pub fn ether_type(self, number: u16) -> Self {
        let register = Register::FIRST;
        let value = number.to_be_bytes().to_vec();
        self.expr(Expr::Meta { key: MetaKey::Protocol, to: register }).expr(Expr::Cmp {
            op: CmpOp::Eq,
            register,
            value,
        })
    }

    /// Matches one IP family.
    pub fn family(mut self, family: Family) -> Self {
        self.need_network(family);
        self
    }

    /// `saddr 10.1.0.0/16`
    pub fn saddr(self, net: IpNet) -> Self {
        self.address(Field::Saddr(Family::of_net(&net)), net, CmpOp::Eq)
    }

    /// `saddr != 10.1.0.0/16`
    pub fn saddr_not(self, net: IpNet) -> Self {
        self.address(Field::Saddr(Family::of_net(&net)), net, CmpOp::Neq)
    }

    /// `daddr 10.1.0.0/16`
    pub fn daddr(self, net: IpNet) -> Self {
        self.address(Field::Daddr(Family::of_net(&net)), net, CmpOp::Eq)
    }

    /// `daddr != 10.1.0.0/16`
    pub fn daddr_not(self, net: IpNet) -> Self {
        self.address(Field::Daddr(Family::of_net(&net)), net, CmpOp::Neq)
    }

    /// `saddr @set`
    pub fn saddr_in(self, family: Family, set: impl Into<String>) -> Self {
        self.is_in(&[Field::Saddr(family)], set)
    }

    /// `saddr != @set`
    pub fn saddr_not_in(self, family: Family, set: impl Into<String>) -> Self {
        self.is_not_in(&[Field::Saddr(family)], set)
    }

    /// `daddr @set`
    pub fn daddr_in(self, family: Family, set: impl Into<String>) -> Self {
        self.is_in(&[Field::Daddr(family)], set)
    }

    /// `daddr != @set`
    pub fn daddr_not_in(self, family: Family, set: impl Into<String>) -> Self {
        self.is_not_in(&[Field::Daddr(family)], set)
    }

    /// `FIELD . FIELD @set`
    pub fn is_in(mut self, fields: &[Field], set: impl Into<String>) -> Self {
        let key = self.load_all(fields);
        self.expr(Expr::Lookup { set: set.into(), key, not: false })
    }

    /// `FIELD . FIELD != @set`
    pub fn is_not_in(mut self, fields: &[Field], set: impl Into<String>) -> Self {
        let key = self.load_all(fields);
        self.expr(Expr::Lookup { set: set.into(), key, not: true })
    }

    /// `FIELD . FIELD vmap @map`: applies the map's verdict, or continues if the map has none.
    pub fn vmap(mut self, fields: &[Field], map: impl Into<String>) -> Self {
        let key = self.load_all(fields);
        self.expr(Expr::LookupVerdict { map: map.into(), key })
    }

    /// `meta l4proto tcp`
    pub fn protocol(self, protocol: L4) -> Self {
        self.equals(Field::L4Proto, vec![protocol as u8])
    }

    /// `meta l4proto != tcp`
    pub fn protocol_not(self, protocol: L4) -> Self {
        let value = vec![protocol as u8];
        self.loading(Field::L4Proto).expr(Expr::Cmp { op: CmpOp::Neq, register: Register::FIRST, value })
    }

    /// `th sport 53`
    pub fn sport(self, port: u16) -> Self {
        self.equals(Field::Sport, port.to_be_bytes().to_vec())
    }

    /// `th dport 53`
    pub fn dport(self, port: u16) -> Self {
        self.equals(Field::Dport, port.to_be_bytes().to_vec())
    }

    /// `th dport != 53`
    pub fn dport_not(self, port: u16) -> Self {
        let value = port.to_be_bytes().to_vec();
        self.loading(Field::Dport).expr(Expr::Cmp { op: CmpOp::Neq, register: Register::FIRST, value })
    }

    /// `th dport 30000-32767`
    pub fn dports(mut self, ports: RangeInclusive<u16>) -> Self {
        let register = self.load_all(&[Field::Dport]);
        let [first, last] = [ports.start(), ports.end()].map(|port| port.to_be_bytes().to_vec());
        self.expr(Expr::Range { not: false, register, first, last })
    }

    /// `iifname "eth0"`
    pub fn iif(self, name: &IfName) -> Self {
        self.name(Field::IifName, name.as_str(), CmpOp::Eq)
    }

    /// `iifname != "eth0"`
    pub fn iif_not(self, name: &IfName) -> Self {
        self.name(Field::IifName, name.as_str(), CmpOp::Neq)
    }

    /// `oifname "eth0"`
    pub fn oif(self, name: &IfName) -> Self {
        self.name(Field::OifName, name.as_str(), CmpOp::Eq)
    }

    /// `oifname != "eth0"`
    pub fn oif_not(self, name: &IfName) -> Self {
        self.name(Field::OifName, name.as_str(), CmpOp::Neq)
    }

    /// `iifname "cali*"`
    pub fn iif_prefix(self, prefix: &str) -> Self {
        self.name_prefix(Field::IifName, prefix)
    }

    /// `iifname != "cali*"`, for each of `prefixes`
    pub fn iif_no_prefix(self, prefixes: &[&str]) -> Self {
        if prefixes.is_empty() {
            return self;
        }
        let differs = |prefix: &&str| {
            let value = prefix.as_bytes().to_vec();
            Expr::Cmp { op: CmpOp::Neq, register: Register::FIRST, value }
        };
        prefixes.iter().map(differs).fold(self.loading(Field::IifName), Self::expr)
    }

    /// `oifname "cali*"`
    pub fn oif_prefix(self, prefix: &str) -> Self {
        self.name_prefix(Field::OifName, prefix)
    }

    /// `meta mark & mask == value`
    pub fn mark(self, value: u32, mask: u32) -> Self {
        self.masked_mark(value, mask, CmpOp::Eq)
    }

    /// `meta mark & mask != value`
    pub fn mark_not(self, value: u32, mask: u32) -> Self {
        self.masked_mark(value, mask, CmpOp::Neq)
    }

    /// `meta priority 0:1`
    pub fn priority(self, class_id: u32) -> Self {
        self.equals(Field::Priority, class_id.to_ne_bytes().to_vec())
    }

    /// `meta priority & ffff:8000 == ffff:8000`: all these bits are set.
    pub fn priority_has(self, bits: u32) -> Self {
        let (register, value) = (Register::FIRST, bits.to_ne_bytes().to_vec());
        self.loading(Field::Priority).expr(masked(register, value.clone())).expr(Expr::Cmp {
            op: CmpOp::Eq,
            register,
            value,
        })
    }

    /// `ct mark & mask == @set`
    pub fn ct_mark_in(self, mask: u32, set: impl Into<String>) -> Self {
        let key = Register::FIRST;
        self.expr(Expr::Ct { key: CtKey::Mark, to: key })
            .expr(masked(key, mask.to_ne_bytes().to_vec()))
            .expr(Expr::Lookup { set: set.into(), key, not: false })
    }

    /// `@nh,8,8 & mask == value`: some bits of the type of service of IPv4.
    pub fn tos(self, value: u8, mask: u8) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Payload { base: PayloadBase::Network, offset: 1, len: 1, to: register })
            .expr(masked(register, vec![mask]))
            .expr(Expr::Cmp { op: CmpOp::Eq, register, value: vec![value] })
    }

    /// `ct state established,related`: any of the bits of [`ct_state`](crate::ct_state).
    pub fn ct_state(self, any_of: u32) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Ct { key: CtKey::State, to: register })
            .expr(masked(register, any_of.to_ne_bytes().to_vec()))
            .expr(Expr::Cmp { op: CmpOp::Neq, register, value: vec![0; 4] })
    }

    /// `ct status dnat`: the destination was translated.
    pub fn ct_dnat(self) -> Self {
        self.ct_status(CT_STATUS_DST_NAT)
    }

    /// `ct status snat`: the source was translated.
    pub fn ct_snat(self) -> Self {
        self.ct_status(CT_STATUS_SRC_NAT)
    }

    /// `ct direction reply`
    pub fn ct_reply(self) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Ct { key: CtKey::Direction, to: register }).expr(Expr::Cmp {
            op: CmpOp::Eq,
            register,
            value: vec![CT_REPLY],
        })
    }

    fn ct_status(self, bit: u32) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Ct { key: CtKey::Status, to: register })
            .expr(masked(register, bit.to_ne_bytes().to_vec()))
            .expr(Expr::Cmp { op: CmpOp::Neq, register, value: vec![0; 4] })
    }

    /// `fib daddr type local`: to an address of this machine.
    pub fn to_this_machine(self) -> Self {
        self.address_type(fib::DADDR, CmpOp::Eq)
    }

    /// `fib daddr type != local`
    pub fn not_to_this_machine(self) -> Self {
        self.address_type(fib::DADDR, CmpOp::Neq)
    }

    /// `fib saddr type local`: from an address of this machine.
    pub fn from_this_machine(self) -> Self {
        self.address_type(fib::SADDR, CmpOp::Eq)
    }

    /// `fib saddr . iif oif 0`: there is no route back to the source through the incoming
    /// interface.
    pub fn source_elsewhere(self) -> Self {
        let register = Register::FIRST;
        let flags = fib::SADDR | fib::IIF;
        self.expr(Expr::Fib { result: FibResult::Oif, flags, to: register }).expr(Expr::Cmp {
            op: CmpOp::Eq,
            register,
            value: vec![0; 4],
        })
    }

    /// `@th,96,24 4096`: the network identifier of a VXLAN packet; requires matches of protocol and
    /// port before.
    pub fn vni(self, vni: u32) -> Self {
        // After the UDP header of 8 bytes and VXLAN's flags of 4 (RFC 7348 section 5).
        let register = Register::FIRST;
        let payload = Expr::Payload { base: PayloadBase::Transport, offset: 12, len: 3, to: register };
        let [_, value @ ..] = vni.to_be_bytes();
        self.expr(payload).expr(Expr::Cmp { op: CmpOp::Eq, register, value: value.to_vec() })
    }

    /// `icmpv6 type 134`
    pub fn icmpv6_type(self, number: u8) -> Self {
        let register = Register::FIRST;
        let payload = Expr::Payload { base: PayloadBase::Transport, offset: 0, len: 1, to: register };
        let typed = self.family(Family::V6).protocol(L4::IcmpV6).expr(payload);
        typed.expr(Expr::Cmp { op: CmpOp::Eq, register, value: vec![number] })
    }

    /// `icmpv6 type 133-136 ip6 hoplimit 255`: neighbour discovery that no router has forwarded (RFC 4861
    /// section 7.1).
    pub fn neighbour_discovery(self) -> Self {
        let register = Register::FIRST;
        let load = |base, offset| Expr::Payload { base, offset, len: 1, to: register };
        let cmp = |op, number| Expr::Cmp { op, register, value: vec![number] };
        self.family(Family::V6)
            .protocol(L4::IcmpV6)
            .expr(load(PayloadBase::Transport, 0))
            .expr(cmp(CmpOp::Gte, 133))
            .expr(cmp(CmpOp::Lte, 136))
            .expr(load(PayloadBase::Network, 7))
            .expr(cmp(CmpOp::Eq, u8::MAX))
    }

    fn address_type(self, flags: u32, op: CmpOp) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Fib { result: FibResult::AddressType, flags, to: register }).expr(Expr::Cmp {
            op,
            register,
            value: RTN_LOCAL.to_ne_bytes().to_vec(),
        })
    }

    fn address(mut self, field: Field, net: IpNet, op: CmpOp) -> Self {
        let register = Register::FIRST;
        if net.prefix_len() == 0 && op == CmpOp::Eq {
            return self.family(Family::of_net(&net));
        }
        self = self.loading(field);
        if net.prefix_len() != net.max_prefix_len() {
            self = self.expr(masked(register, crate::set::octets(net.netmask())));
        }
        self.expr(Expr::Cmp { op, register, value: crate::set::octets(net.network()) })
    }

    fn masked_mark(self, value: u32, mask: u32, op: CmpOp) -> Self {
        let register = Register::FIRST;
        let loaded = self.loading(Field::Mark);
        let kept = match mask {
            u32::MAX => loaded,
            mask => loaded.expr(masked(register, mask.to_ne_bytes().to_vec())),
        };
        kept.expr(Expr::Cmp { op, register, value: value.to_ne_bytes().to_vec() })
    }

    fn name(self, field: Field, name: &str, op: CmpOp) -> Self {
        let value = crate::set::padded_name(name).to_vec();
        self.loading(field).expr(Expr::Cmp { op, register: Register::FIRST, value })
    }

    fn name_prefix(self, field: Field, prefix: &str) -> Self {
        let value = prefix.as_bytes().to_vec();
        self.loading(field).expr(Expr::Cmp { op: CmpOp::Eq, register: Register::FIRST, value })
    }

    fn equals(self, field: Field, value: Vec<u8>) -> Self {
        self.loading(field).expr(Expr::Cmp { op: CmpOp::Eq, register: Register::FIRST, value })
    }

    fn loading(mut self, field: Field) -> Self {
        self.load_all(&[field]);
        self
    }

    /// `FIELD . FIELD map @map` in register `Register::FIRST`; ends the rule if the map has no value.
    pub(super) fn look_up(mut self, fields: &[Field], map: &Set) -> Self {
        let key = self.load_all(fields);
        let mut slot = key.0;
        for kind in fields.iter().map(|field| field.key_type()) {
            let register = Register(slot);
            if map.converts(kind) {
                self.expressions.push(Expr::ToNetworkOrder { from: register, to: register });
            }
            slot += kind.len_bytes().div_ceil(4) as u8;
        }
        self.expr(Expr::LookupMap { map: map.name.clone(), key, to: Register::FIRST })
    }

    /// Loads the fields into consecutive registers; returns the first.
    fn load_all(&mut self, fields: &[Field]) -> Register {
        for field in fields {
            if let Field::Saddr(family) | Field::Daddr(family) = field {
                self.need_network(*family);
            }
        }
        let mut slot = Register::FIRST.0;
        for field in fields {
            self.expressions.push(field.load(Register(slot)));
            slot += field.key_type().len_bytes().div_ceil(4) as u8;
        }
        Register::FIRST
    }

    /// Header offsets are valid only within a family, so the family must be matched once.
    fn need_network(&mut self, family: Family) {
        if self.network == Some(family) {
            return;
        }
        self.network = Some(family);
        let (key, value) = match (self.table.family, family) {
            (TableFamily::Netdev | TableFamily::Bridge | TableFamily::Arp, Family::V4) => {
                (MetaKey::Protocol, vec![0x08, 0x00])
            }
            (TableFamily::Netdev | TableFamily::Bridge | TableFamily::Arp, Family::V6) => {
                (MetaKey::Protocol, vec![0x86, 0xdd])
            }
            _ => (MetaKey::Nfproto, vec![crate::expr::nfproto(family)]),
        };
        let register = Register::FIRST;
        self.expressions.push(Expr::Meta { key, to: register });
        self.expressions.push(Expr::Cmp { op: CmpOp::Eq, register, value });
    }
}

// === impl Field ===

impl Field {
    /// The type of the field in a set's key.
    pub const fn key_type(self) -> KeyType {
        match self {
            Self::Saddr(family) | Self::Daddr(family) => KeyType::address(family),
            Self::L4Proto => KeyType::InetProto,
            Self::Sport | Self::Dport => KeyType::InetService,
            Self::IifIndex | Self::OifIndex => KeyType::IfIndex,
            Self::IifName | Self::OifName => KeyType::IfName,
            Self::Mark => KeyType::Mark,
            Self::Priority => KeyType::ClassId,
            Self::CtOriginalSaddr | Self::ArpSender => KeyType::Ipv4Addr,
            Self::EtherSaddr | Self::ArpSenderMac => KeyType::EtherAddr,
            Self::NeighbourTarget => KeyType::Ipv6Addr,
        }
    }

    fn load(self, to: Register) -> Expr {
        let payload = |base, offset, len| Expr::Payload { base, offset, len, to };
        match self {
            Self::Saddr(Family::V4) => payload(PayloadBase::Network, 12, 4),
            Self::Daddr(Family::V4) => payload(PayloadBase::Network, 16, 4),
            Self::Saddr(Family::V6) => payload(PayloadBase::Network, 8, 16),
            Self::Daddr(Family::V6) => payload(PayloadBase::Network, 24, 16),
            Self::Sport => payload(PayloadBase::Transport, 0, 2),
            Self::Dport => payload(PayloadBase::Transport, 2, 2),
            Self::L4Proto => Expr::Meta { key: MetaKey::L4Proto, to },
            Self::IifIndex => Expr::Meta { key: MetaKey::Iif, to },
            Self::OifIndex => Expr::Meta { key: MetaKey::Oif, to },
            Self::IifName => Expr::Meta { key: MetaKey::IifName, to },
            Self::OifName => Expr::Meta { key: MetaKey::OifName, to },
            Self::Mark => Expr::Meta { key: MetaKey::Mark, to },
            Self::Priority => Expr::Meta { key: MetaKey::Priority, to },
            Self::CtOriginalSaddr => Expr::CtOriginal { key: CtKey::Saddr4, to },
            Self::EtherSaddr => payload(PayloadBase::Link, 6, 6),
            Self::ArpSenderMac => payload(PayloadBase::Network, 8, 6),
            Self::ArpSender => payload(PayloadBase::Network, 14, 4),
            Self::NeighbourTarget => payload(PayloadBase::Transport, 8, 16),
        }
    }
}

fn masked(register: Register, mask: Vec<u8>) -> Expr {
    let xor = vec![0; mask.len()];
    Expr::Bitwise { from: register, to: register, mask, xor }
}
