//! The actions of a rule.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use russet_addr::Family;

use super::{Field, Rule};
use crate::expr::{CtKey, Expr, LogTo, MetaKey, NatKind, Register, Reject};
use crate::kernel::{RANGE_MAP_IPS, RANGE_PROTO_RANDOM_FULLY, RANGE_PROTO_SPECIFIED};
use crate::set::Set;
use crate::verdict::Verdict;

/// How ports are chosen for masquerading.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Masquerade {
    /// At random, instead of keeping the port if possible: clients of two nodes then rarely compete
    /// for one.
    pub fully_random: bool,
    /// Only from this range; the rule must match TCP, UDP or SCTP before.
    pub ports: Option<RangeInclusive<u16>>,
}

/// The burst of a limit, in packets; nft's default.
const LIMIT_BURST_PACKETS: u32 = 5;

// === impl Rule ===

impl Rule {
    /// A verdict.
    pub fn verdict(self, verdict: Verdict) -> Self {
        self.expr(Expr::Verdict(verdict))
    }

    /// `accept`
    pub fn accept(self) -> Self {
        self.verdict(Verdict::Accept)
    }

    /// `drop`
    pub fn drop(self) -> Self {
        self.verdict(Verdict::Drop)
    }

    /// `return`
    pub fn return_(self) -> Self {
        self.verdict(Verdict::Return)
    }

    /// `jump CHAIN`
    pub fn jump(self, chain: impl Into<String>) -> Self {
        self.verdict(Verdict::jump(chain))
    }

    /// `goto CHAIN`
    pub fn goto(self, chain: impl Into<String>) -> Self {
        self.verdict(Verdict::goto(chain))
    }

    /// `counter`
    pub fn counter(self) -> Self {
        self.expr(Expr::Counter)
    }

    /// `notrack`
    pub fn notrack(self) -> Self {
        self.expr(Expr::Notrack)
    }

    /// `reject with ...`
    pub fn reject(self, with: Reject) -> Self {
        self.expr(Expr::Reject(with))
    }

    /// `limit rate N/second`
    pub fn limit_per_second(self, packets: u64) -> Self {
        self.limit_with_burst(packets, LIMIT_BURST_PACKETS)
    }

    /// `limit rate N/second burst M packets`
    pub fn limit_with_burst(self, packets: u64, burst: u32) -> Self {
        self.expr(Expr::Limit { rate: packets, per_s: 1, burst, over: false })
    }

    /// `log prefix "..."`
    pub fn log(self, prefix: impl Into<String>) -> Self {
        self.expr(Expr::Log { prefix: prefix.into(), to: LogTo::Kernel })
    }

    /// `log prefix "..." group N [snaplen BYTES]`
    pub fn log_to(self, prefix: impl Into<String>, group: u16, snaplen: Option<u32>) -> Self {
        self.expr(Expr::Log { prefix: prefix.into(), to: LogTo::Group { number: group, snaplen } })
    }

    /// `meta mark set (meta mark & ~mask) | value`
    pub fn set_mark(self, value: u32, mask: u32) -> Self {
        let register = Register::FIRST;
        let loaded = match mask {
            u32::MAX => self.expr(Expr::Immediate { to: register, value: value.to_ne_bytes().to_vec() }),
            mask => self.expr(Expr::Meta { key: MetaKey::Mark, to: register }).expr(Expr::Bitwise {
                from: register,
                to: register,
                mask: (!mask).to_ne_bytes().to_vec(),
                xor: (value & mask).to_ne_bytes().to_vec(),
            }),
        };
        loaded.expr(Expr::SetMeta { key: MetaKey::Mark, from: register })
    }

    /// `meta nftrace set 1`
    pub fn trace(self) -> Self {
        self.expr(Expr::Immediate { to: Register::FIRST, value: vec![1] })
            .expr(Expr::SetMeta { key: MetaKey::Nftrace, from: Register::FIRST })
    }

    /// `meta priority set 0:1`
    pub fn set_priority(self, class_id: u32) -> Self {
        self.expr(Expr::Immediate { to: Register::FIRST, value: class_id.to_ne_bytes().to_vec() })
            .expr(Expr::SetMeta { key: MetaKey::Priority, from: Register::FIRST })
    }

    /// `meta priority set FIELD . FIELD map @map`; leaves the priority if the map has no value.
    pub fn set_priority_by(self, fields: &[Field], map: &Set) -> Self {
        self.look_up(fields, map).expr(Expr::SetMeta { key: MetaKey::Priority, from: Register::FIRST })
    }

    /// `ct mark set ct mark & ~mask | value`
    pub fn set_ct_mark(self, value: u32, mask: u32) -> Self {
        let register = Register::FIRST;
        self.expr(Expr::Ct { key: CtKey::Mark, to: register })
            .expr(Expr::Bitwise {
                from: register,
                to: register,
                mask: (!mask).to_ne_bytes().to_vec(),
                xor: (value & mask).to_ne_bytes().to_vec(),
            })
            .expr(Expr::SetCt { key: CtKey::Mark, from: register })
    }

    /// `masquerade`; in a nat chain at postrouting.
    pub fn masquerade(mut self, how: Masquerade) -> Self {
        let ports = how.ports.map(|ports| self.load_ports(ports));
        let mut flags = if ports.is_some() { RANGE_PROTO_SPECIFIED } else { 0 };
        if how.fully_random {
            flags |= RANGE_PROTO_RANDOM_FULLY;
        }
        self.expr(Expr::Masquerade { flags, ports })
    }

    /// `snat to ADDRESS`; in a nat chain at postrouting or input.
    pub fn snat(self, to: IpAddr) -> Self {
        self.nat(NatKind::Source, to, None)
    }

    /// `dnat to ADDRESS[:PORT]`; in a nat chain at prerouting or output. A port requires a match of
    /// the protocol before.
    pub fn dnat(self, to: IpAddr, port: Option<u16>) -> Self {
        self.nat(NatKind::Destination, to, port)
    }

    /// `redirect to :PORT`; requires a match of the protocol before.
    pub fn redirect(mut self, port: u16) -> Self {
        let ports = Some(self.load_ports(port..=port));
        self.expr(Expr::Redirect { ports, flags: RANGE_PROTO_SPECIFIED })
    }

    fn nat(mut self, kind: NatKind, to: IpAddr, port: Option<u16>) -> Self {
        let family = Family::of(to);
        self = self.family(family);
        let address = Register::FIRST;
        self = self.expr(Expr::Immediate { to: address, value: crate::set::octets(to) });
        let mut flags = RANGE_MAP_IPS;
        let ports = port.map(|port| {
            flags |= RANGE_PROTO_SPECIFIED;
            self.load_ports(port..=port)
        });
        self.expr(Expr::Nat { kind, family, address: Some(address), ports, flags })
    }

    /// Loads a range of ports into the registers after an address.
    fn load_ports(&mut self, ports: RangeInclusive<u16>) -> (Register, Register) {
        let first = Register::SECOND;
        let load = |to, port: u16| Expr::Immediate { to, value: port.to_be_bytes().to_vec() };
        self.expressions.push(load(first, *ports.start()));
        if ports.start() == ports.end() {
            return (first, first);
        }
        let last = Register(first.0 + 4);
        self.expressions.push(load(last, *ports.end()));
        (first, last)
    }
}

// === impl Masquerade ===

impl Masquerade {
    /// `fully-random`
    pub fn fully_random() -> Self {
        Self { fully_random: true, ports: None }
    }

    /// `to :FIRST-LAST`
    pub fn ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ports = Some(ports);
        self
    }
}
