//! Encodes expressions with the attributes in the kernel's order, so that our digests equal those
//! of listed rules.

use russet_addr::Family;
use russet_netlink::wire::MessageBuilder;

use super::{Expr, LogTo, Register, Reject};
use crate::kernel::*;
use crate::verdict::encode_value;

/// The register of verdicts.
const NFT_REG_VERDICT: u32 = 0;
/// `NFT_LOOKUP_F_INV` and `NFT_LIMIT_F_INV`
const INVERTED: u32 = 1;
/// The default log level of kernel and nft.
const LOG_WARNING: u32 = 4;

// === impl Expr ===

impl Expr {
    /// Appends the expression as a member of a list.
    pub(crate) fn encode(&self, message: &mut MessageBuilder<'_>) {
        message.nested(NFTA_LIST_ELEM, |element| self.encode_parts(element));
    }

    /// Appends its name and its data.
    pub(crate) fn encode_parts(&self, message: &mut MessageBuilder<'_>) {
        message.attr_str(NFTA_EXPR_NAME, self.name());
        message.nested(NFTA_EXPR_DATA, |data| self.encode_data(data));
    }

    /// The kernel's name for the expression.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Meta { .. } | Self::SetMeta { .. } => "meta",
            Self::Payload { .. } => "payload",
            Self::Ct { .. } | Self::CtOriginal { .. } | Self::SetCt { .. } => "ct",
            Self::ToNetworkOrder { .. } => "byteorder",
            Self::Fib { .. } => "fib",
            Self::Bitwise { .. } => "bitwise",
            Self::Cmp { .. } => "cmp",
            Self::Range { .. } => "range",
            Self::Lookup { .. } | Self::LookupMap { .. } | Self::LookupVerdict { .. } => "lookup",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Notrack => "notrack",
            Self::Masquerade { .. } => "masq",
            Self::Nat { .. } => "nat",
            Self::Redirect { .. } => "redir",
            Self::Counter => "counter",
            Self::Reject(_) => "reject",
            Self::Limit { .. } => "limit",
            Self::Log { .. } => "log",
        }
    }

    fn encode_data(&self, data: &mut MessageBuilder<'_>) {
        match self {
            Self::Meta { key, to } => {
                data.attr_be32(NFTA_META_KEY, *key as u32).attr_be32(NFTA_META_DREG, to.number());
            }
            Self::SetMeta { key, from } => {
                data.attr_be32(NFTA_META_KEY, *key as u32).attr_be32(NFTA_META_SREG, from.number());
            }
            Self::Payload { base, offset, len, to } => {
                data.attr_be32(NFTA_PAYLOAD_DREG, to.number())
                    .attr_be32(NFTA_PAYLOAD_BASE, *base as u32)
                    .attr_be32(NFTA_PAYLOAD_OFFSET, *offset)
                    .attr_be32(NFTA_PAYLOAD_LEN, *len);
            }
            Self::Ct { .. } | Self::CtOriginal { .. } | Self::SetCt { .. } => self.encode_ct(data),
            Self::ToNetworkOrder { from, to } => {
                data.attr_be32(NFTA_BYTEORDER_SREG, from.number())
                    .attr_be32(NFTA_BYTEORDER_DREG, to.number())
                    // NFT_BYTEORDER_HTON
                    .attr_be32(NFTA_BYTEORDER_OP, 1)
                    .attr_be32(NFTA_BYTEORDER_LEN, 4)
                    .attr_be32(NFTA_BYTEORDER_SIZE, 4);
            }
            Self::Fib { result, flags, to } => {
                data.attr_be32(NFTA_FIB_DREG, to.number())
                    .attr_be32(NFTA_FIB_RESULT, *result as u32)
                    .attr_be32(NFTA_FIB_FLAGS, *flags);
            }
            Self::Bitwise { .. } | Self::Cmp { .. } | Self::Range { .. } => self.encode_comparison(data),
            Self::Lookup { set, key, not } => {
                lookup(data, set, *key, None, if *not { INVERTED } else { 0 });
            }
            Self::LookupMap { map, key, to } => lookup(data, map, *key, Some(to.number()), 0),
            Self::LookupVerdict { map, key } => lookup(data, map, *key, Some(NFT_REG_VERDICT), 0),
            Self::Immediate { to, value } => {
                data.attr_be32(NFTA_IMMEDIATE_DREG, to.number());
                encode_value(data, NFTA_IMMEDIATE_DATA, value);
            }
            Self::Verdict(verdict) => {
                data.attr_be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
                verdict.encode(data, NFTA_IMMEDIATE_DATA);
            }
            Self::Masquerade { .. } | Self::Nat { .. } | Self::Redirect { .. } => self.encode_nat(data),
            Self::Notrack => {}
            Self::Counter => {
                data.attr_be64(NFTA_COUNTER_BYTES, 0).attr_be64(NFTA_COUNTER_PACKETS, 0);
            }
            Self::Reject(reject) => reject.encode(data),
            Self::Limit { rate, per_s, burst, over } => {
                data.attr_be64(NFTA_LIMIT_RATE, *rate)
                    .attr_be64(NFTA_LIMIT_UNIT, *per_s)
                    .attr_be32(NFTA_LIMIT_BURST, *burst)
                    // NFT_LIMIT_PKTS
                    .attr_be32(NFTA_LIMIT_TYPE, 0)
                    .attr_be32(NFTA_LIMIT_FLAGS, if *over { INVERTED } else { 0 });
            }
            Self::Log { prefix, to } => {
                data.attr_str(NFTA_LOG_PREFIX, prefix);
                match to {
                    LogTo::Group { number, snaplen } => {
                        data.attr_be16(NFTA_LOG_GROUP, *number);
                        snaplen.iter().for_each(|bytes| _ = data.attr_be32(NFTA_LOG_SNAPLEN, *bytes));
                    }
                    LogTo::Kernel => _ = data.attr_be32(NFTA_LOG_LEVEL, LOG_WARNING),
                }
            }
        }
    }

    fn encode_ct(&self, data: &mut MessageBuilder<'_>) {
        match self {
            Self::Ct { key, to } => {
                data.attr_be32(NFTA_CT_DREG, to.number()).attr_be32(NFTA_CT_KEY, *key as u32);
            }
            Self::CtOriginal { key, to } => {
                // IP_CT_DIR_ORIGINAL
                data.attr_be32(NFTA_CT_DREG, to.number())
                    .attr_be32(NFTA_CT_KEY, *key as u32)
                    .attr_u8(NFTA_CT_DIRECTION, 0);
            }
            Self::SetCt { key, from } => {
                data.attr_be32(NFTA_CT_SREG, from.number()).attr_be32(NFTA_CT_KEY, *key as u32);
            }
            _ => {}
        }
    }

    fn encode_comparison(&self, data: &mut MessageBuilder<'_>) {
        match self {
            Self::Bitwise { from, to, mask, xor } => {
                data.attr_be32(NFTA_BITWISE_SREG, from.number())
                    .attr_be32(NFTA_BITWISE_DREG, to.number())
                    .attr_be32(NFTA_BITWISE_LEN, mask.len() as u32)
                    // NFT_BITWISE_MASK_XOR
                    .attr_be32(NFTA_BITWISE_OP, 0);
                encode_value(data, NFTA_BITWISE_MASK, mask);
                encode_value(data, NFTA_BITWISE_XOR, xor);
            }
            Self::Cmp { op, register, value } => {
                data.attr_be32(NFTA_CMP_SREG, register.number()).attr_be32(NFTA_CMP_OP, *op as u32);
                encode_value(data, NFTA_CMP_DATA, value);
            }
            Self::Range { not, register, first, last } => {
                data.attr_be32(NFTA_RANGE_SREG, register.number())
                    // NFT_RANGE_EQ, NFT_RANGE_NEQ
                    .attr_be32(NFTA_RANGE_OP, u32::from(*not));
                encode_value(data, NFTA_RANGE_FROM_DATA, first);
                encode_value(data, NFTA_RANGE_TO_DATA, last);
            }
            _ => {}
        }
    }

    fn encode_nat(&self, data: &mut MessageBuilder<'_>) {
        match self {
            Self::Masquerade { flags, ports } => {
                // The kernel omits the attribute if it is zero.
                if *flags != 0 {
                    data.attr_be32(NFTA_MASQ_FLAGS, *flags);
                }
                registers(data, *ports, NFTA_MASQ_REG_PROTO_MIN, NFTA_MASQ_REG_PROTO_MAX);
            }
            Self::Nat { kind, family, address, ports, flags } => {
                data.attr_be32(NFTA_NAT_TYPE, *kind as u32)
                    .attr_be32(NFTA_NAT_FAMILY, nfproto(*family).into());
                let addresses = address.map(|register| (register, register));
                registers(data, addresses, NFTA_NAT_REG_ADDR_MIN, NFTA_NAT_REG_ADDR_MAX);
                registers(data, *ports, NFTA_NAT_REG_PROTO_MIN, NFTA_NAT_REG_PROTO_MAX);
                if *flags != 0 {
                    data.attr_be32(NFTA_NAT_FLAGS, *flags);
                }
            }
            Self::Redirect { ports, flags } => {
                registers(data, *ports, NFTA_REDIR_REG_PROTO_MIN, NFTA_REDIR_REG_PROTO_MAX);
                if *flags != 0 {
                    data.attr_be32(NFTA_REDIR_FLAGS, *flags);
                }
            }
            _ => {}
        }
    }
}

// === impl Reject ===

impl Reject {
    fn encode(self, data: &mut MessageBuilder<'_>) {
        // NFT_REJECT_TCP_RST, NFT_REJECT_ICMPX_UNREACH and the codes of NFT_REJECT_ICMPX_*
        let code = match self {
            Self::TcpReset => {
                data.attr_be32(NFTA_REJECT_TYPE, 1);
                return;
            }
            Self::NoRoute => 0,
            Self::PortUnreachable => 1,
            Self::HostUnreachable => 2,
            Self::AdminProhibited => 3,
        };
        data.attr_be32(NFTA_REJECT_TYPE, 2).attr_u8(NFTA_REJECT_ICMP_CODE, code);
    }
}

/// `NFPROTO_IPV4`, `NFPROTO_IPV6`
pub(crate) const fn nfproto(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

fn lookup(data: &mut MessageBuilder<'_>, set: &str, key: Register, to: Option<u32>, flags: u32) {
    data.attr_str(NFTA_LOOKUP_SET, set).attr_be32(NFTA_LOOKUP_SREG, key.number());
    if let Some(to) = to {
        data.attr_be32(NFTA_LOOKUP_DREG, to);
    }
    data.attr_be32(NFTA_LOOKUP_FLAGS, flags);
}

fn registers(data: &mut MessageBuilder<'_>, pair: Option<(Register, Register)>, min: u16, max: u16) {
    if let Some((first, last)) = pair {
        data.attr_be32(min, first.number()).attr_be32(max, last.number());
    }
}
