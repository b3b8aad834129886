//! Expressions: the instructions of rules. They load packet fields into registers, compare, look
//! up, and act.
//!
//! [`Rule`](crate::Rule) writes them for common matches; the variants are public for all others.

mod digest;
mod encode;

use russet_addr::Family;

use crate::verdict::Verdict;

pub(crate) use digest::{counted, digest, extension, extension_comment, names, packets, verdict};
pub(crate) use encode::nfproto;

/// A 4-byte register, 0 to 15; longer values occupy the following ones as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Register(pub u8);

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields are those of the kernel's header, and each variant says what it does"
)]
pub enum Expr {
    /// Loads a property of the packet.
    Meta { key: MetaKey, to: Register },
    /// Sets a property of the packet.
    SetMeta { key: MetaKey, from: Register },
    /// Loads bytes of a header.
    Payload { base: PayloadBase, offset: u32, len: u32, to: Register },
    /// Loads a property of the connection.
    Ct { key: CtKey, to: Register },
    /// Loads a property that the connection has for each direction, for the original direction.
    CtOriginal { key: CtKey, to: Register },
    /// Sets a property of the connection.
    SetCt { key: CtKey, from: Register },
    /// Converts 4 bytes from host order to network order.
    ToNetworkOrder { from: Register, to: Register },
    /// Looks up the packet's addresses in the routing tables.
    Fib { result: FibResult, flags: u32, to: Register },
    /// Masks and flips bits: `to = from & mask ^ xor`.
    Bitwise { from: Register, to: Register, mask: Vec<u8>, xor: Vec<u8> },
    /// Continues if the comparison with the register is true.
    Cmp { op: CmpOp, register: Register, value: Vec<u8> },
    /// Continues if the register is within the range, or with `not` outside of it.
    Range { not: bool, register: Register, first: Vec<u8>, last: Vec<u8> },
    /// Continues if the set contains the register, or with `not` if it does not.
    Lookup { set: String, key: Register, not: bool },
    /// Loads the map's value for the register; ends the rule if there is none.
    LookupMap { map: String, key: Register, to: Register },
    /// Applies the map's verdict for the register; ends the rule if there is none.
    LookupVerdict { map: String, key: Register },
    /// Loads a constant.
    Immediate { to: Register, value: Vec<u8> },
    /// Applies a verdict.
    Verdict(Verdict),
    /// Disables connection tracking for the packet; only at raw priority.
    Notrack,
    /// Replaces the source by the address of the outgoing interface.
    Masquerade { flags: u32, ports: Option<(Register, Register)> },
    /// Replaces source or destination.
    Nat {
        kind: NatKind,
        family: Family,
        address: Option<Register>,
        ports: Option<(Register, Register)>,
        flags: u32,
    },
    /// Replaces the destination by the address of the incoming interface.
    Redirect { ports: Option<(Register, Register)>, flags: u32 },
    /// Counts packets and bytes.
    Counter,
    /// Drops the packet and sends an error to the sender.
    Reject(Reject),
    /// Continues while the rate is below the limit, or with `over` above it.
    Limit { rate: u64, per_s: u64, burst: u32, over: bool },
    /// Writes to the kernel log, or to a netlink group.
    Log { prefix: String, to: LogTo },
}

/// Where a rule logs packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogTo {
    /// The kernel log.
    Kernel,
    /// A group of `nfnetlink_log`.
    Group {
        /// Its number.
        number: u16,
        /// The first bytes of the packet, or all of it.
        snaplen: Option<u32>,
    },
}

/// `NFT_META_*`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MetaKey {
    /// Ether type.
    Protocol = 1,
    /// Priority: a classid in host order.
    Priority = 2,
    /// Mark.
    Mark = 3,
    /// Index of the incoming interface.
    Iif = 4,
    /// Index of the outgoing interface.
    Oif = 5,
    /// Name of the incoming interface.
    IifName = 6,
    /// Name of the outgoing interface.
    OifName = 7,
    /// Whether the packet's way through the ruleset is reported, see [`TraceMonitor`](crate::TraceMonitor). One byte.
    Nftrace = 12,
    /// Netfilter's protocol family.
    Nfproto = 15,
    /// Transport protocol.
    L4Proto = 16,
    /// Group of the incoming interface.
    IifGroup = 21,
    /// Group of the outgoing interface.
    OifGroup = 22,
}

/// `NFT_PAYLOAD_*_HEADER`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PayloadBase {
    /// Link layer.
    Link = 0,
    /// Network layer.
    Network = 1,
    /// Transport layer.
    Transport = 2,
}

/// `NFT_CT_*`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CtKey {
    /// State bits, see [`ct_state`].
    State = 0,
    /// The direction of the packet: 0 for the original one, 1 for replies. One byte.
    Direction = 1,
    /// Status bits.
    Status = 2,
    /// The connection's mark.
    Mark = 3,
    /// The destination port of TCP, UDP and others that have ports, of one direction. Network order.
    Dport = 12,
    /// The IPv4 source, of one direction.
    Saddr4 = 19,
    /// The IPv4 destination, of one direction.
    Daddr4 = 20,
    /// The IPv6 source, of one direction.
    Saddr6 = 21,
    /// The IPv6 destination, of one direction.
    Daddr6 = 22,
}

/// The bits of a connection's state.
pub mod ct_state {
    /// Belongs to no connection and cannot start one.
    pub const INVALID: u32 = 1;
    /// Packets were seen in both directions.
    pub const ESTABLISHED: u32 = 2;
    /// A new connection related to another one.
    pub const RELATED: u32 = 4;
    /// The first packet of a connection.
    pub const NEW: u32 = 8;
    /// Not tracked.
    pub const UNTRACKED: u32 = 64;
}

/// `NFT_FIB_RESULT_*`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum FibResult {
    /// Index of the interface.
    Oif = 1,
    /// Name of the interface.
    OifName = 2,
    /// Type of the address (`RTN_*`).
    AddressType = 3,
}

/// The inputs of [`Expr::Fib`] (`NFTA_FIB_F_*`).
pub mod fib {
    /// The source.
    pub const SADDR: u32 = 1;
    /// The destination.
    pub const DADDR: u32 = 2;
    /// The packet's mark.
    pub const MARK: u32 = 4;
    /// The incoming interface.
    pub const IIF: u32 = 8;
    /// The outgoing interface.
    pub const OIF: u32 = 16;
}

/// `NFT_CMP_*`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CmpOp {
    /// Equal.
    Eq = 0,
    /// Not equal.
    Neq = 1,
    /// Less, in network order.
    Lt = 2,
    /// Less or equal.
    Lte = 3,
    /// Greater.
    Gt = 4,
    /// Greater or equal.
    Gte = 5,
}

/// The address that is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum NatKind {
    /// The source.
    Source = 0,
    /// The destination.
    Destination = 1,
}

/// The error for the sender of a rejected packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reject {
    /// A TCP reset.
    TcpReset,
    /// ICMP or ICMPv6: port unreachable.
    PortUnreachable,
    /// ICMP or ICMPv6: administratively prohibited.
    AdminProhibited,
    /// ICMP or ICMPv6: no route.
    NoRoute,
    /// ICMP or ICMPv6: host unreachable.
    HostUnreachable,
}

// === impl Register ===

impl Register {
    /// The first register, which is enough for most rules.
    pub const FIRST: Register = Register(0);
    /// The first register after an address of either family.
    pub const SECOND: Register = Register(4);
    /// The number of registers.
    pub const COUNT: u8 = 16;

    /// The kernel's number: 16-byte registers have numbers of their own.
    pub(crate) const fn number(self) -> u32 {
        const NFT_REG_1: u32 = 1;
        const NFT_REG32_00: u32 = 8;
        let slot = self.0 as u32;
        if slot.is_multiple_of(4) { NFT_REG_1 + slot / 4 } else { NFT_REG32_00 + slot }
    }
}
