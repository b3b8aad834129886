//! Sets and maps, in which rules look up fields in constant time.

mod bytes;
mod decode;
mod element;

use std::time::Duration;

use russet_addr::Family;
use russet_netlink::wire::MessageBuilder;

use crate::expr::Expr;
use crate::kernel::*;
use crate::table::Table;
use crate::userdata;

pub(crate) use decode::{decode_counted, decode_elements, decode_set};
pub use element::{Element, KeyPart, Value};
pub(crate) use element::{octets, padded_name};

/// A set, or a map if it has a value type; to be created or as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// The table that contains it.
    pub table: Table,
    /// Its name.
    pub name: String,
    /// The types of the key; several form a concatenation.
    pub key: Vec<KeyType>,
    /// The value type of a map.
    pub value: Option<ValueType>,
    /// Whether elements can be ranges and prefixes.
    pub interval: bool,
    /// Whether elements can have a timeout.
    pub timeout: bool,
    /// Whether elements are constant while a rule refers to the set.
    pub constant: bool,
    /// Whether rules can add elements.
    pub dynamic: bool,
    /// Whether each element counts the packets for which a rule has found it.
    pub counter: bool,
    /// The default timeout of elements.
    pub default_timeout: Option<Duration>,
    /// The most elements.
    pub size: Option<u32>,
    /// Shown by `nft list`.
    pub comment: Option<String>,
}

/// The type of a key, or of one part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyType {
    /// `ipv4_addr`
    Ipv4Addr,
    /// `ipv6_addr`
    Ipv6Addr,
    /// `ether_addr`
    EtherAddr,
    /// `iface_index`
    IfIndex,
    /// `ifname`
    IfName,
    /// `inet_proto`
    InetProto,
    /// `inet_service`: a port.
    InetService,
    /// `mark`
    Mark,
    /// `classid`: a priority of packets.
    ClassId,
    /// A type that Russet does not use.
    Other {
        /// nft's number.
        id: u32,
        /// Its length.
        len_bytes: u32,
    },
}

/// The type of a map's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// A verdict.
    Verdict,
    /// Data for another expression.
    Data(KeyType),
}

/// A set as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetInfo {
    /// What it is.
    pub set: Set,
    /// The kernel's handle.
    pub handle: u64,
    /// Whether it belongs to a single rule.
    pub anonymous: bool,
}

/// By how many bits nft shifts the types of a concatenation.
const TYPE_BITS: u32 = 6;
/// Why marks, classids, and indexes and names of interfaces cannot be in ranges.
pub(crate) const UNORDERED: &str =
    "ranges of marks, classids, and indexes and names of interfaces have no order";
/// The kernel's limit for the parts of a key (`NFT_REG32_COUNT`).
pub(crate) const KEY_MAX_BYTES: u32 = 64;

// === impl Set ===

impl Set {
    /// A set of single keys.
    pub fn new(table: &Table, name: impl Into<String>, key: impl Into<Vec<KeyType>>) -> Self {
        Self {
            table: table.clone(),
            name: name.into(),
            key: key.into(),
            value: None,
            interval: false,
            timeout: false,
            constant: false,
            dynamic: false,
            counter: false,
            default_timeout: None,
            size: None,
            comment: None,
        }
    }

    /// A set of prefixes of one family: `type ipv4_addr; flags interval`.
    pub fn prefixes(table: &Table, name: impl Into<String>, family: Family) -> Self {
        Self::new(table, name, [KeyType::address(family)]).interval()
    }

    /// A map from keys to values.
    pub fn map(table: &Table, name: impl Into<String>, key: impl Into<Vec<KeyType>>, value: KeyType) -> Self {
        Self { value: Some(ValueType::Data(value)), ..Self::new(table, name, key) }
    }

    /// A map from keys to verdicts.
    pub fn verdict_map(table: &Table, name: impl Into<String>, key: impl Into<Vec<KeyType>>) -> Self {
        Self { value: Some(ValueType::Verdict), ..Self::new(table, name, key) }
    }

    /// Allows ranges and prefixes as elements.
    pub fn interval(mut self) -> Self {
        self.interval = true;
        self
    }

    /// Allows timeouts of elements.
    pub fn timeout(mut self, default: Option<Duration>) -> Self {
        self.timeout = true;
        self.default_timeout = default;
        self
    }

    /// Makes the elements constant while a rule refers to the set.
    pub fn constant(mut self) -> Self {
        self.constant = true;
        self
    }

    /// Has each element count packets; [`Nft::counted`](crate::Nft::counted) reads that.
    pub fn counter(mut self) -> Self {
        self.counter = true;
        self
    }

    /// Limits the number of elements.
    pub fn size(mut self, elements: u32) -> Self {
        self.size = Some(elements);
        self
    }

    /// Sets the comment, of at most 127 bytes.
    pub fn comment(mut self, text: impl Into<String>) -> Self {
        self.comment = Some(text.into());
        self
    }

    /// Whether the key is a concatenation of several types.
    pub(crate) fn is_concatenation(&self) -> bool {
        self.key.len() > 1
    }

    /// The length of a part within a key.
    pub(crate) fn part_len(&self, key: KeyType) -> usize {
        let len = key.len_bytes() as usize;
        if self.is_concatenation() { len.next_multiple_of(4) } else { len }
    }

    /// Whether a part of the keys, a number in host order, is in network order in the kernel: nft
    /// converts it where each part of a key has a range.
    pub(crate) fn converts(&self, key: KeyType) -> bool {
        self.interval
            && self.is_concatenation()
            && matches!(key, KeyType::Mark | KeyType::ClassId | KeyType::IfIndex)
    }

    fn key_len(&self) -> u32 {
        self.key.iter().map(|key| self.part_len(*key) as u32).sum()
    }

    fn flags(&self) -> u32 {
        let mut flags = 0;
        for (on, flag) in [
            (self.interval, NFT_SET_INTERVAL),
            (self.interval && self.is_concatenation(), NFT_SET_CONCAT),
            (self.timeout, NFT_SET_TIMEOUT),
            (self.constant, NFT_SET_CONSTANT),
            (self.dynamic, NFT_SET_EVAL),
            (self.value.is_some(), NFT_SET_MAP),
        ] {
            flags |= if on { flag } else { 0 };
        }
        flags
    }

    /// Why the kernel would misinterpret the set, if it would.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let host_order = self.key.iter().any(|key| key.is_host_order());
        if self.key.is_empty() || self.key_len() > KEY_MAX_BYTES {
            return Some("a key has 1 to 64 bytes");
        }
        // In a concatenation each part has its own range, which may be a single value.
        let ordered = !host_order || self.is_concatenation();
        (self.interval && !ordered).then_some(UNORDERED)
    }

    /// Appends the attributes of `NFT_MSG_NEWSET`; `id` identifies the set within the transaction.
    pub(crate) fn encode(&self, message: &mut MessageBuilder<'_>, id: u32) {
        message
            .attr_str(NFTA_SET_TABLE, &self.table.name)
            .attr_str(NFTA_SET_NAME, &self.name)
            .attr_be32(NFTA_SET_FLAGS, self.flags())
            .attr_be32(NFTA_SET_KEY_TYPE, concatenated(&self.key))
            .attr_be32(NFTA_SET_KEY_LEN, self.key_len());
        match self.value {
            Some(ValueType::Verdict) => {
                message.attr_be32(NFTA_SET_DATA_TYPE, NFT_DATA_VERDICT);
            }
            Some(ValueType::Data(kind)) => {
                message
                    .attr_be32(NFTA_SET_DATA_TYPE, kind.id())
                    .attr_be32(NFTA_SET_DATA_LEN, kind.len_bytes());
            }
            None => {}
        }
        self.encode_description(message);
        message.attr_be32(NFTA_SET_ID, id);
        if self.counter {
            message.nested(NFTA_SET_EXPR, |expression| Expr::Counter.encode_parts(expression));
        }
        if let Some(timeout) = self.default_timeout {
            message.attr_be64(NFTA_SET_TIMEOUT, millis(timeout));
        }
        let host_order_key = !self.is_concatenation() && self.key.iter().any(|key| key.is_host_order());
        let host_order_data = matches!(self.value, Some(ValueType::Data(kind)) if kind.is_host_order());
        let data = userdata::set(host_order_key, host_order_data, self.comment.as_deref());
        if !data.is_empty() {
            message.attr(NFTA_SET_USERDATA, &data);
        }
    }

    fn encode_description(&self, message: &mut MessageBuilder<'_>) {
        let fields = self.interval && self.is_concatenation();
        if self.size.is_none() && !fields {
            return;
        }
        message.nested(NFTA_SET_DESC, |description| {
            if let Some(size) = self.size {
                description.attr_be32(NFTA_SET_DESC_SIZE, size);
            }
            if fields {
                description.nested(NFTA_SET_DESC_CONCAT, |list| {
                    for key in &self.key {
                        list.nested(NFTA_LIST_ELEM, |field| {
                            field.attr_be32(NFTA_SET_FIELD_LEN, key.len_bytes());
                        });
                    }
                });
            }
        });
    }
}

// === impl KeyType ===

impl KeyType {
    /// Addresses of one family.
    pub const fn address(family: Family) -> Self {
        match family {
            Family::V4 => Self::Ipv4Addr,
            Family::V6 => Self::Ipv6Addr,
        }
    }

    /// Its length.
    pub const fn len_bytes(self) -> u32 {
        match self {
            Self::Ipv4Addr | Self::Mark | Self::ClassId | Self::IfIndex => 4,
            Self::Ipv6Addr | Self::IfName => 16,
            Self::InetProto => 1,
            Self::InetService => 2,
            Self::EtherAddr => 6,
            Self::Other { len_bytes, .. } => len_bytes,
        }
    }

    /// nft's number of the type, by which it prints elements; the kernel only stores it.
    pub(crate) const fn id(self) -> u32 {
        match self {
            Self::Ipv4Addr => 7,
            Self::Ipv6Addr => 8,
            Self::EtherAddr => 9,
            Self::InetProto => 12,
            Self::InetService => 13,
            Self::Mark => 19,
            Self::IfIndex => 20,
            Self::ClassId => 23,
            Self::IfName => 41,
            Self::Other { id, .. } => id,
        }
    }

    /// The type with this nft number; `len_bytes` is used for unknown types.
    pub(crate) fn from_id(id: u32, len_bytes: u32) -> Self {
        let known = [
            Self::Ipv4Addr,
            Self::Ipv6Addr,
            Self::EtherAddr,
            Self::InetProto,
            Self::InetService,
            Self::Mark,
            Self::IfIndex,
            Self::ClassId,
            Self::IfName,
        ];
        known.into_iter().find(|key| key.id() == id).unwrap_or(Self::Other { id, len_bytes })
    }

    pub(crate) const fn is_host_order(self) -> bool {
        matches!(self, Self::Mark | Self::ClassId | Self::IfIndex | Self::IfName)
    }
}

fn concatenated(keys: &[KeyType]) -> u32 {
    keys.iter().fold(0, |id, key| id << TYPE_BITS | key.id())
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
