//! Rules in the style of `nft`: matches in order, then actions.
//!
//! ```
//! # use russet_addr::Family;
//! # use russet_nft::{Chain, ChainKind, Hook, Masquerade, Rule, Table, priority};
//! let table = Table::inet("russet");
//! let chain = Chain::base(&table, "postrouting", ChainKind::Nat, Hook::Postrouting, priority::SRCNAT);
//! // ip saddr @pools4 ip daddr != @pools4 masquerade fully-random
//! Rule::new(&chain)
//!     .saddr_in(Family::V4, "pools4")
//!     .daddr_not_in(Family::V4, "pools4")
//!     .masquerade(Masquerade::fully_random());
//! ```

mod action;
mod matches;

use russet_addr::Family;
use russet_netlink::wire::{Attributes, Message, MessageBuilder};

use crate::chain::Chain;
use crate::expr::{Expr, digest, extension_comment, names, packets, verdict};
use crate::kernel::*;
use crate::table::{Table, TableFamily};
use crate::userdata;
use crate::verdict::Verdict;

pub use action::Masquerade;
pub use matches::{Field, L4};

/// A rule to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub(crate) table: Table,
    pub(crate) chain: String,
    pub(crate) expressions: Vec<Expr>,
    pub(crate) comment: Option<String>,
    /// The address family that the matches so far imply.
    network: Option<Family>,
}

/// A rule as read from the kernel: enough to recognise it, but not to create it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleInfo {
    /// The table that contains it.
    pub table: Table,
    /// The chain that contains it.
    pub chain: String,
    /// The kernel's handle, by which it is replaced and deleted.
    pub handle: u64,
    /// Its comment, from `nft` or iptables.
    pub comment: Option<String>,
    /// The kernel's names of its expressions, in order; `match comment` and `target LOG` for
    /// extensions of iptables.
    pub expressions: Vec<String>,
    /// Its verdict, if it has a single one that is not from an extension.
    pub verdict: Option<Verdict>,
    /// The packet count of its counter, if it has one.
    pub packets: Option<u64>,
    /// Equal to [`Rule::digest`] of a rule with the same expressions.
    pub digest: u64,
}

// === impl Rule ===

impl Rule {
    /// An empty rule, to be added to `chain`.
    pub fn new(chain: &Chain) -> Self {
        Self::in_chain(&chain.table, chain.name.clone())
    }

    /// [`new`](Self::new) with names.
    pub fn in_chain(table: &Table, chain: impl Into<String>) -> Self {
        Self {
            table: table.clone(),
            chain: chain.into(),
            expressions: Vec::new(),
            comment: None,
            network: match table.family {
                TableFamily::Ip => Some(Family::V4),
                TableFamily::Ip6 => Some(Family::V6),
                _ => None,
            },
        }
    }

    /// Appends an expression.
    pub fn expr(mut self, expression: Expr) -> Self {
        self.expressions.push(expression);
        self
    }

    /// Sets the comment, of at most 127 bytes.
    pub fn comment(mut self, text: impl Into<String>) -> Self {
        self.comment = Some(text.into());
        self
    }

    /// The table that contains it.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The name of the chain that contains it.
    pub fn chain(&self) -> &str {
        &self.chain
    }

    /// Its expressions.
    pub fn expressions(&self) -> &[Expr] {
        &self.expressions
    }

    /// Identifies a rule by its effect, independent of handle, comment and counters; stable over
    /// releases.
    pub fn digest(&self) -> u64 {
        let mut buffer = Vec::new();
        let mut message = MessageBuilder::new(&mut buffer, 0, 0);
        self.encode_expressions(&mut message);
        message.finish();
        let list = buffer.get(russet_netlink::wire::HEADER_BYTES..).unwrap_or_default();
        digest(&Attributes::new(list))
    }

    /// Appends the attributes of `NFT_MSG_NEWRULE` except handle and position.
    pub(crate) fn encode(&self, message: &mut MessageBuilder<'_>) {
        message.attr_str(NFTA_RULE_TABLE, &self.table.name).attr_str(NFTA_RULE_CHAIN, &self.chain);
        message.nested(NFTA_RULE_EXPRESSIONS, |list| self.encode_expressions(list));
        if let Some(text) = &self.comment {
            message.attr(NFTA_RULE_USERDATA, &userdata::comment(text));
        }
    }

    fn encode_expressions(&self, list: &mut MessageBuilder<'_>) {
        for expression in &self.expressions {
            expression.encode(list);
        }
    }
}

// === impl RuleInfo ===

impl RuleInfo {
    /// Decodes `NFT_MSG_NEWRULE`.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        let family = TableFamily::from_number(*message.payload.first()?)?;
        let attributes = message.attributes(NFGENMSG_BYTES);
        let list = attributes.find(NFTA_RULE_EXPRESSIONS);
        let list = list.map_or(Attributes::new(&[]), |list| list.nested());
        let userdata = attributes.find(NFTA_RULE_USERDATA);
        Some(Self {
            table: Table::new(family, attributes.find(NFTA_RULE_TABLE)?.text()),
            chain: attributes.find(NFTA_RULE_CHAIN)?.text(),
            handle: attributes.find(NFTA_RULE_HANDLE)?.be64()?,
            comment: userdata
                .and_then(|data| userdata::comment_of(data.payload))
                .or_else(|| extension_comment(&list)),
            expressions: names(&list),
            verdict: verdict(&list),
            packets: packets(&list),
            digest: digest(&list),
        })
    }
}
