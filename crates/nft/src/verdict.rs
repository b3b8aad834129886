//! Verdicts, and values in registers, both of which nf_tables calls data.

use std::fmt;

use russet_netlink::wire::{Attributes, MessageBuilder};

use crate::kernel::*;

/// The fate of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Ends this base chain; later ones still see the packet.
    Accept,
    /// Drops the packet.
    Drop,
    /// Returns to the calling chain, or applies the policy.
    Return,
    /// Continues with the next rule.
    Continue,
    /// Enters a chain, and returns from it.
    Jump(String),
    /// Enters a chain without returning.
    Goto(String),
}

// `NF_*` and `NFT_*` verdict codes
const NF_DROP: i32 = 0;
const NF_ACCEPT: i32 = 1;
const NFT_CONTINUE: i32 = -1;
const NFT_JUMP: i32 = -3;
const NFT_GOTO: i32 = -4;
const NFT_RETURN: i32 = -5;

// === impl Verdict ===

impl Verdict {
    /// Jumps into `chain`.
    pub fn jump(chain: impl Into<String>) -> Self {
        Self::Jump(chain.into())
    }

    /// Goes to `chain`.
    pub fn goto(chain: impl Into<String>) -> Self {
        Self::Goto(chain.into())
    }

    /// The target chain of the verdict.
    pub fn chain(&self) -> Option<&str> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    const fn code(&self) -> i32 {
        match self {
            Self::Accept => NF_ACCEPT,
            Self::Drop => NF_DROP,
            Self::Return => NFT_RETURN,
            Self::Continue => NFT_CONTINUE,
            Self::Jump(_) => NFT_JUMP,
            Self::Goto(_) => NFT_GOTO,
        }
    }

    /// Appends it as data attribute `kind`.
    pub(crate) fn encode(&self, message: &mut MessageBuilder<'_>, kind: u16) {
        message.nested(kind, |data| {
            data.nested(NFTA_DATA_VERDICT, |verdict| {
                verdict.attr_be32(NFTA_VERDICT_CODE, self.code().cast_unsigned());
                if let Some(chain) = self.chain() {
                    verdict.attr_str(NFTA_VERDICT_CHAIN, chain);
                }
            });
        });
    }

    /// Decodes the contents of a data attribute; `None` for unknown verdicts.
    pub(crate) fn decode(data: &Attributes<'_>) -> Option<Self> {
        Self::decode_parts(&data.find(NFTA_DATA_VERDICT)?.nested())
    }

    /// Decodes code and chain; `None` for unknown verdicts.
    pub(crate) fn decode_parts(verdict: &Attributes<'_>) -> Option<Self> {
        let chain = || Some(verdict.find(NFTA_VERDICT_CHAIN)?.text());
        Some(match verdict.find(NFTA_VERDICT_CODE)?.be32()?.cast_signed() {
            NF_ACCEPT => Self::Accept,
            NF_DROP => Self::Drop,
            NFT_RETURN => Self::Return,
            NFT_CONTINUE => Self::Continue,
            NFT_JUMP => Self::Jump(chain()?),
            NFT_GOTO => Self::Goto(chain()?),
            _ => return None,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Return => f.write_str("return"),
            Self::Continue => f.write_str("continue"),
            Self::Jump(chain) => write!(f, "jump {}", chain.escape_debug()),
            Self::Goto(chain) => write!(f, "goto {}", chain.escape_debug()),
        }
    }
}

/// Appends plain bytes as data attribute `kind`.
pub(crate) fn encode_value(message: &mut MessageBuilder<'_>, kind: u16, value: &[u8]) {
    message.nested(kind, |data| {
        data.attr(NFTA_DATA_VALUE, value);
    });
}
